"""Pruning a model by a recipe: `cut` computes the masks, `prune_` applies them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack

import torch
from rich.console import ConsoleRenderable, Group, RichCast
from rich.table import Table
from torch import Tensor, nn

from secateurs.errors import ArgumentError, one_error
from secateurs.masks import SparsityReport, apply_, sparsity
from secateurs.masks.apply import check as check_masks
from secateurs.masks.budget import entries
from secateurs.masks.compiled import count_true
from secateurs.parameters import Params, check_model, choose, fitted, prunable
from secateurs.printing import Printed
from secateurs.prune.fields import MISFIT, RecipeFields
from secateurs.prune.recipe import Recipe
from secateurs.prune.rounds import Prepared, Round, prepare
from secateurs.scores import Inputs, Loss, Rule

if TYPE_CHECKING:
    from secateurs.ship import LatencyTable


# Models that are sparse already: what an amount counts, all weights or what is left of them.

Of: TypeAlias = Literal["all", "left"]
"""What the amount of a recipe counts: all weights, or those that are not zero yet."""

SOME = 0.01
"""The share of zeros from which on a model counts as sparse already."""


def check_of(of: Of) -> Of:
    """The word itself; another one is refused."""
    if of not in ("all", "left"):
        raise ArgumentError(
            f"of={of!r}; it is 'all' (the amount counts every chosen weight) or 'left' (it counts"
            " those that are not zero yet, as torch.nn.utils.prune does)."
        )
    return of


def alive(parameters: Params, within: Params) -> dict[str, Tensor]:
    """Masks of what is left: neither zero nor cut by an earlier mask."""
    return {
        name: (p.detach() != 0) & within[name].to(p.device) if name in within else p.detach() != 0
        for name, p in parameters.items()
    }


def compounded(recipe: Recipe, left: Mapping[str, Tensor]) -> Recipe:
    """The recipe that asks of all weights what this one asks of those that are left."""
    counts = {name: count_true(mask) for name, mask in left.items()}
    sizes = {name: mask.numel() for name, mask in left.items()}
    if isinstance(recipe.scope, Mapping):
        raise ArgumentError(
            "of='left' takes one amount for all: scope= gives a density per parameter, which"
            " counts all its entries. Name a scope, such as scope='layer'."
        )
    # The amount counts what is left; the recipe that runs counts everything, so it is
    # converted.
    amount = recipe.amount.fraction
    if amount is None:
        raise ArgumentError("of='left' needs an amount: sparsity=, density= or compression=.")
    if recipe.scope == "layer":
        shares = {
            # Fractions, so that converting back to counts of all entries gives the very
            # count asked for.
            name: Fraction(entries(amount, counts[name]), max(sizes[name], 1))
            for name in counts
        }
        exact: Any = shares  # fractions go where numbers go, without rounding
        return replace(recipe, scope=exact, sparsity=None, density=None, compression=None)
    kept = entries(amount, sum(counts.values()))
    share: Any = Fraction(kept, max(sum(sizes.values()), 1))
    return replace(recipe, density=share, sparsity=None, compression=None)


def sparse_note(parameters: Params, within: Params, masks: Mapping[str, Tensor]) -> tuple[str, ...]:
    """What to know about a model that had zeros before; empty where `within` knows of them."""
    total = sum(p.numel() for p in parameters.values())
    # Zeros that `within` accounts for are no surprise; only the others are worth a
    # note.
    zeros = sum(p.numel() - count_true(p.detach() != 0) for p in parameters.values())
    kept_zeros = sum(
        int(((p.detach() == 0) & masks[name].to(p.device)).sum()) for name, p in parameters.items()
    )
    unexplained = sum(
        int(((p.detach() == 0) & within[name].to(p.device)).sum())
        if name in within
        else int((p.detach() == 0).sum())
        for name, p in parameters.items()
    )
    # A few zeros occur by chance (a fresh bias, rounding): saying so every time would
    # be noise.
    if unexplained < max(1, SOME * total):
        return ()
    gone = sum(mask.numel() - count_true(mask) for mask in masks.values())
    return (
        f"{zeros} of {total} chosen weights were zero before; {kept_zeros} of these count as kept,"
        f" so {gone + kept_zeros} are zero now ({(gone + kept_zeros) / total:.1%}). The amount"
        " counts all chosen weights: pass the earlier masks as within=, or of='left' to count"
        " only what is left, as torch.nn.utils.prune does",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned(Printed):
    """What pruning did.

    Attributes:
        recipe: What was asked.
        masks: By parameter name, True = kept; for `hold`, `save_masks` or as `within` of a further
            pruning.
        rounds: Entries asked for and kept after each round.
        report: Density, sparsity and compression per parameter and in total.
        notes: Where the result is weaker or other than asked, and why; empty otherwise.
    """

    recipe: Recipe
    masks: Mapping[str, Tensor]
    rounds: tuple[Round, ...]
    report: SparsityReport
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without the masks."""
        rounds = [
            {"round": r.number, "asked": r.asked, "kept": r.kept, "total": r.total}
            for r in self.rounds
        ]
        figures = {
            "recipe": self.recipe.as_dict(),
            "rounds": rounds,
            "notes": list(self.notes),
        }
        return {**figures, "report": self.report.as_dict()}

    def to_json(self) -> str:
        """The result as a JSON object."""
        return json.dumps(self.as_dict(), indent=2, allow_nan=False)

    def __rich__(self) -> Group:
        table = Table("round", "asked", "kept", "density", title="rounds")
        for r in self.rounds:
            table.add_row(str(r.number), f"{r.asked:,}", f"{r.kept:,}", f"{r.density:.3%}")
        parts: list[ConsoleRenderable | RichCast | str] = [self.report]
        if len(self.rounds) > 1:
            parts.append(table)
        return Group(*parts, *(f"[yellow]note:[/] {note}" for note in self.notes))


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
    **fields: Unpack[RecipeFields],
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
        fields: Those of the recipe, when it is given as a score.

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
        **fields,
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
    **fields: Unpack[RecipeFields],
) -> Pruned:
    """What `prune_` would do, without doing it: the model is left as it is. Arguments as for
    `prune_`.
    """
    asked_for = Recipe.of(recipe, fields)
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
    if asked_for.amount.work is not None:
        data = {**given, "generator": generator, "within": earlier}
        return _fitted(model, asked_for, data, latencies)
    ready = prepare(asked_for, model, given=given, within=earlier, generator=generator)
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
    return Pruned(recipe=asked_for, masks=masks, rounds=done, report=report, notes=notes)


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


def _tries(model: nn.Module, recipe: Recipe, given: Mapping[str, Any]) -> Callable[[float], Pruned]:
    """Cuts of one model at any density, each with the same random draws."""
    source = given["generator"]
    state = None if source is None else source.get_state()

    def at(density: float) -> Pruned:
        if state is not None:
            # Otherwise each try would draw other scores, and halving would chase a
            # moving answer.
            source.set_state(state)
        return cut(model, replace(recipe, macs=None, latency=None, density=density), **given)

    return at


def _complete(model: nn.Module, recipe: Recipe, within: Params) -> dict[str, Tensor]:
    """Earlier masks, checked, for the parameters of the recipe."""
    check_model(model)
    within = fitted(within, dict(model.named_parameters(remove_duplicate=False)))
    check_masks(model, within)
    if not within:
        return {}
    return {name: mask for name, mask in within.items() if name in prunable(model, recipe.where)}


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
