"""What a training puts back: learning rates, and the states of generators."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

from secateurs.train.moment import Standing


def rates_of(optimizer: Optimizer) -> tuple[float, ...]:
    return tuple(float(group["lr"]) for group in optimizer.param_groups)


@contextmanager
def kept_rates(optimizer: Optimizer, standing: Standing | None) -> Iterator[None]:
    rates = (
        [group["lr"] for group in optimizer.param_groups]
        if standing is None
        else list(standing.rates)
    )
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def state_of(generator: torch.Generator | None) -> Tensor:
    return torch.get_rng_state() if generator is None else generator.get_state()


def put_(generator: torch.Generator | None, state: Tensor) -> None:
    (generator or torch.default_generator).set_state(state)
