"""The two ways to train the runs of a grid: one model with a run dimension, and one optimizer
beside the other.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from secateurs.errors import ArgumentError, TrainingError
from secateurs.optim.factorized.factors.maths import others
from secateurs.optim.factorized.factors.maths import product as product_of
from secateurs.optim.factorized.sgd import FactorizedSGD
from secateurs.optim.factorized.strength.rates import LARGEST, ROUNDING
from secateurs.stateless import call_with

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Batches: TypeAlias = Iterable[tuple[Tensor, Tensor]]
Trained: TypeAlias = list[tuple[dict[str, Tensor], float]]
"""Of every run its weights and its last loss; the runs in the order of `product(strengths, seeds)`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all runs share; `rate` and `scale` (of λ) are functions of the step number."""

    rate: Callable[[int], float]
    scale: Callable[[int], float]
    momentum: float
    depth: int
    init: str

    def at(self, step: int) -> tuple[float, float]:
        """Rate and multiplier of λ of this step; an error if one is no number a step can be taken
        with.
        """
        rate, scale = float(self.rate(step)), float(self.scale(step))
        if not (-ROUNDING <= rate <= LARGEST and -ROUNDING <= scale <= LARGEST):
            raise TrainingError(
                f"lr={rate:g}, schedule={scale:g} at step {step}: both lie in [0, 3.4e38]."
            )
        return rate, scale


def together(
    model: nn.Module,
    loss: Loss,
    batches: Batches,
    strengths: Sequence[float],
    seeds: Sequence[int],
    settings: Settings,
) -> Trained:
    """One batched model: factors (D, runs, *shape), gradients of all runs by `torch.func.vmap`."""
    names = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]
    factors = _stacked(model, names, seeds, len(strengths), settings)
    momenta = {name: torch.zeros_like(value) for name, value in factors.items()}
    strength = torch.tensor(
        [s for s, _ in product(strengths, seeds)],
        device=next(model.parameters()).device,
    )
    slopes = _gradients(model, loss)
    losses = torch.zeros(len(strength))
    for rate, scale, (x, y) in _steps(batches, settings):
        decay = strength * (2 / settings.depth * scale)
        grads, losses = slopes(
            {name: product_of(value) for name, value in factors.items()}, x, y
        )
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
        (_all(model, {n: weights[n][run] for n in names}), float(losses[run]))
        for run in range(len(strength))
    ]


def apart(
    model: nn.Module,
    loss: Loss,
    batches: Batches,
    strengths: Sequence[float],
    seeds: Sequence[int],
    settings: Settings,
) -> Trained:
    """Every run with its own model and `FactorizedSGD`; all runs take a step before the next batch
    is asked for.
    """
    runs = [
        (strength, *_own(model, seed, settings))
        for strength, seed in product(strengths, seeds)
    ]
    losses = [torch.zeros(())] * len(runs)
    for rate, scale, (x, y) in _steps(batches, settings):
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
    weights = [
        {name: p.detach() for name, p in twin.named_parameters()}
        for _, twin, _ in runs
    ]
    return [(w, float(last)) for w, last in zip(weights, losses, strict=True)]


def _steps(
    batches: Batches, settings: Settings
) -> Iterator[tuple[float, float, tuple[Tensor, Tensor]]]:
    """Rate, multiplier of λ, and batch of every step; an error if there is no step at all."""
    step = -1
    for step, batch in enumerate(batches):
        yield *settings.at(step), batch
    if step < 0:
        raise ArgumentError(
            "batches holds no batch: a grid takes one step per batch."
        )


def _all(model: nn.Module, trained: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a run in the order of the model, with those that are frozen."""
    return {
        name: trained.get(name, parameter.detach().clone())
        for name, parameter in model.named_parameters()
    }


def _own(
    model: nn.Module, seed: int, settings: Settings
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


def _stacked(
    model: nn.Module,
    names: Sequence[str],
    seeds: Sequence[int],
    repeats: int,
    settings: Settings,
) -> dict[str, Tensor]:
    """Stacked factors (D, runs, *shape): each seed drawn as `FactorizedSGD` draws it, repeated for
    every λ.
    """
    drawn: dict[str, list[Tensor]] = {name: [] for name in names}
    for seed in seeds:
        _, optimizer = _own(model, seed, settings)
        for name in names:
            drawn[name].append(optimizer.factors(name))
    return {
        name: torch.stack(values * repeats, dim=1) for name, values in drawn.items()
    }


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
    momenta.mul_(momentum).addcmul_(factors, per_run).add_(
        others(factors).mul_(grads)
    )
    factors.sub_(momenta, alpha=rate)
    tiny = torch.finfo(factors.dtype).tiny
    for tensor in (factors, momenta):  # denormals, as everywhere
        torch.hardshrink(tensor, tiny, out=tensor)
