"""Many short runs at once: grids of strengths and seeds."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from numbers import Integral
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from secateurs.base.copies import call_with
from secateurs.errors import ArgumentError, TrainingError
from secateurs.masks import SparsityReport, sparsity_report
from secateurs.optim.factorized.forecast import LARGEST, ROUNDING
from secateurs.optim.factorized.maths import EPS, others
from secateurs.optim.factorized.maths import product as product_of
from secateurs.optim.factorized.options import is_number
from secateurs.optim.factorized.sgd import FactorizedSGD

# What the runs of a grid share, however they are trained: numbers, batches, starts.

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]


Batches: TypeAlias = Iterable[tuple[Tensor, Tensor]]


Trained: TypeAlias = list[tuple[dict[str, Tensor], float]]
"""Of every run its weights and its last loss; the runs in the order of `product(strengths, seeds)`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    """What all runs share; `rate` and `scale` (of λ) are functions of the step number."""

    rate: Callable[[int], float]
    scale: Callable[[int], float]
    momentum: float
    depth: int
    init: str

    def at(self, step: int) -> tuple[float, float]:
        """Rate and multiplier of λ of this step; an error if one is not usable as such."""
        rate, scale = float(self.rate(step)), float(self.scale(step))
        if not (-ROUNDING <= rate <= LARGEST and -ROUNDING <= scale <= LARGEST):
            raise TrainingError(
                f"lr={rate:g}, schedule={scale:g} at step {step}: both must lie in [0, 3.4e38]."
            )
        return rate, scale


def steps_of(
    batches: Batches, settings: SweepSettings
) -> Iterator[tuple[float, float, tuple[Tensor, Tensor]]]:
    """Rate, multiplier of λ, and batch of every step; an error if there is no step at all."""
    step = -1
    for step, batch in enumerate(batches):
        yield *settings.at(step), batch
    if step < 0:
        raise ArgumentError("batches is empty: a grid takes one step per batch.")


