"""A job: a piece of work with a name, the jobs it needs, and a function that does it.

The store, the driver and the engines know jobs and nothing else. A training of a study is one kind
of job; an experiment of a paper is another, whose rows are often no networks at all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol

from secateurs.errors import SecateursError
from secateurs.study.artefacts import Artefacts
from secateurs.study.database import Row


class Interrupted(SecateursError):
    """The job was asked to leave off; its checkpoint is saved."""


class JobContext(Protocol):
    """Where a job finds what it needs and leaves what it makes: all that an engine provides."""

    def get(self, purpose: str) -> bytes | None:
        """Bytes left under this purpose before ("cut", "checkpoint"), or those of a needed job
        ("parent", "rewind", "dense"); None if there are none.
        """

    def put(self, purpose: str, blob: bytes) -> str:
        """Keep these bytes, durably, in place of those before; returns their name."""

    def tell(self, **news: Any) -> None:
        """News for whoever watches: progress, epochs."""

    def stopping(self) -> bool:
        """Whether the job is asked to leave off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A piece of work: equal keys mean equal results.

    Attributes:
        row: Its line in the store as long as it waits: its key, and what is known beforehand.
        work: `work(tools, context) -> row`, a function that another process can be sent. `tools` is
            whatever the driver was given to make once in each process. What goes wrong in the work
            is written into its row; only `Interrupted` and errors of the store come out.
        needs: Keys of the jobs whose artefacts it reads, by purpose: they are done before.
        stoppable: Whether the work asks `JobContext.stopping` as it goes and leaves a checkpoint.
    """

    row: Row
    work: Callable[[Any, JobContext], Row]
    needs: Mapping[str, str] = field(default_factory=dict)
    stoppable: bool = True

    @property
    def key(self) -> str:
        """The name of the job."""
        return self.row.key


@dataclass(slots=True, kw_only=True)
class StoreContext:
    """Artefacts are files in the store's folder, and their names go to the driver."""

    artefacts: Artefacts
    names: dict[str, str]
    held: Callable[[str, str], object]
    news: Callable[[Mapping[str, Any]], object]
    stop: Callable[[], bool]

    def get(self, purpose: str) -> bytes | None:
        """The bytes under this purpose, checked by their hash."""
        name = self.names.get(purpose)
        return None if name is None else self.artefacts.get(name)

    def put(self, purpose: str, blob: bytes) -> str:
        """Write the file, then tell its name; final weights are told with the row."""
        name = self.names[purpose] = self.artefacts.put(blob)
        # The row names the final weights: both enter the store in one transaction.
        if purpose != "weights":
            self.held(purpose, name)
        return name

    def tell(self, **news: Any) -> None:
        """Pass news on."""
        self.news(news)

    def stopping(self) -> bool:
        """Whether the driver was asked to stop."""
        return self.stop()


@dataclass(slots=True)
class MemoryContext:
    """Artefacts in memory: for jobs outside of a store, and on the nodes of a cluster."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    news: list[Mapping[str, Any]] = field(default_factory=list)
    stop: bool = False

    def get(self, purpose: str) -> bytes | None:
        """The bytes under this purpose."""
        return self.blobs.get(purpose)

    def put(self, purpose: str, blob: bytes) -> str:
        """Keep the bytes; their name is their hash."""
        self.blobs[purpose] = blob
        return sha256(blob).hexdigest()

    def tell(self, **news: Any) -> None:
        """Remember the news."""
        self.news.append(news)

    def stopping(self) -> bool:
        """Whether somebody set `stop`."""
        return self.stop
