"""Plain training, under the mask of a cut if there is one."""

from secateurs.optim import hold
from secateurs.study.pipeline.trainers.job import (
    TRAINERS,
    Job,
    Trainer,
)
from secateurs.study.pipeline.trainers.settings import optimizer_of


@TRAINERS.register("dense", "prune", "imp")
def held(job: Job) -> Trainer:
    """Plain training; what was cut is held at zero."""
    optimizer = optimizer_of(job.model, job.train)
    if job.masks is not None:
        hold(job.model, job.masks, optimizer)
    return Trainer(optimizer=optimizer)
