"""Which parameters are meant: names, globs, types and predicates, in the model's own order.

Scores, masks and budgets are mappings from the parameter's own name to a tensor. A parameter that
is used under several names (tied) is listed once, under the first.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeAlias

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy

from secateurs.errors import ArgumentError, EmptySelectionError, ParameterError
from secateurs.registry import unknown

Params: TypeAlias = Mapping[str, Tensor]
"""Tensors by parameter name."""

Predicate: TypeAlias = Callable[[str, nn.Parameter, nn.Module], bool]
"""`(name, parameter, owner) -> bool`; the owner is the module that holds the parameter."""

Where: TypeAlias = (
    "str | type[nn.Module] | Predicate | Sequence[str | type[nn.Module] | Predicate] | None"
)
"""What to choose: a glob of parameter names, a module type, a predicate, a sequence of these (any
may match), or None for the default rule. A glob that starts with '!' excludes.
"""

Picker: TypeAlias = Callable[[str, nn.Parameter], bool]
"""`(name, parameter) -> bool`, where the module that holds the parameter is not known."""

Pick: TypeAlias = "str | Picker | Sequence[str | Picker] | None"
"""What to choose where only names and parameters are known, as in an optimizer: a glob, a
predicate, a sequence of these (any may match), or None for all. A glob that starts with '!'
excludes.
"""

_WEIGHTED = (nn.Linear, _ConvNd, nn.Bilinear, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)
_NEVER = (nn.Embedding, nn.EmbeddingBag, _NormBase, nn.LayerNorm, nn.GroupNorm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The parameters a `where` chooses, those it leaves out and why, and what stands in the way."""

    parameters: dict[str, nn.Parameter]
    skipped: dict[str, str]
    problems: tuple[str, ...]


def choose(model: nn.Module, where: Where = None) -> Chosen:
    """Sort every parameter of the model into chosen and skipped. Never raises: problems are listed.

    Default rule (`where=None`): the weights of linear, convolution, recurrent and attention
    modules, and any other parameter with two dimensions of more than one entry; not biases, norms,
    embeddings or single tokens.
    """
    chosen: dict[str, nn.Parameter] = {}
    skipped: dict[str, str] = {}
    problems = _unmatched(
        (name for name, _ in model.named_parameters(remove_duplicate=False)), where
    )
    for name, parameter, owner in owned(model):
        reason = (
            _default_skip(parameter, owner)
            if where is None
            else _where_skip(where, name, parameter, owner)
        )
        if reason:
            skipped[name] = reason
            continue
        chosen[name] = parameter
        trouble = _trouble(parameter)
        if trouble:
            problems.append(f"{name!r} {trouble}")
    return Chosen(parameters=chosen, skipped=skipped, problems=tuple(problems))


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
            f" {', '.join(list(chosen.skipped)[:8]) or 'no parameters'}. Choose by name, glob, type"
            " or predicate."
        )
    return chosen.parameters


def pick(parameters: Mapping[str, nn.Parameter], where: Pick) -> set[str]:
    """The names that globs and predicates choose among named parameters; all that no '!glob'
    excludes if none chooses.

    >>> sorted(pick(dict(nn.Linear(2, 2).named_parameters()), "!*bias"))
    ['weight']
    """
    rules: list[object] = ["*"] if where is None else _rules(where)
    strange = [
        rule
        for rule in rules
        if isinstance(rule, type) or not (isinstance(rule, str) or callable(rule))
    ]
    if strange:
        raise ArgumentError(
            f"where={strange[0]!r} is neither a glob of names nor a predicate (name, parameter) ->"
            " bool: module types need the model, which is not known here."
        )
    if lost := _unmatched(parameters, rules):
        raise ParameterError(f"{'; '.join(lost)}.")
    kept = {name for name in parameters if not _excluded(rules, name)}
    chosen = [rule for rule in rules if not _excludes(rule)]
    everything = bool(rules) and not chosen
    found = {
        n for n in kept if everything or any(_picks(rule, n, parameters[n]) for rule in chosen)
    }
    if not found:
        raise EmptySelectionError(
            f"no parameter is chosen by where={where!r}; there are {', '.join(parameters)}."
        )
    return found


