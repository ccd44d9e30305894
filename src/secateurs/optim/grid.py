"""Many runs of one shape at once: the λ × seed grid as one batched model."""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from secateurs.errors import ArgumentError
from secateurs.masks import SparsityReport, sparsity
from secateurs.optim.factorized import FactorizedSGD
from secateurs.optim.factors import EPS, others
from secateurs.optim.factors import product as product_of
from secateurs.optim.schedules import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRun:
    """One run of the grid: its λ and seed, the collapsed weights, their sparsity, and the loss of the last step."""

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
    schedule: Callable[[int], float] | Schedule | None = None,
    threshold: float = EPS,
) -> list[GridRun]:
    """Train every combination of λ and seed at the same time, on the same batches, as one model with a run dimension.

    Each run is `FactorizedSGD(lr, momentum, depth, strength, init, generator=seed)` on the same order of data: the
    seeds differ in their start only. Linear layers become batched matrix products, so small nets fill a GPU; on a
    CPU a matrix product is as fast alone, and one after the other is usually no slower
    (`python benchmarks/factorized_grid.py` measures both on the machine at hand).

    Args:
        model: shape and device; it is not changed. No batch norm with running statistics (its buffers differ by run).
        loss: mean loss of `(outputs, labels)`.
        batches: one step per batch, in this order, for all runs.
        lr, schedule: a constant, or functions of the step number; the schedule multiplies every λ.
    """
    _check(model, strengths, seeds)
    runs = list(product(strengths, seeds))
    names = [name for name, _ in model.named_parameters()]
    factors = _start(model, names, seeds, len(strengths), depth, init)
    momenta = {name: torch.zeros_like(value) for name, value in factors.items()}
    strength = torch.tensor([s for s, _ in runs], device=next(model.parameters()).device)
    slopes = _gradients(model, loss)
    losses = torch.zeros(len(runs))
    for step, (x, y) in enumerate(batches):
        rate = lr(step) if callable(lr) else lr
        decay = strength * (2 / depth * (schedule(step) if schedule is not None else 1.0))
        grads, losses = slopes({name: product_of(value) for name, value in factors.items()}, x, y)
        for name in names:
            _move_(factors[name], momenta[name], grads[name], rate, momentum, decay)
    return [_finish(factors, names, run, runs, losses, threshold) for run in range(len(runs))]


def _check(model: nn.Module, strengths: Sequence[float], seeds: Sequence[int]) -> None:
    if not strengths or not seeds:
        raise ArgumentError("a grid needs at least one strength and one seed.")
    stateful = [name for name, module in model.named_modules() if getattr(module, "running_mean", None) is not None]
    if stateful:
        raise ArgumentError(
            f"running statistics of {', '.join(stateful)} would be shared by all runs: use another norm, or train "
            "the runs one by one."
        )


def _start(
    model: nn.Module, names: Sequence[str], seeds: Sequence[int], repeats: int, depth: int, init: str
) -> dict[str, Tensor]:
    """Stacked factors (D, runs, *shape): each seed drawn as `FactorizedSGD` draws it, repeated for every λ."""
    drawn: dict[str, list[Tensor]] = {name: [] for name in names}
    for seed in seeds:
        twin = copy.deepcopy(model)
        generator = torch.Generator().manual_seed(seed)
        optimizer = FactorizedSGD(twin.named_parameters(), depth=depth, init=init, generator=generator)
        for name in names:
            drawn[name].append(optimizer.factors(name))
    return {name: torch.stack(values * repeats, dim=1) for name, values in drawn.items()}


def _gradients(model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    def one(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(model, weights, (x,)), y)

    return vmap(grad_and_value(one), in_dims=(0, None, None), randomness="different")


def _move_(factors: Tensor, momenta: Tensor, grads: Tensor, rate: float, momentum: float, decay: Tensor) -> None:
    per_run = decay.reshape(-1, *([1] * (factors.ndim - 2)))
    momenta.mul_(momentum).addcmul_(factors, per_run).add_(others(factors).mul_(grads))
    factors.sub_(momenta, alpha=rate)
    tiny = torch.finfo(factors.dtype).tiny
    for tensor in (factors, momenta):  # denormals, as everywhere
        torch.hardshrink(tensor, tiny, out=tensor)


def _finish(
    factors: dict[str, Tensor], names: Sequence[str], run: int, runs: Sequence[tuple[float, int]],
    losses: Tensor, threshold: float,
) -> GridRun:  # fmt: skip
    weights = {name: product_of(factors[name][:, run]) for name in names}
    weights = {name: torch.where(w.abs() < threshold, torch.zeros_like(w), w) for name, w in weights.items()}
    strength, seed = runs[run]
    return GridRun(strength=strength, seed=seed, weights=weights, report=sparsity(weights), loss=float(losses[run]))
