"""A run in progress: what the stages share."""

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from secateurs.errors import StoreError, TrainingError
from secateurs_lab.data import Dataset
from secateurs_lab.study.artefacts import DamagedFile
from secateurs_lab.study.checkpoint import State, Tensors
from secateurs_lab.study.config import Run
from secateurs_lab.study.database import Certified, LayerKept, Point
from secateurs_lab.study.jobs import JobContext
from secateurs_lab.study.measure import Bench
from secateurs_lab.train import Epoch


class Hopeless(TrainingError):
    """The network no longer depends on its input, so further training is a waste."""


@dataclass(slots=True, kw_only=True)
class Work:
    """A run in progress: its network and data, and the results of the stages so far."""

    run: Run
    bench: Bench
    context: JobContext
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
        """What the job has kept, or needs; None if there is nothing, or if it is damaged."""
        try:
            blob = self.context.get(purpose)
            return None if blob is None else State.unpack(blob)
        except StoreError as error:
            self.context.tell(event="damaged", purpose=purpose, text=str(error))
            return None

    def needed(self, purpose: str) -> Tensors:
        """The weights that another run has left."""
        found = self.held(purpose)
        if found is None:
            raise DamagedFile(f"the weights of the {purpose} run are missing or damaged.")
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
