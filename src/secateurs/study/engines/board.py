"""Which run is next: each waits for those it needs, and what cannot be any more is marked."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from secateurs.study.keeping.row import ENDED, Row
from secateurs.study.runs import Run
from secateurs.study.store import Store

NOT_BEGUN = "not begun: "
"""How the reason of a run begins that never ran because of another."""


class Board:
    """The runs of a study by key, and where each stands. Every change goes through the store."""

    def __init__(self, runs: Iterable[Run], store: Store) -> None:
        self.store = store
        self.runs = {run.key: run for run in runs}
        self.rows = {row.key: row for row in store.rows(details=False, hidden=True)}
        self.states: dict[str, str] = {key: self.rows[key].state for key in self.runs}
        self.children: dict[str, list[str]] = {key: [] for key in self.runs}
        for run in self.runs.values():
            for needed in run.needs:
                self.children[needed.key].append(run.key)
        self.queue = [key for key in self.runs if self.states[key] == "waiting"]

    @property
    def unfinished(self) -> int:
        """Runs that have not come to an end."""
        return sum(state not in ENDED for state in self.states.values())

    def next(self) -> Run | None:
        """The first waiting run whose needs are done and sound; None if there is none now."""
        self.queue = [key for key in self.queue if self.states[key] == "waiting"]
        # A copy, because a needed run that is found
        # damaged goes back into the queue meanwhile.
        for key in list(self.queue):
            if self._ready(self.runs[key]):
                return self._taken(key)
        # A run whose weights were found damaged is at the head again.
        ahead = self.queue[:1]
        return (
            self._taken(ahead[0])
            if ahead and self._ready(self.runs[ahead[0]])
            else None
        )

    def _taken(self, key: str) -> Run:
        self.queue.remove(key)
        self.states[key] = "running"
        return self.runs[key]

    def back(self, key: str) -> None:
        """The run waits again, at the head of the queue."""
        self.states[key] = "waiting"
        if key not in self.queue:
            self.queue.insert(0, key)

    def ended(self, row: Row) -> Iterator[tuple[str, str, str]]:
        """Take note of an end; yields the runs that cannot be any more: key, state, reason."""
        self.states[row.key], self.rows[row.key] = row.state, row
        if row.state != "done":
            yield from self._lost(row.key, row.state)

    def weights(self, run: Run) -> dict[str, str]:
        """Names of the weights that a run needs, by purpose."""
        needed = {"parent": run.parent, "rewind": run.rewind}
        if run.parent is not None:
            # Certificates compare with the first network of the chain.
            needed["dense"] = root(run)
        return {
            purpose: str(self.rows[n.key].weights)
            for purpose, n in needed.items()
            if n is not None
        }

    def idle(self) -> Iterator[tuple[str, str]]:
        """Ended runs whose weights no other run waits for: key and name of the weights. They are
        without them from here on.
        """
        wanted = {
            other.key
            for key, run in self.runs.items()
            if self.states[key] not in ENDED
            for other in _needed(run)
        }
        for key in self.runs.keys() - wanted:
            name = self.rows[key].weights
            if name is not None:
                self.rows[key] = replace(self.rows[key], weights=None)
                yield key, name

    def _ready(self, run: Run) -> bool:
        return all(
            self.states[other.key] == "done" and self._sound(other.key)
            for other in _needed(run)
        )

    def _sound(self, key: str) -> bool:
        """Whether the weights of a finished run are there and whole; if not, it is done again."""
        name = self.rows[key].weights
        if name is not None and self.store.artefacts.fits(name):
            return True
        self.store.again(key)
        self.rows[key] = self.store.row(key)
        self.back(key)
        return False

    def _lost(self, key: str, state: str) -> Iterator[tuple[str, str, str]]:
        # Followers of a run that diverged have not
        # diverged themselves: they could not begin.
        end = state if state in ("collapsed", "cancelled") else "failed"
        for child in self.children[key]:
            # What was done earlier keeps its result.
            if self.states[child] not in ENDED:
                self.states[child] = end
                yield (
                    child,
                    end,
                    f"{NOT_BEGUN}the run {key} it needs has {_word(state)}",
                )
                yield from self._lost(child, end)


def _needed(run: Run) -> list[Run]:
    """The runs whose weights this one reads."""
    return [*run.needs, *([root(run)] if run.parent is not None else [])]


def root(run: Run) -> Run:
    """The first network of the chain a run stands in."""
    while run.parent is not None:
        run = run.parent
    return run


def _word(state: str) -> str:
    return {"cancelled": "been cancelled"}.get(state, state)
