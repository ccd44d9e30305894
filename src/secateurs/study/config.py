"""A study is a value: data, networks, methods, compressions, seeds; `runs` lists every training it
asks for.

A value made from names alone is the same as a TOML file; functions of your own come in through
Python only.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

from secateurs.study.database import Row
from secateurs.study.key import full_settings, key_of
from secateurs.study.methods import L1, MOST_ROUNDS, Dwf, Gradual, Imp, PathPenalty, Prune
from secateurs.study.settings import (
    METHODS,
    Certify,
    Data,
    Dense,
    Method,
    Net,
    Problem,
    Training,
    choice,
    each,
    flag,
    later,
    misfits,
    nets,
    number,
    option,
    printed_curves,
    refuse,
    sources,
    steps,
    text,
    whole,
)

__all__ = [
    "L1",
    "METHODS",
    "Dense",
    "Dwf",
    "Gradual",
    "Imp",
    "Method",
    "PathPenalty",
    "Prune",
]


# A training as a value, and the chain of trainings that a method asks for.


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
        # The class is frozen, and the key follows from its other fields.
        object.__setattr__(self, "key", key_of(self))

    @property
    def needs(self) -> "tuple[Run, ...]":
        """The runs that must be done before."""
        return tuple(run for run in (self.parent, self.rewind) if run is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """What all runs of a study share, and the runs that one method makes of it.

    `at` says where: data, model and seed.
    """

    train: Training
    tune: Training | None
    certify: Certify | None

    def of(self, method: Method, compression: float | None, **at: Any) -> Iterator[Run]:
        """The runs of a method at a compression; only iterative pruning has several."""
        if isinstance(method, Imp) and compression is not None:
            yield from self._imp(method, compression, **at)
        else:
            yield self.run(method, compression, **at)

    def run(self, method: Method, compression: float | None = None, **at: Any) -> Run:
        """One run, with those that it needs inside it."""
        parent = self._parent(method, compression, **at)
        rewind = self._rewind(method, **at)
        # `tune` is for what goes on from a trained network; a rewound one trains as
        # from the beginning.
        base = (
            self.tune
            if parent is not None and rewind is None and self.tune is not None
            else self.train
        )
        # What the user writes comes last: it wins over what is usual for the method.
        train = base.but({**method.usual, **method.train})
        needed: dict[str, Any] = {
            "parent": parent,
            "rewind": rewind,
            "certify": self.certify,
        }
        return Run(method=method, compression=compression, train=train, **needed, **at)

    def _parent(self, method: Method, compression: float | None, **at: Any) -> Run | None:
        after: str | Method = getattr(method, "after", "init")
        if after == "init":
            return None
        if not isinstance(after, Method):
            return self.run(Dense(), **at)
        return self.run(after, compression if after.by_compression else None, **at)

    def _rewind(self, method: Method, **at: Any) -> Run | None:
        point = getattr(method, "rewind", None)
        return None if point is None else self.run(Dense(until=point), **at)

    def _imp(self, method: Imp, compression: float, **at: Any) -> Iterator[Run]:
        """Round by round: each cuts the network of the round before."""
        parent, rounds = self.run(Dense(), **at), 0
        rewind = self._rewind(method, **at)
        train = self.train.but({**method.usual, **method.train})
        while True:
            rounds += 1
            # Rounded, because the compression is part of the
            # run's key, which is the same everywhere.
            reached = round(1 / (1 - method.per_round) ** rounds, 6)
            # A little less will do: a rounding must not cost another round.
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


def in_order(runs: Iterable[Run]) -> list[Run]:
    """Every run once, those first that others need."""
    seen: dict[str, Run] = {}
    for run in runs:
        _add(run, seen)
    return list(seen.values())


def _add(run: Run, seen: dict[str, Run]) -> None:
    """The run after those it needs, once."""
    if run.key not in seen:
        for needed in run.needs:
            _add(needed, seen)
        seen[run.key] = run


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
        published: Figures in print for the page, `{name: [[compression, accuracy %], ...]}`.
        save: Keep every network's weights. Without them a page shows no overlaps of masks, `rerun`
            knows only networks that need no other, and what a later method needs is trained again.

    >>> from secateurs.study import Prune
    >>> study = Study(model="lenet-300-100", data="digits", methods=[Prune()], compressions=[5, 10])
    >>> [run.method.title for run in study.runs()]
    ['dense', 'magnitude', 'magnitude']
    """

    name: str = option("study", text)
    model: Any = option("lenet-300-100")
    data: Any = option("digits")
    # A lambda, because the check stands below this class.
    methods: tuple[Method, ...] = option((), lambda value: _methods(value))
    compressions: tuple[float, ...] = option((10.0,), each(number(1.0)))
    seeds: tuple[int, ...] = option((0,), each(whole(0)))
    train: Training = option(Training())
    tune: Training | None = option(None)
    certify: Certify | None = option(None)
    metrics: Mapping[str, Callable[..., float]] = option(make=dict)
    published: Mapping[str, Any] = option(check=printed_curves, make=dict)
    save: bool = option(True, flag)

    def __post_init__(self) -> None:
        # Lists are natural to write; a frozen value
        # holds tuples, which compare and hash.
        for name in ("methods", "compressions", "seeds"):
            value = getattr(self, name)
            object.__setattr__(self, name, tuple(value) if isinstance(value, list) else value)
        # All that is wrong is collected first, so that one try tells it all.
        refuse("the study", [*misfits(self), *self._classes()])
        object.__setattr__(self, "model", tuple(nets(self.model)))
        object.__setattr__(self, "data", tuple(sources(self.data)))
        problems = self._titles(), self._rounds(), self._untrained(), self._late()
        refuse("the study", list(chain.from_iterable(problems)))

    def runs(self) -> list[Run]:
        """Every run, those first that others need; equal runs once."""
        return in_order(self._runs())

    def _runs(self) -> Iterator[Run]:
        chains = Chains(train=self.train, tune=self.tune, certify=self.certify)
        for data in self.data:
            for model in self.model:
                # Seed by seed: a study that is stopped has
                # compared all methods on the first seeds.
                for seed in self.seeds:
                    # The dense network is always among the runs: the others are
                    # compared with it.
                    yield chains.run(Dense(), data=data, model=model, seed=seed)
                    for method in self.methods:
                        for single in method.single():
                            for compression in (
                                self.compressions if single.by_compression else (None,)
                            ):
                                yield from chains.of(
                                    single,
                                    compression,
                                    data=data,
                                    model=model,
                                    seed=seed,
                                )

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
            Problem(("metrics", key), "a metric is a function (model, dataset) -> number")
            for key in odd
        ]

    def _rounds(self) -> list[Problem]:
        """Each round of iterative pruning is a run: a tiny share would give millions of them."""
        most = max(self.compressions)
        return [
            Problem(
                ("methods", i, "per_round"),
                f"{method.per_round!r} takes about {method.rounds_to(most):.0f} rounds to reach "
                f"{most:g}×; at most {MOST_ROUNDS} are allowed: cut a larger share",
            )
            for i, method in enumerate(self.methods)
            if isinstance(method, Imp) and method.rounds_to(most) > MOST_ROUNDS
        ]

    def _untrained(self) -> list[Problem]:
        """`tune` may have no step, which only cuts; `train` may not."""
        wrong = steps(self.train.length)
        return [Problem(("train", "length"), wrong)] if wrong else []

    def _late(self) -> list[Problem]:
        """Cuts after the last step would never happen, and leave the network dense."""
        found = []
        for i, method in enumerate(self.methods):
            if isinstance(method, Gradual):
                trainings = [x for x in (self.train, self.tune) if x is not None]
                lengths = [x.but({**method.usual, **method.train}).length for x in trainings]
                found += [
                    Problem(
                        ("methods", i, name),
                        f"{value!r} is past the end of the training ({lengths[0]}): no cut would"
                        " come",
                    )
                    # The last cut may come with the last step, the first may not.
                    for name, value, last in (
                        ("begin", method.begin, True),
                        ("end", method.end, False),
                    )
                    if all(later(value, x, or_equal=last) for x in lengths)
                ]
        return found

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


