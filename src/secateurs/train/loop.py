"""The training loop itself: one for every training here, resumable at any step."""

from dataclasses import dataclass

from secateurs.train.denormals import flushed_denormals
from secateurs.train.evaluate import kept_modes
from secateurs.train.moment import Fitted, Standing
from secateurs.train.progress import Progress
from secateurs.train.running import Running
from secateurs.train.states import kept_rates
from secateurs.train.training import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop(Training):
    """A training, ready to run: what `fit` makes of its arguments.

    Attributes:
        model, optimizer: Trained in place; on one device, as is `data`.
        stop: Steps after which to leave off, as if interrupted; schedules still see the whole
            length.
        precision: "float32", or "bf16" for autocast of the forward pass.
        ranks: In a distributed run, which share of each batch is ours.
        forward: What gives the outputs, if it is not the model itself (`DistributedDataParallel`
            around it).
        Others: As the arguments of `fit`.
    """

    def run(
        self, standing: Standing | None = None, *, show: Progress | None = None
    ) -> Fitted:
        """Train to the end, from the beginning or from where a training was left.

        To resume, give model and optimizer their states of that moment, and its
        `Moment.standing()`.
        """
        with (
            flushed_denormals(),
            kept_modes(self.model),
            kept_rates(self.optimizer, standing),
        ):
            return Running(self, standing, show or Progress()).run()
