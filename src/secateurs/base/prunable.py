"""Which parameters are meant: names, globs, types and predicates, in the model's own order.

A parameter that is used under several names (tied) is listed once, under the first.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from inspect import Parameter as Argument
from inspect import signature
from typing import Any, TypeAlias, cast

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy

from secateurs.base.parameters import check_model, not_real
from secateurs.base.parametrized import moves_zeros
from secateurs.base.registry import unknown
from secateurs.base.sharding import local
from secateurs.errors import ArgumentError, EmptySelectionError, ParameterError

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
        unreal = not_real(local(parameter) if pieces else parameter)
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
    rules: "Rules", parameter: nn.Parameter, uses: Sequence[tuple[str, nn.Module]]
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


# What a `where` means, rule by rule: globs, module types, predicates; and the effect of ties.
#
# A tied parameter has several names. One name that is excluded excludes the tensor, whatever the
# other names say; one name that is chosen by a glob or a type chooses it; a predicate must agree
# under every name.

Use: TypeAlias = "tuple[str, nn.Module | None]"
"""One name of a parameter, and the module that holds it there, where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """A `where`, read: what it chooses and excludes; what is not a rule, and what matches nothing.

    `nothing`: an empty sequence, which chooses nothing; None chooses by the default rule.
    """

    chosen: tuple[object, ...]
    excluded: tuple[str, ...]
    strange: tuple[str, ...]
    unmatched: tuple[str, ...]
    nothing: bool = False

    def excludes(self, names: Iterable[str]) -> str:
        """The first of these names of one parameter that is excluded; empty if none is."""
        return next((n for n in names if any(fnmatchcase(n, g) for g in self.excluded)), "")

    def chooses(self, parameter: nn.Parameter, uses: Sequence[Use]) -> str:
        """The name under which one parameter is chosen; empty if it is not."""
        found = (_chosen_by(rule, parameter, uses) for rule in self.chosen)
        return next((name for name in found if name), "")


def read_where(where: object, names: Iterable[str], *, owners: bool) -> Rules:
    """Read a `where`; `owners` says whether the modules that hold the parameters are known.

    Globs that match no name are problems: most likely typos, never ignored.
    """
    rules = _rules_of(where)
    strange = tuple(text for rule in rules if (text := why_no_rule(rule, owners)))
    readable = [rule for rule in rules if not why_no_rule(rule, owners)]
    return Rules(
        chosen=tuple(rule for rule in readable if not _excludes(rule)),
        excluded=tuple(
            rule[1:] for rule in readable if isinstance(rule, str) and rule.startswith("!")
        ),
        strange=strange,
        unmatched=tuple(_unmatched_globs(rules, list(names))),
        nothing=where is not None and not rules,
    )


def _rules_of(where: object) -> list[object]:
    if where is None:
        return []
    several = isinstance(where, Sequence | set | frozenset) and not isinstance(where, str)
    return list(where) if several else [where]  # type: ignore[call-overload]


def _excludes(rule: object) -> bool:
    return isinstance(rule, str) and rule.startswith("!")


def _unmatched_globs(rules: Sequence[object], known: Sequence[str]) -> list[str]:
    globs = [rule for rule in rules if isinstance(rule, str)]
    lost = [
        glob
        for glob in globs
        if not any(fnmatchcase(name, glob.removeprefix("!")) for name in known)
    ]
    return [unknown("parameter", glob, known).rstrip(".") for glob in lost]


def _chosen_by(rule: object, parameter: nn.Parameter, uses: Sequence[Use]) -> str:
    if isinstance(rule, str):
        return next((name for name, _ in uses if fnmatchcase(name, rule)), "")
    if isinstance(rule, type):
        return next((name for name, owner in uses if isinstance(owner, rule)), "")
    predicate = cast(Callable[..., object], rule)
    extra = argument_count(predicate) == 3
    answers = [
        bool(predicate(name, parameter, *([owner] if extra else []))) for name, owner in uses
    ]
    # Every name must agree: one predicate that looks at names must not prune a tied embedding.
    return uses[0][0] if all(answers) else ""


