"""What held-out inputs say about a changed network, for any `nn.Module` whatever: no structure is
read.

Three statements, each with the level at which it holds. None of them is a worst case.
"""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from secateurs.errors import ArgumentError
from secateurs.paths.certificates.samples.levels import (
    clopper_pearson,
    confident_level,
    conformal_level,
)
from secateurs.paths.certificates.samples.observed import observe
from secateurs.paths.certificates.samples.result import (
    StatisticalCertificate,
    assumptions_at,
)


def statistical(
    dense: nn.Module,
    sparse: nn.Module,
    *,
    data: Any,
    alpha: float = 0.05,
    beta: float = 0.05,
    norm: float = math.inf,
    output: Callable[[Any], Tensor] | None = None,
) -> StatisticalCertificate:
    """Bound how often, and by how much, `sparse` departs from `dense` on fresh inputs of the same
    source.

    (a) Clopper–Pearson: P(prediction changes) ≤ `change_bound` with confidence 1 − α; (b) split
    conformal: P(‖f(x) − g(x)‖ > `deviation_level`) ≤ β for one fresh exchangeable x, where the
    level is the ⌈(n+1)(1−β)⌉-th smallest deviation seen (infinite when n is too small for β), a
    statement on average over samples; `confident_level` is the same with confidence 1 − α; (c) the
    largest deviation seen.

    Args:
        dense, sparse: any two modules that take the same inputs.
        data: a tensor of inputs, or an iterable of batches: tensors, (inputs, labels), or mappings
            of keywords.
        alpha, beta: the levels, each in (0, 1).
        norm: 1, 2 or inf, over all outputs of one input.
        output: picks the tensor to compare from what a module returns; default: the tensor itself,
            `.logits`, the entry "logits" or "out", or the first tensor.

    Assumes: the inputs were drawn like the fresh one and played no part in choosing `sparse`.

    >>> import torch
    >>> layer = nn.Linear(3, 2)
    >>> data = torch.randn(99, 3, generator=torch.Generator().manual_seed(0))
    >>> result = statistical(layer, layer, data=data)
    >>> result.changed, round(result.change_bound, 4), result.deviation_level
    (0, 0.0298, 0.0)
    """
    _check_levels(alpha, beta, norm)
    seen = observe(dense, sparse, data, norm, output)
    n, changed = len(seen.sizes), int(seen.changed.sum())
    ordered = seen.sizes.sort().values
    return StatisticalCertificate(
        samples=n,
        changed=changed,
        change_bound=clopper_pearson(changed, n, alpha=alpha),
        alpha=alpha,
        deviation_level=conformal_level(ordered, beta=beta),
        confident_level=confident_level(ordered, alpha=alpha, beta=beta),
        beta=beta,
        largest=float(ordered[-1]),
        median=float(ordered[(n - 1) // 2]),
        norm=norm,
        assumptions=assumptions_at(alpha, beta),
    )


def _check_levels(alpha: float, beta: float, norm: float) -> None:
    wrong = [
        f"{name}={value!r}"
        for name, value in (("alpha", alpha), ("beta", beta))
        if not 0 < value < 1
    ]
    if wrong:
        raise ArgumentError(
            f"{', '.join(wrong)}: a level lies strictly between 0 and 1, for example 0.05."
        )
    if norm not in (1, 2, math.inf):
        raise ArgumentError(f"norm={norm!r} is not offered; choose 1, 2 or inf.")
