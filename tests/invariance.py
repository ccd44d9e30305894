"""Does a pruning criterion depend on how the weights happen to be scaled? Rescale at random, prune
again, compare.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from experiments.path_pruning import overlap
from secateurs.base.copies import private_copy
from secateurs.base.prunable import Where
from secateurs.errors import ScoreError
from secateurs.graph import Example, evaluate
from secateurs.masks import select
from secateurs.paths.mass import graph_of
from secateurs.proof import rescale_random_
from secateurs.scores import score as compute
from secateurs.scores.task import Rule, ScoreFields


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariance:
    """Masks before and after a rescaling that leaves the function alone.

    Attributes:
        overlap: Share of the pruned weights that both masks prune; 1 when nothing is pruned.
        identical: The masks are equal, entry by entry.
        per_parameter: The overlap within each tensor.
        by_chance: The overlap that two independent random masks of these sizes would have.
        function_gap: Largest change of the network's output by the rescaling, relative to its
            largest entry.
        channels: Hidden channels that were rescaled.
    """

    overlap: float
    identical: bool
    per_parameter: dict[str, float]
    by_chance: float
    function_gap: float
    channels: int


def check_invariance(
    model: nn.Module,
    score: str | Rule,
    example: Example,
    *,
    sparsity: float = 0.5,
    scope: str = "global",
    factors: Sequence[float] = (1, 128, 4096),
    where: Where = None,
    generator: torch.Generator | None = None,
    **options: Unpack[ScoreFields],
) -> Invariance:
    """Overlap of the masks of a score before and after random rescaling of the hidden channels of a
    copy.

    Args:
        score: a registered score or your own rule.
        example: an example input; also what a score that needs an example gets.
        sparsity, scope: how the masks are selected.
        factors: what a hidden channel may be multiplied by; see `rescale_random_`.
        where: which parameters are scored.
        options: handed to `secateurs.score` (batch, loss, convention, ...).

    The model is not changed. Reference: Path-metrics, pruning, and generalization, table 1 and
    Appendix D.
    """
    graph = graph_of(model, example)
    moved = private_copy(model, error=ScoreError)
    done = rescale_random_(moved, example, factors=factors, generator=generator)
    masks = [
        _masks(score, each, example, sparsity, scope, {"where": where, **options})
        for each in (model, moved)
    ]
    # In float64: factors that are not powers of two round, and the gap should show
    # changes of the function alone.
    outputs = [
        evaluate(graph, _inputs(example), graph.state(each)).detach() for each in (model, moved)
    ]
    scale = float(outputs[0].abs().max()) or 1.0
    return Invariance(
        overlap=overlap(*masks),
        identical=all(bool((masks[0][name] == masks[1][name]).all()) for name in masks[0]),
        per_parameter={
            name: overlap({name: masks[0][name]}, {name: masks[1][name]}) for name in masks[0]
        },
        by_chance=sum(int((~m).sum()) for m in masks[0].values())
        / max(1, sum(m.numel() for m in masks[0].values())),
        function_gap=float((outputs[0] - outputs[1]).abs().max()) / scale,
        channels=done.channels,
    )


def _masks(
    rule: str | Rule,
    model: nn.Module,
    x: Example,
    sparsity: float,
    scope: str,
    options: dict[str, Any],
) -> dict[str, Tensor]:
    example: Any = x if isinstance(x, Tensor | dict) else tuple(x)
    scores = compute(model, rule, **{"example": example, **options})
    return dict(select(scores, sparsity=sparsity, scope=scope))


def _inputs(x: Example) -> list[Tensor]:
    tensors = [x] if isinstance(x, Tensor) else list(x.values() if isinstance(x, dict) else x)
    # One example is enough to compare two functions, and a batch would be slow in
    # float64.
    return [tensor[:1].double() for tensor in tensors]
