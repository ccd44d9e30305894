"""The parameters of a factorized optimizer: their groups, states, names and layouts.

Everything that looks at an optimizer without being one takes this view of it, so that the files
beside the optimizer need not know the optimizer's class.
"""

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, nn

from secateurs.errors import ParameterError
from secateurs.optim.factorized import arguments
from secateurs.optim.factorized.factors.layouts import Layout, Shared, Stacked
from secateurs.optim.factorized.factors.lean_layout import Lean
from secateurs.optim.factorized.factors.plain_layout import Plain
from secateurs.optim.factorized.factors.sharing import grouping

Group: TypeAlias = dict[str, Any]
Pairs: TypeAlias = list[tuple[Group, nn.Parameter]]
"""Parameters, each with its group."""
Names: TypeAlias = dict[nn.Parameter, str]


# Not frozen: a step of a small net makes nine of these views, and a frozen one takes five
# times as long to make, in all 3 % of such a step.
@dataclass(slots=True)
class Members:
    """A view of an optimizer: it owns nothing, and is made anew whenever it is asked for.

    Args:
        groups: the optimizer's parameter groups.
        state: the optimizer's state by parameter.
        versions: torch's version counter of each weight when the optimizer last wrote it, by id.
        shrinks: whether dead weights of a group shrink as `forecast` says.
    """

    groups: list[Group]
    state: MutableMapping[Tensor, Any]
    versions: dict[int, int]
    shrinks: Callable[[Group], bool]

    def rescales(self, group: Group) -> bool:
        """Whether the penalty of a group goes through an adaptive base, which rescales it."""
        return group["depth"] is not None and not self.shrinks(group)

    @property
    def taken(self) -> int:
        """Steps taken so far (skipped ones do not count)."""
        return int(self.groups[0]["taken"])

    @property
    def total(self) -> int:
        """Numbers in all parameters, factorized or not."""
        return sum(p.numel() for _, p in self.every())

    def every(self) -> Iterator[tuple[Group, nn.Parameter]]:
        """Every parameter with its group."""
        return ((group, p) for group in self.groups for p in group["params"])

    def factorized(self) -> Iterator[tuple[Group, nn.Parameter]]:
        """Every factorized parameter with its group."""
        for group in self.groups:
            if group["depth"] is not None:
                # A frozen parameter has no state and is no member until it joins.
                yield from ((group, p) for p in group["params"] if p in self.state)

    def waiting(self) -> Pairs:
        """Parameters that were frozen at the start and are no more, but have no factors yet."""
        return [
            (group, p)
            for group, p in self.every()
            if p.requires_grad and p not in self.state
        ]

    def names(self, model: nn.Module | None = None) -> Names:
        """The name of every parameter: the model's, the one given at the start, or its number."""
        known = (
            {p: name for name, p in model.named_parameters()}
            if model is not None
            else {}
        )
        ours = {p for group in self.groups for p in group["params"]}
        # Most often a copy: the deepcopy of a model has other parameters of the same
        # names.
        if known and not ours & known.keys():
            raise ParameterError(
                f"none of the {len(ours)} parameters of the optimizer is in this model: give the"
                " model it was made for."
            )
        number = 0
        for group in self.groups:
            given = group.get("param_names") or [None] * len(group["params"])
            for parameter, name in zip(group["params"], given, strict=True):
                known.setdefault(parameter, name or str(number))
                number += 1
        return known

    def member(self, parameter: nn.Parameter | str) -> tuple[Group, nn.Parameter]:
        """A factorized parameter, given itself or by name, with its group."""
        parameter = self._find(parameter)
        for group, candidate in self.factorized():
            if candidate is parameter:
                return group, candidate
        raise ParameterError(
            "this parameter is not factorized by this optimizer: excluded, foreign, or frozen at"
            " the start. A frozen one joins at its first step with a gradient, or by adopt_()."
        )

    def weight(self, group: Group, parameter: nn.Parameter) -> Tensor:
        """The product of the factors, in the factors' own dtype."""
        return layout(group, parameter).weight(self.state[parameter])

    def _find(self, parameter: nn.Parameter | str) -> nn.Parameter:
        if not isinstance(parameter, str):
            return parameter
        names = {name: p for p, name in self.names().items()}
        arguments.known(parameter, names)
        return names[parameter]


def layout(group: Group, parameter: Tensor) -> Layout:
    """How the factors of this parameter are kept."""
    if group["depth"] is None:
        return Plain()
    if group["lean"]:
        return Lean(depth=group["depth"])
    shared = (
        grouping(group["groups"], tuple(parameter.shape)) if group["groups"] else None
    )
    if shared is not None:
        return Shared(depth=group["depth"], shared=group["shared"], group=shared)
    return Stacked(depth=group["depth"])
