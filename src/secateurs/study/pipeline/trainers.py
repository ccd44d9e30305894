"""How each kind of method trains: its optimizer, what is done after steps, and at the end.

A kind is one function registered in `TRAINERS`: `(job) -> Trainer`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from secateurs.data import Dataset
from secateurs.graph import capture
from secateurs.masks import apply_
from secateurs.optim import Dynamics, FactorizedSGD, hold
from secateurs.parameters import prunable
from secateurs.paths import path_norm_penalty
from secateurs.prune import Gradual, Recipe
from secateurs.random import generator
from secateurs.registry import Registry
from secateurs.step import Step
from secateurs.study.config import Run
from secateurs.study.settings.methods import Prune
from secateurs.study.settings.training import Training
from secateurs.train import Callback, Moment, Schedule, constant, cosine, step_decay

Masks = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a trainer is made from: the run, its network (on its device) and data, what the cut
    kept.
    """

    run: Run
    model: nn.Module
    data: Dataset
    masks: Masks | None
    per_epoch: int
    total: int

    @property
    def method(self) -> Any:
        """The run's method."""
        return self.run.method

    @property
    def train(self) -> Training:
        """The run's training."""
        return self.run.train

    def source(self, purpose: str) -> torch.Generator:
        """Numbers for one purpose."""
        return generator(self.run.seed, purpose)

    def batch(self) -> tuple[Tensor, Tensor]:
        """The examples that scores look at."""
        count = self.method.examples
        return self.data.train_x[:count], self.data.train_y[:count]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Figures of a method that are followed over time."""

    strength: float | None = None
    misalignment: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """An optimizer with what belongs to it.

    Attributes:
        optimizer: Over the model's parameters.
        callbacks: After each step, before anything is measured or saved.
        state, restore_: What else a checkpoint needs, as tensors and plain values.
        sample: λ and the like, at the end of an epoch.
        finish_: Makes zeros exact at the end.
    """

    optimizer: Optimizer
    callbacks: tuple[Callback, ...] = ()
    state: Callable[[], tuple[Masks, dict[str, Any]]] = lambda: ({}, {})
    restore_: Callable[[Mapping[str, Tensor], Mapping[str, Any]], None] = (
        lambda tensors, values: None
    )
    sample: Callable[[Moment], Sampled] = lambda moment: Sampled()
    finish_: Callable[[], None] = field(default=lambda: None)


TRAINERS: Registry[Callable[[Job], Trainer]] = Registry("method")


def optimizer_of(model: nn.Module, train: Training) -> Optimizer:
    """The optimizer of plain trainings."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    lr, decay = train.lr, train.weight_decay
    if train.optimizer == "sgd":
        return SGD(
            parameters,
            lr=lr,
            momentum=train.momentum,
            weight_decay=decay,
            nesterov=train.nesterov,
        )
    kind: type[Adam] = {"adam": Adam, "adamw": AdamW}[train.optimizer]
    return kind(parameters, lr=lr, weight_decay=decay)


def schedule_of(train: Training) -> Schedule:
    """The learning rate over time."""
    if train.schedule == "cosine":
        return cosine(warmup=train.warmup)
    if train.schedule == "step":
        return step_decay(at=train.decay_at, factor=train.decay_by)
    return constant


def recipe_of(method: Prune, **amount: Any) -> Recipe:
    """The recipe of a pruning method with an amount."""
    names = (
        "score",
        "rounds",
        "schedule",
        "scope",
        "pattern",
        "how",
        "where",
        "floor",
        "convention",
        "options",
    )
    return Recipe(**{name: getattr(method, name) for name in names}, **amount)


@TRAINERS.register("dense", "prune", "imp")
def held(job: Job) -> Trainer:
    """Plain training; what was cut is held at zero."""
    optimizer = optimizer_of(job.model, job.train)
    if job.masks is not None:
        hold(job.model, job.masks, optimizer)
    return Trainer(optimizer=optimizer)


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
        zeros="frozen" if method.init == "pretrained" else None,
        **options,
    )

    def sample(moment: Moment) -> Sampled:
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


@TRAINERS.register("l1")
def l1(job: Job) -> Trainer:
    """The gradient of strength · ‖w‖₁ is added before each step: strength · sign(w)."""
    optimizer, weights = (
        optimizer_of(job.model, job.train),
        list(prunable(job.model).values()),
    )

    @torch.no_grad()
    def add(*_: object) -> None:
        for weight in weights:
            if weight.grad is not None:
                # sign(0) is 0: of the subgradients at zero the one that leaves zeros
                # alone.
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
