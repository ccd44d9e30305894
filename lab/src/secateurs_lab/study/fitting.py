"""The training of a run: one loop for every method, saved at intervals, stopped when it is
hopeless.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from secateurs.base.prunable import prunable
from secateurs.base.random import generator
from secateurs.base.registry import Registry
from secateurs.base.step import Step
from secateurs.channels import macs
from secateurs.errors import SecateursError
from secateurs.graph import capture
from secateurs.masks import apply_
from secateurs.optim import (
    ACDC,
    HAM,
    SET,
    DGating,
    Dynamics,
    FactorizedSGD,
    PowerPropagation,
    RigL,
    TrainingCost,
    hold,
)
from secateurs.paths import path_norm_penalty
from secateurs.prune import GradualPruning
from secateurs_lab import data as sets
from secateurs_lab.data import Dataset
from secateurs_lab.study import measure
from secateurs_lab.study.checkpoint import (
    State,
    load_optimizer_,
    optimizer_state,
    put_weights_,
    read_training_state,
    training_state,
    under,
    weights_of,
)
from secateurs_lab.study.config import Run
from secateurs_lab.study.jobs import Interrupted
from secateurs_lab.study.settings import Training
from secateurs_lab.study.work import Hopeless, Work
from secateurs_lab.train import (
    Callback,
    Epoch,
    Loop,
    Moment,
    Schedule,
    Standing,
    constant,
    cosine,
    step_decay,
)
from secateurs_lab.train.fit import Line, Progress

# What a trainer is made from, and what it consists of.

Masks = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """The input of a trainer: the run, its network (on its device) and data, and the masks of the
    cut.
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
        """The generator for one purpose."""
        return generator(self.run.seed, purpose)

    def optimizer(self) -> Optimizer:
        """The optimizer that the run's training describes, over the network's parameters."""
        return optimizer_of(self.model, self.train)

    def batch(self) -> tuple[Tensor, Tensor]:
        """The examples that scores are computed on."""
        count = self.method.examples
        return self.data.train_x[:count], self.data.train_y[:count]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Figures of a method that are recorded over time."""

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
        cost: What the steps have cost so far; None if every step is that of a dense network.
    """

    optimizer: Optimizer
    callbacks: tuple[Callback, ...] = ()
    state: Callable[[], tuple[Masks, dict[str, Any]]] = lambda: ({}, {})
    restore_: Callable[[Mapping[str, Tensor], Mapping[str, Any]], None] = lambda tensors, values: (
        None
    )
    sample: Callable[[Moment], Sampled] = lambda moment: Sampled()
    finish_: Callable[[], None] = field(default=lambda: None)
    cost: TrainingCost | None = None


TRAINERS: Registry[Callable[[TrainingJob], Trainer]] = Registry("trainer")
"""How each kind of `secateurs_lab.study.methods` is trained: under the same name as the method."""


# What is done during training: marks, news, checkpoints, and an end to hopeless runs.

NEWS_EVERY = 0.5
"""Seconds between two news of a training's progress."""


class Saver:
    """After each step: mark the ends of epochs, report progress, save when it is time, stop when
    asked.
    """

    def __init__(self, work: Work, trainer: Trainer) -> None:
        self.work, self.trainer = work, trainer
        self.saved = self.told = monotonic()

    def __call__(self, moment: Moment) -> None:
        clock, now = moment.clock, monotonic()
        # The last step ends an epoch, complete or not.
        if clock.iteration % clock.per_epoch == 0 or clock.iteration == clock.total:
            self._mark(moment)
        if now - self.told > NEWS_EVERY:
            self.told = now
            self.work.context.tell(event="progress", progress=clock.iteration / max(1, clock.total))
        stopping = self.work.context.stopping()
        if stopping or now - self.saved > self.work.bench.save_every:
            self._save(moment)
            # The clock is read again, since saving itself takes time.
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
        self.work.context.put("checkpoint", checkpoint(self.work, self.trainer, moment).pack())


