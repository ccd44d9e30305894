"""`Recipe`: which score, how much, in which shapes, chosen how, in how many rounds.

A recipe is checked when it is made. `Recipe.ready` makes it ready for one model, and
`Prepared.rounds` then computes the masks; `Recipe.check` says what that would do.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self, TypedDict

import torch
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from torch import nn
from torch.nn.parameter import is_lazy

from secateurs.base.parameters import Params
from secateurs.base.parametrized import acting_weights, revive_norms
from secateurs.base.printing import Reported
from secateurs.base.prunable import Chosen, Where, choose, prunable
from secateurs.base.registry import unknown
from secateurs.errors import ArgumentError, SecateursError, UnknownNameError
from secateurs.masks.budget import Keep, Selection, SelectionFields, total_of
from secateurs.masks.patterns import Unstructured, pattern_of
from secateurs.masks.select import CheckedSelection, best, check_shapes
from secateurs.masks.units import TensorUnits
from secateurs.prune.axes import Orders, orders_of, refuse_reordered
from secateurs.prune.rounds import (
    SCHEDULES,
    Masks,
    Round,
    counts,
    cut_once,
    cut_products,
    entries_left,
    final_selection,
    takes_products,
    targets_of,
)
from secateurs.scores import SCORES, Convention, Inputs, Loss, Rule, Scorer
from secateurs.scores.scorer import check_convention

SPARSEGPT = "sparsegpt"
"""In the place of a score, for `prune_blocks_` alone: masks chosen while the weights change."""


class RecipeFields(SelectionFields, total=False):
    """The fields of a `Recipe` beside its score, as keywords; see there."""

    rounds: int
    schedule: str | None
    where: Where
    convention: Convention
    options: Mapping[str, Any]


class ScoreInputs(TypedDict):
    """What a score may need besides the model, as the caller gave it; see `secateurs.score`."""

    example: Inputs | None
    batch: Any
    loss: Loss | None


_DATA = dict.fromkeys(
    ("data", "batches", "inputs", "loader", "dataloader", "examples"),
    " Inputs are no part of a recipe: give them beside it, as batch= or example=.",
)
"""What some fields that do not exist are taken for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe(Selection):
    """Any score with any budget, pattern, selection and schedule. Checked when it is made, all
    problems in one error.

    Attributes:
        score: A registered score or your own rule (see `secateurs.score`); for `prune_blocks_` also
            "sparsegpt".
        sparsity, density, compression: Exactly one of them, of all chosen parameters together; none
            where the pattern (N:M) or the scope (a density per parameter) says how much is kept.
            For a share of the multiplications or of the time, `secateurs.density_for` finds it.
        rounds: How often to score and cut; the score of each round sees what the rounds before
            left.
        schedule: How the entries kept fall over the rounds; None is "exponential", and "cubic" in
            `GradualPruning`.
        scope, pattern, how, floor: See `secateurs.select`.
        where: Which parameters; None is the default rule of `secateurs.base.parameters.choose`.
        convention, options: Passed to the score.

    >>> recipe = Recipe(score="synflow", sparsity=0.98, rounds=100)
    >>> Recipe(score="synflow", sparsty=0.98)
    Traceback (most recent call last):
        ...
    secateurs.errors.UnknownNameError: this recipe cannot be read: there is no field ...
    """

    score: str | Rule = "magnitude"
    rounds: int = 1
    schedule: str | None = None
    where: Where = None
    convention: Convention = "paper"
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __new__(cls, *args: object, **given: object) -> Self:
        """Refuse a field that does not exist, with the nearest names, before dataclass's bare
        TypeError would.
        """
        if args:
            raise ArgumentError(f"a recipe is written with names: Recipe(score={args[0]!r}, ...).")
        known = [entry.name for entry in fields(cls)]
        strange = [
            UnknownNameError(unknown("field of a recipe", name, known) + _DATA.get(name, ""))
            for name in given
            if name not in known
        ]
        _refuse("this recipe cannot be read", strange)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        # All of them run, so that one attempt reports everything that is wrong.
        problems = _problems_of(*self.field_checks().values())
        _refuse("this recipe cannot be read", problems)

    @classmethod
    def of(cls, recipe: "Recipe | str | Rule", fields: RecipeFields) -> "Recipe":
        """The recipe itself, or the one of this score with these fields; not both."""
        if not isinstance(recipe, Recipe):
            return cls(score=recipe, **fields)
        if fields:
            raise ArgumentError(
                f"{', '.join(fields)} given beside a recipe: put it into the recipe, as with"
                f" dataclasses.replace(recipe, {next(iter(fields))}=...)."
            )
        return recipe

    def check(
        self,
        model: nn.Module,
        *,
        example: Inputs | None = None,
        batch: Any = None,
        loss: Loss | None = None,
        within: Params | None = None,
        dry_run: bool = False,
        generator: torch.Generator | None = None,
    ) -> "PruningPlan":
        """Every problem, what would be pruned or skipped, and how much; nothing is changed.

        Where parameters compete for one budget, how much each keeps is decided by its scores;
        `dry_run=True` computes them, without touching the model or the generator.
        """
        score_inputs: ScoreInputs = {"example": example, "batch": batch, "loss": loss}
        chosen, earlier = choose(model, self.where), within or {}
        # A plan without a dry run draws nothing, so the generator is left out of it.
        source = generator if dry_run else None
        ready = prepare(self, model, score_inputs=score_inputs, within=earlier, generator=source)
        if not isinstance(ready, Prepared):
            return _plan(chosen, problems=tuple(ready))
        if dry_run:
            with _same_draws(generator):
                masks, _ = list(ready.rounds())[-1]
            kept = {name: int(mask.count_nonzero()) for name, mask in masks.items()}
        else:
            kept = _counts_without_scores(ready.final)
        rounds = tuple(total_of(target) for target in ready.targets)
        return _plan(chosen, kept, rounds=rounds, dry_run=dry_run)

    def ready(
        self,
        model: nn.Module,
        *,
        score_inputs: ScoreInputs,
        within: Params,
        generator: torch.Generator | None = None,
    ) -> "Prepared":
        """The recipe made ready for this model; every problem is reported in one error."""
        ready = prepare(self, model, score_inputs=score_inputs, within=within, generator=generator)
        if not isinstance(ready, Prepared):
            raise _one_error("the recipe does not fit the model", ready)
        return ready

    def scorer(
        self, model: nn.Module, score_inputs: ScoreInputs, generator: torch.Generator | None
    ) -> Scorer:
        """The recipe's score on the model."""
        if self.score == SPARSEGPT:
            raise ArgumentError(
                "'sparsegpt' changes the weights that stay while it chooses, block by block, "
                "which no mask can express: use prune_blocks_(model, 'sparsegpt', batch=...)."
            )
        return Scorer(
            model,
            self.score,
            where=self.where,
            generator=generator,
            convention=self.convention,
            **score_inputs,
            **self.options,
        )

    def as_dict(self) -> dict[str, Any]:
        """The fields that differ from the defaults, as plain values; what is not a plain value is
        described.
        """
        changed = [
            entry for entry in fields(self) if getattr(self, entry.name) not in (entry.default, {})
        ]
        return {entry.name: _plain_value(getattr(self, entry.name)) for entry in changed}

    def field_checks(self) -> dict[str, Callable[[], object]]:
        """The check of each field, which raises if the field is wrong."""
        return {
            "score": self._check_score,
            "convention": lambda: check_convention(self.convention),
            "options": self._check_options,
            **Selection.field_checks(self),
            "rounds": self._check_rounds,
            "schedule": self._check_schedule,
        }

    def _check_score(self) -> None:
        if not callable(self.score) and self.score != SPARSEGPT:
            SCORES.check(self.score)

    def _check_options(self) -> None:
        if not isinstance(self.options, Mapping):
            raise ArgumentError(
                f"options={self.options!r} is not a mapping of option names to values."
            )

    def _check_rounds(self) -> None:
        if isinstance(self.rounds, bool) or not isinstance(self.rounds, int) or self.rounds < 1:
            raise ArgumentError(f"rounds={self.rounds!r} is not a whole number of at least 1.")

    def _check_schedule(self) -> None:
        if self.schedule is not None:
            SCHEDULES.check(self.schedule)
        if self.schedule == "one-shot" and self.rounds != 1:
            raise ArgumentError(
                f"schedule='one-shot' cuts everything in the first of {self.rounds} rounds: "
                "leave rounds= out, or choose another schedule."
            )


