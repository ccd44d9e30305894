"""Which parameters are meant: names, globs, types and predicates, in the model's own order.

A parameter that is used under several names (tied) is listed once, under the first.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy

from secateurs.base.parameters import check_model, not_real
from secateurs.base.parametrized import moves_zeros
from secateurs.base.sharding import local, strange_placements
from secateurs.base.where import Rules, read_where
from secateurs.errors import EmptySelectionError, ParameterError

Predicate: TypeAlias = (
    "Callable[[str, nn.Parameter], bool] | Callable[[str, nn.Parameter, nn.Module], bool]"
)
"""`(name, parameter) -> bool`, everywhere; a third argument takes the module that holds the
parameter, wherever a model is given.
"""

Where: TypeAlias = (
    "str | type[nn.Module] | Predicate | Sequence[str | type[nn.Module] | Predicate] | None"
)
"""What to choose: a glob of parameter names, a module type, a predicate, a sequence of these (any
may match), or None for the default rule. A glob that starts with '!' excludes.
"""


def prunable(
    model: nn.Module, where: Where = None, *, pieces: bool = False
) -> dict[str, nn.Parameter]:
    """The chosen parameters by name, in the model's order; everything wrong with the choice in one
    error. `pieces`: those that lie in pieces on several processes are taken, too.
    """
    chosen = choose(model, where, pieces=pieces)
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
    """The first parameters left out; with the reason where a tie decided."""
    listed = [
        f"{name} ({reason})" if "other name" in reason or ", as " in reason else name
        for name, reason in skipped.items()
    ]
    return ", ".join(listed[:8])


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The parameters a `where` chooses, those it leaves out and why, and what stands in the way.

    `notes` lists the unexpected: parameters that were chosen through another name.
    """

    parameters: dict[str, nn.Parameter]
    skipped: dict[str, str]
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()


def choose(model: nn.Module, where: Where = None, *, pieces: bool = False) -> Chosen:
    """Sort every parameter of the model into chosen and skipped. Problems are listed, not raised.

    Default rule (`where=None`): the weights of linear, convolution, recurrent and attention
    modules, and any other parameter with two dimensions of more than one entry; not biases, norms,
    embeddings, tables of positions or single tokens. A tied parameter is listed under its first
    name, and left out if any of its names is excluded, by a '!glob' or by the default rule.
    """
    check_model(model)
    rules = read_where(
        where,
        (n for n, _ in model.named_parameters(remove_duplicate=False)),
        owners=True,
    )
    chosen: dict[str, nn.Parameter] = {}
    skipped: dict[str, str] = {}
    problems, notes = [*rules.strange, *rules.unmatched], list[str]()
    for parameter, uses in uses_in_model(model):
        name = uses[0][0]
        reason, through = decide(rules, parameter, uses)
        unreal = (
            (strange_placements(parameter) or not_real(local(parameter)))
            if pieces
            else not_real(parameter)
        )
        moved = "" if reason or unreal else moves_zeros(*uses[0], parameter)
        if moved and not rules.chosen:
            notes.append(f"{name!r} is left out: it {moved}")
            reason = moved
        if reason:
            skipped[name] = reason
            continue
        chosen[name] = parameter
        if through != name:
            notes.append(f"{through!r} is tied: it is the parameter {name!r}, listed as that")
        # Only of what is chosen: an integer table that nobody prunes is no problem.
        trouble = unreal or pruned_by_torch(name, uses[0][1]) or moved
        if trouble:
            problems.append(f"{name!r} {trouble}")
    return Chosen(
        parameters=chosen,
        skipped=skipped,
        problems=tuple(problems),
        notes=tuple(notes),
    )


def uses_in_model(model: nn.Module) -> list[tuple[nn.Parameter, list[tuple[str, nn.Module]]]]:
    """Every parameter with all its names and the modules that hold it, in the model's order."""
    found: dict[int, tuple[nn.Parameter, list[tuple[str, nn.Module]]]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        # Module by module and not through named_parameters, which tells a name but not
        # who holds it.
        for leaf, parameter in module._parameters.items():
            if parameter is not None:
                name = f"{path}.{leaf}" if path else leaf
                found.setdefault(id(parameter), (parameter, []))[1].append((name, module))
    return list(found.values())


def owned_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, nn.Module]]:
    """Every parameter once, under its first name, with the module that holds it."""
    for parameter, uses in uses_in_model(model):
        name, owner = uses[0]
        yield name, parameter, owner


