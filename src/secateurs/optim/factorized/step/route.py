"""Which way every parameter is moved in a step: by the compiled step, one by one in torch, or by
its layout.
"""

from collections.abc import Sequence
from operator import is_

import torch

from secateurs.optim.factorized.factors.layouts import Item, Layout, Stacked
from secateurs.optim.factorized.factors.maths import Rule
from secateurs.optim.factorized.gradients import Found, finite
from secateurs.optim.factorized.members import Members, layout
from secateurs.optim.factorized.step import one_by_one as apart
from secateurs.optim.factorized.step.arguments import Look
from secateurs.optim.factorized.step.block import Block
from secateurs.optim.factorized.step.library import Kernel


class Route:
    """Decided once and kept while groups, parameters, states and tensors stay what and where they
    are.

    A step of a small net takes as long in Python as in the kernel, so nothing that outlives a step
    is looked up twice.
    """

    def __init__(self, members: Members, found: Found, kernel: Kernel | None) -> None:
        # First, since buffers are part of what the route remembers.
        _begin_momenta_(members, found)
        self._travellers = _travellers(members, found)
        numbers = {id(group): number for number, group in enumerate(members.groups)}
        self._numbers = [numbers[id(group)] for group, *_ in found]
        self._states = [members.state[p] for _, p, _ in found]
        self._compiled: list[int] = []
        self._apart: dict[int, apart.Mover] = {}
        self._layouts: dict[Layout, list[int]] = {}
        for i, (group, parameter, _) in enumerate(found):
            self._send(i, layout(group, parameter), found, kernel)
        self._rest = [
            *self._apart,
            *(i for members in self._layouts.values() for i in members),
        ]
        self._block = (
            self._gather(found, kernel)
            if kernel is not None and self._compiled
            else None
        )

    def holds(self, members: Members, found: Found) -> bool:
        """Whether this is still the way; takes the gradients of this step."""
        now, before = _travellers(members, found), self._travellers
        # `is`, never ==: equal tensors are not the same memory. Mapped in C, for this
        # runs in every step.
        if len(now) != len(before) or not all(map(is_, now, before)):
            return False
        return self._block is None or self._block.point(
            [found[i][2] for i in self._compiled]
        )

    def look(self, found: Found) -> Look:
        """Whether no gradient holds a NaN or an infinity; on the compiled way also whether the
        weights are ours.
        """
        seen = Look.FINE if self._block is None else self._block.look()
        return (
            seen
            if seen and finite([found[i][2] for i in self._rest])
            else Look.BROKEN
        )

    def step_(self, found: Found, rules: Sequence[Rule], flush: bool) -> None:
        """Move factors, momenta and weights; one rule per group."""
        if self._block is not None:
            self._block.step_(rules)
        for i, mover in self._apart.items():
            mover.step_(found[i][2], rules[self._numbers[i]], flush=flush)
        for kept, members in self._layouts.items():
            kept.step_([self._item(found, i, rules) for i in members], flush)

    def _send(
        self, i: int, layout: Layout, found: Found, kernel: Kernel | None
    ) -> None:
        _, parameter, grad = found[i]
        # Lean and shared states have their own arithmetic, which only their layouts
        # know.
        if not isinstance(layout, Stacked):
            self._layouts.setdefault(layout, []).append(i)
            return
        factors = self._states[i]["factors"]
        if kernel is not None and Kernel.takes(parameter, grad, factors):
            self._compiled.append(i)
        # Measured 0.28 to 0.91 of the time of foreach, the more factors and weights the
        # less (benchmarks/results/factorized_step.md).
        elif apart.takes(parameter, factors):
            self._apart[i] = apart.Mover(
                parameter, factors, self._states[i].get("momentum")
            )
        else:
            self._layouts.setdefault(layout, []).append(i)

    def _item(self, found: Found, i: int, rules: Sequence[Rule]) -> Item:
        _, parameter, grad = found[i]
        return Item(
            weight=parameter,
            grad=grad,
            state=self._states[i],
            rule=rules[self._numbers[i]],
        )

    def _gather(self, found: Found, kernel: Kernel) -> Block:
        block = Block(
            kernel,
            weights=[found[i][1] for i in self._compiled],
            factors=[self._states[i]["factors"] for i in self._compiled],
            momenta=[self._states[i].get("momentum") for i in self._compiled],
            rules=[self._numbers[i] for i in self._compiled],
        )
        block.point([found[i][2] for i in self._compiled])
        return block


def _travellers(members: Members, found: Found) -> list[object]:
    """What must stay the same: groups, parameters, whether there is momentum, states and the
    tensors in them.
    """
    states = members.state
    kept: list[object] = []
    for group, parameter, _ in found:
        state = states[parameter]
        # The momentum's value may change with every step; only its coming and going
        # changes the route.
        kept += (group, parameter, state, bool(group["momentum"]), *state.values())
    return kept


def _begin_momenta_(members: Members, found: Found) -> None:
    """Buffers for a momentum that was 0 when training began and is not any more, as in
    `torch.optim.SGD`.
    """
    for group, parameter, _ in found:
        state = members.state[parameter]
        if group["momentum"] and not any("momentum" in key for key in state):
            single = state.get("factors", state.get("root", parameter))
            state["momentum"] = torch.zeros_like(
                single, memory_format=torch.preserve_format
            )
            if "shared" in state:
                state["shared_momentum"] = torch.zeros_like(state["shared"])
