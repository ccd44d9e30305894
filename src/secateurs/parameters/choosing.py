"""Every parameter of a model sorted into chosen and skipped; everything wrong in one error."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from secateurs.errors import EmptySelectionError, ParameterError
from secateurs.misfits import not_real
from secateurs.parameters.deciding import decide, pruned_by_torch
from secateurs.parameters.kinds import Where
from secateurs.parameters.model import check_model
from secateurs.parameters.names import used
from secateurs.parameters.rules import read


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The parameters a `where` chooses, those it leaves out and why, and what stands in the way.

    `notes` says what a reader may not expect: a parameter that was chosen through another name.
    """

    parameters: dict[str, nn.Parameter]
    skipped: dict[str, str]
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()


def choose(model: nn.Module, where: Where = None) -> Chosen:
    """Sort every parameter of the model into chosen and skipped. Problems are listed, not raised.

    Default rule (`where=None`): the weights of linear, convolution, recurrent and attention
    modules, and any other parameter with two dimensions of more than one entry; not biases, norms,
    embeddings, tables of positions or single tokens. A tied parameter is listed under its first
    name, and left out if any of its names is excluded, by a '!glob' or by the default rule.
    """
    check_model(model)
    rules = read(
        where,
        (n for n, _ in model.named_parameters(remove_duplicate=False)),
        owners=True,
    )
    chosen: dict[str, nn.Parameter] = {}
    skipped: dict[str, str] = {}
    problems, notes = [*rules.strange, *rules.unmatched], list[str]()
    for parameter, uses in used(model):
        name = uses[0][0]
        reason, through = decide(rules, parameter, uses)
        if reason:
            skipped[name] = reason
            continue
        chosen[name] = parameter
        if through != name:
            notes.append(
                f"{through!r} is tied: it is the parameter {name!r}, listed as that"
            )
        # Only of what is chosen: an integer table that nobody prunes is no problem.
        trouble = not_real(parameter) or pruned_by_torch(name, uses[0][1])
        if trouble:
            problems.append(f"{name!r} {trouble}")
    return Chosen(
        parameters=chosen,
        skipped=skipped,
        problems=tuple(problems),
        notes=tuple(notes),
    )


def prunable(model: nn.Module, where: Where = None) -> dict[str, nn.Parameter]:
    """The chosen parameters by name, in the model's order; everything wrong with the choice in one
    error.
    """
    chosen = choose(model, where)
    if chosen.problems:
        raise ParameterError(
            f"{len(chosen.problems)} problem(s) with the parameters chosen:"
            f" {'; '.join(chosen.problems)}. Fix them, or leave parameters out with where=."
        )
    if not chosen.parameters:
        raise EmptySelectionError(
            f"no parameter of {type(model).__name__} is chosen by where={where!r}; it has"
            f" {_reasons(chosen.skipped) or 'no parameters'}. Choose by name, glob, type"
            " or predicate."
        )
    return chosen.parameters


def _reasons(skipped: Mapping[str, str]) -> str:
    """The first parameters left out, each with its reason where a tie decided."""
    told = [
        f"{name} ({reason})" if "other name" in reason or ", as " in reason else name
        for name, reason in skipped.items()
    ]
    return ", ".join(told[:8])
