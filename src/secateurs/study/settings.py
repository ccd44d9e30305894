"""What a study says: methods, training, data and networks by name; read from TOML."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, TypeAlias

from secateurs.errors import ArgumentError
from secateurs.registry import Registry, unknown

# The vocabulary of checks: each says what is wrong with a value, or nothing.

Check: TypeAlias = Callable[[Any], str]
"""`value -> what is wrong with it`, empty if nothing is."""


def whole(low: int, high: int | None = None) -> Check:
    """A whole number from `low` on."""

    def check(value: Any) -> str:
        # True is an int in Python, and no number in a file of settings.
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= low
        fits = fits and (high is None or value <= high)
        upper = "" if high is None else f" to {high}"
        return "" if fits else f"{value!r} is not a whole number from {low}{upper or ' on'}"

    return check


def number(low: float = 0.0, high: float = math.inf, *, above: bool = False) -> Check:
    """A finite number in [low, high], or in (low, high] with `above`."""

    def check(value: Any) -> str:
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if (
            real
            and math.isfinite(value)
            and (low < value if above else low <= value)
            and value <= high
        ):
            return ""
        lower = f"above {low:g}" if above else f"from {low:g} on"
        upper = "" if high == math.inf else f", at most {high:g}"
        return f"{value!r} is not a finite number {lower}{upper}"

    return check


def flag(value: Any) -> str:
    """True or False."""
    return "" if isinstance(value, bool) else f"{value!r} is neither true nor false"


def text(value: Any) -> str:
    """Text that is not empty."""
    return "" if isinstance(value, str) and value.strip() else f"{value!r} is not a text"


def choice(kind: str, *known: str) -> Check:
    """One of these words."""
    return lambda value: "" if value in known else unknown(kind, value, known).rstrip(".")


def named(kind: str, names: Callable[[], Iterable[str]], *, other: str = "") -> Check:
    """A registered name (looked up when it is asked for, since registries import torch), or a
    callable.
    """

    def check(value: Any) -> str:
        if callable(value):
            return ""
        if not isinstance(value, str):
            return f"{value!r} is not the name of a {kind}{other}"
        known = list(names())
        return "" if value in known else unknown(kind, value, known).rstrip(".")

    return check


def step(value: Any) -> str:
    """A point in a run: "20ep", "2000it" or a number of iterations."""
    from secateurs.step import Step

    try:
        Step.parse(value)
    except ArgumentError as error:
        return str(error).rstrip(".")
    return ""


def steps(value: Any) -> str:
    """A length in a run, of one step at least."""
    from secateurs.step import Step

    if text := step(value):
        return text
    return "" if Step.parse(value).count else f"{value!r} is no step at all"


def later(one: Any, other: Any, *, or_equal: bool = False) -> bool:
    """Whether a point in a run comes after another; points that cannot be compared do not."""
    from secateurs.step import Step

    if step(one) or step(other):
        return False
    first, second = Step.parse(one), Step.parse(other)
    if first.unit != second.unit:
        return False
    return first >= second if or_equal else first > second


def maybe(check: Check) -> Check:
    """None, or what the check accepts."""
    return lambda value: "" if value is None else check(value)


def either(first: Check, second: Check) -> Check:
    """What one of two checks accepts; the second one's words if neither does."""
    # A check that fits gives an empty text: `and` asks
    # the second only if the first has words.
    return lambda value: first(value) and second(value)


def each(check: Check, *, some: bool = True) -> Check:
    """A list whose every entry fits; `some` asks for at least one, and no entry twice."""

    def checked(values: Any) -> str:
        if not isinstance(values, list | tuple):
            return f"{values!r} is not a list"
        if some and not values:
            return "the list is empty"
        wrong = [
            f"entry {i + 1}: {text}" for i, value in enumerate(values) if (text := check(value))
        ]
        twice = [value for i, value in enumerate(values) if value in values[:i]]
        return "; ".join(wrong) or (f"{twice[0]!r} is given twice" if twice else "")

    return checked


def plain_table(value: Any) -> str:
    """A table of texts, numbers, truth values and lists of them."""
    if not isinstance(value, Mapping):
        return f"{value!r} is not a table"
    odd = [key for key, entry in value.items() if not isinstance(key, str) or not _plain(entry)]
    return f"{odd[0]!r} is neither a text, a number nor a list of them" if odd else ""


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return isinstance(value, str | int | float | bool)


