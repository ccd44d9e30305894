"""`prune_`: prune a model by a recipe. `cut` computes the masks without applying them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, TypeAlias, Unpack

import torch
from rich.console import ConsoleRenderable, Group, RichCast
from rich.table import Table
from torch import Tensor, nn

from secateurs.base.parameters import Params, check_model, is_sharded
from secateurs.base.printing import Reported
from secateurs.base.prunable import prunable
from secateurs.errors import ArgumentError
from secateurs.masks import SparsityReport, apply_, sparsity_report
from secateurs.masks.apply import check as check_masks
from secateurs.masks.apply import fit_masks
from secateurs.masks.budget import entries
from secateurs.masks.pieces import count_each, count_true
from secateurs.prune.recipe import Recipe, RecipeFields, ScoreInputs
from secateurs.prune.rounds import Round, entries_left
from secateurs.scores import Inputs, Loss, Rule

Of: TypeAlias = Literal["all", "left"]
"""What the amount of a recipe counts: all weights, or those that are not zero yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned(Reported):
    """The masks of a pruning, and how they were reached.

    Attributes:
        recipe: The recipe as it was given.
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
        return {
            "recipe": self.recipe.as_dict(),
            "rounds": rounds,
            "notes": list(self.notes),
            "report": self.report.as_dict(),
        }

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
    **fields: Unpack[RecipeFields],
) -> Pruned:
    """The masks that `prune_` would apply; the model is left as it is. Arguments as for
    `prune_`.
    """
    asked_for = Recipe.of(recipe, fields)
    check_model(model)
    if any(map(is_sharded, model.parameters())):
        return _cut_pieces(model, asked_for, within or {}, of)
    score_inputs: ScoreInputs = {"example": example, "batch": batch, "loss": loss}
    earlier = _earlier_masks(model, asked_for, within or {})
    if of not in ("all", "left"):
        raise ArgumentError(
            f"of={of!r}; it is 'all' (the amount counts every chosen weight) or 'left' (it counts"
            " those that are not zero yet, as torch.nn.utils.prune does)."
        )
    converted = asked_for
    if of == "left":
        # Converted once, then run like any recipe: "left" changes how the amount is counted, not
        # the pruning.
        earlier = _masks_of_nonzeros(prunable(model, asked_for.where), earlier)
        converted = _recipe_over_all(asked_for, earlier)
    pruned = _cut_to_count(model, converted, score_inputs, earlier, generator)
    # The result shows what the user asked for, not what it was converted to.
    return replace(pruned, recipe=asked_for)


def _earlier_masks(model: nn.Module, recipe: Recipe, within: Params) -> dict[str, Tensor]:
    """Earlier masks, checked, for the parameters of the recipe."""
    check_model(model)
    within = fit_masks(within, dict(model.named_parameters(remove_duplicate=False)))
    check_masks(model, within)
    if not within:
        return {}
    chosen = prunable(model, recipe.where)
    # Masks from a file lie on the CPU.
    return {n: mask.to(chosen[n].device) for n, mask in within.items() if n in chosen}


def _cut_pieces(model: nn.Module, recipe: Recipe, within: Params, of: Of) -> Pruned:
    """The masks of a model that lies in pieces on several processes."""
    from secateurs.prune.sharded import cut_pieces  # for those who have such a model

    within = fit_masks(within, dict(model.named_parameters(remove_duplicate=False)))
    check_masks(model, within)
    masks, done = cut_pieces(model, recipe, within, of)
    report = sparsity_report(model, masks=masks)
    return Pruned(
        recipe=recipe, masks=masks, rounds=(done,), report=report, notes=_notes(done, report)
    )


# An amount of what is left (`of="left"`), converted into one of all weights.


def _masks_of_nonzeros(parameters: Params, within: Params) -> dict[str, Tensor]:
    """Masks of what is left: neither zero nor cut by an earlier mask."""
    return {
        name: (p.detach() != 0) & within[name].to(p.device) if name in within else p.detach() != 0
        for name, p in parameters.items()
    }


def _recipe_over_all(recipe: Recipe, left: Mapping[str, Tensor]) -> Recipe:
    """The recipe whose amount of all weights is the amount of this one of the weights left."""
    counts, sizes = entries_left(left), {name: mask.numel() for name, mask in left.items()}
    if isinstance(recipe.scope, Mapping):
        raise ArgumentError(
            "of='left' takes one amount for all: scope= gives a density per parameter, which"
            " counts all its entries. Name a scope, such as scope='layer'."
        )
    amount = recipe.fraction
    if amount is None:
        raise ArgumentError("of='left' needs an amount: sparsity=, density= or compression=.")

    def share(count: int, size: int) -> Any:
        # A fraction goes where numbers go, and converting it back to a count of all entries gives
        # the very count asked for.
        return Fraction(entries(amount, count), max(size, 1))

    if recipe.scope == "layer":
        return recipe.keeping(None, scope={n: share(counts[n], sizes[n]) for n in counts})
    return recipe.keeping(share(sum(counts.values()), sum(sizes.values())))


# The recipe runs round by round.


def _cut_to_count(
    model: nn.Module,
    recipe: Recipe,
    score_inputs: ScoreInputs,
    within: Params,
    generator: torch.Generator | None,
) -> Pruned:
    """The masks of a recipe whose amount counts entries, computed round by round."""
    ready = recipe.ready(model, score_inputs=score_inputs, within=within, generator=generator)
    masks, rounds = dict[str, Tensor](), list[Round]()
    # Only the latest masks are held: those of a hundred rounds are 25 times the model.
    for latest, done in ready.rounds():
        masks = latest
        rounds.append(done)
    report = sparsity_report(model, masks=masks)
    notes = [*_notes(rounds[-1], report)]
    notes += _note_on_earlier_zeros(ready.parameters, within, masks)
    notes += ready.notes
    return Pruned(
        recipe=recipe, masks=masks, rounds=tuple(rounds), report=report, notes=tuple(notes)
    )


def _notes(last: Round, report: SparsityReport) -> tuple[str, ...]:
    """Where the masks are other than asked."""
    notes = []
    if last.kept != last.asked:
        notes.append(
            f"{last.kept} entries are kept where {last.asked} were asked for: groups are"
            " kept whole, floors and an entry of each norm are respected, and draws with"
            " replacement may repeat an entry"
        )
    if report.collapsed:
        notes.append(
            f"nothing is left of {', '.join(report.collapsed)}: secateurs.paths.lost_layers says"
            " whether that matters"
        )
    return tuple(notes)


WORTH_A_NOTE = 0.01
"""The least share of unexpected zeros that is worth a note. A few occur by chance (a fresh bias,
rounding), and saying so every time would be noise.
"""


def _note_on_earlier_zeros(
    parameters: Params, within: Params, masks: Mapping[str, Tensor]
) -> tuple[str, ...]:
    """A note on a model that had zeros before; empty where `within` accounts for them."""
    total = sum(p.numel() for p in parameters.values())
    nonzero = count_each(parameters)
    zeros = total - sum(nonzero.values())
    # Most models have hardly any, and no mask need be looked at.
    if zeros < max(1, WORTH_A_NOTE * total):
        return ()
    unexplained = kept_zeros = 0
    for name, parameter in parameters.items():
        if nonzero[name] == parameter.numel():
            continue
        zero = parameter == 0
        # Zeros that `within` has cut are expected.
        expected = within[name].to(zero.device) if name in within else True
        unexplained += count_true(zero & expected)
        kept_zeros += count_true(zero & masks[name].to(zero.device))
    if unexplained < max(1, WORTH_A_NOTE * total):
        return ()
    gone = total - sum(count_each(masks).values())
    return (
        f"{zeros} of {total} chosen weights were zero before; {kept_zeros} of these count as kept,"
        f" so {gone + kept_zeros} are zero now ({(gone + kept_zeros) / total:.1%}). The amount"
        " counts all chosen weights: pass the earlier masks as within=, or of='left' to count"
        " only what is left, as torch.nn.utils.prune does",
    )
