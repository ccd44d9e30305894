"""What a `where` says, rule by rule: globs, module types, predicates; and what ties make of it.

A tied parameter has several names. One name that is excluded excludes the tensor, whatever the
other names say; one name that is chosen by a glob or a type chooses it; a predicate must agree
under every name.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from inspect import Parameter as Argument
from inspect import signature
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy

from secateurs.registry import unknown

Use: TypeAlias = "tuple[str, nn.Module | None]"
"""One name of a parameter, and the module that holds it there, where that is known."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """A `where`, read: what it chooses and excludes; what is no rule, and what matches nothing.

    `nothing`: an empty sequence, which chooses nothing; None chooses by the default rule.
    """

    chosen: tuple[object, ...]
    excluded: tuple[str, ...]
    strange: tuple[str, ...]
    unmatched: tuple[str, ...]
    nothing: bool = False

    def excludes(self, names: Iterable[str]) -> str:
        """The first of these names of one parameter that is excluded; empty if none is."""
        return next(
            (n for n in names if any(fnmatchcase(n, g) for g in self.excluded)), ""
        )

    def chooses(self, parameter: nn.Parameter, uses: Sequence[Use]) -> str:
        """The name under which one parameter is chosen; empty if it is not."""
        found = (_chosen_by(rule, parameter, uses) for rule in self.chosen)
        return next((name for name in found if name), "")


def read(where: object, names: Iterable[str], *, owners: bool) -> Rules:
    """Read a `where`; `owners` says whether the modules that hold the parameters are known.

    Globs that match no name are problems: most likely typos, never ignored.
    """
    rules = _listed(where)
    strange = tuple(text for rule in rules if (text := _strange(rule, owners)))
    readable = [rule for rule in rules if not _strange(rule, owners)]
    return Rules(
        chosen=tuple(rule for rule in readable if not _excludes(rule)),
        excluded=tuple(
            rule[1:]
            for rule in readable
            if isinstance(rule, str) and rule.startswith("!")
        ),
        strange=strange,
        unmatched=tuple(_unmatched(rules, list(names))),
        nothing=where is not None and not rules,
    )


def _listed(where: object) -> list[object]:
    if where is None:
        return []
    several = isinstance(where, Sequence | set | frozenset) and not isinstance(
        where, str
    )
    return list(where) if several else [where]  # type: ignore[call-overload]


def _strange(rule: object, owners: bool) -> str:
    """Why a rule cannot be read; empty if it can."""
    ways = "a glob of names such as 'layer1.*', " + (
        "a module type, " if owners else ""
    )
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
    return (
        "" if issubclass(rule, nn.Module) else f"where={rule!r} is no type of module"
    )


def _strange_predicate(rule: Callable[..., Any], owners: bool) -> str:
    count = _arguments(rule)
    if count == 2 or (count == 3 and owners):
        return ""
    if count == 3:
        return (
            f"the predicate {_told(rule)} takes (name, parameter, module), and the modules are not"
            " known here: leave the third argument out"
        )
    return (
        f"the predicate {_told(rule)} takes {count} arguments: it is called with (name, parameter),"
        " or with (name, parameter, module) if it takes three"
    )


def _arguments(rule: Callable[..., Any]) -> int:
    """How many positional arguments a predicate is called with, 2 or 3; else how many it needs."""
    try:
        arguments = list(signature(rule).parameters.values())
    except (TypeError, ValueError):  # built-in functions may have no signature
        return 2
    # *args would take anything; the two documented arguments are what it gets.
    if any(a.kind is Argument.VAR_POSITIONAL for a in arguments):
        return 2
    positional = [
        a
        for a in arguments
        if a.kind in (Argument.POSITIONAL_ONLY, Argument.POSITIONAL_OR_KEYWORD)
    ]
    needed = sum(a.default is Argument.empty for a in positional)
    return (
        needed if needed in (2, 3) else 2 if needed < 2 <= len(positional) else needed
    )


def _told(rule: object) -> str:
    return str(getattr(rule, "__qualname__", type(rule).__name__))


def _chosen_by(rule: object, parameter: nn.Parameter, uses: Sequence[Use]) -> str:
    if isinstance(rule, str):
        return next((name for name, _ in uses if fnmatchcase(name, rule)), "")
    if isinstance(rule, type):
        return next((name for name, owner in uses if isinstance(owner, rule)), "")
    extra = _arguments(rule) == 3  # type: ignore[arg-type]
    answers = [
        bool(rule(name, parameter, owner) if extra else rule(name, parameter))  # type: ignore[operator]
        for name, owner in uses
    ]
    # Every name must agree: one predicate that looks at names must not prune a tied
    # embedding.
    return uses[0][0] if all(answers) else ""


def _excludes(rule: object) -> bool:
    return isinstance(rule, str) and rule.startswith("!")


def _unmatched(rules: Sequence[object], known: Sequence[str]) -> list[str]:
    globs = [rule for rule in rules if isinstance(rule, str)]
    lost = [
        glob
        for glob in globs
        if not any(fnmatchcase(name, glob.removeprefix("!")) for name in known)
    ]
    return [unknown("parameter", glob, known).rstrip(".") for glob in lost]


def uses_of(parameters: Mapping[str, nn.Parameter]) -> dict[int, list[Use]]:
    """The names of each tensor, by its id, where only names and parameters are known."""
    uses: dict[int, list[Use]] = {}
    for name, parameter in parameters.items():
        uses.setdefault(id(parameter), []).append((name, None))
    return uses


def default_skip(name: str, parameter: nn.Parameter, owner: nn.Module) -> str:
    """Why the default rule leaves a parameter out; empty if it takes it."""
    leaf = name.rpartition(".")[2]
    if isinstance(owner, _NEVER):
        return f"belongs to {type(owner).__name__}"
    # It is chosen, so that the error that it has no shape yet is raised and not passed
    # over.
    if is_lazy(parameter):
        return ""
    if parameter.ndim < 2:
        return "fewer than two dimensions"
    # weight_norm keeps lengths and directions apart: cutting a length would cut a whole
    # row.
    if leaf.endswith("_g") and f"{leaf[:-2]}_v" in owner._parameters:
        return "the norms of weight_norm"
    if re.search(r"(^|_)bias(_|$)", leaf):
        return "a bias by its name"
    # Known layers come before names: a subclass of Linear called NormedLinear has
    # weights.
    if isinstance(owner, _WEIGHTED):
        return ""
    if _NORM.search(type(owner).__name__):
        return f"belongs to {type(owner).__name__}"
    if _TABLE.search(leaf):
        return "a table of positions, biases or tokens by its name"
    # (1, n, 1) is a vector in disguise, such as the scale of a layer.
    wide = sum(size > 1 for size in parameter.shape)
    return "" if parameter.shape[0] > 1 and wide > 1 else "a single vector or token"