def _plain_value(value: object) -> Any:
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_value(entry) for entry in value]
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__)
    return str(value)


# A recipe made ready for one model: what was checked is what is executed, built once.


def prepare(
    recipe: Recipe,
    model: nn.Module,
    *,
    score_inputs: ScoreInputs,
    within: Params,
    generator: torch.Generator | None,
) -> "Prepared | list[SecateursError]":
    """The recipe made ready for this model, or a list of everything that is wrong."""
    chosen = choose(model, recipe.where)
    # A lazy parameter has no shape to check; it is among the problems already.
    values = {name: p.detach() for name, p in chosen.parameters.items() if not is_lazy(p)}
    (_, orders), problems = _attempt(
        lambda: prunable(model, recipe.where),
        lambda: _orders_that_fit(recipe, model, values, score_inputs["example"]),
    )
    if problems:
        # The parameters cannot be scored; whether the score has its data can still be checked.
        blind = replace(recipe, where=None)
        return problems + _problems_of(lambda: blind.scorer(_AnyModel(), score_inputs, None))
    values = acting_weights(model, values)
    weights, earlier = orders.outputs_first(values), orders.outputs_first(within)
    (scorer, final), problems = _attempt(
        lambda: recipe.scorer(model, score_inputs, generator),
        lambda: final_selection(recipe, weights, earlier),
    )
    if problems:
        return problems
    schedule = recipe.schedule or "exponential"
    targets = targets_of(
        final,
        recipe.scope,
        earlier,
        lambda start, end: counts(schedule, start=start, end=end, rounds=recipe.rounds),
    )
    return Prepared(
        recipe=recipe,
        model=model,
        parameters=values,
        within=within,
        orders=orders,
        scorer=scorer,
        final=final,
        targets=targets,
        generator=generator,
        notes=chosen.notes,
    )


