"""A study is a value: data, networks, methods, compressions, seeds; `runs` lists every training it
asks for.

A value made from names alone is the same as a TOML file; functions of your own come in through
Python only.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from secateurs.study.runs import Chains, Run, in_order
from secateurs.study.settings.checks import (
    each,
    flag,
    later,
    number,
    steps,
    text,
    whole,
)
from secateurs.study.settings.methods import Dense, Gradual, Imp, Method
from secateurs.study.settings.options import Problem, misfits, option, refuse
from secateurs.study.settings.parts import Certify, nets, sources
from secateurs.study.settings.printed import printed_curves
from secateurs.study.settings.pruning import MOST_ROUNDS
from secateurs.study.settings.training import Training


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
            object.__setattr__(
                self, name, tuple(value) if isinstance(value, list) else value
            )
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
                                self.compressions
                                if single.by_compression
                                else (None,)
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
        odd = [
            key for key, value in dict(self.metrics).items() if not callable(value)
        ]
        return found + [
            Problem(
                ("metrics", key), "a metric is a function (model, dataset) -> number"
            )
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
                lengths = [
                    x.but({**method.usual, **method.train}).length for x in trainings
                ]
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
