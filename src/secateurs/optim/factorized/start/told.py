"""What is told and shared of a start: who joined, what a grouping leaves out, equal ranks."""

import logging
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from secateurs.optim.factorized.factors.layouts import State
from secateurs.optim.factorized.factors.sharing import ungrouped
from secateurs.optim.factorized.members import Group, Members, Names
from secateurs.optim.factorized.start.start import Drawn

_log = logging.getLogger("secateurs.optim")


def say_joined(drawn: Drawn, names: Names) -> None:
    """Tell which parameters are factorized from now on."""
    factorized = [names[p] for group, p, _ in drawn if group["depth"] is not None]
    if factorized:
        listed = ", ".join(factorized)
        _log.info(
            "unfrozen parameters are factorized from now on, as they are: %s", listed
        )


def say_ungrouped(groups: Sequence[Group], names: Mapping[nn.Parameter, str]) -> None:
    """Tell which parameters a grouping does not apply to."""
    grouped = [
        group for group in groups if group["depth"] is not None and group["groups"]
    ]
    for kind in sorted({group["groups"] for group in grouped}):
        alone = ungrouped(
            kind,
            (
                p
                for group in grouped
                if group["groups"] == kind
                for p in group["params"]
            ),
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
