"""A study is a value: data, networks, methods, compressions, seeds; `runs` lists every run it
asks for.

A value made from names alone is the same as a TOML file; functions of your own can only be passed
from Python.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeAlias, get_args

from secateurs_lab.study.database import Row
from secateurs_lab.study.fields import (
    CheckedSettings,
    Count,
    NotNegative,
    Problem,
    Text,
    distinct,
    not_empty,
    one_or_more,
    problems_at,
    within,
)
from secateurs_lab.study.key import full_settings, key_of
from secateurs_lab.study.methods import MOST_ROUNDS, Choice, Dense, Gradual, Imp, Method
from secateurs_lab.study.settings import (
    Certify,
    Data,
    Net,
    PrintedCurve,
    Training,
    Tuning,
    at_least_one_step,
    comes_after,
)

# A run as a value, and the chain of runs that a method asks for.


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run with everything that decides its result.

    Attributes:
        parent: The run whose network is cut or factorized; None starts from a fresh network.
        rewind: The run that stopped at the rewinding point; None if nothing is rewound.
        compression: total/kept asked for; None if the method finds its own (λ) or is dense.
        key: The name of the run: a hash of its settings, as `secateurs_lab.study.key` says.
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
        # The class is frozen, and the key is computed from its other fields.
        object.__setattr__(self, "key", key_of(self))

    @property
    def needs(self) -> "tuple[Run, ...]":
        """The runs that must be done first."""
        return tuple(run for run in (self.parent, self.rewind) if run is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """What all runs of a study share, and the runs that one method needs.

    `at` names the data, model and seed.
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
        # `tune` is for methods that continue from a trained network; a rewound one trains as from
        # the beginning.
        base = (
            self.tune
            if parent is not None and rewind is None and self.tune is not None
            else self.train
        )
        # The user's settings come last, so that they override the method's defaults.
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
        """The rounds, each of which cuts the network of the previous one."""
        parent, rounds = self.run(Dense(), **at), 0
        rewind = self._rewind(method, **at)
        train = self.train.but({**method.usual, **method.train})
        while True:
            rounds += 1
            # Rounded, because the compression is part of the
            # run's key, which is the same everywhere.
            reached = round(1 / (1 - method.per_round) ** rounds, 6)
            # Slightly less is enough: rounding must not cost another round.
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
    """Every run once, needed runs first."""
    seen: dict[str, Run] = {}
    for run in runs:
        _add(run, seen)
    return list(seen.values())


def _add(run: Run, seen: dict[str, Run]) -> None:
    """Add the run once, after those it needs."""
    if run.key not in seen:
        for needed in run.needs:
            _add(needed, seen)
        seen[run.key] = run


