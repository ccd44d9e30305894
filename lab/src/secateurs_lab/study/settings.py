"""The settings of a study's training, networks, data sets and certificates: frozen values, checked
by the types of their fields.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from secateurs.base.registry import unknown
from secateurs.base.step import Step
from secateurs.errors import ArgumentError
from secateurs_lab.study.fields import (
    CheckedSettings,
    Count,
    Misfit,
    NotNegative,
    PlainTable,
    Positive,
    Problem,
    Read,
    Text,
    distinct,
    excerpt,
    not_empty,
    read_fields,
    within,
)

# Points in a run.

When: TypeAlias = Annotated[str, Read(lambda value: str(Step.parse(value)))]
"""A point in a run: "20ep", "2000it" or a number of iterations."""


def at_least_one_step(value: str) -> None:
    """Refuse a length of zero steps."""
    if not Step.parse(value).count:
        raise ArgumentError(f"{value!r} has no step; give at least one")


def comes_after(one: str, other: str, *, or_equal: bool = False) -> bool:
    """Whether a point in a run comes after another; False if their units differ."""
    first, second = Step.parse(one), Step.parse(other)
    if first.unit != second.unit:
        return False
    return first >= second if or_equal else first > second


# How a network is trained: one frozen value for every run of a study.


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(CheckedSettings):
    """Training from beginning to end.

    Attributes:
        length: "20ep" or "2000it".
        batch: Examples per step.
        lr: The learning rate that `schedule` starts from.
        optimizer: "sgd", "adam" or "adamw"; a method with an optimizer of its own (dwf) takes its
            momentum from here.
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

    called: ClassVar[str] = "a training"

    length: When = "20ep"
    batch: Count = 128
    lr: Positive = 0.1
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    # Below 1, since at 1 the velocity would never decay.
    momentum: Annotated[float, within(0, 0.9999999)] = 0.9
    nesterov: bool = False
    weight_decay: NotNegative = 0.0
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    warmup: When = "0it"
    decay_at: Annotated[tuple[When, ...], distinct] = ("80ep", "120ep")
    decay_by: Annotated[float, within(0, 1)] = 0.1
    augment: bool = False
    drop_last: bool = False
    precision: Literal["float32", "bf16"] = "float32"
    evaluate_every: Annotated[int, within(0)] = 1

    def conflicts(self) -> Iterator[Problem]:
        """Nesterov's step needs a momentum."""
        if self.nesterov and not self.momentum:
            yield Problem(("nesterov",), "nesterov needs a momentum above 0")

    def but(self, changes: Mapping[str, Any]) -> "Training":
        """The same training with different values for some fields; an unknown field is refused."""
        # Hardly any run of a large study changes anything.
        return replace(self, **read_fields(Training, changes)) if changes else self


# The subject of a study: networks, data sets, and what is proven about the sparse networks.


