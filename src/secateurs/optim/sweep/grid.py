"""Many runs of one shape: the λ × seed grid, as one batched model or one run beside the other."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from numbers import Integral

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError
from secateurs.masks import SparsityReport, sparsity
from secateurs.optim.factorized.arguments import number
from secateurs.optim.factorized.factors.maths import EPS
from secateurs.optim.sweep.apart import apart
from secateurs.optim.sweep.runs import Settings
from secateurs.optim.sweep.together import together

FEW, LIGHT = 6, 20_000
"""A CPU is faster one by one with fewer runs, or more weights (measured:
benchmarks/results/factorized_grid.md).
"""

FEW_THERE = 3
"""A GPU with fewer runs, whatever the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRun:
    """One run of the grid: its λ and seed, the collapsed weights, their sparsity, and the loss of
    the last step.
    """

    strength: float
    seed: int
    weights: dict[str, Tensor]
    report: SparsityReport
    loss: float


def grid(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    strengths: Sequence[float],
    seeds: Sequence[int],
    lr: float | Callable[[int], float],
    momentum: float = 0.9,
    depth: int = 3,
    init: str = "dwf",
    schedule: Callable[[int], float] | None = None,
    threshold: float = EPS,
    batched: bool | None = None,
) -> list[GridRun]:
    """Train every combination of λ and seed on the same batches; as one model with a run dimension
    where that pays.

    Each run is `FactorizedSGD(lr, momentum, depth, strength, init, generator=seed)` on the same
    order of data: the seeds differ in their start only. Batched, linear layers become batched
    matrix products, so that small nets fill a GPU, and many tiny ones share the cost of a Python
    loop; otherwise a CPU is faster one by one (`python benchmarks/factorized_grid.py` measures both
    on the machine at hand).

    Args:
        model: shape and device; it is not changed. No batch norm with running statistics (its
            buffers differ by run).
        loss: mean loss of `(outputs, labels)`.
        batches: one step per batch, in this order, for all runs.
        lr, schedule: a constant, or functions of the step number; the schedule multiplies every λ.
        threshold: weights below this magnitude are set to zero at the end.
        batched: None chooses by device and size (`pays`), never by the clock: a grid can be
            repeated bit for bit.

    Frozen parameters stay as they are. A run that diverges has a loss that is not finite; the
    others go on.
    """
    _check(model, strengths, seeds, lr, schedule, threshold)
    settings = Settings(
        rate=lr if callable(lr) else lambda step: lr,
        scale=schedule if schedule is not None else lambda step: 1.0,
        momentum=momentum,
        depth=depth,
        init=init,
    )
    way = (
        together
        if (pays(model, len(strengths) * len(seeds)) if batched is None else batched)
        else apart
    )
    trained = way(model, loss, batches, strengths, seeds, settings)
    runs = zip(product(strengths, seeds), trained, strict=True)
    # Frozen parameters are left as they are: the threshold is for what was factorized.
    moved = {
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    return [
        _finish(strength, seed, weights, last, threshold, moved)
        for (strength, seed), (weights, last) in runs
    ]


def pays(model: nn.Module, runs: int) -> bool:
    """Whether one batched model is the faster way: for some runs on an accelerator, and for many of
    a tiny net on a CPU.

    A batched step of any net costs a CPU about a millisecond of bookkeeping, an ordinary one a
    quarter of that; on a GPU, which waits for both, it costs twice as much as an ordinary one.

    >>> pays(nn.Linear(10, 10), 16), pays(nn.Linear(10, 10), 1), pays(nn.Linear(784, 300), 16)
    (True, False, False)
    """
    parameters = list(model.parameters())
    light = sum(p.numel() for p in parameters) < LIGHT
    if parameters[0].device.type != "cpu":
        return runs >= FEW_THERE
    return runs >= FEW and light


def _check(
    model: nn.Module,
    strengths: Sequence[float],
    seeds: Sequence[int],
    lr: object,
    schedule: object,
    threshold: object,
) -> None:
    if not len(strengths) or not len(seeds):
        raise ArgumentError("a grid needs at least one strength and one seed.")
    problems = [
        f"strength {s!r} is not a finite number from 0 up"
        for s in strengths
        if not _from_zero(s)
    ]
    problems += [
        f"seed {s!r} is no whole number"
        for s in seeds
        if not isinstance(s, Integral) or isinstance(s, bool)
    ]
    if not callable(lr) and not _from_zero(lr):
        problems.append(
            f"lr={lr!r} is neither a finite number from 0 up nor a function of the step number"
        )
    if schedule is not None and not callable(schedule):
        problems.append(
            f"schedule={schedule!r} is no function of the step number (a grid does not know its"
            " length)"
        )
    if not _from_zero(threshold):
        problems.append(f"threshold={threshold!r} is not a finite number from 0 up")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        problems.append("the model has no parameter that is trained")
    if problems:
        raise ArgumentError(
            f"{len(problems)} problem(s) with the grid: {'; '.join(problems)}."
        )
    stateful = [
        name
        for name, module in model.named_modules()
        if getattr(module, "running_mean", None) is not None
    ]
    if stateful:
        raise ArgumentError(
            f"running statistics of {', '.join(stateful)} would be shared by all runs: use another"
            " norm, or train the runs one by one."
        )


def _from_zero(value: object) -> bool:
    return number(value) and value >= 0  # type: ignore[operator]


def _finish(
    strength: float,
    seed: int,
    weights: dict[str, Tensor],
    loss: float,
    threshold: float,
    moved: set[str],
) -> GridRun:
    weights = {
        name: torch.where(w.abs() < threshold, torch.zeros_like(w), w)
        if name in moved
        else w
        for name, w in weights.items()
    }
    return GridRun(
        strength=strength,
        seed=seed,
        weights=weights,
        report=sparsity(weights),
        loss=loss,
    )