@dataclass(frozen=True, slots=True, kw_only=True)
class Study(CheckedSettings):
    """A comparison: every method at every compression and seed, on every network and data set.

    Attributes:
        model, data: Names, `Net`s and `Data`s, your own functions, or lists of these.
        methods: Values of `secateurs_lab.study` such as `Prune`, `Imp`, `Gradual`, `Dwf`, `L1`,
            `PathPenalty`.
        compressions: total/kept, for every method that takes one.
        seeds: Each gives a different start, order of examples and draws.
        train: How networks are trained, unless a method says otherwise.
        tune: How a network is trained after a trained one was cut; None: as `train`.
        tuning: How the candidates of a `Choice` are compared; needed if there is one.
        certify: Also prove how far each sparse network can differ from its dense one.
        metrics: Your own `{name: metric(model, dataset) -> number}`, measured at the end of every
            run.
        published: Published figures for the page, `{name: [[compression, accuracy %], ...]}`.
        save: Keep every network's weights. Without them a page shows no overlaps of masks, `rerun`
            works only for networks that need no other, and networks that a later method needs are
            trained again.

    >>> from secateurs_lab.study.methods import Prune
    >>> study = Study(model="lenet-300-100", data="digits", methods=[Prune()], compressions=[5, 10])
    >>> [run.method.title for run in study.runs()]
    ['dense', 'magnitude', 'magnitude']
    """

    called: ClassVar[str] = "the study"

    name: Text = "study"
    model: Annotated[Any, one_or_more(Net), not_empty] = "lenet-300-100"
    data: Annotated[Any, one_or_more(Data), not_empty] = "digits"
    methods: Annotated[tuple[Method, ...], one_or_more(Method)] = ()
    compressions: Annotated[tuple[Annotated[float, within(1)], ...], distinct] = (10.0,)
    seeds: Annotated[tuple[Annotated[int, within(0)], ...], distinct] = (0,)
    train: Training = field(default_factory=Training)
    tune: Training | None = None
    tuning: Tuning | None = None
    certify: Certify | None = None
    metrics: Mapping[str, Callable[..., float]] = field(default_factory=dict)
    published: Mapping[str, PrintedCurve] = field(default_factory=dict)
    save: bool = True

    def conflicts(self) -> Iterator[Problem]:
        """Contradictions between settings that are valid on their own."""
        yield from self._titles()
        yield from self._choices()
        yield from self._rounds()
        yield from self._late()
        # `tune` may have no steps, in which case networks are only cut; `train` must have some.
        yield from problems_at(("train", "length"), lambda: at_least_one_step(self.train.length))

    def runs(self, chosen: "Chosen | None" = None) -> list[Run]:
        """Every run, needed runs first; equal runs once.

        For a `Choice` these are the runs that compare its candidates, and those of the candidate
        that is `chosen`, as `choose` finds it. An undecided choice has none of the latter yet.
        """
        return in_order([*self._tuning_runs(), *self._runs(chosen or {})])

    def choose(self, rows: Iterable[Row], *, or_first: bool = False) -> "Chosen":
        """The best candidate of every choice whose tuning is complete: that with the greatest
        median accuracy on held-out images, the first among equals. A lost run counts as the worst.

        `or_first` takes the first candidate if there is no result yet, for counting runs.
        """
        ended = {row.key: row for row in rows if row.ended}
        found: dict[tuple[str, str, str], Method] = {}
        for place, trials in self._trials().items():
            if all(run.key in ended for runs in trials for run in runs):
                scores = [median(_score(ended[run.key]) for run in runs) for runs in trials]
                best = scores.index(max(scores))
            elif or_first:
                best = 0
            else:
                continue
            title = place[-1]
            choice = next(method for method in self.methods if method.title == title)
            candidates: tuple[Method, ...] = getattr(choice, "candidates", ())
            found[place] = replace(candidates[best], label=title)
        return found

    def _trials(self) -> dict[tuple[str, str, str], list[list[Run]]]:
        """The runs of each candidate of every choice, on every data set and network."""
        found: dict[tuple[str, str, str], list[list[Run]]] = {}
        if self.tuning is None:
            return found
        # No certificates: nothing is chosen by them.
        chains = Chains(train=self.train, tune=self.tune, certify=None)
        for data in self.data:
            held = replace(data, held_out=self.tuning.held_out, test=None)
            for model in self.model:
                for method in self.methods:
                    if not isinstance(method, Choice):
                        continue
                    found[data.name, model.name, method.title] = [
                        [
                            list(chains.of(trial, asked, data=held, model=model, seed=seed))[-1]
                            for seed in self.tuning.seeds
                        ]
                        for trial in method.trials()
                        for asked in [self.tuning.compression if trial.by_compression else None]
                    ]
        return found

    def _tuning_runs(self) -> Iterator[Run]:
        for trials in self._trials().values():
            for runs in trials:
                yield from runs

    def _runs(self, chosen: "Chosen") -> Iterator[Run]:
        chains = Chains(train=self.train, tune=self.tune, certify=self.certify)
        for data in self.data:
            for model in self.model:
                # Seed by seed, so that a stopped study has compared all methods on the first seeds.
                for seed in self.seeds:
                    # The dense network is always included, since the others are compared with it.
                    yield chains.run(Dense(), data=data, model=model, seed=seed)
                    for written in self.methods:
                        method = chosen.get((data.name, model.name, written.title), written)
                        for single in method.single():
                            asked = self.compressions if single.by_compression else (None,)
                            for compression in asked:
                                at = {"data": data, "model": model, "seed": seed}
                                yield from chains.of(single, compression, **at)

    def _titles(self) -> Iterator[Problem]:
        """Refuse two methods with the same title, which a table could not distinguish."""
        titles = [method.title for method in self.methods]
        for i, title in enumerate(titles):
            if title in titles[:i]:
                text = f"two methods are called {title!r}: give this one a label"
                yield Problem(("methods", i), text)

    def _choices(self) -> Iterator[Problem]:
        """Candidates need a way to be compared, on data under different names."""
        choices = [i for i, each in enumerate(self.methods) if isinstance(each, Choice)]
        if choices and self.tuning is None:
            text = "a choice needs tuning = { compression = ..., held_out = ... } in the study"
            yield Problem(("methods", choices[0]), text)
        if self.tuning is not None and any(data.held_out is not None for data in self.data):
            yield Problem(("data",), "tuning holds images out by itself: leave held_out out")

    def _rounds(self) -> Iterator[Problem]:
        """Limit the rounds of iterative pruning, each of which is a run: a tiny share gives
        millions.
        """
        most = max(self.compressions)
        for i, method in enumerate(self.methods):
            if isinstance(method, Imp) and method.rounds_to(most) > MOST_ROUNDS:
                yield Problem(
                    ("methods", i, "per_round"),
                    f"{method.per_round!r} takes about {method.rounds_to(most):.0f} rounds to reach"
                    f" {most:g}×; at most {MOST_ROUNDS} are allowed: cut a larger share",
                )

    def _late(self) -> Iterator[Problem]:
        """Refuse cuts after the last step, which would never happen and leave the network dense."""
        trainings = [each for each in (self.train, self.tune) if each is not None]
        for i, method in enumerate(self.methods):
            if not isinstance(method, Gradual):
                continue
            own = {**method.usual, **method.train}
            lengths = [each.but(own).length for each in trainings]
            points = {"begin": method.begin, "end": method.end}
            for name, point in points.items():
                # The last cut may come with the last step, the first may not.
                first = name == "begin"
                if point and all(comes_after(point, each, or_equal=first) for each in lengths):
                    ends = f"the end of the training ({lengths[0]})"
                    text = f"{point!r} is past {ends}: no cut would come"
                    yield Problem(("methods", i, name), text)


