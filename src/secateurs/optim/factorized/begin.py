"""The start of a factorized optimizer: factors for every parameter, drawn or kept.

Nothing is written here. All factors are made first, so that an error in the last parameter leaves
the first untouched; the optimizer then takes them.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from secateurs.optim.factorized.layouts import State, without_groups
from secateurs.optim.factorized.members import Group, Members, Names
from secateurs.optim.factorized.start import (
    ZERO_SCALE,
    Start,
    factorize,
    is_scale,
    spreads,
    whole_depth,
)
from secateurs.random import generator as generator_of

Zeros: TypeAlias = Literal["revive", "frozen"]

Drawn: TypeAlias = list[tuple[Group, nn.Parameter, Tensor]]
"""Parameters with their groups and the factors they begin with."""

_log = logging.getLogger("secateurs.optim")


def draw_factors(members: Members, groups: list[Group], generator: torch.Generator | None) -> Drawn:
    """Factors for the trainable parameters of these groups, as their `init` says."""
    names = members.names()
    return [
        (group, p, _draw(group, p, sigma, names[p], generator))
        for group in groups
        for p, sigma in zip(group["params"], spreads(group["params"]), strict=True)
        if p.requires_grad
    ]


def keep_weights(
    members: Members,
    pairs: Iterable[tuple[Group, nn.Parameter]],
    *,
    zeros: Zeros | None = None,
) -> Drawn:
    """Balanced factors of the weights as they are, whose function is kept.

    Zeros are treated as given; by default as the group says, see `FactorizedOptimizer.join_`.
    """
    names = members.names()
    return [
        (group, p, _keep_weight(group, p, names[p], zeros or _zeros(group, p)))
        for group, p in pairs
    ]


def _zeros(group: Group, parameter: Tensor) -> Zeros:
    """Scattered zeros are taken as pruned, a parameter of nothing but zeros as fresh."""
    chosen: Zeros | None = group["zeros"]
    return chosen or ("frozen" if bool((parameter != 0).any()) else "revive")


def _keep_weight(group: Group, parameter: Tensor, name: str, zeros: Zeros) -> Tensor:
    """Balanced factors of the weight as it is. The signs of revived zeros are the same on all
    ranks.
    """
    if group["depth"] is None:
        return parameter.detach()[None]
    # A stream of its own, by name: ranks need not have drawn equally often when a
    # parameter joins.
    signs = generator_of(0, name)
    start = Start(
        weight=parameter,
        depth=whole_depth(group["depth"]),
        sigma=1.0,
        name=repr(name),
        zeros=zeros,
        generator=signs,
    )
    return factorize("pretrained", start).factors


def _draw(
    group: Group,
    parameter: Tensor,
    sigma: float,
    name: str,
    generator: torch.Generator | None,
) -> Tensor:
    if group["depth"] is None:
        return parameter.detach()[None]
    if group["init"] != "pretrained" and is_scale(parameter, name):
        if group["zeros"] or bool((parameter != 0).any()):
            return _keep_weight(group, parameter, name, _zeros(group, parameter))
        _log.info(ZERO_SCALE, name)
    start = Start(
        weight=parameter,
        depth=whole_depth(group["depth"]),
        sigma=sigma if group["sigma"] is None else group["sigma"],
        name=repr(name),
        zeros=group["zeros"],
        match_variance=group["match_variance"],
        generator=generator,
    )
    started = factorize(group["init"], start)
    if started.note:
        _log.info(started.note)
    return started.factors


# Messages about a start, and the same factors on all ranks.


def say_joined(drawn: Drawn, names: Names) -> None:
    """Log which parameters are factorized from now on."""
    factorized = [names[p] for group, p, _ in drawn if group["depth"] is not None]
    if factorized:
        listed = ", ".join(factorized)
        _log.info("unfrozen parameters are factorized from now on, as they are: %s", listed)


def say_ungrouped(groups: Sequence[Group], names: Mapping[nn.Parameter, str]) -> None:
    """Log which parameters a grouping does not apply to."""
    grouped = [group for group in groups if group["depth"] is not None and group["groups"]]
    for kind in sorted({group["groups"] for group in grouped}):
        alone = without_groups(
            kind,
            (p for group in grouped if group["groups"] == kind for p in group["params"]),
        )
        if alone:
            _log.info(
                "grouping %r does not apply to %s: single weights there",
                kind,
                ", ".join(names[p] for p in alone),
            )


def broadcast_(members: Members) -> None:
    """Under DDP all ranks start from the factors of rank 0; one all-reduce of gradients then keeps
    them equal.
    """
    distributed = torch.distributed
    if (
        not distributed.is_available()
        or not distributed.is_initialized()
        or distributed.get_world_size() == 1
    ):
        return
    # The weights, too: DDP has made them equal before, and every rank has since written
    # the product of factors that it drew itself.
    for parameter, state in members.state.items():
        for tensor in (*_tensors(state), parameter.data):
            distributed.broadcast(tensor, 0)


def _tensors(state: State) -> Iterator[Tensor]:
    return (value for value in state.values() if isinstance(value, Tensor))
