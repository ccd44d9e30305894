"""The runs of a grid as one model with a run dimension."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from secateurs.optim.factorized.factors.maths import others
from secateurs.optim.factorized.factors.maths import product as product_of
from secateurs.optim.sweep.runs import (
    Batches,
    Loss,
    Settings,
    Trained,
    all_weights,
    own_run,
    steps_of,
)
from secateurs.stateless import call_with


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
    for rate, scale, (x, y) in steps_of(batches, settings):
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
        (all_weights(model, {n: weights[n][run] for n in names}), float(losses[run]))
        for run in range(len(strength))
    ]


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
        _, optimizer = own_run(model, seed, settings)
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