Chosen: TypeAlias = Mapping[tuple[str, str, str], Method]
"""The settled methods of a study, by data set, network and title."""


def _score(row: Row) -> float:
    return row.accuracy if row.accuracy is not None and row.state == "done" else -1.0


# How a study is run, and who watches: none of this affects a result.

Engine: TypeAlias = Literal["in-process", "local", "ray"]
ENGINES: tuple[Engine, ...] = get_args(Engine)


@dataclass(frozen=True, slots=True, kw_only=True)
class How(CheckedSettings):
    """How a study is run; none of this affects a result.

    Attributes:
        engine: "in-process" (one run after the other), "local" (worker processes) or "ray" (a
            cluster).
        workers: Worker processes; with ray, concurrent runs (0: as many as the cluster has
            GPUs, or else processors).
        threads: Threads of each worker.
        device: Where networks are trained; "" chooses by itself. Of several GPUs each worker sees
            one, unless this names one ("cuda:1"); more workers than GPUs share them.
        save_every: Seconds between two checkpoints of a run.
        deaths: How many processes a run may cost without progress before it is marked failed.
        address: The address of a Ray cluster.
    """

    called: ClassVar[str] = "how a study is run"

    engine: Engine = "local"
    workers: Annotated[int, within(0)] = 1
    threads: Count = 1
    device: str = ""
    save_every: NotNegative = 30.0
    # Some deaths are accidents; a run that kills worker after worker must not continue for ever.
    deaths: Count = 3
    address: str = ""


class Watcher(Protocol):
    """Something that shows the progress of a study."""

    def begin(self, rows: list[Row]) -> None:
        """The current state of the study."""

    def news(self, key: str, news: Mapping[str, Any]) -> None:
        """Something happened in a run: event="begun", "epoch", "progress", "damaged", "died"."""

    def ended(self, row: Row) -> None:
        """A run came to its end."""


def waiting_row(run: Run) -> Row:
    """What is known about a run beforehand."""
    return Row(
        key=run.key,
        label=run.method.title,
        kind=run.method.kind,
        data=run.data.title,
        model=run.model.name,
        seed=run.seed,
        asked=run.compression,
        strength=getattr(run.method, "strength", None),
        # Trained only up to the rewinding point, as a step of other runs.
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
