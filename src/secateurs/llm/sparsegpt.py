"""SparseGPT: weights pruned column by column, and what each loss does made up for by the columns
that follow.

For a layer with inputs X and H = XᵀX + δI, pruning the weights of column j costs least if the
columns behind it move along the first row of the inverse of what is left of H. Rows of the upper
triangular U with UᵀU = H⁻¹ are these directions for every j, so one factorization serves all. Masks
are chosen on the way, on weights that have already moved.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor, nn

from secateurs.base.prunable import prunable
from secateurs.errors import ArgumentError
from secateurs.llm.least_squares import energies
from secateurs.llm.reconstruct import (
    DAMPING,
    Reconstruction,
    Runs,
    Stage,
    gram_of,
    layers_of,
    refuse_infinite,
    rows_together,
    solve_,
    stages_of,
)
from secateurs.masks.budget import entries
from secateurs.masks.patterns import NM, Block, Unstructured, pattern_of
from secateurs.masks.pieces import count_true
from secateurs.masks.select import check_selection, check_shapes, choose_masks
from secateurs.prune.axes import orders_of
from secateurs.prune.recipe import Recipe
from secateurs.scores.rules.wanda import lies_along
from secateurs.scores.task import wide_dtype

COLUMNS = 128
"""Columns whose mask is chosen at once (B_s of the paper), and whose errors reach the later columns
as one product (B).
"""

Choose = Callable[[Tensor], Tensor]
"""From what pruning each weight of some columns costs to what is kept of them, left to right."""


def sweep(
    weights: Tensor, factor: Tensor, choose: Choose, *, every: int, columns: int
) -> tuple[Tensor, float]:
    """The same in place, from U; the mask, and what was lost: Σ ‖X(V − W)ᵀ‖² + δ‖V − W‖².

    Errors of `columns` columns, a multiple of `every`, reach those behind them as one product.
    """
    mask, lost = torch.ones_like(weights, dtype=torch.bool), 0.0
    for start in range(0, weights.shape[1], columns):
        behind = weights[:, start + columns :]
        rows = factor[start : start + columns, start:]
        # Turned, so that a column lies in one piece.
        piece = weights[:, start : start + columns].T.contiguous()
        kept, errors = torch.ones_like(piece, dtype=torch.bool), torch.empty_like(piece)
        sizes = rows.diagonal()[:, None]
        for i, column in enumerate(piece):
            if i % every == 0:
                costs = (piece[i : i + every] / sizes[i : i + every]).square()
                kept[i : i + every] = choose(costs.T).T
            errors[i] = torch.where(kept[i], 0.0, column / rows[i, i])
            piece[i + 1 :].addr_(rows[i, i + 1 : len(piece)], errors[i], alpha=-1)
            column.masked_fill_(~kept[i], 0.0)
        weights[:, start : start + columns] = piece.T
        mask[:, start : start + columns] = kept.T
        behind.addmm_(errors.T, rows[:, len(piece) :], alpha=-1)
        lost += float(errors.square().sum(dtype=torch.float64))
    return mask, lost


PANEL = 256
"""Columns that are factorized at once."""


def factorize_(gram: Tensor, damping: float) -> bool:
    """Turn H into U, upper triangular with UᵀU = (H + δI)⁻¹, in place, since a second matrix may
    not fit; False, and H as it was, where the equations are not positive definite.
    """
    before: list[tuple[slice, Tensor]] = []
    # H + δI = R Rᵀ from the last columns on; R is written above the diagonal, and H stays below.
    for stop in range(len(gram), 0, -PANEL):
        here = slice(max(0, stop - PANEL), stop)
        panel, square = gram[:stop, here], gram[here, here]
        before.append((here, square.clone()))
        panel.addmm_(gram[:stop, stop:], gram[here, stop:].T, alpha=-1)
        square.diagonal().add_(damping)
        # Turned around, a lower factor becomes an upper one.
        lower, wrong = torch.linalg.cholesky_ex(square.flip(0, 1))
        if wrong:
            for there, saved in before:
                gram[: there.start, there] = gram[there, : there.start].T
                gram[there, there] = saved
            return False
        square.copy_(lower.flip(0, 1))
        above = panel[: here.start]
        above.copy_(torch.linalg.solve_triangular(square.T, above, upper=False, left=False))
    gram.triu_()
    # U = R⁻¹, from the first columns on.
    for start in range(0, len(gram), PANEL):
        here = slice(start, start + PANEL)
        above, square = gram[:start, here], gram[here, here]
        eye = torch.eye(len(square), dtype=gram.dtype, device=gram.device)
        square.copy_(torch.linalg.solve_triangular(square, eye, upper=True))
        above.copy_((gram[:start, :start] @ above) @ -square)
    return True


# The layers of a block.


@torch.no_grad()
def prune_by_sweeps_(
    block: nn.Module,
    recipe: Recipe,
    runs: Runs,
    *,
    rest: Callable[[Recipe], Iterator[tuple[str, Tensor]]],
    solve: bool,
) -> Iterator[tuple[str, Tensor, Reconstruction | str]]:
    """Prune the layers of a block in the order in which they run, each on what the pruned ones
    before it give; yields each parameter's name, its mask, and what was done, or why it was pruned
    by magnitude.

    `rest` gives masks of what cannot be swept, by the recipe it is given. With `solve` the weights
    that stay are solved for once more, on the mask.
    """
    targets = _targets(block, recipe)
    layers, missed = layers_of(block, targets)
    for name, why in missed.items():
        yield _by_magnitude_(block, recipe, name, why, rest)
    for stage in stages_of(layers, runs[0]):
        # To be solved for, the weights stay as they were: those of the sweep are not needed.
        found = _sweep_stage_(recipe, stage, layers, targets, runs, write=not solve)
        again: dict[str, Tensor] = {}
        for name, mask, done in found:
            if isinstance(done, str):
                yield _by_magnitude_(block, recipe, name, done, rest)
            elif solve:
                again[name] = mask
            else:
                yield name, mask, done
        if again:
            gram, samples = gram_of(layers[stage.names[0]], runs, once=stage.once)
            for name, mask in again.items():
                yield name, mask, solve_(name, layers[name], mask, gram, samples)
            del gram


def _sweep_stage_(
    recipe: Recipe,
    stage: Stage,
    layers: dict[str, nn.Module],
    targets: dict[str, Fraction],
    runs: Runs,
    *,
    write: bool,
) -> Iterator[tuple[str, Tensor, Reconstruction | str]]:
    """The layers that meet the same inputs, one after the other; their weights change with `write`.

    What comes with the text that says why a layer could not be swept is no mask.
    """
    names = stage.names
    found, samples = gram_of(layers[names[0]], runs, once=stage.once)
    kept = max(math.ceil(targets[name] * _matrix(layers[name]).shape[1]) for name in names)
    # As for reconstruction: fewer inputs than unknowns, and a row is fitted to chance.
    if found is None or samples < kept:
        for name in names:
            why = f"it met {samples} inputs, too few to make up for what is pruned"
            yield name, torch.empty(0), why
        return
    mean, gram = float(refuse_infinite(found, names[0])), found[0]
    whole = {name: _energy(_matrix(layers[name]), gram) for name in names}
    share = DAMPING
    while not factorize_(gram, share * mean):
        share *= 10
        if share > 1:
            for name in names:
                yield name, torch.empty(0), "the equations of its inputs could not be factorized"
            return
    for name in names:
        before = _matrix(layers[name])
        weights = before.to(wide_dtype(before), copy=True)
        chosen = _Chooser(recipe, targets[name], tuple(weights.shape))
        mask, lost = sweep(weights, gram, chosen, every=chosen.every, columns=chosen.columns)
        moved = masked = 0.0
        length = rows_together(weights.shape[1])
        for old, new, keep in zip(
            *(torch.split(each, length) for each in (before, weights, mask)), strict=True
        ):
            moved += float((new - old).square().sum(dtype=torch.float64))
            cut = torch.where(keep, 0.0, old.to(weights.dtype))
            # ‖X dᵀ‖² + δ‖d‖² = ‖d U⁻¹‖²
            solved = torch.linalg.solve_triangular(gram, cut, upper=True, left=False)
            masked += float(solved.square().sum(dtype=torch.float64))
            masked -= share * mean * float(cut.square().sum(dtype=torch.float64))
        if write:
            before.copy_(weights)
        del weights
        done = Reconstruction(
            masked=_share(masked, whole[name]),
            error=_share(lost - share * mean * moved, whole[name]),
            damping=share,
            samples=samples,
        )
        yield name, _turned(layers[name], mask).contiguous(), done


def _share(energy: float, whole: float) -> float:
    return math.sqrt(max(0.0, energy) / whole) if whole else 0.0


def _matrix(layer: nn.Module) -> Tensor:
    return _turned(layer, layer.get_parameter("weight"))


def _turned(layer: nn.Module, matrix: Tensor) -> Tensor:
    """As (outputs, inputs), or back: the layers of GPT-2 keep their weights the other way."""
    return matrix.T if lies_along(layer) == "rows" else matrix


def _energy(weights: Tensor, gram: Tensor) -> float:
    parts = torch.split(weights, rows_together(weights.shape[1]))
    return sum(
        float(energies(part.to(gram.dtype), gram).sum(dtype=torch.float64)) for part in parts
    )


def _by_magnitude_(
    block: nn.Module,
    recipe: Recipe,
    name: str,
    why: str,
    rest: Callable[[Recipe], Iterator[tuple[str, Tensor]]],
) -> tuple[str, Tensor, str]:
    scope = "layer" if recipe.scope == "global" else recipe.scope
    own = replace(recipe, score="magnitude", where=[name], scope=scope)
    ((_, mask),) = rest(own)
    parameter = dict(block.named_parameters())[name]
    parameter.copy_(torch.where(mask, parameter, 0.0))
    return name, mask, f"was pruned by magnitude: {why}"


# How much is kept of which columns.


def refuse_unswept(recipe: Recipe) -> None:
    """What a sweep over columns cannot do, said before anything runs."""
    pattern = pattern_of(recipe.pattern)
    problem = ""
    if recipe.rounds != 1:
        problem = f"rounds={recipe.rounds}: it prunes once"
    elif recipe.options:
        problem = f"options={dict(recipe.options)!r}: it has none"
    elif recipe.how != "topk":
        problem = f"how={recipe.how!r}: it keeps what costs the most (how='topk')"
    elif not isinstance(pattern, NM | Block | Unstructured):
        problem = f"pattern='{pattern}': it takes single weights, N:M and blocks such as '1x4'"
    elif isinstance(pattern, NM) and recipe.fraction not in (None, Fraction(pattern.n, pattern.m)):
        problem = f"another amount than {pattern}: leave the amount out"
    if problem:
        raise ArgumentError(f"'sparsegpt' does not go with {problem}.")


def _targets(block: nn.Module, recipe: Recipe) -> dict[str, Fraction]:
    """The density of every parameter that is pruned; shapes that do not fit are refused here."""
    refuse_unswept(recipe)
    weights = {name: p.detach() for name, p in prunable(block, recipe.where).items()}
    orders = orders_of(block, weights, pattern=recipe.pattern, scope=recipe.scope, example=None)
    laid = orders.outputs_first(weights)
    pattern, overall = pattern_of(recipe.pattern), recipe.fraction
    check_shapes(pattern, {name: tuple(weight.shape) for name, weight in laid.items()})
    if isinstance(pattern, NM):
        overall = Fraction(pattern.n, pattern.m)
    # Columns are cut before later layers are known, so layers cannot compete.
    if overall is not None and recipe.scope in ("global", "layer", "row"):
        if isinstance(pattern, NM):
            return dict.fromkeys(weights, overall)
        # Ranks of rows would take time, and only the floors are read.
        given = check_selection(replace(recipe, scope="layer"), laid, absolute=True)
        tile = pattern.height * pattern.width if isinstance(pattern, Block) else 1
        least = {}
        for name, floor in given.demand.floor.items():
            # Whole blocks, and of rows each as much.
            unit = len(laid[name]) if recipe.scope == "row" else tile
            least[name] = Fraction(-(-floor // unit) * unit, weights[name].numel())
        return {name: max(overall, share) for name, share in least.items()}
    counts = check_selection(recipe, laid, absolute=True).counts or {}
    return {name: Fraction(counts[name], weight.numel()) for name, weight in weights.items()}


class _Chooser:
    """Keeps the weights that cost the most to prune, of every `every` columns their part."""

    def __init__(self, recipe: Recipe, density: Fraction, shape: tuple[int, ...]) -> None:
        self.pattern, self.density, self.rows = pattern_of(recipe.pattern), density, shape[0]
        # What is rounded away in these columns is made up for in the next, so no floor holds.
        self.recipe = replace(recipe, floor=0)
        width = {NM: "m", Block: "width"}.get(type(self.pattern))
        step: int = getattr(self.pattern, width) if width else 1
        self.columns = max(step, COLUMNS // step * step)
        self.every = step if isinstance(self.pattern, NM) else self.columns
        self.seen = self.kept = 0

    def __call__(self, costs: Tensor) -> Tensor:
        if isinstance(self.pattern, NM):
            return self.pattern.eligible(costs)
        self.seen += costs.shape[1]
        # Rounded over all columns so far, so that the layer as a whole keeps what is asked.
        if self.recipe.scope == "row":
            wanted = self.rows * entries(self.density, self.seen)
        else:
            wanted = entries(self.density, self.rows * self.seen)
        wanted = min(max(0, wanted - self.kept), costs.numel())
        # Contiguous, as ranking reads it.
        given, keep = {"": costs.contiguous()}, {"": wanted}
        mask = choose_masks(check_selection(self.recipe, given, keep=keep, finite=True), None)[""]
        self.kept += count_true(mask)
        return mask
