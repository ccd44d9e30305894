"""The start of a factorized optimizer: factors drawn for every parameter, then the weights written."""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from secateurs.optim.init import Start, factorize, spreads
from secateurs.optim.layouts import State

if TYPE_CHECKING:
    from secateurs.optim.base import FactorizedOptimizer, Group

_log = logging.getLogger("secateurs.optim")


@torch.no_grad()
def start_(optimizer: "FactorizedOptimizer", groups: "list[Group]", generator: torch.Generator | None) -> None:
    """Draw all factors first, then write all weights: an error in the last parameter leaves the first untouched."""
    names = optimizer.names()
    drawn = [
        (group, p, _draw(group, p, sigma, names[p], generator))
        for group in groups
        for p, sigma in zip(group["params"], spreads(group["params"]), strict=True)
        if p.requires_grad
    ]
    for group, parameter, factors in drawn:
        _put_(optimizer, group, parameter, factors)
    _broadcast_(optimizer)


def adopt_(optimizer: "FactorizedOptimizer", group: "Group", parameter: nn.Parameter) -> None:
    """Balanced factors of the weight as it is; zeros stay zero, momenta are cleared."""
    start = Start(weight=parameter, depth=_whole(group["depth"]), sigma=1.0, zeros="frozen")
    _put_(optimizer, group, parameter, factorize("pretrained", start).factors)


def _draw(group: "Group", parameter: Tensor, sigma: float, name: str, generator: torch.Generator | None) -> Tensor:
    if group["depth"] is None:
        return parameter.detach()[None]
    scale = parameter.ndim < 2 and group["init"] != "pretrained" and bool((parameter == 1).all())
    start = Start(
        weight=parameter,
        depth=_whole(group["depth"]),
        sigma=group["sigma"] or sigma,
        name=repr(name),
        zeros=group["zeros"],
        match_variance=group["match_variance"],
        generator=generator,
    )
    # The scale of a norm starts at 1; drawn like a weight it would mute the layer.
    started = factorize("root" if scale else group["init"], start)
    if started.note:
        _log.info(started.note)
    return started.factors


def _put_(optimizer: "FactorizedOptimizer", group: "Group", parameter: nn.Parameter, factors: Tensor) -> None:
    layout = optimizer.layout(group, parameter)
    state = layout.start(factors, bool(group.get("momentum", 0.0)))
    optimizer.state[parameter] = state
    if group["depth"] is not None:
        parameter.copy_(layout.weight(state))
    optimizer.versions[id(parameter)] = parameter._version


def _broadcast_(optimizer: "FactorizedOptimizer") -> None:
    """Under DDP all ranks start from the factors of rank 0; one all-reduce of gradients then keeps them equal."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return
    for parameter, state in optimizer.state.items():
        for tensor in (*_tensors(state), parameter.data):
            distributed.broadcast(tensor, 0)


def _tensors(state: State) -> Iterator[Tensor]:
    return (value for value in state.values() if isinstance(value, Tensor))


def _whole(depth: float) -> int:
    """Lean states may have a fractional depth; their start is drawn with the next whole one."""
    return max(2, -int(-depth // 1))