def all_weights(model: nn.Module, trained: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a run in the order of the model, with those that are frozen."""
    return {
        name: trained.get(name, parameter.detach().clone())
        for name, parameter in model.named_parameters()
    }


def own_run(
    model: nn.Module, seed: int, settings: SweepSettings
) -> tuple[nn.Module, FactorizedSGD]:
    twin = copy.deepcopy(model)
    optimizer = FactorizedSGD(
        twin.named_parameters(),
        momentum=settings.momentum,
        depth=settings.depth,
        init=settings.init,
        generator=torch.Generator().manual_seed(seed),
    )
    return twin, optimizer


def run_separately(
    model: nn.Module,
    loss: Loss,
    batches: Batches,
    strengths: Sequence[float],
    seeds: Sequence[int],
    settings: SweepSettings,
) -> Trained:
    """Every run with its own model and `FactorizedSGD`; all runs take a step before the next batch
    is asked for.
    """
    runs = [
        (strength, *own_run(model, seed, settings)) for strength, seed in product(strengths, seeds)
    ]
    losses = [torch.zeros(())] * len(runs)
    for rate, scale, (x, y) in steps_of(batches, settings):
        for run, (strength, twin, optimizer) in enumerate(runs):
            # Set by hand in every step, as the batched way does: both must apply the
            # same numbers.
            optimizer.param_groups[0].update(lr=rate, strength=strength * scale)
            optimizer.zero_grad()
            value = loss(twin(x), y)
            losses[run] = value.detach()
            # A run that has diverged stays where it is.
            if bool(losses[run].isfinite()):
                value.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    weights = [{name: p.detach() for name, p in twin.named_parameters()} for _, twin, _ in runs]
    return [(w, float(last)) for w, last in zip(weights, losses, strict=True)]


# The runs of a grid as one model with a run dimension.


def run_batched(
    model: nn.Module,
    loss: Loss,
    batches: Batches,
    strengths: Sequence[float],
    seeds: Sequence[int],
    settings: SweepSettings,
) -> Trained:
    """One batched model: factors (D, runs, *shape), gradients of all runs by `torch.func.vmap`."""
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    factors = _stacked(model, names, seeds, len(strengths), settings)
    momenta = {name: torch.zeros_like(value) for name, value in factors.items()}
    strength = torch.tensor(
        [s for s, _ in product(strengths, seeds)],
        device=next(model.parameters()).device,
    )
    slopes = _gradients(model, loss)
    losses = torch.zeros(len(strength))
    for rate, scale, (x, y) in steps_of(batches, settings):
        decay = strength * (2 / settings.depth * scale)
        grads, losses = slopes({name: product_of(value) for name, value in factors.items()}, x, y)
        for name in names:
            _move_(
                factors[name],
                momenta[name],
                grads[name],
                rate,
                settings.momentum,
                decay,
            )
    weights = {name: product_of(value) for name, value in factors.items()}
    return [
        (all_weights(model, {n: weights[n][run] for n in names}), float(losses[run]))
        for run in range(len(strength))
    ]


def _stacked(
    model: nn.Module,
    names: Sequence[str],
    seeds: Sequence[int],
    repeats: int,
    settings: SweepSettings,
) -> dict[str, Tensor]:
    """Stacked factors (D, runs, *shape): each seed drawn as `FactorizedSGD` draws it, repeated for
    every λ.
    """
    drawn: dict[str, list[Tensor]] = {name: [] for name in names}
    for seed in seeds:
        _, optimizer = own_run(model, seed, settings)
        for name in names:
            drawn[name].append(optimizer.factors(name))
    return {name: torch.stack(values * repeats, dim=1) for name, values in drawn.items()}


def _gradients(model: nn.Module, loss: Loss) -> Callable[..., Any]:
    def one(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(call_with(model, weights, (x,)), y)

    # Each run draws its own dropout, as runs one by one would.
    return vmap(grad_and_value(one), in_dims=(0, None, None), randomness="different")


def _move_(
    factors: Tensor,
    momenta: Tensor,
    grads: Tensor,
    rate: float,
    momentum: float,
    decay: Tensor,
) -> None:
    per_run = decay.reshape(-1, *([1] * (factors.ndim - 2)))
    momenta.mul_(momentum).addcmul_(factors, per_run).add_(others(factors).mul_(grads))
    factors.sub_(momenta, alpha=rate)
    tiny = torch.finfo(factors.dtype).tiny
    for tensor in (factors, momenta):  # denormals, as everywhere
        torch.hardshrink(tensor, tiny, out=tensor)


# Many runs of one shape: the λ × seed grid, as one batched model or one run beside the other.

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
    settings = SweepSettings(
        rate=lr if callable(lr) else lambda step: lr,
        scale=schedule if schedule is not None else lambda step: 1.0,
        momentum=momentum,
        depth=depth,
        init=init,
    )
    way = (
        run_batched
        if (pays(model, len(strengths) * len(seeds)) if batched is None else batched)
        else run_separately
    )
    trained = way(model, loss, batches, strengths, seeds, settings)
    runs = zip(product(strengths, seeds), trained, strict=True)
    # Frozen parameters are left as they are: the threshold is for what was factorized.
    moved = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
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
        f"strength {s!r} is not a finite number of at least 0"
        for s in strengths
        if not _from_zero(s)
    ]
    problems += [
        f"seed {s!r} is not a whole number"
        for s in seeds
        if not isinstance(s, Integral) or isinstance(s, bool)
    ]
    if not callable(lr) and not _from_zero(lr):
        problems.append(
            f"lr={lr!r} is neither a finite number of at least 0 nor a function of the step number"
        )
    if schedule is not None and not callable(schedule):
        problems.append(
            f"schedule={schedule!r} is not a function of the step number (a grid does not know its"
            " length)"
        )
    if not _from_zero(threshold):
        problems.append(f"threshold={threshold!r} is not a finite number of at least 0")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        problems.append("the model has no trainable parameter")
    if problems:
        raise ArgumentError(f"{len(problems)} problem(s) with the grid: {'; '.join(problems)}.")
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
    return is_number(value) and value >= 0  # type: ignore[operator]


def _finish(
    strength: float,
    seed: int,
    weights: dict[str, Tensor],
    loss: float,
    threshold: float,
    moved: set[str],
) -> GridRun:
    weights = {
        name: torch.where(w.abs() < threshold, torch.zeros_like(w), w) if name in moved else w
        for name, w in weights.items()
    }
    return GridRun(
        strength=strength,
        seed=seed,
        weights=weights,
        report=sparsity_report(weights),
        loss=loss,
    )