def _orders_that_fit(
    recipe: Recipe, model: nn.Module, weights: Params, example: Inputs | None
) -> Orders:
    """The order of each weight's dimensions; shapes the pattern does not divide are refused."""
    orders = orders_of(model, weights, pattern=recipe.pattern, scope=recipe.scope, example=example)
    shapes = {name: tuple(p.shape) for name, p in orders.outputs_first(weights).items()}
    check_shapes(pattern_of(recipe.pattern), shapes)
    return orders


class _AnyModel(nn.Module):
    """Stands for any model: whether a score has its data and options does not depend on the
    parameters.
    """

    def __init__(self) -> None:
        super().__init__()
        # A layer would draw its weights, and draws must not move.
        self.weight = nn.Parameter(torch.ones(2, 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A recipe made ready for one model.

    Attributes:
        recipe: The recipe as it was given.
        model: The model.
        parameters: The values of the chosen parameters by name, or of the weights that a
            parametrisation computes of them.
        within: Masks of an earlier pruning.
        orders: Which dimensions are outputs and inputs, where that matters.
        scorer: The score on a private copy of the model.
        final: The selection of the last round: its units, and how many entries it keeps.
        targets: What each round is to keep.
        generator: Where random selections draw from.
        notes: What a user should know about the choice of parameters.
    """

    recipe: Recipe
    model: nn.Module
    parameters: Params
    within: Params
    orders: Orders
    scorer: Scorer
    final: CheckedSelection[TensorUnits]
    targets: list[Keep]
    generator: torch.Generator | None
    notes: tuple[str, ...]

    def rounds(self) -> Iterator[tuple[Masks, Round]]:
        """The masks after each round, and what it kept. Each round scores the model with the masks
        of the round before.
        """
        # Patterns and rows are defined on (outputs, inputs, *rest), so masks are chosen there.
        outputs_first, restore = self.orders.outputs_first, self.orders.restore
        weights, masks = outputs_first(self.parameters), outputs_first(self.within)
        left = entries_left(masks)
        at_once = takes_products(self.recipe, weights, masks) and not self.orders.orders
        for number, target in enumerate(self.targets, start=1):
            done = None
            if at_once and isinstance(target, int):
                done = cut_products(
                    self.scorer, target, floor=self.final.demand.floor, within=masks, left=left
                )
                # What keeps one round from it (a floor, ties) keeps those after it from it, too.
                at_once = done is not None
            if done is None:
                masks = cut_once(
                    self.recipe,
                    outputs_first(self.scorer.scores(restore(masks), keep=total_of(target))),
                    target,
                    weights=weights,
                    within=masks,
                    generator=self.generator,
                )
                masks = outputs_first(
                    _with_norms(self.recipe, self.model, restore(masks), self.within)
                )
                # Counted once: it is what the next round may keep, too.
                left = entries_left(masks)
            else:
                masks, left = done
            kept, total = sum(left.values()), sum(mask.numel() for mask in masks.values())
            yield (
                restore(masks),
                Round(number=number, asked=total_of(target), kept=kept, total=total),
            )


# Cuts between steps of training.


def ready_in_training(
    recipe: Recipe, model: nn.Module, score_inputs: ScoreInputs, within: Params
) -> Prepared:
    """The recipe made ready for cuts between steps of training, which take weights as stored.

    Everything is refused here, since an error after hours of training helps nobody.
    """
    ready = recipe.ready(model, score_inputs=score_inputs, within=within)
    refuse_reordered(model, ready.parameters, recipe, score_inputs["example"])
    return ready


def cut_in_training(
    recipe: Recipe,
    model: nn.Module,
    target: Keep,
    *,
    score_inputs: ScoreInputs,
    within: Params,
    generator: torch.Generator | None,
) -> Masks:
    """One round of a model that trains: scored as it is now, cut within the masks so far."""
    scorer = recipe.scorer(model, score_inputs, generator)
    scores = scorer.scores(within, keep=total_of(target))
    weights = acting_weights(model, prunable(model, recipe.where))
    masks = cut_once(recipe, scores, target, weights=weights, within=within, generator=generator)
    return _with_norms(recipe, model, masks, within)


def _with_norms(recipe: Recipe, model: nn.Module, masks: Masks, within: Params) -> Masks:
    """The masks with one entry kept of each norm that a weight is divided by. A pattern has no room
    for it: such masks are refused when they are applied.
    """
    free = isinstance(pattern_of(recipe.pattern), Unstructured)
    return revive_norms(model, masks, within) if free else masks


# What a recipe would do to a model: the result of `Recipe.check`.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedParameter:
    """One chosen parameter; `kept` is None where only the scores decide how much of the budget it
    gets."""

    name: str
    shape: tuple[int, ...]
    total: int
    kept: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningPlan(Reported):
    """Problems, chosen and skipped parameters, and the entries asked for after each round.

    Attributes:
        problems: Everything that keeps the recipe from running; it runs when there is none.
        parameters: What is pruned, in the model's order.
        skipped: What is not pruned, and why.
        rounds: Entries asked for after each round, the last one exactly; empty when a problem
            prevents counting.
        dry_run: Whether the counts per parameter are those of a dry run with the real scores.
    """

    problems: tuple[SecateursError, ...]
    parameters: tuple[PlannedParameter, ...]
    skipped: Mapping[str, str]
    rounds: tuple[int, ...]
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    @property
    def total(self) -> int:
        """Entries of all chosen parameters together."""
        return sum(parameter.total for parameter in self.parameters)

    @property
    def kept(self) -> int | None:
        """Entries kept in the end; None when a problem prevents counting."""
        return self.rounds[-1] if self.rounds else None

    def enforce(self) -> None:
        """Raise every problem as one error."""
        _refuse("the recipe does not fit the model", self.problems)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "ok": self.ok,
            "problems": [str(problem) for problem in self.problems],
            "total": self.total,
            "kept": self.kept,
            "rounds": list(self.rounds),
            "dry_run": self.dry_run,
            "parameters": {
                p.name: {
                    "shape": list(p.shape),
                    "total": p.total,
                    "kept": p.kept,
                }
                for p in self.parameters
            },
            "skipped": dict(self.skipped),
        }

    def __rich__(self) -> Group:
        lines = [f"[bold red]problem:[/] {escape(str(problem))}" for problem in self.problems]
        lines += [
            f"[yellow]nothing is left of {escape(p.name)}[/]"
            for p in self.parameters
            if p.kept == 0
        ]
        lines += [
            f"[dim]skipped {escape(name)}: {reason}[/]" for name, reason in self.skipped.items()
        ]
        rounds = f" in {len(self.rounds)} rounds" if len(self.rounds) > 1 else ""
        title = f"to prune{rounds}" if self.ok else "cannot be pruned"
        table = Table("parameter", "shape", title=title)
        for heading in ("total", "kept"):
            table.add_column(heading, justify="right")
        for p in self.parameters:
            shape = "×".join(map(str, p.shape))
            table.add_row(escape(p.name), shape, f"{p.total:,}", _count(p.kept))
        table.add_section()
        table.add_row("total", "", f"{self.total:,}", _count(self.kept))
        return Group(table, *lines)


def _count(kept: int | None) -> str:
    return "by score" if kept is None else f"{kept:,}"


def _plan(
    chosen: Chosen,
    counts: Mapping[str, int] | None = None,
    *,
    problems: tuple[SecateursError, ...] = (),
    rounds: tuple[int, ...] = (),
    dry_run: bool = False,
) -> PruningPlan:
    known = counts or {}
    rows = [
        PlannedParameter(
            name=name,
            shape=tuple(p.shape),
            total=p.numel(),
            kept=known.get(name),
        )
        for name, p in chosen.parameters.items()
        if not is_lazy(p)
    ]
    return PruningPlan(
        problems=problems,
        parameters=tuple(rows),
        skipped=chosen.skipped,
        rounds=rounds,
        dry_run=dry_run,
    )


def _counts_without_scores(choice: CheckedSelection[TensorUnits]) -> dict[str, int]:
    """Entries each parameter keeps, where no score decides it; whole groups come nearest to what is
    asked.
    """
    if choice.counts is None:
        return {}
    if not choice.units.whole:
        return dict(choice.counts)
    return {name: choice.units.count_kept(name, chosen) for name, chosen in best(choice).items()}


@contextmanager
def _same_draws(generator: torch.Generator | None) -> Iterator[None]:
    """Put the generator back, so that the pruning after a dry run draws the same masks."""
    # Without a generator the draws come from torch's global one: that is put back, too.
    source = torch.default_generator if generator is None else generator
    state = source.get_state()
    try:
        yield
    finally:
        source.set_state(state)


# Everything that is wrong, in one error.


def _attempt(*steps: Callable[[], Any]) -> tuple[list[Any], list[SecateursError]]:
    """Run every step: the result of each (None where it raises), and everything raised."""
    results, problems = list[Any](), list[SecateursError]()
    for step in steps:
        try:
            results.append(step())
        except SecateursError as error:
            results.append(None)
            problems.append(error)
    return results, problems


def _problems_of(*checks: Callable[[], object]) -> list[SecateursError]:
    """Run every check and keep what they raise."""
    return _attempt(*checks)[1]


def _refuse(what: str, problems: Sequence[SecateursError]) -> None:
    """Raise all problems as one error, if there are any."""
    if problems:
        raise _one_error(what, problems) from (problems[0] if len(problems) == 1 else None)


def _one_error(what: str, problems: Sequence[SecateursError]) -> SecateursError:
    """All problems as one error: of their own kind if they share it, else an `ArgumentError`."""
    # Whoever catches a PatternError still does when three patterns misfit at once.
    kinds = {type(problem) for problem in problems}
    kind = kinds.pop() if len(kinds) == 1 else ArgumentError
    if len(problems) == 1:
        return kind(f"{what}: {problems[0]}")
    listed = " ".join(f"({number}) {problem}" for number, problem in enumerate(problems, start=1))
    return kind(f"{what}, {len(problems)} problems: {listed}")
