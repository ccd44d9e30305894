"""The parameters of a factorized optimizer: their groups, states, names and layouts.

Everything that reads an optimizer without being one takes this view of it, so that the files beside
the optimizer need not know the optimizer's class.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, nn

from secateurs.base.sharding import any_sharded
from secateurs.base.where import Pick, pick
from secateurs.errors import ArgumentError, ParameterError
from secateurs.optim.factorized import options
from secateurs.optim.factorized.layouts import FactorLayout, Plain, Stacked
from secateurs.optim.factorized.schedules import Control, Schedule
from secateurs.optim.factorized.schedules import schedule as schedule_of

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
    def sharded(self) -> bool:
        """Whether any parameter lies in pieces on several processes."""
        return any_sharded([p for group in self.groups for p in group["params"]])

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
                # A frozen parameter has no state and is not a member until it joins.
                yield from ((group, p) for p in group["params"] if p in self.state)

    def waiting(self) -> Pairs:
        """Parameters that were frozen at the start, no longer are, and have no factors yet."""
        return [(group, p) for group, p in self.every() if p.requires_grad and p not in self.state]

    def names(self, model: nn.Module | None = None) -> Names:
        """The name of every parameter: the model's, the one given at the start, or its number."""
        known = {p: name for name, p in model.named_parameters()} if model is not None else {}
        ours = {p for group in self.groups for p in group["params"]}
        # Most often a copy: the deepcopy of a model has other parameters of the same names.
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
            "this parameter is not factorized by this optimizer: it is excluded, belongs to "
            "something else, or was frozen at the start. A frozen one joins at its first step "
            "with a gradient, or by adopt_()."
        )

    def weight(self, group: Group, parameter: nn.Parameter) -> Tensor:
        """The product of the factors, in the factors' own dtype; of a sharded parameter, for the
        piece that is here.
        """
        return layout(group).weight(self.state[parameter])

    def _find(self, parameter: nn.Parameter | str) -> nn.Parameter:
        if not isinstance(parameter, str):
            return parameter
        names = {name: p for p, name in self.names().items()}
        options.check_name(parameter, names)
        return names[parameter]


def layout(group: Group) -> FactorLayout:
    """How the factors of the parameters of this group are kept."""
    return Plain() if group["depth"] is None else Stacked(depth=group["depth"])


# How long the run is.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLength:
    """How long a run is, and how λ moves over it: by a schedule, and towards a target."""

    steps: int | None = None
    schedule: Schedule | None = None
    control: Control | None = None

    @classmethod
    def of(
        cls, steps: int | None, schedule: str | Schedule | None, target: float | None
    ) -> "RunLength":
        """The run that these options mean (`options.check_run` has checked them)."""
        return cls(
            steps=steps,
            schedule=None if schedule is None else schedule_of(schedule),
            control=Control(target=target, steps=steps) if steps and target is not None else None,
        )

    @property
    def target(self) -> float | None:
        """The target sparsity, if there is one."""
        return None if self.control is None else self.control.target

    def multiplier(self, taken: int, control: Mapping[str, float] | None) -> float:
        """What λ is multiplied with after this many steps, in this state of the controller."""
        factor = 1.0
        if self.schedule is not None and self.steps:
            # Runs that go on beyond `steps` stay at the schedule's end.
            factor = float(self.schedule(min(1.0, taken / self.steps)))
        if self.control is not None:
            factor *= self.control.multiplier(dict(control or self.control.start()))
        return factor


# Which parameters of an optimizer are factorized: by name or predicate; the others become groups
# of depth None.

Groups: TypeAlias = list[dict[str, Any]]
Named: TypeAlias = list[tuple[str, nn.Parameter]]


def split(params: Any, where: Pick) -> Any:
    """The parameters as groups in which what `where` does not choose has `depth=None`; as given
    where it is None.

    >>> layer = nn.Linear(2, 2)
    >>> groups = split(layer.named_parameters(), "*weight")
    >>> [[name for name, _ in group["params"]] for group in groups]
    [['weight'], ['bias']]
    """
    if where is None:
        return params
    groups = _groups(params)
    chosen = pick(
        {name: parameter for group in groups for name, parameter in group["params"]},
        where,
    )
    parts = [part for group in groups for part in _parts(group, chosen)]
    # A group of nothing would only add a rate to every scheduler.
    return [part for part in parts if part["params"]]


def _parts(group: dict[str, Any], chosen: set[str]) -> Groups:
    named: Named = group["params"]
    inside = {**group, "params": [(name, p) for name, p in named if name in chosen]}
    return [
        inside,
        {
            **group,
            "params": [(name, p) for name, p in named if name not in chosen],
            "depth": None,
        },
    ]


def _groups(params: Any) -> Groups:
    given: list[Any] = [params] if isinstance(params, Tensor) else list(params)
    groups: Groups = given if given and isinstance(given[0], dict) else [{"params": given}]
    return [{**group, "params": _named(group["params"])} for group in groups]


def _named(params: Any) -> Named:
    entries: list[Any] = [params] if isinstance(params, Tensor) else list(params)
    if not all(
        isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)
        for entry in entries
    ):
        raise ArgumentError(
            "where= chooses by name: give the optimizer model.named_parameters(), in groups too."
        )
    return entries
