"""What is done during a training: marks, news, checkpoints, and an end to what is hopeless."""

from time import monotonic

from secateurs.study.pipeline import measure
from secateurs.study.pipeline.checkpoint import (
    State,
    optimizer_state,
    standing_state,
    under,
    weights_of,
)
from secateurs.study.pipeline.desk import Interrupted
from secateurs.study.pipeline.trainers import Trainer
from secateurs.study.pipeline.work import Hopeless, Work
from secateurs.train import Epoch, Moment
from secateurs.train.progress import Line, Progress

NEWS_EVERY = 0.5
"""Seconds between two news of a training's progress."""


class Saver:
    """After each step: mark the ends of epochs, tell how far it is, save when it is time, leave
    when asked.
    """

    def __init__(self, work: Work, trainer: Trainer) -> None:
        self.work, self.trainer = work, trainer
        self.saved = self.told = monotonic()

    def __call__(self, moment: Moment) -> None:
        clock, now = moment.clock, monotonic()
        # The last step ends an epoch, whole or not.
        if clock.iteration % clock.per_epoch == 0 or clock.iteration == clock.total:
            self._mark(moment)
        if now - self.told > NEWS_EVERY:
            self.told = now
            self.work.desk.tell(
                event="progress", progress=clock.iteration / max(1, clock.total)
            )
        stopping = self.work.desk.stopping()
        if stopping or now - self.saved > self.work.bench.save_every:
            self._save(moment)
            # The clock is read again, since saving takes time itself.
            self.saved = monotonic()
        if stopping:
            raise Interrupted(f"left off after step {clock.iteration}")

    def _mark(self, moment: Moment) -> None:
        sampled = self.trainer.sample(moment)
        self.work.marks[str(moment.clock.iteration)] = {
            "sparsity": measure.share_of_zeros(moment.model),
            "strength": sampled.strength,
            "misalignment": sampled.misalignment,
        }

    def _save(self, moment: Moment) -> None:
        # All ranks hold the same state: one of them writes it.
        if self.work.bench.ranks.rank == 0:
            self.work.desk.put(
                "checkpoint", checkpoint(self.work, self.trainer, moment).pack()
            )


def checkpoint(work: Work, trainer: Trainer, moment: Moment) -> State:
    """Everything the training needs to go on bit for bit."""
    inner, optimizer = optimizer_state(trainer.optimizer)
    own, method = trainer.state()
    numbers, standing = standing_state(moment.standing())
    tensors = {
        **under("model", weights_of(work.model)),
        **under("mask", work.masks or {}),
        **under("optimizer", inner),
        **under("method", own),
        **under("generator", numbers),
    }
    values = {"optimizer": optimizer, "method": method, "standing": standing}
    return State(
        tensors=tensors,
        values={**values, "marks": work.marks, "metrics": work.metrics},
    )


class Watch(Progress):
    """Keeps the epochs as they end, tells of them, and ends what is hopeless."""

    def __init__(self, work: Work) -> None:
        self.work, self.silent = work, 0

    def epoch(self, line: Line) -> None:
        """Remember the epoch; two in a row with one answer for all test images are the end."""
        if not isinstance(line, Epoch):
            return
        work = self.work
        work.epochs.append(line)
        work.desk.tell(
            event="epoch",
            epoch=line.epoch,
            loss=line.loss,
            accuracy=line.test_accuracy,
        )
        accuracy = line.test_accuracy
        # Comparing answers costs another pass, so only
        # networks near chance are looked at.
        chance = accuracy is None or accuracy <= 1.5 / work.data.classes
        self.silent = (
            self.silent + 1
            if chance and measure.constant(work.model, work.data)
            else 0
        )
        if self.silent == 2:
            raise Hopeless(
                f"after epoch {line.epoch} the network gives one answer to all inputs: "
                f"{100 * measure.share_of_zeros(work.model):.1f} % of its weights are zero."
            )
