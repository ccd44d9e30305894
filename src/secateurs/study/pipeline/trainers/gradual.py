"""Pruning while the network trains."""

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from secateurs.prune import Gradual
from secateurs.step import Step
from secateurs.study.pipeline.trainers.job import (
    TRAINERS,
    Job,
    Masks,
    Trainer,
)
from secateurs.study.pipeline.trainers.settings import optimizer_of, recipe_of


@TRAINERS.register("gradual")
def gradual(job: Job) -> Trainer:
    """Cut a little every so many steps."""
    method, optimizer, draw = (
        job.method,
        optimizer_of(job.model, job.train),
        job.source("draw"),
    )
    images, labels = job.batch()
    begin = Step.parse(method.begin).iterations(job.per_epoch)
    # Unless the user says otherwise the last quarter is left for recovery.
    end = _point(method.end, job, begin + max(1, 3 * (job.total - begin) // 4))
    every = _point(method.every, job, max(1, (end - begin) // 20))
    pruning = Gradual(
        job.model,
        recipe_of(method, compression=job.run.compression),
        optimizer,
        start=begin,
        end=end,
        every=every,
        example=images[:1],
        batch=(images, labels),
        loss=F.cross_entropy,
        generator=draw,
        within=job.masks,
    )

    def state() -> tuple[Masks, dict[str, Any]]:
        found = pruning.state_dict()
        masks = {f"mask.{name}": mask for name, mask in found["masks"].items()}
        # With the generator, so that a resumed run draws what it would have drawn.
        return {**masks, "draw": draw.get_state()}, {"iteration": found["iteration"]}

    def restore_(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        masks = {
            n.removeprefix("mask."): t
            for n, t in tensors.items()
            if n.startswith("mask.")
        }
        pruning.load_state_dict({"iteration": values["iteration"], "masks": masks})
        draw.set_state(tensors["draw"])

    return Trainer(
        optimizer=optimizer,
        callbacks=(lambda moment: _ignored(pruning.step()),),
        state=state,
        restore_=restore_,
    )


def _ignored(_: object) -> None:
    """A callback returns nothing."""


def _point(written: str | None, job: Job, usual: int) -> int:
    return usual if written is None else Step.parse(written).iterations(job.per_epoch)