grid = partial(each, some=True)
"""A list of values to be tried one by one."""


# In which line of a TOML text a setting stands: tomllib forgets where the values were.

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"\s*(\"[^\"]+\"|'[^']+'|[A-Za-z0-9_-]+)((?:\s*\.\s*[A-Za-z0-9_-]+)*)\s*=")

Place: TypeAlias = tuple[str | int, ...]
"""Names from the outside in; a number is the place in a list."""


class Lines:
    """The lines of tables and keys.

    >>> lines = Lines('seeds = [0]\\n[[methods]]\\nscore = "snip"\\n[[methods]]\\nscore = "oops"')
    >>> lines.of(("methods", 1, "score")), lines.of(("methods", 0)), lines.of(("seeds", 0))
    (5, 2, 1)
    """

    def __init__(self, text: str) -> None:
        self.places: dict[Place, int] = {}
        counts: Counter[Place] = Counter()
        table: Place = ()
        inside = ""
        for number, line in enumerate(text.splitlines(), start=1):
            if inside:  # within a text of several lines nothing is a key
                inside = "" if inside in line else inside
                continue
            header, key = _HEADER.match(line), _KEY.match(line)
            if header:
                table = self._table(header, counts)
                self.places.setdefault(table, number)
            elif key:
                path = (*table, *_names(key[1] + key[2]))
                # A dotted key names the tables on its way as well.
                for end in range(len(table) + 1, len(path) + 1):
                    self.places.setdefault(path[:end], number)
                # Two of them on one line close what they open.
                inside = next((q for q in ('"""', "'''") if line.count(q) == 1), "")

    def of(self, path: Place) -> int:
        """The line of the setting, or of the nearest table around it that has one."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.places:
                return self.places[path[:end]]
        return 1

    def _table(self, header: "re.Match[str]", counts: "Counter[Place]") -> Place:
        found: Place = ()
        names = _names(header[2])
        for depth, name in enumerate(names):
            found = (*found, name)
            last = depth == len(names) - 1
            if header[1] == "[[" and last:
                counts[found] += 1
            # What stands below [[methods]] belongs to the last entry of that list.
            if counts[found]:
                found = (*found, counts[found] - 1)
        return found


def _names(written: str) -> list[str]:
    return [part.strip().strip("\"'") for part in written.split(".")]


# Fields that know what they accept: `option(default, check)`, and every misfit of a value,
# collected.
#
# A check is a function `value -> text`, empty where the value fits. Python and TOML ask the same
# checks.


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where (the names from the outside in), and what."""

    path: tuple[str | int, ...]
    text: str

    def inside(self, *outer: str | int) -> "Problem":
        """The same problem, seen from further out."""
        return Problem((*outer, *self.path), self.text)

    def __str__(self) -> str:
        place = "".join(
            f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in self.path
        )
        return f"{place.lstrip('.')}: {self.text}" if place else self.text


def option(default: Any = MISSING, check: Check | None = None, *, make: Any = MISSING) -> Any:
    """A field of a frozen settings class that knows what it accepts."""
    return field(default=default, default_factory=make, metadata={"check": check})


def misfits(value: Any) -> list[Problem]:
    """What its fields do not accept, by field."""
    found = []
    for entry in fields(value):
        check = entry.metadata.get("check")
        text = check(getattr(value, entry.name)) if check is not None else ""
        if text:
            found.append(Problem((entry.name,), text))
    return found


def refuse(kind: str, problems: Sequence[Problem]) -> None:
    """Raise everything that is wrong in one error."""
    if problems:
        raise Misfit(kind, problems)


