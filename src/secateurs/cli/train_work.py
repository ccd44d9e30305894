"""The work of `secateurs train`, from an order to a trained network."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from secateurs import data as sets
from secateurs.cli.train_order import METHODS, MethodOptions, Order, TrainingMethod
from secateurs.data import Dataset
from secateurs.models import build
from secateurs.optim import hold
from secateurs.parameters import prunable
from secateurs.random import generator
from secateurs.step import Step
from secateurs.train import Schedule, cosine, evaluate, fit_, load_model_, step_decay
from secateurs.train.schedules import Clock, constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A trained network, the shape of its inputs and outputs, and the report on it."""

    model: nn.Module
    shape: Mapping[str, Any]
    said: str


def carry_out(
    order: Order, arch: str, data: Dataset, *, device: str | None, verbose: bool
) -> Trained:
    """Build the network, or load it, and train it."""
    # The data say what goes in and comes out; the options of other commands are for
    # files.
    shape = {"in_channels": data.in_channels, "classes": data.classes}
    shape["size"] = data.size
    # One stream for each purpose: another batch order does not change the first
    # weights.
    model = build(arch, **shape, generator=generator(order.seed, "init"))  # type: ignore[arg-type]
    if order.start is not None:
        load_model_(model, order.start)
    method = _prepare(order, model, data)
    result = fit_(
        model,
        data,
        optimizer=method.optimizer,
        length=order.length,
        batch=order.batch,
        schedule=_schedule(order.schedule),
        callbacks=method.callbacks,
        augment=sets.augment if order.augment else None,
        generator=generator(order.seed, "train"),
        device=device,
        verbose=verbose,
    )
    reached = result.accuracy
    if method.finish is not None:
        # It changes the weights, and the report must be measured on the weights that are written.
        method.finish()
        reached = None if reached is None else evaluate(model, data).accuracy
    accuracy = "" if reached is None else f", test accuracy {100 * reached:.2f} %"
    said = f"after {result.iterations} steps{accuracy}"
    return Trained(model=model, shape=shape, said=said)


def _prepare(order: Order, model: nn.Module, data: Dataset) -> TrainingMethod:
    """The optimizer and what belongs to it; zeros of a checkpoint are held."""
    # Rounded up, as the loop takes a shorter last batch.
    per_epoch = -(-len(data.train_y) // order.batch)
    steps = Step.parse(order.length).iterations(per_epoch)
    schedule = _schedule(order.schedule)
    settings = MethodOptions(
        lr=order.lr,
        seed=order.seed,
        steps=steps,
        rates=lambda t: order.lr * schedule(Clock(int(t * steps), per_epoch, steps)),
        fresh=order.start is None,
        **order.options,
    )
    method = METHODS[order.method](model, settings)
    if order.start is not None:
        _hold_zeros(model, method.optimizer)
    return method


def _schedule(name: str) -> Schedule:
    known = {"cosine": cosine(), "step": step_decay(), "constant": constant}
    return known[name]


def _hold_zeros(model: nn.Module, optimizer: Optimizer) -> None:
    """A pruned checkpoint stays pruned: what is zero in its weights is held at zero."""
    masks = {name: weight.detach() != 0 for name, weight in prunable(model).items()}
    if not all(bool(mask.all()) for mask in masks.values()):
        hold(model, masks, optimizer)
