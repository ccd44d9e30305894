"""The training of a run: one loop for every method, saved every so often, left off when it is
hopeless.
"""

from time import monotonic

from torch.nn.parallel import DistributedDataParallel

from secateurs import data as sets
from secateurs.random import generator
from secateurs.step import Step
from secateurs.study.pipeline import measure
from secateurs.study.pipeline.checkpoint import (
    State,
    load_optimizer_,
    optimizer_state,
    put_weights_,
    standing_of,
    standing_state,
    under,
    weights_of,
)
from secateurs.study.pipeline.desk import Interrupted
from secateurs.study.pipeline.trainers import TRAINERS, Job, Trainer, schedule_of
from secateurs.study.pipeline.work import Hopeless, Work
from secateurs.train import Epoch, Loop, Moment, Standing
from secateurs.train.progress import Line, Progress

NEWS_EVERY = 0.5
"""Seconds between two news of a training's progress."""


def train(work: Work) -> None:
    """Train to the end, from the checkpoint if there is one."""
    held = work.held("checkpoint")
    if held is not None:
        put_weights_(work.model, held.part("model"))
        work.masks = held.part("mask") or None
        work.marks, work.metrics = (
            dict(held.values["marks"]),
            dict(held.values["metrics"]),
        )
    # After the weights are in: an optimizer may begin from those that it finds.
    trainer = _trainer(work)
    standing = _resumed(held, trainer, work) if held is not None else None
    loop = _loop(work, trainer)
    # A length of 0it: the network is only cut.
    if loop.total:
        loop.run(standing, show=_Watch(work))
    trainer.finish_()


def per_epoch(work: Work) -> int:
    """Optimizer steps of an epoch."""
    examples, batch = len(work.data.train_y), work.run.train.batch
    return examples // batch if work.run.train.drop_last else -(-examples // batch)


def _trainer(work: Work) -> Trainer:
    steps = per_epoch(work)
    job = Job(
        run=work.run,
        model=work.model,
        data=work.data,
        masks=work.masks,
        per_epoch=steps,
        total=Step.parse(work.run.train.length).iterations(steps),
    )
    return TRAINERS[work.run.method.kind](job)


def _resumed(held: State, trainer: Trainer, work: Work) -> Standing:
    """Give optimizer, method and generators what they had; returns where the training stood."""
    load_optimizer_(
        trainer.optimizer, held.part("optimizer"), held.values["optimizer"]
    )
    trainer.restore_(held.part("method"), held.values["method"])
    standing = standing_of(held.part("generator"), held.values["standing"])
    work.epochs = list(standing.history)
    return standing


def _loop(work: Work, trainer: Trainer) -> Loop:
    run, train = work.run, work.run.train
    until = getattr(run.method, "until", None)
    saver = _Saver(work, trainer)
    alone = work.bench.ranks.world == 1
    return Loop(
        model=work.model,
        data=work.data,
        optimizer=trainer.optimizer,
        length=train.length,
        batch=train.batch,
        drop_last=train.drop_last,
        schedule=schedule_of(train),
        callbacks=(*trainer.callbacks, saver),
        augment=sets.augment if train.augment else None,
        generator=generator(run.seed, "batches"),
        evaluate_every=train.evaluate_every,
        stop=None if until is None else Step.parse(until).iterations(per_epoch(work)),
        precision=train.precision,
        ranks=work.bench.ranks,
        forward=None if alone else DistributedDataParallel(work.model),
    )


class _Saver:
    """After each step: mark the ends of epochs, tell how far it is, save when it is time, leave
    when asked.
    """

    def __init__(self, work: Work, trainer: Trainer) -> None:
        self.work, self.trainer = work, trainer
        self.saved = self.told = monotonic()

    def __call__(self, moment: Moment) -> None:
        clock, now = moment.clock, monotonic()
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


class _Watch(Progress):
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
        # Comparing answers costs another pass, so only networks near chance are looked
        # at.
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