class Misfit(ArgumentError):
    """Settings that cannot be read; `problems` says each place."""

    def __init__(self, kind: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        listed = "; ".join(str(problem).rstrip(".") for problem in problems)
        super().__init__(f"{len(problems)} problem(s) with {kind}: {listed}.")


def known_fields(cls: Any) -> dict[str, Field[Any]]:
    """The fields of a settings class by name."""
    return {entry.name: entry for entry in fields(cls)}


# How a network is trained: one frozen value for every training of a study.

OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("cosine", "step", "constant")
PRECISIONS = ("float32", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training from beginning to end.

    Attributes:
        length: "20ep" or "2000it".
        batch: Examples per step.
        lr: The learning rate that `schedule` starts from.
        optimizer: "sgd", "adam" or "adamw"; a method of its own optimizer (dwf) takes its momentum
        from here.
        momentum, nesterov, weight_decay: As in torch.
        schedule: "cosine" to zero, "step" (times `decay_by` at each of `decay_at`) or "constant".
        warmup: A linear rise before the cosine.
        augment: Flips, shifts and rotations.
        drop_last: Leave an incomplete last batch out.
        precision: "float32", or "bf16" for autocast.
        evaluate_every: Epochs between two test evaluations; 0 for the end only.

    >>> Training(length="5ep", lr=0.05).but({"lr": 0.5}).lr
    0.5
    """

    length: str = option("20ep", step)
    batch: int = option(128, whole(1))
    lr: float = option(0.1, number(0.0, above=True))
    optimizer: str = option("sgd", choice("optimizer", *OPTIMIZERS))
    # Below 1, where the velocity would never decay.
    momentum: float = option(0.9, number(0.0, 0.9999999))
    nesterov: bool = option(False, flag)
    weight_decay: float = option(0.0, number())
    schedule: str = option("cosine", choice("schedule", *SCHEDULES))
    warmup: str = option("0it", step)
    decay_at: tuple[str, ...] = option(("80ep", "120ep"), each(step))
    decay_by: float = option(0.1, number(0.0, 1.0))
    augment: bool = option(False, flag)
    drop_last: bool = option(False, flag)
    precision: str = option("float32", choice("precision", *PRECISIONS))
    evaluate_every: int = option(1, whole(0))

    def __post_init__(self) -> None:
        refuse("a training", [*misfits(self), *self._conflicts()])

    def _conflicts(self) -> list[Problem]:
        if self.nesterov and not self.momentum:
            return [Problem(("nesterov",), "nesterov needs a momentum above 0")]
        return []

    def but(self, changes: Mapping[str, Any]) -> "Training":
        """The same training with other values for some fields; an unknown field is refused."""
        refuse("a training", overrides(changes))
        return replace(self, **{key: _hashable(value) for key, value in changes.items()})


def overrides(changes: Any) -> list[Problem]:
    """What is wrong with a table of fields of a training."""
    if not isinstance(changes, Mapping):
        return [Problem((), f"{changes!r} is not a table of fields of a training")]
    known, found = known_fields(Training), []
    for key, value in changes.items():
        if key not in known:
            found.append(
                Problem(
                    (str(key),),
                    unknown("field of a training", key, known).rstrip("."),
                )
            )
        elif text := known[key].metadata["check"](value):
            found.append(Problem((key,), text))
    return found


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# What all methods have: a label, a training of their own, one run or several.
#
# A method of one run has one `strength`; in a study it may be a list, which is tried one by one.

METHODS: Registry[type["Method"]] = Registry("method")
"""Kinds of methods by name. A new kind is a frozen subclass of `Method` and its stages in
`study.pipeline.trainers`.
"""

positive = number(0.0, above=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What all methods have.

    Attributes:
        label: The name in tables and figures; by default made from the settings. It is no part of a
        run's key.
        train: Fields of the study's training that differ for this method.
    """

    kind: ClassVar[str] = ""
    by_compression: ClassVar[bool] = False
    """Whether a run of this method is asked for a compression."""
    usual: ClassVar[Mapping[str, Any]] = {}
    """Fields of the training that this kind sets, before `train` does."""

    label: str = option("", maybe(lambda value: text(value) if value else ""))
    train: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Lists are written in TOML and by hand; a frozen value holds tuples.
        for entry in fields(self):
            if isinstance(getattr(self, entry.name), list):
                object.__setattr__(self, entry.name, tuple(getattr(self, entry.name)))
        refuse(f"the method {self.kind!r}", self.problems())

    def problems(self) -> list[Problem]:
        """Everything wrong with these settings."""
        return [
            *misfits(self),
            *(p.inside("train") for p in overrides(self.train)),
            *self.conflicts(),
        ]

    def conflicts(self) -> list[Problem]:
        """Settings that exclude each other."""
        return []

    def single(self) -> "Iterator[Method]":
        """The methods of single runs: a list of strengths one by one."""
        strength = getattr(self, "strength", None)
        if not isinstance(strength, tuple):
            yield self
            return
        yield from (replace(self, strength=value) for value in strength)  # type: ignore[call-arg]

    @property
    def title(self) -> str:
        """The label, or one made from the settings that are not the usual ones."""
        return self.label or self.described()

    def described(self) -> str:
        """The kind, and what is special about it."""
        return self.kind


@METHODS.register("dense")
@dataclass(frozen=True, slots=True, kw_only=True)
class Dense(Method):
    """Ordinary training. Every study has it: the others are compared with it, and many begin at its
    end.

    `until` stops early, as if interrupted: the network that iterative pruning rewinds to.
    """

    kind: ClassVar[str] = "dense"
    until: str | None = option(None, maybe(step))

    def described(self) -> str:
        """dense, and where it stops."""
        return "dense" if self.until is None else f"dense until {self.until}"


def strengths(value: Any) -> str:
    """A number above 0, or a list of them."""
    return positive(value) if not isinstance(value, tuple) else each(positive)(value)


def after_what(value: Any) -> str:
    """The network a method begins with: fresh, trained, or another method's."""
    # One method begins with one network; which of the list would be a guess.
    if isinstance(value, Method) and isinstance(getattr(value, "strength", None), tuple):
        return f"{value.kind} has a list of strengths here: give one, and write a method for each"
    if isinstance(value, Method) or value in ("init", "dense"):
        return ""
    return f"{value!r} is neither 'init', 'dense' nor another method"


# Names a method may use, looked up when they are asked for: the registries import torch.


def scores() -> list[str]:
    """Registered scores."""
    from secateurs.scores import SCORES

    return SCORES.names()


def options_of(score: Any, options: Mapping[str, Any]) -> str:
    """What is wrong with the options of a registered score; an own rule is not asked."""
    from secateurs.errors import ArgumentError
    from secateurs.scores import SCORES
    from secateurs.scores.scorer import checked_options

    # What is no table or no score at all is told by the checks of these fields.
    if not isinstance(options, Mapping) or not isinstance(score, str):
        return ""
    if score not in SCORES:
        return ""
    try:
        checked_options(SCORES[score], dict(options))
    except ArgumentError as error:
        return str(error).rstrip(".")
    return ""


def patterns(value: Any) -> str:
    """A check: a pattern, or the name of one."""
    from secateurs.errors import SecateursError
    from secateurs.masks.patterns import pattern_of

    try:
        pattern_of(value)
    except (SecateursError, TypeError) as error:
        return str(error).rstrip(".")
    return ""


def groupings(value: Any) -> str:
    """A check: the name of groups that share factors, such as "neuron" or "block:4"."""
    from secateurs.errors import SecateursError
    from secateurs.optim.factorized.layouts import grouping

    if not isinstance(value, str):
        return f"{value!r} is not a text"
    try:
        # Any matrix will do: only the name is asked about.
        grouping(value, (8, 8))
    except SecateursError as error:
        return str(error).rstrip(".")
    return ""


def selections() -> list[str]:
    """Ways to choose."""
    from secateurs.masks import SELECTIONS

    return SELECTIONS.names()


def scopes() -> list[str]:
    """Budgets."""
    from secateurs.masks import SCOPES

    return SCOPES.names()


def rounds_schedules() -> list[str]:
    """Curves over rounds."""
    from secateurs.prune import SCHEDULES

    return SCHEDULES.names()


# What a study is about: networks, data sets, and what is proven of the sparse ones.


def _models() -> list[str]:
    from secateurs.study.own import models

    return models()


def _data() -> list[str]:
    from secateurs.study.own import data

    return data()


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """A network: a name of `secateurs models` with its options, or a function of your own.

    Attributes:
        name: A registered name, one of an installed entry point, or any name for your `make`.
        make: `make(generator) -> Module` (or without arguments): a fresh network. Left out for a
        name.
        init: "kaiming-normal", or another initialisation of `secateurs.models.build`.
        options: What the network takes besides, such as batch_norm or width.
    """

    name: str = option(check=text)
    make: Callable[..., Any] | None = option(None)
    init: str = option("kaiming-normal", text)
    options: Mapping[str, Any] = option(check=plain_table, make=dict)

    def __post_init__(self) -> None:
        found = misfits(self)
        if self.make is None and not found:
            # Asked only when the rest fits, because looking names up loads torch.
            wrong = named("model", _models)(self.name)
            found = [Problem(("name",), wrong)] if wrong else []
        refuse("a model", found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A data set: a name of `secateurs data`, or a function (or a `secateurs.data.Dataset`) of your
    own.

    `train` and `test` cut it to its first examples. `root` is its folder: no part of a run's key.
    """

    name: str = option(check=text)
    make: Any = option(None)
    train: int | None = option(None, maybe(whole(1)))
    test: int | None = option(None, maybe(whole(1)))
    root: str | None = option(None, maybe(text))

    def __post_init__(self) -> None:
        found = misfits(self)
        if self.make is None and not found:
            wrong = named("data set", _data)(self.name)
            found = [Problem(("name",), wrong)] if wrong else []
        refuse("a data set", found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certify:
    """What is proven of every sparse network against its dense one: ℓ∞-balls around the first
    test images.
    """

    images: int = option(8, whole(1))
    radius: float = option(1 / 255, number(0.0, above=True))

    def __post_init__(self) -> None:
        refuse("certify", misfits(self))


def nets(value: Any) -> Iterator[Net]:
    """One network or a list, each a name, a `Net` or a function."""
    for entry in value if isinstance(value, list | tuple) else [value]:
        if isinstance(entry, Net):
            yield entry
        elif isinstance(entry, str):
            yield Net(name=entry)
        # A module is callable, too, but a study makes a fresh one for each seed. Known by
        # what it has: importing torch to ask takes a second.
        elif hasattr(entry, "state_dict") and not isinstance(entry, type):
            raise ArgumentError(
                f"model is a {type(entry).__name__} that is made already; every seed needs a "
                "fresh one: give a function that returns it."
            )
        elif callable(entry):
            yield Net(name=getattr(entry, "__name__", type(entry).__name__), make=entry)
        else:
            raise ArgumentError(
                f"model={entry!r} is neither a name, a Net nor a function that makes a network."
            )


def sources(value: Any) -> Iterator[Data]:
    """One data set or a list, each a name, a `Data`, a `Dataset` or a function."""
    for entry in value if isinstance(value, list | tuple) else [value]:
        if isinstance(entry, Data):
            yield entry
        elif isinstance(entry, str):
            yield Data(name=entry)
        # Known by what it has: importing Dataset to ask for it would load torch.
        elif callable(entry) or hasattr(entry, "train_x"):
            name = getattr(entry, "name", "") or getattr(entry, "__name__", "data")
            yield Data(name=str(name), make=entry)
        else:
            raise ArgumentError(
                f"data is a {type(entry).__name__}, neither a name, a secateurs.data.Dataset nor a "
                "function that makes one; secateurs.data.from_tensors makes one of tensors."
            )


# Figures in print that a study names, to be drawn dotted beside its own.

_compression, _accuracy = number(1.0), number(0.0, 100.0)


def printed_curves(value: Any) -> str:
    """What is wrong with `{name: [[compression, accuracy in percent], ...]}`; "" if nothing is.

    >>> printed_curves({"SNIP 2019": [[10, 88.6], [50, 82.1]]})
    ''
    >>> printed_curves({"SNIP 2019": [[0.5, 88.6]]})
    "'SNIP 2019': 0.5 is not a finite number from 1 on"
    """
    if not isinstance(value, Mapping):
        return f"{value!r} is not a table of lists; write [[compression, accuracy], ...]"
    wrong = ((name, _curve(points)) for name, points in value.items())
    return "; ".join(f"{name!r}: {text}" for name, text in wrong if text)


def _curve(points: Any) -> str:
    if not isinstance(points, list | tuple) or not points:
        return "a curve is a list of [compression, accuracy]"
    for point in points:
        if not isinstance(point, list | tuple) or len(point) != 2:
            return f"{point!r} is not [compression, accuracy]"
        if text := _compression(point[0]) or _accuracy(point[1]):
            return text
    return ""
