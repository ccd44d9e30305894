"""A run under way: what the stages share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from secateurs.data import Dataset
from secateurs.errors import SecateursError, StoreError, TrainingError
from secateurs.study.checkpoint import State, Tensors
from secateurs.study.config import Run
from secateurs.study.database import Certified, LayerKept, Point
from secateurs.study.measure import Bench
from secateurs.train import Epoch

# Where a run finds what it needs and leaves what it makes: the one thing an engine has to provide.


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


class Hopeless(TrainingError):
    """The network no longer depends on its input: training on is a waste."""


@dataclass(slots=True, kw_only=True)
class Work:
    """A run under way: its network and data, and what the stages have found so far."""

    run: Run
    bench: Bench
    desk: Desk
    model: nn.Module
    data: Dataset
    data_hash: str
    masks: Tensors | None = None
    epochs: list[Epoch] = field(default_factory=list)
    marks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Figures of the method at the end of each epoch, by step."""
    tested: Epoch | None = None
    """The last epoch, where its test figures are those of the network as it is."""
    timings: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    layers: tuple[LayerKept, ...] = ()
    certificates: tuple[Certified, ...] = ()
    notes: list[str] = field(default_factory=list)

    def held(self, purpose: str) -> State | None:
        """What lies on the desk; None if there is nothing, or nothing sound."""
        try:
            blob = self.desk.get(purpose)
            return None if blob is None else State.unpack(blob)
        except StoreError as error:
            self.desk.tell(event="damaged", purpose=purpose, text=str(error))
            return None

    def needed(self, purpose: str) -> Tensors:
        """The weights that another run must have left."""
        found = self.held(purpose)
        if found is None:
            raise StoreError(f"the weights of the {purpose} run are missing or damaged.")
        return found.tensors

    @property
    def history(self) -> tuple[Point, ...]:
        """The epochs with the figures of the method."""
        return tuple(
            Point(
                epoch=epoch.epoch,
                iteration=epoch.iteration,
                loss=epoch.loss,
                test_loss=epoch.test_loss,
                test_accuracy=epoch.test_accuracy,
                learning_rate=epoch.learning_rate,
                seconds=epoch.seconds,
                # By text, since marks come back from a
                # checkpoint as JSON, whose keys are texts.
                **self.marks.get(str(epoch.iteration), {}),
            )
            for epoch in self.epochs
        )