# How a study is run, and who watches: nothing of it decides a result.

ENGINES = ("here", "local", "ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a study is run: nothing of it decides a result.

    Attributes:
        engine: "here" (in this process), "local" (worker processes) or "ray" (a cluster).
        workers: Worker processes; with ray, runs at a time (0: as many as the cluster has
            processors).
        threads: Threads of each worker.
        device: Where networks are trained; "" chooses by itself.
        save_every: Seconds between two checkpoints of a run.
        lease: Seconds without a sign of life after which a worker's run is given to another.
        deaths: Workers a run may kill without getting further, before it is marked failed.
        address: Of a Ray cluster.
    """

    engine: str = option("local", choice("engine", *ENGINES))
    workers: int = option(1, whole(0))
    threads: int = option(1, whole(1))
    device: str = option("")
    save_every: float = option(30.0, number())
    lease: float = option(60.0, number(0.0, above=True))
    # Some deaths are chance; a run that kills worker
    # after worker must not go on for ever.
    deaths: int = option(3, whole(1))
    address: str = option("")

    def __post_init__(self) -> None:
        refuse("how to run a study", misfits(self))


class Watcher(Protocol):
    """Whoever shows how a study goes."""

    def begin(self, rows: list[Row]) -> None:
        """The study as it stands."""

    def news(self, key: str, news: Mapping[str, Any]) -> None:
        """Something happened in a run: event="begun", "epoch", "progress", "damaged", "refused",
        "died".
        """

    def ended(self, row: Row) -> None:
        """A run came to its end."""


def waiting(run: Run) -> Row:
    """What is known of a run beforehand."""
    return Row(
        key=run.key,
        label=run.method.title,
        kind=run.method.kind,
        data=run.data.name,
        model=run.model.name,
        seed=run.seed,
        asked=run.compression,
        strength=getattr(run.method, "strength", None),
        # Trained only up to the rewinding point: a step on the way of other runs.
        hidden=getattr(run.method, "until", None) is not None,
        settings=full_settings(run),
    )


def needs_of(run: Run) -> dict[str, str]:
    """Keys of the runs whose weights this one reads, by purpose."""
    needed = {"parent": run.parent, "rewind": run.rewind}
    if run.parent is not None:
        # Certificates compare with the first network of the chain.
        first = run
        while first.parent is not None:
            first = first.parent
        needed["dense"] = first
    return {purpose: other.key for purpose, other in needed.items() if other is not None}
