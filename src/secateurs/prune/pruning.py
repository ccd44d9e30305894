"""Pruning a model by a recipe: `cut` computes the masks, `prune_` applies them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError
from secateurs.masks import SparsityReport, apply_, sparsity
from secateurs.masks.apply import check as check_masks
from secateurs.parameters import Params, check_model, choose, fitted, prunable
from secateurs.prune.already import Of, alive, check_of, compounded, sparse_note
from secateurs.prune.plan import MISFIT
from secateurs.prune.prepare import prepare
from secateurs.prune.prepared import Prepared
from secateurs.prune.problems import one_error
from secateurs.prune.pruned import Pruned
from secateurs.prune.recipe import Recipe
from secateurs.prune.rounds import Round
from secateurs.scores import Inputs, Loss, Rule

if TYPE_CHECKING:
    from secateurs.ship import LatencyTable


def prune_(
    model: nn.Module,
    recipe: Recipe | str | Rule,
    *,
    example: Inputs | None = None,
    batch: Any = None,
    loss: Loss | None = None,
    generator: torch.Generator | None = None,
    within: Params | None = None,
    of: Of = "all",
    latencies: "LatencyTable | None" = None,
    **amounts: Any,
) -> Pruned:
    """Prune the model by a recipe, or by a score with the fields of a recipe as arguments.

    The masks are computed first and applied in the end: on any error the model is bit-equal to
    before.

    Args:
        model: Its pruned weights are set to zero in place; everything else is left alone.
            `hold` keeps them zero in training.
        recipe: A `Recipe`, or the name of a score (or your own rule) followed by the other fields.
        example, batch, loss: What the score needs (see `secateurs.score`).
        generator: Where scores and random selections draw from.
        within: Masks of an earlier pruning; only what they keep may be kept.
        of: What the amount counts: "all" chosen weights, or what is "left", those that are not
            zero yet (then zeros stay cut, and 50 % after 90 % leaves 5 %, as torch.nn.utils.prune
            counts).
        latencies: For a recipe with `latency=`: a `secateurs.latency_table` measured before, so
            that the same masks come out again; None measures one now.
        amounts: Fields of the recipe, when it is given as a score.

    >>> model = nn.Linear(10, 10)
    >>> prune_(model, "magnitude", sparsity=0.9).report.total.kept
    10
    >>> int(model.weight.count_nonzero())
    10
    """
    pruned = cut(
        model,
        recipe,
        example=example,
        batch=batch,
        loss=loss,
        generator=generator,
        within=within,
        of=of,
        latencies=latencies,
        **amounts,
    )
    apply_(model, pruned.masks)
    return pruned


def cut(
    model: nn.Module,
    recipe: Recipe | str | Rule,
    *,
    example: Inputs | None = None,
    batch: Any = None,
    loss: Loss | None = None,
    generator: torch.Generator | None = None,
    within: Params | None = None,
    of: Of = "all",
    latencies: "LatencyTable | None" = None,
    **amounts: Any,
) -> Pruned:
    """What `prune_` would do, without doing it: the model is left as it is. Arguments as for
    `prune_`.
    """
    asked_for = _recipe(recipe, amounts)
    earlier = _complete(model, asked_for, within or {})
    if check_of(of) == "left":
        left = alive(prunable(model, asked_for.where), earlier)
        data = {
            "example": example,
            "batch": batch,
            "loss": loss,
            "generator": generator,
            "latencies": latencies,
        }
        # Converted once, then run as any recipe: "left" is a way of asking, not a way
        # of pruning.
        again = cut(model, compounded(asked_for, left), within=left, **data)
        # The result shows what the user asked for, not what it was converted to.
        return replace(again, recipe=asked_for)
    given = {"example": example, "batch": batch, "loss": loss}
    if asked_for.macs is not None or asked_for.latency is not None:
        data = {**given, "generator": generator, "within": earlier}
        return _fitted(model, asked_for, data, latencies)
    ready = prepare(
        asked_for, model, given=given, within=earlier, generator=generator
    )
    if not isinstance(ready, Prepared):
        raise one_error(MISFIT, ready)
    masks: dict[str, Tensor] = {}
    entries: list[Round] = []
    # Only the latest masks are held: those of a hundred rounds are 25 times the model.
    for latest, entry in ready.rounds(asked_for, generator):
        masks = latest
        entries.append(entry)
    report = sparsity(model, masks=masks, example=example)
    done = tuple(entries)
    notes = (
        *_notes(done[-1], report),
        *sparse_note(ready.parameters, earlier, masks),
        *choose(model, asked_for.where).notes,
    )
    return Pruned(
        recipe=asked_for, masks=masks, rounds=done, report=report, notes=notes
    )


def _fitted(
    model: nn.Module,
    recipe: Recipe,
    given: Mapping[str, Any],
    latencies: "LatencyTable | None",
) -> Pruned:
    """The cut that meets a budget of multiplications or of time."""
    # Counting and timing need most of the package, and few budgets need them.
    from secateurs.prune.work_budget import densest_of_macs, densest_of_time

    example, tries = given["example"], _tries(model, recipe, given)
    if recipe.macs is not None:
        found = densest_of_macs(recipe.macs, model, example, tries, _masks)
        return replace(found, recipe=recipe)
    share = 1.0 if recipe.latency is None else recipe.latency
    found, note = densest_of_time(share, model, example, latencies, tries, _masks)
    return replace(found, recipe=recipe, notes=(*found.notes, note))


def _masks(done: Pruned) -> Params:
    return done.masks


def _tries(
    model: nn.Module, recipe: Recipe, given: Mapping[str, Any]
) -> Callable[[float], Pruned]:
    """Cuts of one model at any density, each with the same random draws."""
    source = given["generator"]
    state = None if source is None else source.get_state()

    def at(density: float) -> Pruned:
        if state is not None:
            # Otherwise each try would draw other scores, and halving would chase a
            # moving answer.
            source.set_state(state)
        return cut(
            model, replace(recipe, macs=None, latency=None, density=density), **given
        )

    return at


def _recipe(recipe: Recipe | str | Rule, amounts: Mapping[str, Any]) -> Recipe:
    if not isinstance(recipe, Recipe):
        return Recipe(score=recipe, **amounts)
    if amounts:
        raise ArgumentError(
            f"{', '.join(amounts)} given beside a recipe: put it into the recipe, as with"
            f" dataclasses.replace(recipe, {next(iter(amounts))}=...)."
        )
    return recipe


def _complete(model: nn.Module, recipe: Recipe, within: Params) -> dict[str, Tensor]:
    """Earlier masks, checked, for the parameters of the recipe."""
    check_model(model)
    within = fitted(within, dict(model.named_parameters(remove_duplicate=False)))
    check_masks(model, within)
    if not within:
        return {}
    return {
        name: mask
        for name, mask in within.items()
        if name in prunable(model, recipe.where)
    }


def _notes(last: Round, report: SparsityReport) -> tuple[str, ...]:
    notes = []
    if last.kept != last.asked:
        notes.append(
            f"{last.kept} entries are kept where {last.asked} were asked for: "
            "groups are kept whole, floors are respected, and draws with replacement may meet twice"
        )
    if report.collapsed:
        notes.append(f"nothing is left of {', '.join(report.collapsed)}")
    return tuple(notes)
