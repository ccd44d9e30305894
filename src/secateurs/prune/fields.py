"""The fields of a recipe, checked when it is made; what they mean for a model is in `check`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from secateurs.errors import ArgumentError, UnknownNameError
from secateurs.masks import SCOPES, SELECTIONS
from secateurs.masks.amount import density_of
from secateurs.masks.pattern import Pattern, pattern_of
from secateurs.masks.ranking.shares import ScopeLike
from secateurs.masks.shapes.nm import NM
from secateurs.parameters import Where
from secateurs.prune.problems import problems_of, refuse
from secateurs.prune.schedule import SCHEDULES
from secateurs.registry import Registry, unknown
from secateurs.scores import SCORES, Convention, Rule


@dataclass(frozen=True, kw_only=True, slots=True)
class Fields:
    """What a `Recipe` says. Mappings among the fields are compared, but not hashed."""

    score: str | Rule = "magnitude"
    sparsity: float | None = None
    density: float | None = None
    compression: float | None = None
    macs: float | None = None
    latency: float | None = None
    rounds: int = 1
    schedule: str | None = None
    scope: ScopeLike = field(default="global", hash=False)
    pattern: str | Pattern = "unstructured"
    how: str = "topk"
    where: Where = None
    floor: float = 1
    convention: Convention = "paper"
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __new__(cls, *args: object, **given: object) -> Self:
        """Refuse a field that does not exist, with the nearest names, before dataclass's bare
        TypeError would.
        """
        if args:
            raise ArgumentError(
                f"a recipe is written with names: Recipe(score={args[0]!r}, ...)."
            )
        known = [entry.name for entry in fields(cls)]
        strange = [
            UnknownNameError(unknown("field of a recipe", name, known))
            for name in given
            if name not in known
        ]
        refuse("this recipe cannot be read", strange)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        # All of them run, so that one attempt tells everything that is wrong.
        checks = (
            self._check_score,
            self._check_amount,
            self._check_rounds,
            self._check_scope,
        )
        names = (
            lambda: pattern_of(self.pattern),
            lambda: _registered(SELECTIONS, self.how),
        )
        refuse(
            "this recipe cannot be read",
            problems_of(*checks, *names, self._check_floor),
        )

    def as_dict(self) -> dict[str, Any]:
        """The fields that differ from the defaults, as plain values; what is no plain value is
        described.
        """
        changed = [
            entry
            for entry in fields(self)
            if getattr(self, entry.name) not in (entry.default, {})
        ]
        return {entry.name: _plain(getattr(self, entry.name)) for entry in changed}

    def _check_score(self) -> None:
        if not callable(self.score):
            _registered(SCORES, self.score)
        if self.convention not in ("paper", "reference"):
            raise ArgumentError(
                f"convention={self.convention!r}; it is 'paper' or 'reference'."
            )
        if not isinstance(self.options, Mapping):
            raise ArgumentError(
                f"options={self.options!r} is no mapping of option names to values."
            )

    def _check_amount(self) -> None:
        amount = density_of(
            sparsity=self.sparsity, density=self.density, compression=self.compression
        )
        work = [n for n in ("macs", "latency") if getattr(self, n) is not None]
        if work:
            return self._check_work(work, amount is not None)
        # N:M says itself how much stays, and so does a density per parameter.
        free = (
            isinstance(self.scope, Mapping)
            or isinstance(self.pattern, NM)
            or ":" in str(self.pattern)
        )
        if amount is None and not free:
            raise ArgumentError(
                "how much to keep is missing: give sparsity=, density= or compression=."
            )
        if amount is not None and isinstance(self.scope, Mapping):
            raise ArgumentError(
                "scope= already gives a density per parameter: leave the other amount out."
            )
        return None

    def _check_work(self, names: list[str], other: bool) -> None:
        for name in names:
            _check_share(name, getattr(self, name))
        if other or len(names) > 1 or isinstance(self.scope, Mapping):
            raise ArgumentError(
                f"{names[0]}={getattr(self, names[0])!r} says how much is left: leave the other "
                "amount out."
            )

    def _check_rounds(self) -> None:
        if (
            isinstance(self.rounds, bool)
            or not isinstance(self.rounds, int)
            or self.rounds < 1
        ):
            raise ArgumentError(
                f"rounds={self.rounds!r} is not a whole number from 1 on."
            )
        if self.schedule is not None:
            _registered(SCHEDULES, self.schedule)
        if self.schedule == "one-shot" and self.rounds > 1:
            raise ArgumentError(
                f"schedule='one-shot' cuts everything in the first of {self.rounds} rounds: "
                "leave rounds= out, or choose another schedule."
            )

    def _check_scope(self) -> None:
        if not isinstance(self.scope, Mapping):
            return _registered(SCOPES, self.scope)
        for name, density in self.scope.items():
            if density_of(density=density) is None:
                raise ArgumentError(f"scope= gives no density for {name!r}.")
        return None

    def _check_floor(self) -> None:
        number = isinstance(self.floor, int | float) and not isinstance(
            self.floor, bool
        )
        if (
            not number
            or not self.floor >= 0
            or (self.floor > 1 and self.floor != int(self.floor))
        ):
            raise ArgumentError(
                f"floor={self.floor!r} is neither a number of entries (0, 1, 2, ...) nor a density."
            )


def _check_share(name: str, value: object) -> None:
    """Refuse what is no share."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value <= 1
    ):
        raise ArgumentError(f"{name}={value!r} is not a share between 0 and 1.")


def _registered(registry: Registry[Any], name: object) -> None:
    try:
        registry[name]
    except TypeError:  # unhashable, such as a list
        raise UnknownNameError(
            unknown(registry.kind, name, registry.names())
        ) from None


def _plain(value: object) -> Any:
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__)
    return str(value)
