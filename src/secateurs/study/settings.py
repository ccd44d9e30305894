"""What a study says of its trainings, networks, data sets and certificates: frozen values, checked
by the types of their fields.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from secateurs.errors import ArgumentError
from secateurs.registry import unknown
from secateurs.step import Step
from secateurs.study.fields import (
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
    """Refuse a length without a step."""
    if not Step.parse(value).count:
        raise ArgumentError(f"{value!r} has no step; give at least one")


def comes_after(one: str, other: str, *, or_equal: bool = False) -> bool:
    """Whether a point in a run comes after another; of two units, neither does."""
    first, second = Step.parse(one), Step.parse(other)
    if first.unit != second.unit:
        return False
    return first >= second if or_equal else first > second


# How a network is trained: one frozen value for every training of a study.


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(CheckedSettings):
    """A training from beginning to end.

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
    # Below 1, where the velocity would never decay.
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
        """Nesterov's step looks along the momentum."""
        if self.nesterov and not self.momentum:
            yield Problem(("nesterov",), "nesterov needs a momentum above 0")

    def but(self, changes: Mapping[str, Any]) -> "Training":
        """The same training with other values for some fields; an unknown field is refused."""
        # Hardly any run of a large study changes something.
        return replace(self, **read_fields(Training, changes)) if changes else self


# What a study is about: networks, data sets, and what is proven of the sparse ones.


@dataclass(frozen=True, kw_only=True)
class Net(CheckedSettings):
    """A network: a name of `secateurs models` with its options, or a function of your own.

    Attributes:
        name: A registered name, one of an installed entry point, or any name for your `make`.
        make: `make(generator) -> Module` (or without arguments): a fresh network. Left out for a
            name.
        init: "kaiming-normal", or another initialisation of `secateurs.models.build`.
        options: What the network takes besides, such as batch_norm or width.
    """

    called: ClassVar[str] = "a model"
    silent: ClassVar[frozenset[str]] = frozenset({"make"})

    name: Text
    make: Callable[..., Any] | None = None
    init: Text = "kaiming-normal"
    options: PlainTable = field(default_factory=dict)

    def conflicts(self) -> Iterator[Problem]:
        """A name alone must be known."""
        if self.make is None:
            # Looking names up loads torch.
            from secateurs.study.own import models

            yield from _unknown_name("model", self.name, models())

    @classmethod
    def read(cls, value: Any) -> Self:
        """A network, a name, a function, or a table of its fields."""
        if isinstance(value, cls | Mapping):
            return super().read(value)
        if isinstance(value, str):
            named: Self = _of_name(cls, value)
            return named
        # A module is callable, too, but a study makes a fresh one for each seed. Known by what it
        # has: importing torch to ask takes a second.
        if hasattr(value, "state_dict") and not isinstance(value, type):
            raise Misfit.of(
                f"model is a {type(value).__name__} that is made already; every seed needs a "
                "fresh one: give a function that returns it"
            )
        if not callable(value):
            raise Misfit.of(
                f"{excerpt(value)} is neither a name, a table with a name nor a function that makes"
                " a network"
            )
        return cls(name=getattr(value, "__name__", type(value).__name__), make=value)


def _makes_data(value: Any) -> None:
    if not (value is None or callable(value) or _is_data(value)):
        raise Misfit.of(f"{excerpt(value)} is not a function, which only Python can give")


def _is_data(value: Any) -> bool:
    # Known by what it has: importing Dataset to ask for it would load torch.
    return hasattr(value, "train_x")


@dataclass(frozen=True, kw_only=True)
class Data(CheckedSettings):
    """A data set: a name of `secateurs data`, or a function (or a `secateurs.data.Dataset`) of your
    own.

    `train` and `test` cut it to its first examples. With `held_out`, the last so many training
    images are tested on in place of the test images, and not trained on: settings are chosen so.
    `root` is its folder: no part of a run's key.
    """

    called: ClassVar[str] = "a data set"
    silent: ClassVar[frozenset[str]] = frozenset({"make"})

    name: Text
    make: Annotated[Any, _makes_data] = None
    train: Count | None = None
    test: Count | None = None
    held_out: Count | None = None
    root: Text | None = None

    @property
    def title(self) -> str:
        """The name, and what is held out of it: rows of the two are never compared."""
        return self.name if self.held_out is None else f"{self.name}, {self.held_out} held out"

    def conflicts(self) -> Iterator[Problem]:
        """A name alone must be known; the test images are the held-out ones, or the set's own."""
        if self.held_out is not None and self.test is not None:
            yield Problem(("test",), "with held_out no test image is looked at; leave test out")
        if self.make is None:
            from secateurs.study.own import data

            yield from _unknown_name("data set", self.name, data())

    @classmethod
    def read(cls, value: Any) -> Self:
        """A data set, a name, a function, or a table of its fields."""
        if isinstance(value, cls | Mapping):
            return super().read(value)
        if isinstance(value, str):
            named: Self = _of_name(cls, value)
            return named
        if not (callable(value) or _is_data(value)):
            raise Misfit.of(
                f"{excerpt(value)} is neither a name, a table with a name, a secateurs.data.Dataset"
                " nor a function that makes one; secateurs.data.from_tensors makes one of tensors"
            )
        name = getattr(value, "name", "") or getattr(value, "__name__", "data")
        return cls(name=str(name), make=value)


def _unknown_name(kind: str, name: str, known: list[str]) -> Iterator[Problem]:
    if name not in known:
        yield Problem(("name",), unknown(kind, name, known).rstrip("."))


def _of_name(kind: Any, name: str) -> Any:
    """The value of this name; what is wrong with it is told at the name itself, since what was
    written has no field `name`.
    """
    try:
        return kind(name=name)
    except Misfit as error:
        raise Misfit([Problem((), problem.text) for problem in error.problems]) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning(CheckedSettings):
    """How a study chooses among the candidates of a `Choice`: each is trained once a seed, tested
    on training images that are held out, never on a test image.

    Attributes:
        compression: What the candidates are asked for, if they take one.
        held_out: How many of the training images, the last ones.
        seeds: Of the tuning; others than the study's, so that no start is looked at twice.
    """

    called: ClassVar[str] = "tuning"

    compression: Annotated[float, within(1)] = 10.0
    held_out: Count = 5000
    seeds: Annotated[tuple[Annotated[int, within(0)], ...], distinct] = (1000,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certify(CheckedSettings):
    """What is proven of every sparse network against its dense one: ℓ∞-balls around the first
    test images.
    """

    called: ClassVar[str] = "certify"

    images: Count = 8
    radius: Positive = 1 / 255


# Figures in print that a study names, to be drawn dotted beside its own.

PrintedCurve: TypeAlias = Annotated[
    tuple[tuple[Annotated[float, within(1)], Annotated[float, within(0, 100)]], ...], not_empty
]
"""[[compression, accuracy in percent], ...]"""
