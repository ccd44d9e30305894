"""What is measured of a finished network: figures, layers, certificates."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.data import Dataset
from secateurs.errors import ArgumentError, SecateursError
from secateurs.masks import sparsity
from secateurs.parameters import prunable
from secateurs.paths import certify
from secateurs.study.keeping.parts import HISTOGRAM_EDGES, Certified, LayerKept
from secateurs.study.settings.parts import Certify
from secateurs.train import evaluate

ZERO = 1.1920929e-07
"""|w| below it counts as zero while a network trains (the epsilon of float32, as in the
factorization paper).
"""


@torch.no_grad()
def share_of_zeros(model: nn.Module) -> float:
    """The share of prunable weights below `ZERO`."""
    weights = list(prunable(model).values())
    small = torch.stack([(weight.abs() < ZERO).sum() for weight in weights])
    return float(small.sum()) / sum(weight.numel() for weight in weights)


def accuracy(model: nn.Module, data: Dataset) -> float:
    """The share of test examples whose class is found."""
    return evaluate(model, data).accuracy


def figures(
    model: nn.Module,
    data: Dataset,
    test: tuple[float, float],
    *,
    own: Mapping[str, Any],
) -> dict[str, float]:
    """Accuracy and loss as tested, and remaining weights; own metrics as "own.NAME"."""
    weights = list(prunable(model).values())
    kept, total = (
        sum(int(w.count_nonzero()) for w in weights),
        sum(w.numel() for w in weights),
    )
    every = list(model.parameters())
    found = {
        "accuracy": test[0],
        "loss": test[1],
        "kept": kept,
        "total": total,
        "sparsity": 1 - kept / total,
        # A network of zeros needs a number as well: JSON has no infinity.
        "compression": total / max(1, kept),
        "kept_all": sum(int(p.count_nonzero()) for p in every),
        "total_all": sum(p.numel() for p in every),
    }
    return {
        **found,
        **{
            f"own.{name}": _own(name, metric, model, data)
            for name, metric in own.items()
        },
    }


def _own(name: str, metric: Any, model: nn.Module, data: Dataset) -> float:
    """A number of the user's; whatever goes wrong in it is told by the metric's name."""
    try:
        return float(metric(model, data))
    except Exception as error:
        raise ArgumentError(
            f"the metric {name!r} failed: {type(error).__name__}: {error}"
        ) from error


@torch.no_grad()
def layers(model: nn.Module, example: Tensor) -> tuple[LayerKept, ...]:
    """What is left of each prunable parameter."""
    verdicts = {t.name: t.verdict for t in sparsity(model, example=example).tensors}
    return tuple(
        _layer(name, weight, verdicts.get(name, ""))
        for name, weight in prunable(model).items()
    )


def _layer(name: str, weight: Tensor, verdict: str) -> LayerKept:
    left = weight[weight != 0].detach().float().cpu()
    low, high = HISTOGRAM_EDGES[0], HISTOGRAM_EDGES[-1]
    # Clamped, because histc leaves out what lies beyond its ends.
    logs = left.abs().log10().clamp(low, high)
    counts = torch.histc(logs, len(HISTOGRAM_EDGES) - 1, low, high)
    return LayerKept(
        name=name,
        shape=tuple(weight.shape),
        total=weight.numel(),
        kept=len(left),
        norm=float(left.double().norm()),
        histogram=tuple(int(count) for count in counts),
        verdict=verdict,
    )


@torch.no_grad()
def constant(model: nn.Module, data: Dataset, *, images: int = 256) -> bool:
    """Whether the network gives one answer to all of some test images, bit for bit."""
    outputs = model.eval()(data.test_x[:images])
    # A single image always has a single answer.
    return len(outputs) > 1 and bool((outputs == outputs[:1]).all())


def certificates(
    dense: nn.Module, sparse: nn.Module, data: Dataset, how: Certify
) -> tuple[tuple[Certified, ...], list[str]]:
    """What is proven, and what holds statistically; where a certificate cannot be had, the
    reason.
    """
    found, notes = [], []
    for prove in (_proven, _statistical):
        try:
            found.append(prove(dense.eval(), sparse.eval(), data, how))
        except SecateursError as error:
            notes.append(f"no {prove.__name__.strip('_')} certificate: {error}")
    return tuple(found), notes


def _proven(
    dense: nn.Module, sparse: nn.Module, data: Dataset, how: Certify
) -> Certified:
    some = data.test_x[: how.images]
    result = certify(
        # Linear relaxations and one search are quick enough for every run of a study.
        dense,
        sparse,
        around=some,
        radius=how.radius,
        methods="linear",
        restarts=1,
    )
    return Certified(
        kind="proven",
        domain=result.domain,
        bound=result.bound,
        lower_bound=result.lower_bound,
        certified_share=result.certified_share(some),
        method=result.method,
        text=str(result),
    )


def _statistical(
    dense: nn.Module, sparse: nn.Module, data: Dataset, how: Certify
) -> Certified:
    result = certify(dense, sparse, data=data.test_x[:2000])
    return Certified(
        kind="statistical",
        domain=result.domain,
        bound=result.bound,
        lower_bound=result.lower_bound,
        method=result.method,
        text=str(result.statistical),
    )