def checkpoint(work: Work, trainer: Trainer, moment: Moment) -> State:
    """Everything that training needs to continue bit for bit."""
    inner, optimizer = optimizer_state(trainer.optimizer)
    own, method = trainer.state()
    numbers, standing = training_state(moment.standing())
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
    """Records epochs as they end, reports them, and ends hopeless runs."""

    def __init__(self, work: Work) -> None:
        self.work, self.silent = work, 0

    def epoch(self, line: Line) -> None:
        """Record the epoch; two in a row with the same answer for all test images end the run."""
        if not isinstance(line, Epoch):
            return
        work = self.work
        work.epochs.append(line)
        work.context.tell(
            event="epoch",
            epoch=line.epoch,
            loss=line.loss,
            accuracy=line.test_accuracy,
        )
        accuracy = line.test_accuracy
        # Comparing answers costs another pass, so only networks near chance are checked.
        chance = accuracy is None or accuracy <= 1.5 / work.data.classes
        self.silent = self.silent + 1 if chance and measure.constant(work.model, work.data) else 0
        if self.silent == 2:
            raise Hopeless(
                f"after epoch {line.epoch} the network gives one answer to all inputs: "
                f"{100 * measure.share_of_zeros(work.model):.1f} % of its weights are zero."
            )


# The optimizer and the schedule that a run's settings describe.


def optimizer_of(model: nn.Module, train: Training) -> Optimizer:
    """The optimizer for plain training."""
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
    # After the weights are loaded, since an optimizer may start from those that it finds.
    trainer = trainer_of(work)
    standing = _resume(held, trainer, work) if held is not None else None
    loop = loop_of(work, trainer)
    # A length of 0it: the network is only cut.
    if loop.total:
        loop.run(standing, show=Watch(work))
    steps = loop.total if loop.stop is None else min(loop.total, loop.stop)
    share = 1.0 if trainer.cost is None or not steps else trainer.cost.share
    work.metrics |= {"cost.share": share, "cost.steps": share * steps}
    _finish(work, trainer)


def _finish(work: Work, trainer: Trainer) -> None:
    """Collapse, or set to zero what counts as zero. If no weight changes, the last epoch's test
    result remains valid.
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
    """The trainer of the run's method for its network in its current state."""
    steps = per_epoch(work)
    job = TrainingJob(
        run=work.run,
        model=work.model,
        data=work.data,
        masks=work.masks,
        per_epoch=steps,
        total=Step.parse(work.run.train.length).iterations(steps),
    )
    method = work.run.method
    trainer: Callable[[TrainingJob], Trainer] = method.trainer or TRAINERS[method.kind]
    return trainer(job)


def _resume(held: State, trainer: Trainer, work: Work) -> Standing:
    """Restore optimizer, method and generators; returns how far training had come."""
    load_optimizer_(trainer.optimizer, held.part("optimizer"), held.values["optimizer"])
    trainer.restore_(held.part("method"), held.values["method"])
    # Once more, because the new method started with masks of its own, which removed weights.
    put_weights_(work.model, held.part("model"))
    standing = read_training_state(held.part("generator"), held.values["standing"])
    work.epochs = list(standing.history)
    return standing


def loop_of(work: Work, trainer: Trainer) -> Loop:
    """The training of the run, to be started or continued."""
    run, train = work.run, work.run.train
    until = getattr(run.method, "until", None)
    saver = Saver(work, trainer)
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
    )


