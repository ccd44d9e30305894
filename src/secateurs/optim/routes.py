"""Which way every parameter is moved in a step: by the compiled step, or by its layout in torch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from secateurs.optim import guards
from secateurs.optim.factors import Rule
from secateurs.optim.fused import Block, Kernel
from secateurs.optim.guards import Found
from secateurs.optim.layouts import Item, Layout, Stacked

if TYPE_CHECKING:
    from secateurs.optim.factorized import FactorizedSGD


class Route:
    """Decided once and kept while groups, parameters, states and tensors stay what and where they are.

    A step of a small net takes as long in Python as in the kernel, so nothing that outlives a step is looked up twice.
    """

    def __init__(self, optimizer: "FactorizedSGD", found: Found, kernel: Kernel | None) -> None:
        self._travellers = _travellers(optimizer, found)
        numbers = {id(group): number for number, group in enumerate(optimizer.param_groups)}
        self._numbers = [numbers[id(group)] for group, *_ in found]
        self._states = [optimizer.state[p] for _, p, _ in found]
        layouts = [optimizer.layout(group, p) for group, p, _ in found]
        fast = [
            kernel is not None and isinstance(layout, Stacked) and Kernel.takes(p, grad, state["factors"])
            for layout, state, (_, p, grad) in zip(layouts, self._states, found, strict=True)
        ]
        self._fast = [i for i, yes in enumerate(fast) if yes]
        self._slow: dict[Layout, list[int]] = {}
        for i, yes in enumerate(fast):
            if not yes:
                self._slow.setdefault(layouts[i], []).append(i)
        self._block = self._gather(found, kernel) if kernel is not None and self._fast else None

    def holds(self, optimizer: "FactorizedSGD", found: Found) -> bool:
        """Whether this is still the way; takes the gradients of this step."""
        now, before = _travellers(optimizer, found), self._travellers
        if len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True)):
            return False
        return self._block is None or self._block.point([found[i][2] for i in self._fast])

    def finite(self, found: Found) -> bool:
        """Whether no gradient holds a NaN or an infinity."""
        rest = [found[i][2] for group in self._slow.values() for i in group]
        return (self._block is None or self._block.finite()) and guards.finite(rest)

    def step_(self, found: Found, rules: Sequence[Rule], flush: bool) -> None:
        """Move factors, momenta and weights; one rule per group."""
        if self._block is not None:
            self._block.step_(rules)
        for layout, members in self._slow.items():
            layout.step_([self._item(found, i, rules) for i in members], flush)

    def _item(self, found: Found, i: int, rules: Sequence[Rule]) -> Item:
        _, parameter, grad = found[i]
        return Item(weight=parameter, grad=grad, state=self._states[i], rule=rules[self._numbers[i]])

    def _gather(self, found: Found, kernel: Kernel) -> Block:
        block = Block(
            kernel,
            weights=[found[i][1] for i in self._fast],
            factors=[self._states[i]["factors"] for i in self._fast],
            momenta=[self._states[i].get("momentum") for i in self._fast],
            rules=[self._numbers[i] for i in self._fast],
        )
        block.point([found[i][2] for i in self._fast])
        return block


def _travellers(optimizer: "FactorizedSGD", found: Found) -> list[object]:
    """What must stay the same objects: groups, parameters, their states and the tensors in them."""
    states = optimizer.state
    kept: list[object] = []
    for group, parameter, _ in found:
        state = states[parameter]
        kept += (group, parameter, state, *state.values())
    return kept