def argument_count(rule: Callable[..., Any]) -> int:
    """How many positional arguments a predicate is called with, 2 or 3; else how many it needs."""
    try:
        arguments = list(signature(rule).parameters.values())
    except (TypeError, ValueError):  # built-in functions may have no signature
        return 2
    # *args would take anything; the two documented arguments are what it gets.
    if any(a.kind is Argument.VAR_POSITIONAL for a in arguments):
        return 2
    positional = [
        a for a in arguments if a.kind in (Argument.POSITIONAL_ONLY, Argument.POSITIONAL_OR_KEYWORD)
    ]
    needed = sum(a.default is Argument.empty for a in positional)
    return needed if needed in (2, 3) else 2 if needed < 2 <= len(positional) else needed


# Why a value is not a rule of `where`, and what to give instead.


def why_no_rule(rule: object, owners: bool) -> str:
    """Why a rule cannot be read; empty if it can."""
    ways = "a glob of names such as 'layer1.*', " + ("a module type, " if owners else "")
    if isinstance(rule, nn.Module):
        return (
            f"where= was given a module ({type(rule).__name__}(...)), not a rule: give {ways}or a"
            " predicate, such as where='its.name.*'"
        )
    if isinstance(rule, Tensor):
        return (
            f"where= was given a tensor of shape {tuple(rule.shape)}, not a rule: give {ways}or"
            " a predicate lambda name, parameter: parameter is yours"
        )
    if isinstance(rule, str):
        return ""
    if isinstance(rule, type):
        return _strange_type(rule, owners)
    if not callable(rule):
        needed = "neither a glob of names nor a predicate (name, parameter) -> bool"
        return f"where={rule!r} is {needed}"
    return _strange_predicate(rule, owners)


def _strange_type(rule: type, owners: bool) -> str:
    if not owners:
        return (
            f"where={rule!r} is neither a glob of names nor a predicate (name, parameter) -> bool:"
            " module types need the model, which is not known here"
        )
    return "" if issubclass(rule, nn.Module) else f"where={rule!r} is not a type of module"


def _strange_predicate(rule: Callable[..., Any], owners: bool) -> str:
    count = argument_count(rule)
    if count == 2 or (count == 3 and owners):
        return ""
    if count == 3:
        return (
            f"the predicate {_rule_name(rule)} takes (name, parameter, module), and the modules"
            " are not known here: leave the third argument out"
        )
    return (
        f"the predicate {_rule_name(rule)} takes {count} arguments: it is called with"
        " (name, parameter), or with (name, parameter, module) if it takes three"
    )


def _rule_name(rule: object) -> str:
    return str(getattr(rule, "__qualname__", type(rule).__name__))


# The same choice among named parameters, where no model is given.

Picker: TypeAlias = Callable[[str, nn.Parameter], bool]
"""`(name, parameter) -> bool`, where no model is given: the same predicate of two arguments."""

Pick: TypeAlias = "str | Picker | Sequence[str | Picker] | None"
"""What to choose where only names and parameters are known, as in an optimizer: a glob, a
predicate, a sequence of these (any may match), or None for all. A glob that starts with '!'
excludes.
"""


def pick(parameters: Mapping[str, nn.Parameter], where: Pick) -> set[str]:
    """The names that globs and predicates choose among named parameters; all that no '!glob'
    excludes if none chooses.

    >>> sorted(pick(dict(nn.Linear(2, 2).named_parameters()), "!*bias"))
    ['weight']
    """
    rules = read_where(where, parameters, owners=False)
    if rules.strange:
        raise ArgumentError(f"{'; '.join(rules.strange)}.")
    if rules.unmatched:
        raise ParameterError(f"{'; '.join(rules.unmatched)}.")
    # An empty list chooses nothing, as in Python; None chooses everything.
    everything = not rules.chosen and not rules.nothing
    found: set[str] = set()
    for uses in uses_of(parameters).values():
        names = [name for name, _ in uses]
        if rules.excludes(names):
            continue
        if everything or rules.chooses(parameters[names[0]], uses):
            found.update(names)
    if not found:
        raise EmptySelectionError(
            f"no parameter is chosen by where={where!r}; there are {', '.join(parameters)}."
        )
    return found


def uses_of(parameters: Mapping[str, nn.Parameter]) -> dict[int, list[Use]]:
    """The names of each tensor, by its id, where only names and parameters are known."""
    uses: dict[int, list[Use]] = {}
    for name, parameter in parameters.items():
        uses.setdefault(id(parameter), []).append((name, None))
    return uses
