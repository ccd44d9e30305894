"""A training as a value, and the chain of trainings that a method asks for."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from secateurs.study.key import key_of
from secateurs.study.settings.methods import Dense, Imp, Method
from secateurs.study.settings.parts import Certify, Data, Net
from secateurs.study.settings.training import Training


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

    def of(
        self, method: Method, compression: float | None, **at: Any
    ) -> Iterator[Run]:
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
        return Run(
            method=method, compression=compression, train=train, **needed, **at
        )

    def _parent(
        self, method: Method, compression: float | None, **at: Any
    ) -> Run | None:
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
