"""A job: a piece of work with a name, the jobs it needs, and a function that does it.

The store, the driver and the executors know only jobs. A run of a study is one kind of job; a
measurement of a published experiment is another, whose rows often do not describe a network.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol

from secateurs.errors import SecateursError
from secateurs_lab.study.artefacts import Artefacts
from secateurs_lab.study.database import Row


class Interrupted(SecateursError):
    """The job was asked to stop; its checkpoint is saved."""


class JobContext(Protocol):
    """All that an executor gives a job: what it needs, and a place for what it makes."""

    def get(self, purpose: str) -> bytes | None:
        """Bytes stored earlier under this purpose ("cut", "checkpoint"), or those of a needed job
        ("parent", "rewind", "dense"); None if there are none.
        """

    def put(self, purpose: str, blob: bytes) -> str:
        """Keep these bytes durably, in place of earlier ones; returns their name."""

    def tell(self, **news: Any) -> None:
        """Send news to watchers: progress, epochs."""

    def stopping(self) -> bool:
        """Whether the job is asked to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A piece of work: equal keys mean equal results.

    Attributes:
        row: Its row in the store as long as it waits: its key, and what is known beforehand.
        work: `work(tools, context) -> row`, a function that can be sent to another process. `tools`
            is whatever the driver was told to make once in each process. Errors in the work are
            written into its row; only `Interrupted` and errors of the store are raised.
        needs: Keys of the jobs whose artefacts it reads, by purpose: they are done first.
        stoppable: Whether the work checks `JobContext.stopping` and then leaves a checkpoint.
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
        """Write the file, then report its name; that of final weights is reported with the row."""
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
    """Artefacts in memory, for jobs outside a store and on the nodes of a cluster."""

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
        """Record the news."""
        self.news.append(news)

    def stopping(self) -> bool:
        """Whether `stop` was set."""
        return self.stop
