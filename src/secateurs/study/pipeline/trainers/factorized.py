"""Deep weight factorization: the optimizer holds the factors."""

from typing import Any

from secateurs.optim import Dynamics, FactorizedSGD
from secateurs.study.pipeline.trainers.job import (
    TRAINERS,
    Job,
    Sampled,
    Trainer,
)
from secateurs.train import Moment


@TRAINERS.register("dwf")
def factorized(job: Job) -> Trainer:
    """Deep weight factorization: the optimizer holds the factors."""
    method, train = job.method, job.train
    options: dict[str, Any] = {
        name: getattr(method, name)
        for name in (
            "depth",
            "strength",
            "decoupled",
            "init",
            "sigma",
            "match_variance",
            "groups",
            "shared",
            "lean",
        )
    }
    if method.freeze is not None:
        options["freeze"] = method.freeze
    if method.target:
        options["target_sparsity"] = 1 - 1 / (job.run.compression or 1.0)
    optimizer = FactorizedSGD(
        job.model.named_parameters(),
        lr=train.lr,
        momentum=train.momentum,
        nesterov=train.nesterov,
        steps=job.total,
        schedule=method.strength_schedule,
        generator=job.source("factors"),
        # Factorizing a network that was cut must not bring its weights back.
        zeros="frozen" if method.init == "pretrained" else None,
        **options,
    )

    def sample(moment: Moment) -> Sampled:
        # A new recorder each time, since only the figures of now are wanted.
        watch = Dynamics(optimizer, model=job.model)
        watch.record(moment.loss)
        last = watch.samples[-1] if watch.samples else None
        return (
            Sampled(strength=last.strength, misalignment=last.misalignment)
            if last
            else Sampled()
        )

    def finish_() -> None:
        optimizer.collapse_(job.model, threshold=method.threshold)

    return Trainer(optimizer=optimizer, sample=sample, finish_=finish_)
