"""The training of a run: one loop for every method, saved every so often, left off when it is
hopeless.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from secateurs import data as sets
from secateurs.random import generator
from secateurs.step import Step
from secateurs.study.pipeline.checkpoint import (
    State,
    load_optimizer_,
    put_weights_,
    standing_of,
    weights_of,
)
from secateurs.study.pipeline.saving import Saver, Watch
from secateurs.study.pipeline.trainers import TRAINERS, Job, Trainer, schedule_of
from secateurs.study.pipeline.work import Work
from secateurs.train import Loop, Standing


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
    trainer = trainer_of(work)
    standing = _resumed(held, trainer, work) if held is not None else None
    loop = loop_of(work, trainer)
    # A length of 0it: the network is only cut.
    if loop.total:
        loop.run(standing, show=Watch(work))
    _finish(work, trainer)


def _finish(work: Work, trainer: Trainer) -> None:
    """Collapse, or clear what counts as zero. Where no weight changes by it, the last epoch's test
    is as good as a new one.
    """
    before = {name: value.clone() for name, value in weights_of(work.model).items()}
    trainer.finish_()
    after = weights_of(work.model)
    last = work.epochs[-1] if work.epochs else None
    if last is not None and last.test_accuracy is not None:
        same = all(torch.equal(before[name], value) for name, value in after.items())
        work.tested = last if same else None


def per_epoch(work: Work) -> int:
    """Optimizer steps of an epoch."""
    examples, batch = len(work.data.train_y), work.run.train.batch
    return examples // batch if work.run.train.drop_last else -(-examples // batch)


def trainer_of(work: Work) -> Trainer:
    """What the run's method makes of its network, as it stands."""
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


def loop_of(work: Work, trainer: Trainer) -> Loop:
    """The training of the run, to be begun or taken up."""
    run, train = work.run, work.run.train
    until = getattr(run.method, "until", None)
    saver = Saver(work, trainer)
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
