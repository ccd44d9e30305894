"""What a study is about: networks, data sets, and what is proven of the sparse ones."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from secateurs.errors import ArgumentError
from secateurs.study.settings.checks import (
    maybe,
    named,
    number,
    plain_table,
    text,
    whole,
)
from secateurs.study.settings.options import Problem, misfits, option, refuse


def _models() -> list[str]:
    from secateurs.study.settings.own import models

    return models()


def _data() -> list[str]:
    from secateurs.study.settings.own import data

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
            yield Net(
                name=getattr(entry, "__name__", type(entry).__name__), make=entry
            )
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
