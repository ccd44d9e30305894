"""How much may stay for a share of the work: the density of a recipe that leaves a share of the
multiplications, or of the time."""

from collections.abc import Callable
from typing import Any, Unpack

import torch
from torch import nn

from secateurs.base.parameters import Params
from secateurs.channels.macs import macs as count_macs
from secateurs.errors import ArgumentError
from secateurs.graph import Example, capture
from secateurs.masks.budget import AmountFields, check_share
from secateurs.prune import Recipe, cut
from secateurs.prune.recipe import RecipeFields
from secateurs.scores import Inputs, Loss, Rule
from secateurs.ship.latency import LatencyTable, latency_table

HALVINGS = 14
"""Halvings of the density: the last one is below a ten-thousandth."""


def density_for(
    model: nn.Module,
    recipe: Recipe | str | Rule = "magnitude",
    *,
    macs: float | None = None,
    latency: float | None = None,
    latencies: LatencyTable | None = None,
    example: Inputs | None = None,
    batch: Any = None,
    loss: Loss | None = None,
    generator: torch.Generator | None = None,
    within: Params | None = None,
    **fields: Unpack[RecipeFields],
) -> float:
    """The largest density at which the recipe leaves this share of the multiplications or of the
    time; the model and the generator are left as they are.

    Work falls as the density falls, so halving finds it: each of 14 tries scores and cuts anew.
    Pass the result to `prune_` as `density=`, with the same recipe and a generator in the same
    state.

    Args:
        macs: the share of the multiplications that is left, counted as `secateurs.macs` does.
        latency: instead, the share of the dense network's time on this machine, estimated from
            times of its layers; `secateurs.measure` tells what the finished network takes.
        latencies: the times: a `secateurs.latency_table` measured before, so that the same density
            comes out again; None measures one now.
        example, batch, loss, generator, within: as for `prune_`.
        fields: those of the recipe without its amount, when it is given as a score. The amount of
            a `Recipe` is not read.

    >>> model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    >>> density = density_for(model, "magnitude", macs=0.25, example=torch.zeros(1, 8))
    >>> round(density, 2)
    0.25
    """
    work = [(k, v) for k, v in (("macs", macs), ("latency", latency)) if v is not None]
    if len(work) != 1:
        raise ArgumentError("give one of macs= and latency=: the share of the work that is left.")
    ((kind, share),) = work
    check_share(kind, share)
    tried = _without_amount(recipe, fields)
    measure = (
        _multiplications_left(model, example)
        if kind == "macs"
        else _time_left(model, example, latencies)
    )
    state = None if generator is None else generator.get_state()
    low, high = 0.0, 1.0
    best: float | None = None
    stopped: ArgumentError | None = None
    try:
        for _ in range(HALVINGS):
            density = (low + high) / 2
            if generator is not None and state is not None:
                # Otherwise each try would draw other scores, and halving would chase a moving
                # answer.
                generator.set_state(state)
            try:
                pruned = cut(
                    model,
                    tried.keeping(density),
                    example=example,
                    batch=batch,
                    loss=loss,
                    generator=generator,
                    within=within,
                )
            except ArgumentError as error:  # a floor that so few entries cannot keep
                low, stopped = density, error
                continue
            if measure(pruned.masks) <= share:
                low = best = density
            else:
                high = density
    finally:
        if generator is not None and state is not None:
            generator.set_state(state)
    if best is None:
        raise ArgumentError(
            f"{kind}={share!r} cannot be reached: what the recipe leaves alone (floor=, where=)"
            " already takes more. Ask for more, or choose more parameters."
        ) from stopped
    return best


def _without_amount(recipe: Recipe | str | Rule, fields: RecipeFields) -> Recipe:
    """The recipe at full density, which the search replaces."""
    if isinstance(recipe, Recipe):
        recipe = Recipe.of(recipe, fields)
    else:
        given = [name for name in AmountFields.__annotations__ if fields.get(name) is not None]
        if given:
            raise ArgumentError(f"{', '.join(given)} is what density_for looks for: leave it out.")
        full: RecipeFields = {**fields, "density": 1.0}
        recipe = Recipe(score=recipe, **full)
    if not isinstance(recipe.scope, str):
        raise ArgumentError(
            "scope= already gives a density per parameter, so there is none to look for: name a"
            " scope, such as scope='layer'."
        )
    return recipe


def _multiplications_left(model: nn.Module, example: Example | None) -> Callable[[Params], float]:
    if example is None:
        raise ArgumentError("macs= counts multiplications: give an example= of the input.")
    # One capture serves all tries: masks change weights, never the graph.
    graph = capture(model, example, opaque=True)

    def left(masks: Params) -> float:
        work = count_macs(model, graph, masks=masks)
        return work.nonzero / work.dense

    return left


def _time_left(
    model: nn.Module, example: Example | None, table: LatencyTable | None
) -> Callable[[Params], float]:
    if table is None:
        if example is None:
            raise ArgumentError(
                "latency= is estimated from times of the layers: give an example= of the input, "
                "or a latencies= table measured before."
            )
        table = latency_table(model, example)
    times = table

    def left(masks: Params) -> float:
        densities = {name: float(mask.double().mean()) for name, mask in masks.items()}
        return times.seconds(densities) / times.dense

    return left