# Why one parameter is chosen or left out, under all of its names.


def decide(
    rules: Rules, parameter: nn.Parameter, uses: Sequence[tuple[str, nn.Module]]
) -> tuple[str, str]:
    """Why a parameter is left out (empty if it is chosen), and the name it is chosen through."""
    names = [name for name, _ in uses]
    if excluded := rules.excludes(names):
        alias = "" if excluded == names[0] else f" through its other name {excluded!r}"
        return f"excluded by where{alias}", ""
    usual = _reason_to_skip(parameter, uses)
    if not rules.chosen and not rules.nothing:
        return usual, names[0]
    named = [rule for rule in rules.chosen if not isinstance(rule, type)]
    by_name = replace(rules, chosen=tuple(named)).chooses(parameter, uses)
    through = by_name or rules.chooses(parameter, uses)
    if not through:
        return "not chosen by where", ""
    return ("" if by_name else usual), through  # a type chooses within the default rule


def _reason_to_skip(parameter: nn.Parameter, uses: Sequence[tuple[str, nn.Module]]) -> str:
    """Why the default rule leaves a parameter out; one of its names is enough for that."""
    for name, owner in uses:
        if reason := default_skip(name, parameter, owner):
            return reason if name == uses[0][0] else f"{reason}, as {name!r}"
    return ""


def default_skip(name: str, parameter: nn.Parameter, owner: nn.Module) -> str:
    """Why the default rule leaves a parameter out; empty if it takes it."""
    leaf = name.rpartition(".")[2]
    if isinstance(owner, _NEVER):
        return f"belongs to {type(owner).__name__}"
    # Chosen all the same, so that the error that it has no shape yet is raised.
    if is_lazy(parameter):
        return ""
    if parameter.ndim < 2:
        return "fewer than two dimensions"
    # weight_norm keeps lengths and directions apart: cutting a length would cut a whole row.
    if leaf.endswith("_g") and f"{leaf[:-2]}_v" in owner._parameters:
        return "the norms of weight_norm"
    if re.search(r"(^|_)bias(_|$)", leaf):
        return "a bias by its name"
    # Known layers come before names: a subclass of Linear called NormedLinear has weights.
    if isinstance(owner, _WEIGHTED):
        return ""
    if _NORM.search(type(owner).__name__):
        return f"belongs to {type(owner).__name__}"
    if _TABLE.search(leaf):
        return "a table of positions, biases or tokens by its name"
    # (1, n, 1) is a vector in disguise, such as the scale of a layer.
    wide = sum(size > 1 for size in parameter.shape)
    return "" if parameter.shape[0] > 1 and wide > 1 else "a single vector or token"


_WEIGHTED = (
    nn.Linear,
    _ConvNd,
    nn.Bilinear,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.MultiheadAttention,
)

_NEVER = (
    nn.Embedding,
    nn.EmbeddingBag,
    _NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)

_TABLE = re.compile(
    r"(^|_)(pos|pe|rel|relative|alibi|positions?|positional|bias|tables?|tokens?)(_|$)"
    r"|pos_?(emb|enc)|embed",
    re.IGNORECASE,
)
"""Names of parameters that are looked up or added, not multiplied: positions, biases, tokens."""

_NORM = re.compile(r"norm|embed", re.IGNORECASE)
"""Names of classes whose own parameters are scales or tables (HF's `LlamaRMSNorm`, ...)."""


def pruned_by_torch(name: str, owner: nn.Module) -> str:
    """Pruning `weight_orig` would leave torch's mask on top of ours, each unaware of the other."""
    leaf = name.rpartition(".")[2]
    plain = leaf.removesuffix("_orig")
    if plain == leaf or f"{plain}_mask" not in owner._buffers:
        return ""
    return (
        f"is what torch.nn.utils.prune has made of {plain!r}: make that pruning permanent with its"
        " remove() first, or read masks and weights with secateurs.masks.from_torch_prune"
    )
