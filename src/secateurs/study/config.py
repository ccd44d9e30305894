"""A study is a value: data, networks, methods, compressions, seeds; `runs` lists every training it
asks for.

A value made from names alone is the same as a TOML file; functions of your own come in through
Python only.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from secateurs.errors import ArgumentError
from secateurs.study.key import key_of
from secateurs.study.settings.methods import Dense, Imp, Method
from secateurs.study.settings.options import (
    Problem,
    each,
    flag,
    maybe,
    misfits,
    named,
    number,
    option,
    plain_table,
    refuse,
    text,
    whole,
)
from secateurs.study.settings.training import Training


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training with everything that decides its result.

    Attributes:
        parent: The run whose network is cut or factorized; None begins with a fresh network.
        rewind: The run that stopped at the rewinding point; None where nothing is rewound.
        compression: total/kept asked for; None where the method finds its own (λ) or is dense.
        key: The name of the run: a hash of its settings, as `secateurs.study.key` says.
    """

    data: Data
    model: Net
    method: Method
    train: Training
    seed: int = 0
    compression: float | None = None
    parent: "Run | None" = None
    rewind: "Run | None" = None
    certify: Certify | None = None
    key: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", key_of(self))

    @property
    def needs(self) -> "tuple[Run, ...]":
        """The runs that must be done before."""
        return tuple(run for run in (self.parent, self.rewind) if run is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What is compared: every method at every compression and seed, on every network and data set.

    Attributes:
        model, data: Names, `Net`s and `Data`s, your own functions, or lists of these.
        methods: Values of `secateurs.study` such as `Prune`, `Imp`, `Gradual`, `Dwf`, `L1`,
        `PathPenalty`.
        compressions: total/kept, asked of every method that takes one.
        seeds: Each gives another start, order of examples and draws.
        train: How networks are trained, unless a method says otherwise.
        tune: How a network is trained after a cut of a trained one; None: as `train`.
        certify: Also prove how far each sparse network may depart from its dense one.
        metrics: Your own `{name: metric(model, dataset) -> number}`, measured at the end of every
        run.
        save: Keep every network's weights (needed for `rerun`'s comparison of files and overlaps of
        masks).

    >>> from secateurs.study import Prune
    >>> study = Study(model="lenet-300-100", data="digits", methods=[Prune()], compressions=[5, 10])
    >>> [run.method.title for run in study.runs()]
    ['dense', 'magnitude', 'magnitude']
    """

    name: str = option("study", text)
    model: Any = option("lenet-300-100")
    data: Any = option("digits")
    methods: tuple[Method, ...] = option((), lambda value: _methods(value))
    compressions: tuple[float, ...] = option((10.0,), each(number(1.0)))
    seeds: tuple[int, ...] = option((0,), each(whole(0)))
    train: Training = option(Training())
    tune: Training | None = option(None)
    certify: Certify | None = option(None)
    metrics: Mapping[str, Callable[..., float]] = option(make=dict)
    save: bool = option(True, flag)

    def __post_init__(self) -> None:
        for name in ("methods", "compressions", "seeds"):
            value = getattr(self, name)
            object.__setattr__(
                self, name, tuple(value) if isinstance(value, list) else value
            )
        refuse("the study", [*misfits(self), *self._classes()])
        object.__setattr__(self, "model", tuple(_nets(self.model)))
        object.__setattr__(self, "data", tuple(_sources(self.data)))
        refuse("the study", self._titles())

    def runs(self) -> "list[Run]":
        """Every run, those first that others need; equal runs once."""
        seen: dict[str, Run] = {}
        for run in self._runs():
            _add(run, seen)
        return list(seen.values())

    def _runs(self) -> "Iterator[Run]":
        for data in self.data:
            for model in self.model:
                for seed in self.seeds:
                    yield self._run(Dense(), data=data, model=model, seed=seed)
                    for method in self.methods:
                        for single in method.single():
                            for compression in (
                                self.compressions if single.by_compression else (None,)
                            ):
                                yield from self._chain(
                                    single,
                                    compression,
                                    data=data,
                                    model=model,
                                    seed=seed,
                                )

    def _chain(
        self, method: Method, compression: float | None, **at: Any
    ) -> "Iterator[Run]":
        if isinstance(method, Imp) and compression is not None:
            yield from self._imp(method, compression, **at)
        else:
            yield self._run(method, compression, **at)

    def _run(
        self, method: Method, compression: float | None = None, **at: Any
    ) -> "Run":
        parent = self._parent(method, compression, **at)
        rewind = self._rewind(method, **at)
        base = (
            self.tune
            if parent is not None and rewind is None and self.tune is not None
            else self.train
        )
        train = base.but({**method.usual, **method.train})
        needed: dict[str, Any] = {
            "parent": parent,
            "rewind": rewind,
            "certify": self.certify,
        }
        return Run(method=method, compression=compression, train=train, **needed, **at)

    def _parent(
        self, method: Method, compression: float | None, **at: Any
    ) -> "Run | None":
        after: str | Method = getattr(method, "after", "init")
        if after == "init":
            return None
        if not isinstance(after, Method):
            return self._run(Dense(), **at)
        return self._run(after, compression if after.by_compression else None, **at)

    def _rewind(self, method: Method, **at: Any) -> "Run | None":
        point = getattr(method, "rewind", None)
        return None if point is None else self._run(Dense(until=point), **at)

    def _imp(self, method: Imp, compression: float, **at: Any) -> "Iterator[Run]":
        """Round by round: each cuts the network of the round before."""
        parent, rounds = self._run(Dense(), **at), 0
        rewind = self._rewind(method, **at)
        train = self.train.but({**method.usual, **method.train})
        while True:
            rounds += 1
            reached = round(1 / (1 - method.per_round) ** rounds, 6)
            last = reached >= compression * (1 - 1e-6)
            parent = Run(
                method=method,
                compression=compression if last else reached,
                parent=parent,
                rewind=rewind,
                train=train,
                certify=self.certify,
                **at,
            )
            yield parent
            if last:
                return

    def _classes(self) -> list[Problem]:
        found = []
        for name, cls in (
            ("train", Training),
            ("tune", Training),
            ("certify", Certify),
        ):
            value = getattr(self, name)
            if not isinstance(value, cls) and not (value is None and name != "train"):
                found.append(Problem((name,), f"{value!r} is no {cls.__name__}"))
        odd = [key for key, value in dict(self.metrics).items() if not callable(value)]
        return found + [
            Problem(
                ("metrics", key), "a metric is a function (model, dataset) -> number"
            )
            for key in odd
        ]

    def _titles(self) -> list[Problem]:
        """Two methods with one title could not be told apart in a table."""
        titles = [method.title for method in self.methods]
        twice = [i for i, title in enumerate(titles) if title in titles[:i]]
        return [
            Problem(
                ("methods", i),
                f"two methods are called {titles[i]!r}: give this one a label",
            )
            for i in twice
        ]


def _methods(value: Any) -> str:
    if not isinstance(value, tuple):
        return f"{value!r} is not a list of methods"
    odd = [method for method in value if not isinstance(method, Method)]
    return f"{odd[0]!r} is no method; write Prune(score=...), Dwf(...)" if odd else ""


def _add(run: Run, seen: dict[str, Run]) -> None:
    """The run after those it needs, once."""
    if run.key not in seen:
        for needed in run.needs:
            _add(needed, seen)
        seen[run.key] = run


def _nets(value: Any) -> Iterator[Net]:
    """One network or a list, each a name, a `Net` or a function."""
    for entry in value if isinstance(value, list | tuple) else [value]:
        if isinstance(entry, Net):
            yield entry
        elif isinstance(entry, str):
            yield Net(name=entry)
        elif callable(entry):
            yield Net(name=getattr(entry, "__name__", type(entry).__name__), make=entry)
        else:
            raise ArgumentError(
                f"model={entry!r} is neither a name, a Net nor a function that makes a network."
            )


def _sources(value: Any) -> Iterator[Data]:
    """One data set or a list, each a name, a `Data`, a `Dataset` or a function."""
    for entry in value if isinstance(value, list | tuple) else [value]:
        if isinstance(entry, Data):
            yield entry
        elif isinstance(entry, str):
            yield Data(name=entry)
        elif callable(entry) or hasattr(entry, "train_x"):
            name = getattr(entry, "name", "") or getattr(entry, "__name__", "data")
            yield Data(name=str(name), make=entry)
        else:
            raise ArgumentError(
                f"data={entry!r} is neither a name, a Dataset nor a function that makes one."
            )
