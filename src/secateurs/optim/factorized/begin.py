"""The start of a factorized optimizer: factors for every parameter, drawn or kept.

Nothing is written here. All factors are made first, so that an error in the last parameter leaves
the first untouched; the optimizer then takes them.
"""

import hashlib
import logging
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn

from secateurs.base.bits import INTEGERS
from secateurs.base.parameters import is_sharded
from secateurs.base.random import generator as generator_of
from secateurs.base.sharding import distributed, gather, local, local_mask, one_source, whole
from secateurs.optim.factorized.layouts import State
from secateurs.optim.factorized.members import Group, Members, Names
from secateurs.optim.factorized.start import (
    ZERO_SCALE,
    Start,
    factorize,
    is_scale,
    spreads,
)

Zeros: TypeAlias = Literal["revive", "frozen"]

Drawn: TypeAlias = list[tuple[Group, nn.Parameter, Tensor]]
"""Parameters with their groups and the factors they begin with: of a sharded parameter, those of
the piece that is here."""

_log = logging.getLogger("secateurs.optim")


def draw_factors(members: Members, groups: list[Group], generator: torch.Generator | None) -> Drawn:
    """Factors for the trainable parameters of these groups, as their `init` says."""
    names = members.names()
    with one_source([p for group in groups for p in group["params"]], generator) as source:
        return [
            (group, p, _piece(_draw(group, whole(p), sigma, names[p], source), p))
            for group in groups
            for p, sigma in zip(group["params"], spreads(group["params"]), strict=True)
            if p.requires_grad
        ]


def _piece(factors: Tensor, parameter: Tensor) -> Tensor:
    """Of the factors of a whole parameter those of the piece that is here: as one process would
    draw them, at the price of one parameter at a time that is whole on every process.
    """
    return local_mask(factors, parameter)


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
        (group, p, _piece(_keep_weight(group, w, names[p], zeros or _zeros(group, w)), p))
        for group, p in pairs
        for w in [whole(p)]
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
        depth=group["depth"],
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
        depth=group["depth"],
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


def fingerprint(members: Members) -> int | None:
    """A number that says which weights this process has before its start is drawn; None where it
    trains alone, or draws nothing.
    """
    drawn = (g for g in members.groups if g["depth"] is not None)
    if not distributed() or not any(
        g["init"] != "pretrained" or g["zeros"] == "revive" for g in drawn
    ):
        return None
    digest = hashlib.blake2b(digest_size=7)
    for parameter in _same_everywhere(members):
        # Sums of integers: exact, so equal weights have the same on every machine.
        bits = parameter.detach().contiguous().view(INTEGERS[parameter.element_size()]).long()
        own = [parameter.shape, parameter.dtype, int(bits.sum()), int((bits * bits).sum())]
        digest.update(str(own).encode())
    return int.from_bytes(digest.digest(), "little")


def broadcast_(members: Members, before: int | None) -> None:
    """Processes that had the same weights (under DDP) start from the factors of the first of them;
    one all-reduce of gradients then keeps them equal. Others (stages of a pipeline, shards) keep
    their own.
    """
    if before is None:
        return
    first = local(next(iter(members.every()))[1])
    with_same: dict[int, list[int]] = {}
    for rank, (theirs,) in enumerate(gather(torch.tensor([before]), first.device)):
        with_same.setdefault(theirs, []).append(rank)
    if len(with_same) > 1:
        _log.info("processes hold different weights: each kind has a start of its own")
    for weights, ranks in with_same.items():
        # Every process takes part in making a group, whether it is in it or not.
        group = dist.new_group(ranks) if 1 < len(ranks) < dist.get_world_size() else None
        if weights != before or len(ranks) == 1:
            continue
        # The weights, too: every rank has written the product of factors that it drew itself.
        for parameter in _same_everywhere(members):
            state = members.state.get(parameter, {})
            for tensor in (*_tensors(state), parameter.data):
                dist.broadcast(tensor, ranks[0], group=group)


def _same_everywhere(members: Members) -> Iterator[nn.Parameter]:
    """Parameters that each process has a copy of: the pieces of others begin alike in any case."""
    return (parameter for _, parameter in members.every() if not is_sharded(parameter))


def _tensors(state: State) -> Iterator[Tensor]:
    return (value for value in state.values() if isinstance(value, Tensor))
