"""Where a run finds what it needs and leaves what it makes: the one thing an engine has to
provide.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from secateurs.errors import SecateursError


class Interrupted(SecateursError):
    """The run was asked to leave off; its checkpoint is saved."""


class Desk(Protocol):
    """What an engine gives a run."""

    def get(self, purpose: str) -> bytes | None:
        """Bytes left under this purpose before ("cut", "checkpoint"), or those of a needed run
        ("parent", "rewind", "dense"); None if there are none.
        """

    def put(self, purpose: str, blob: bytes) -> str:
        """Keep these bytes, durably, in place of those before; returns their name."""

    def tell(self, **news: Any) -> None:
        """News for whoever watches: progress, epochs."""

    def stopping(self) -> bool:
        """Whether the run is asked to leave off."""


@dataclass(slots=True)
class Memory:
    """A desk in memory: for runs outside of a store, and on the nodes of a cluster."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    news: list[Mapping[str, Any]] = field(default_factory=list)
    stop: bool = False

    def get(self, purpose: str) -> bytes | None:
        """The bytes under this purpose."""
        return self.blobs.get(purpose)

    def put(self, purpose: str, blob: bytes) -> str:
        """Keep the bytes; their name is their hash."""
        from hashlib import sha256

        self.blobs[purpose] = blob
        return sha256(blob).hexdigest()

    def tell(self, **news: Any) -> None:
        """Remember the news."""
        self.news.append(news)

    def stopping(self) -> bool:
        """Whether somebody set `stop`."""
        return self.stop