@TRAINERS.register("dwf")
def factorized(job: TrainingJob) -> Trainer:
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
        # Factorizing a pruned network must not bring its weights back.
        zeros="frozen" if method.init == "pretrained" else None,
        **options,
    )

    def sample(moment: Moment) -> Sampled:
        # A new recorder each time, since only the current figures are needed.
        watch = Dynamics(optimizer, model=job.model)
        watch.record(moment.loss)
        last = watch.samples[-1] if watch.samples else None
        return (
            Sampled(strength=last.strength, misalignment=last.misalignment) if last else Sampled()
        )

    def finish_() -> None:
        optimizer.collapse_(job.model, threshold=method.threshold)

    return Trainer(optimizer=optimizer, sample=sample, finish_=finish_)


# Pruning during training.


@TRAINERS.register("gradual")
def gradual(job: TrainingJob) -> Trainer:
    """Cut a little every few steps."""
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
    pruning = GradualPruning(
        job.model,
        method.recipe(job.run.compression),
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

    cost = cost_of(job, pruning.masks)

    def step(moment: Moment) -> None:
        cost.count()
        if pruning.step() is not None:
            cost.take(pruning.masks)

    def state() -> tuple[Masks, dict[str, Any]]:
        found = pruning.state_dict()
        masks = {f"mask.{name}": mask for name, mask in found.pop("masks").items()}
        # With the generator, so that a resumed run draws the same numbers.
        return {**masks, "draw": found.pop("generator")}, {**found, "cost": cost.state_dict()}

    def restore_(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        masks = {n.removeprefix("mask."): t for n, t in tensors.items() if n.startswith("mask.")}
        pruning.load_state_dict({**values, "masks": masks, "generator": tensors["draw"]})
        cost.take(pruning.masks)
        cost.load_state_dict(values["cost"])

    return Trainer(
        optimizer=optimizer, callbacks=(step,), state=state, restore_=restore_, cost=cost
    )


def _point(written: str | None, job: TrainingJob, usual: int) -> int:
    return usual if written is None else Step.parse(written).iterations(job.per_epoch)


# Penalties by gradient descent: plain L1, and the path norm.


@TRAINERS.register("l1")
def l1(job: TrainingJob) -> Trainer:
    """The gradient of strength · ‖w‖₁ is added before each step: strength · sign(w)."""
    optimizer, weights = (
        optimizer_of(job.model, job.train),
        list(prunable(job.model).values()),
    )

    # Added to the gradient directly, which needs no graph over the weights.
    @torch.no_grad()
    def add(*_: object) -> None:
        for weight in weights:
            if weight.grad is not None:
                # sign(0) is 0, the subgradient at zero that leaves zeros alone.
                weight.grad.add_(weight.sign(), alpha=job.method.strength)

    optimizer.register_step_pre_hook(add)
    return Trainer(optimizer=optimizer, sample=_strength(job), finish_=lambda: _cut_below_(job))


@TRAINERS.register("path-penalty")
def path_penalty(job: TrainingJob) -> Trainer:
    """The gradient of strength · ln ‖Φ(w)‖_q is added before each step."""
    optimizer = optimizer_of(job.model, job.train)
    # Captured once: the graph depends on the architecture, not on the weights.
    graph = capture(job.model.eval(), job.data.train_x[:1])

    def add(*_: object) -> None:
        # This needs gradients in whatever mode the optimizer steps.
        with torch.enable_grad():
            (job.method.strength * path_norm_penalty(job.model, graph, q=job.method.q)).backward()

    optimizer.register_step_pre_hook(add)
    return Trainer(optimizer=optimizer, sample=_strength(job))


def _strength(job: TrainingJob) -> Callable[[Moment], Sampled]:
    return lambda moment: Sampled(strength=job.method.strength)


def _cut_below_(job: TrainingJob) -> None:
    """Set entries below the threshold to zero."""
    limit = job.method.threshold
    apply_(
        job.model,
        {n: p.detach().abs() >= limit for n, p in prunable(job.model).items()},
    )


@TRAINERS.register("dense", "prune", "imp")
def held(job: TrainingJob) -> Trainer:
    """Plain training with cut weights held at zero."""
    optimizer = optimizer_of(job.model, job.train)
    if job.masks is None:
        return Trainer(optimizer=optimizer)
    hold(job.model, job.masks, optimizer)
    cost = cost_of(job, job.masks)
    return Trainer(
        optimizer=optimizer,
        callbacks=(lambda moment: cost.count(),),
        state=lambda: ({}, cost.state_dict()),
        restore_=lambda tensors, values: cost.load_state_dict(values),
        cost=cost,
    )


def cost_of(job: TrainingJob, masks: Masks) -> TrainingCost:
    """Counts the steps of a training with these masks."""
    weights = prunable(job.model)
    cost = TrainingCost({name: weights[name] for name in masks}, job.model, countable(job))
    cost.take(masks)
    return cost


def countable(job: TrainingJob) -> Tensor | None:
    """An example for counting multiplications; None if they cannot be counted in this network."""
    example = job.data.train_x[:1]
    try:
        macs(job.model.eval(), example)
    except SecateursError:
        return None
    return example


# Methods that act through the hooks of a plain optimizer; their state is part of the optimizer's.


@TRAINERS.register("rigl")
def rigl(job: TrainingJob) -> Trainer:
    """Sparse throughout: grown where the gradient is largest."""
    return _exchanging(job, RigL, 3 * job.total // 4)


@TRAINERS.register("set")
def set_(job: TrainingJob) -> Trainer:
    """Sparse throughout: grown anywhere at random."""
    return _exchanging(job, SET, job.total)


def _exchanging(job: TrainingJob, kind: type[RigL] | type[SET], end: int) -> Trainer:
    """What drops and grows weights until the method's end, by default this step."""
    method, optimizer = job.method, optimizer_of(job.model, job.train)
    attached = kind(
        job.model,
        optimizer,
        compression=job.run.compression,
        steps=job.total,
        every=_point(method.every, job, 0),
        end=_point(method.end, job, end),
        fraction=method.fraction,
        scope=method.scope,
        generator=job.source("masks"),
        example=countable(job),
    )
    return Trainer(optimizer=optimizer, cost=attached.cost)


@TRAINERS.register("acdc")
def acdc(job: TrainingJob) -> Trainer:
    """Sparse and dense phases in turn."""
    method, optimizer = job.method, optimizer_of(job.model, job.train)
    points: dict[str, Any] = {
        name: Step.parse(written).iterations(job.per_epoch)
        for name in ("start", "every", "last_dense", "end")
        if (written := getattr(method, name)) is not None
    }
    attached = ACDC(
        job.model,
        optimizer,
        compression=job.run.compression,
        steps=job.total,
        scope=method.scope,
        example=countable(job),
        **points,
    )
    return Trainer(optimizer=optimizer, cost=attached.cost)


@TRAINERS.register("ham")
def ham(job: TrainingJob) -> Trainer:
    """A hyperbolic step after each step."""
    optimizer = optimizer_of(job.model, job.train)
    HAM(job.model, optimizer, alpha=job.method.alpha, beta=job.method.beta)
    return Trainer(optimizer=optimizer)


@TRAINERS.register("d-gating")
def d_gating(job: TrainingJob) -> Trainer:
    """Gates that let whole groups vanish."""
    method, optimizer = job.method, optimizer_of(job.model, job.train)
    gating = DGating(
        job.model,
        optimizer,
        strength=method.strength,
        depth=method.depth,
        groups=method.groups,
        start=method.start,
    )

    def finish_() -> None:
        gating.collapse_(method.threshold)

    return Trainer(optimizer=optimizer, sample=_strength(job), finish_=finish_)


@TRAINERS.register("power-propagation")
def power_propagation(job: TrainingJob) -> Trainer:
    """The optimizer moves θ in w = θ|θ|^(α−1)."""
    optimizer = optimizer_of(job.model, job.train)
    PowerPropagation(job.model, optimizer, alpha=job.method.alpha)
    return Trainer(optimizer=optimizer)