def owned(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, nn.Module]]:
    """Every parameter once, under its first name, with the module that holds it."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        for leaf, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield (f"{path}.{leaf}" if path else leaf), parameter, module


def aliases(model: nn.Module) -> dict[str, str]:
    """Every other name of a tied parameter, mapped to the name it is listed under."""
    first: dict[int, str] = {}
    names = (
        (name, parameter) for name, parameter in model.named_parameters(remove_duplicate=False)
    )
    return {name: first[id(p)] for name, p in names if first.setdefault(id(p), name) != name}


def absent(name: str, known: Iterable[str]) -> str:
    """The sentence for a mask of a parameter that the model lacks; numbers are those of a nameless
    optimizer.
    """
    names = list(known)
    if name.isdigit() and not any(other.isdigit() for other in names):
        return (
            f"there is no parameter {name!r}: masks are numbered where the optimizer was given"
            " parameters without names. Pass the model, collapse_(model), or give the optimizer"
            " model.named_parameters()"
        )
    return unknown("parameter", name, names).rstrip(".")


def named(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Parameter]:
    """The parameters of these names; a name the model lacks is refused with its nearest names."""
    known = dict(model.named_parameters(remove_duplicate=False))
    missing = [name for name in names if name not in known]
    if missing:
        raise ParameterError("; ".join(unknown("parameter", name, known) for name in missing[:3]))
    return {name: known[name] for name in names}


def _default_skip(parameter: nn.Parameter, owner: nn.Module) -> str:
    if isinstance(owner, _NEVER):
        return f"belongs to {type(owner).__name__}"
    if is_lazy(parameter):
        return ""
    if parameter.ndim < 2:
        return "fewer than two dimensions"
    if isinstance(owner, _WEIGHTED):
        return ""
    wide = sum(size > 1 for size in parameter.shape)
    return "" if parameter.shape[0] > 1 and wide > 1 else "a single vector or token"


def _where_skip(where: Where, name: str, parameter: nn.Parameter, owner: nn.Module) -> str:
    rules = _rules(where)
    if _excluded(rules, name):
        return "excluded by where"
    positive = [rule for rule in rules if not _excludes(rule)]
    if not positive:
        return _default_skip(parameter, owner)
    return (
        ""
        if any(_matches(rule, name, parameter, owner) for rule in positive)
        else "not chosen by where"
    )


def _excludes(rule: object) -> bool:
    return isinstance(rule, str) and rule.startswith("!")


def _excluded(rules: Sequence[object], name: str) -> bool:
    return any(
        isinstance(rule, str) and rule.startswith("!") and fnmatchcase(name, rule[1:])
        for rule in rules
    )


def _picks(rule: object, name: str, parameter: nn.Parameter) -> bool:
    return fnmatchcase(name, rule) if isinstance(rule, str) else bool(rule(name, parameter))  # type: ignore[operator]


def _matches(rule: object, name: str, parameter: nn.Parameter, owner: nn.Module) -> bool:
    if isinstance(rule, str):
        return fnmatchcase(name, rule)
    if isinstance(rule, type):
        return isinstance(owner, rule) and not _default_skip(parameter, owner)
    return bool(rule(name, parameter, owner))  # type: ignore[operator]


def _rules(where: object) -> list[object]:
    return list(where) if isinstance(where, Sequence) and not isinstance(where, str) else [where]


def _unmatched(names: Iterable[str], where: object) -> list[str]:
    """Globs that match no parameter: most likely a typo, never ignored."""
    known = list(names)
    globs = [rule for rule in _rules(where) if isinstance(rule, str)]
    lost = [
        glob
        for glob in globs
        if not any(fnmatchcase(name, glob.removeprefix("!")) for name in known)
    ]
    return [unknown("parameter", glob, known[:12]).rstrip(".") for glob in lost]


def _trouble(parameter: nn.Parameter) -> str:
    if is_lazy(parameter):
        return "is lazy and has no shape yet: run one forward pass first"
    if parameter.is_meta:
        return "is on the meta device and has no values: load the weights first"
    if parameter.is_complex():
        return f"is complex ({parameter.dtype}): only real floating-point weights can be pruned"
    if not parameter.is_floating_point():
        return (
            f"has integer values ({parameter.dtype}): only real floating-point weights can be"
            " pruned"
        )
    return ""