@dataclass(frozen=True, kw_only=True)
class Named(CheckedSettings):
    """What is known by a name, or is made by a function of the user's own."""

    name: Text

    @classmethod
    def read(cls, value: Any) -> Self:
        """A value, a name, a function, or a table of its fields."""
        if isinstance(value, cls | Mapping):
            return super().read(value)
        if not isinstance(value, str):
            return cls.of_own(value)
        try:
            return cls(name=value)
        except Misfit as error:
            # About the name itself, since what was written has no field `name`.
            raise Misfit([Problem((), problem.text) for problem in error.problems]) from None

    @classmethod
    def of_own(cls, value: Any) -> Self:
        """What this function makes, or this object is."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Net(Named):
    """A network: a name of `secateurs models` with its options, or a function of your own.

    Attributes:
        name: A registered name, one of an installed entry point, or any name for your `make`.
        make: A function or class that returns a fresh network when it is called. If it has a
            parameter named `generator`, that is filled with the run's; torch's own generator is
            seeded in any case. Omitted for a registered name.
        init: "kaiming-normal", or another initialisation of `secateurs_lab.models.build`.
        options: Further options of the network, such as batch_norm or width.
    """

    called: ClassVar[str] = "a model"
    silent: ClassVar[frozenset[str]] = frozenset({"make"})

    make: Callable[..., Any] | None = None
    init: Text = "kaiming-normal"
    options: PlainTable = field(default_factory=dict)

    def conflicts(self) -> Iterator[Problem]:
        """A name without a function must be known."""
        if self.make is None:
            # Looking up names loads torch.
            from secateurs_lab.study.own import models

            yield from _unknown_name("model", self.name, models())

    @classmethod
    def of_own(cls, value: Any) -> Self:
        """The network that a function makes anew for each seed."""
        # A module is callable, too. Recognised by its attributes, since importing torch to check
        # takes a second.
        if hasattr(value, "state_dict") and not isinstance(value, type):
            raise Misfit.of(
                f"model is a {type(value).__name__} that exists already, but every seed needs a "
                "fresh one: give a function that returns it"
            )
        if not callable(value):
            raise Misfit.of(
                f"{excerpt(value)} is neither a name, a table with a name nor a function that makes"
                " a network"
            )
        # A functools.partial has the name of its function.
        named = getattr(value, "func", value)
        return cls(name=getattr(named, "__name__", type(named).__name__), make=value)


def _makes_data(value: Any) -> None:
    if not (value is None or callable(value) or _is_data(value)):
        raise Misfit.of(f"{excerpt(value)} is not a function, which only Python can give")


def _is_data(value: Any) -> bool:
    # Recognised by its attributes, since importing Dataset to check would load torch.
    return hasattr(value, "train_x")


@dataclass(frozen=True, kw_only=True)
class Data(Named):
    """A data set: a name of `secateurs data`, or a function (or a `lab.data.Dataset`) of your
    own.

    `train` and `test` limit it to its first examples. With `held_out`, that many training images,
    the last ones, are used for testing instead of the test images, and not for training; this is
    how settings are chosen. `root` is its folder and not part of a run's key.
    """

    called: ClassVar[str] = "a data set"
    silent: ClassVar[frozenset[str]] = frozenset({"make"})

    make: Annotated[Any, _makes_data] = None
    train: Count | None = None
    test: Count | None = None
    held_out: Count | None = None
    root: Text | None = None

    @property
    def title(self) -> str:
        """The name and the number held out: rows with different titles are never compared."""
        return self.name if self.held_out is None else f"{self.name}, {self.held_out} held out"

    def conflicts(self) -> Iterator[Problem]:
        """A name without a function must be known; the test images are the held-out or the set's
        own.
        """
        if self.held_out is not None and self.test is not None:
            yield Problem(("test",), "with held_out no test image is looked at; leave test out")
        if self.make is None:
            from secateurs_lab.study.own import data

            yield from _unknown_name("data set", self.name, data())

    @classmethod
    def of_own(cls, value: Any) -> Self:
        """This data set, or the one that a function makes."""
        if not (callable(value) or _is_data(value)):
            raise Misfit.of(
                f"{excerpt(value)} is neither a name, a table with a name, a lab.data.Dataset"
                " nor a function that makes one; lab.data.from_tensors makes one of tensors"
            )
        name = getattr(value, "name", "") or getattr(value, "__name__", "data")
        return cls(name=str(name), make=value)


def _unknown_name(kind: str, name: str, known: list[str]) -> Iterator[Problem]:
    if name not in known:
        yield Problem(("name",), unknown(kind, name, known).rstrip("."))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning(CheckedSettings):
    """How a study chooses among the candidates of a `Choice`: each is trained once per seed and
    tested on held-out training images, never on a test image.

    Attributes:
        compression: The compression of the candidates, if they take one.
        held_out: The number of training images held out, the last ones.
        seeds: The seeds of the tuning; different from the study's, so that no start is used twice.
    """

    called: ClassVar[str] = "tuning"

    compression: Annotated[float, within(1)] = 10.0
    held_out: Count = 5000
    seeds: Annotated[tuple[Annotated[int, within(0)], ...], distinct] = (1000,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certify(CheckedSettings):
    """What is proven about every sparse network and its dense one: ℓ∞-balls around the first test
    images.
    """

    called: ClassVar[str] = "certify"

    images: Count = 8
    radius: Positive = 1 / 255


# Published figures that a study names, to be drawn dotted beside its own.

PrintedCurve: TypeAlias = Annotated[
    tuple[tuple[Annotated[float, within(1)], Annotated[float, within(0, 100)]], ...], not_empty
]
"""[[compression, accuracy in percent], ...]"""
