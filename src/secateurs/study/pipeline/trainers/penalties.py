"""Penalties by gradient descent: plain L1, and the path norm."""

from collections.abc import Callable

import torch

from secateurs.graph import capture
from secateurs.masks import apply_
from secateurs.parameters import prunable
from secateurs.paths import path_norm_penalty
from secateurs.study.pipeline.trainers.job import (
    TRAINERS,
    Job,
    Sampled,
    Trainer,
)
from secateurs.study.pipeline.trainers.settings import optimizer_of
from secateurs.train import Moment


@TRAINERS.register("l1")
def l1(job: Job) -> Trainer:
    """The gradient of strength · ‖w‖₁ is added before each step: strength · sign(w)."""
    optimizer, weights = (
        optimizer_of(job.model, job.train),
        list(prunable(job.model).values()),
    )

    # Added to the gradient by hand, which takes no graph over the weights.
    @torch.no_grad()
    def add(*_: object) -> None:
        for weight in weights:
            if weight.grad is not None:
                # sign(0) is 0: of the subgradients at zero
                # the one that leaves zeros alone.
                weight.grad.add_(weight.sign(), alpha=job.method.strength)

    optimizer.register_step_pre_hook(add)
    return Trainer(
        optimizer=optimizer, sample=_strength(job), finish_=lambda: _cut_below_(job)
    )


@TRAINERS.register("path-penalty")
def path_penalty(job: Job) -> Trainer:
    """The gradient of strength · ln ‖Φ(w)‖_q is added before each step."""
    optimizer = optimizer_of(job.model, job.train)
    # Captured once: the graph depends on the architecture, not on the weights.
    graph = capture(job.model.eval(), job.data.train_x[:1])

    def add(*_: object) -> None:
        # Whatever mode the optimizer steps in, this needs gradients.
        with torch.enable_grad():
            (
                job.method.strength
                * path_norm_penalty(job.model, graph, q=job.method.q)
            ).backward()

    optimizer.register_step_pre_hook(add)
    return Trainer(optimizer=optimizer, sample=_strength(job))


def _strength(job: Job) -> Callable[[Moment], Sampled]:
    return lambda moment: Sampled(strength=job.method.strength)


def _cut_below_(job: Job) -> None:
    """What is below the threshold is zero."""
    limit = job.method.threshold
    apply_(
        job.model,
        {n: p.detach().abs() >= limit for n, p in prunable(job.model).items()},
    )
