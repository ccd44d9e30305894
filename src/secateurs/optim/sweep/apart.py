"""The runs of a grid one beside the other, each with its own model and optimizer."""

from collections.abc import Sequence
from itertools import product

import torch
from torch import nn

from secateurs.optim.sweep.runs import (
    Batches,
    Loss,
    Settings,
    Trained,
    own_run,
    steps_of,
)


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
        (strength, *own_run(model, seed, settings))
        for strength, seed in product(strengths, seeds)
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
    weights = [
        {name: p.detach() for name, p in twin.named_parameters()}
        for _, twin, _ in runs
    ]
    return [(w, float(last)) for w, last in zip(weights, losses, strict=True)]
