"""Which parameters are meant: names, globs, types and predicates, in the model's own order.

Scores, masks and budgets are mappings from the parameter's own name to a tensor. A parameter that
is used under several names (tied) is listed once, under the first.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, EmptySelectionError, ParameterError
from secateurs.misfits import not_real
from secateurs.registry import unknown
from secateurs.where import Rules, default_skip, read, uses_of

Params: TypeAlias = Mapping[str, Tensor]
"""Tensors by parameter name."""

Predicate: TypeAlias = (
    "Callable[[str, nn.Parameter], bool] | "
    "Callable[[str, nn.Parameter, nn.Module], bool]"
)
"""`(name, parameter) -> bool`, everywhere; a third argument takes the module that holds the
parameter, wherever a model is given.
"""

Where: TypeAlias = (
    "str | type[nn.Module] | Predicate | "
    "Sequence[str | type[nn.Module] | Predicate] | None"
)
"""What to choose: a glob of parameter names, a module type, a predicate, a sequence of these (any
may match), or None for the default rule. A glob that starts with '!' excludes.
"""

Picker: TypeAlias = Callable[[str, nn.Parameter], bool]
"""`(name, parameter) -> bool`, where no model is given: the same predicate of two arguments."""

Pick: TypeAlias = "str | Picker | Sequence[str | Picker] | None"
"""What to choose where only names and parameters are known, as in an optimizer: a glob, a
predicate, a sequence of these (any may match), or None for all. A glob that starts with '!'
excludes.
"""


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
    for parameter, uses in _used(model):
        name = uses[0][0]
        reason, through = _decide(rules, parameter, uses)
        if reason:
            skipped[name] = reason
            continue
        chosen[name] = parameter
        if through != name:
            notes.append(
                f"{through!r} is tied: it is the parameter {name!r}, listed as that"
            )
        # Only of what is chosen: an integer table that nobody prunes is no problem.
        trouble = not_real(parameter) or _pruned_by_torch(name, uses[0][1])
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


def pick(parameters: Mapping[str, nn.Parameter], where: Pick) -> set[str]:
    """The names that globs and predicates choose among named parameters; all that no '!glob'
    excludes if none chooses.

    >>> sorted(pick(dict(nn.Linear(2, 2).named_parameters()), "!*bias"))
    ['weight']
    """
    rules = read(where, parameters, owners=False)
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


def check_model(model: object) -> None:
    """Refuse what is no module, with the way to one, and weights that FSDP has melted into one."""
    if isinstance(model, nn.Module):
        _refuse_flat(model)
        return
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise ArgumentError(
            f"model is the class {model.__name__}, not a model: call it, {model.__name__}(...)."
        )
    if isinstance(model, Mapping):
        raise ArgumentError(
            f"model is a {type(model).__name__} with {len(model)} entries, not a model: build the"
            " model and call its load_state_dict(...) first."
        )
    raise ArgumentError(
        f"model is {_told(model)}, not a torch.nn.Module: give the network itself{_way(model)}."
    )


def _told(value: object) -> str:
    return repr(value) if isinstance(value, str) else f"a {type(value).__name__}"


def _way(value: object) -> str:
    """What somebody who gave this most likely has at hand."""
    if isinstance(value, str):
        return ", such as secateurs.models.build(name), with its weights loaded"
    if isinstance(value, torch.optim.Optimizer):
        return ", not what trains it"
    if isinstance(value, list | tuple):
        return ", not its parameters; where= chooses among them"
    return ""


def _refuse_flat(model: nn.Module) -> None:
    """`FullyShardedDataParallel` keeps flat pieces of many weights: no mask has a place in them."""
    # By the name of the class: importing it costs more than most calls that come through here.
    kinds = (type(module).__name__ for module in model.modules())
    if "FullyShardedDataParallel" in kinds:
        raise ArgumentError(
            f"{type(model).__name__} is sharded by FullyShardedDataParallel, which has no whole"
            " weights. Work on the model before it is wrapped; to train on with zeros held, shard"
            " it with torch.distributed.fsdp.fully_shard, which hold supports."
        )


def refuse_wrapped(model: nn.Module) -> None:
    """Wrappers that talk to other processes cannot be copied: for what works on a copy."""
    kind = type(model).__name__
    if kind in ("DistributedDataParallel", "DataParallel"):
        raise ArgumentError(
            f"model is a {kind}: give model.module, which has the same weights. Masks then fit"
            " both."
        )


def owned(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, nn.Module]]:
    """Every parameter once, under its first name, with the module that holds it."""
    for parameter, uses in _used(model):
        name, owner = uses[0]
        yield name, parameter, owner


def aliases(model: nn.Module) -> dict[str, str]:
    """Every other name of a tied parameter, mapped to the name it is listed under."""
    first: dict[int, str] = {}
    names = (
        (name, parameter)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    )
    return {
        name: first[id(p)]
        for name, p in names
        if first.setdefault(id(p), name) != name
    }


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


_WRAPPED = ("module.", "_orig_mod.", "ema_model.")
"""What DistributedDataParallel, AveragedModel, torch.compile and ema-pytorch put before names."""


def plain(name: str) -> str:
    """The name without what wrappers put in front of it or, compiled parts, inside it.

    >>> plain("module._orig_mod.0.weight")
    '0.weight'
    """
    while found := next((w for w in _WRAPPED if name.startswith(w)), ""):
        name = name.removeprefix(found)
    return name.replace("._orig_mod.", ".")


def fitted(
    masks: Params, known: Iterable[str], *, prefixes: Iterable[str] = ("",)
) -> dict[str, Tensor]:
    """Masks under the names a model knows; what wrappers added to theirs or to its names is seen
    through. Takes the result of `prune_` as well.

    A name that is known stays, also behind one of the prefixes; what fits nothing stays, too.
    """
    masks = masks_in(masks)
    names = list(known)
    exact = set(names)
    short: dict[str, list[str]] = {}
    for name in names:
        short.setdefault(plain(name), []).append(name)
    starts = list(prefixes)
    result: dict[str, Tensor] = {}
    for name, mask in masks.items():
        there = short.get(plain(name), [])
        # An exact name always wins, and two candidates are no answer: the caller's
        # checks then say so.
        if any(start + name in exact for start in starts) or len(there) != 1:
            result[name] = mask
        else:
            result[
                plain(name)
                if any(s + plain(name) in exact for s in starts)
                else there[0]
            ] = mask
    return result


def masks_in(masks: object) -> Params:
    """The masks themselves: a mapping, or the result of a pruning that carries one."""
    inside = getattr(masks, "masks", None)
    found = (
        inside
        if isinstance(inside, Mapping) and not isinstance(masks, Mapping)
        else masks
    )
    if not isinstance(found, Mapping):
        raise ArgumentError(
            f"masks are a {type(masks).__name__}: give a mapping from parameter names to bool"
            " tensors, or what prune_ returned."
        )
    return found


def named(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Parameter]:
    """The parameters of these names; a name the model lacks is refused with its nearest names."""
    known = dict(model.named_parameters(remove_duplicate=False))
    missing = [name for name in names if name not in known]
    if missing:
        raise ParameterError(
            "; ".join(unknown("parameter", name, known) for name in missing[:3])
        )
    return {name: known[name] for name in names}


def _used(model: nn.Module) -> list[tuple[nn.Parameter, list[tuple[str, nn.Module]]]]:
    """Every parameter with all its names and the modules that hold it, in the model's order."""
    found: dict[int, tuple[nn.Parameter, list[tuple[str, nn.Module]]]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        # Module by module and not through named_parameters, which tells a name but not
        # who holds it.
        for leaf, parameter in module._parameters.items():
            if parameter is not None:
                name = f"{path}.{leaf}" if path else leaf
                found.setdefault(id(parameter), (parameter, []))[1].append(
                    (name, module)
                )
    return list(found.values())


def _decide(
    rules: Rules, parameter: nn.Parameter, uses: Sequence[tuple[str, nn.Module]]
) -> tuple[str, str]:
    """Why a parameter is left out (empty if it is chosen), and the name it is chosen through."""
    names = [name for name, _ in uses]
    if excluded := rules.excludes(names):
        alias = (
            "" if excluded == names[0] else f" through its other name {excluded!r}"
        )
        return f"excluded by where{alias}", ""
    usual = _skipped_by_default(parameter, uses)
    if not rules.chosen and not rules.nothing:
        return usual, names[0]
    named = [rule for rule in rules.chosen if not isinstance(rule, type)]
    by_name = replace(rules, chosen=tuple(named)).chooses(parameter, uses)
    through = by_name or rules.chooses(parameter, uses)
    if not through:
        return "not chosen by where", ""
    return (
        "" if by_name else usual
    ), through  # a type chooses within the default rule


def _skipped_by_default(
    parameter: nn.Parameter, uses: Sequence[tuple[str, nn.Module]]
) -> str:
    """Why the default rule leaves a parameter out; one of its names is enough for that."""
    for name, owner in uses:
        if reason := default_skip(name, parameter, owner):
            return reason if name == uses[0][0] else f"{reason}, as {name!r}"
    return ""


def _reasons(skipped: Mapping[str, str]) -> str:
    """The first parameters left out, each with its reason where a tie decided."""
    told = [
        f"{name} ({reason})" if "other name" in reason or ", as " in reason else name
        for name, reason in skipped.items()
    ]
    return ", ".join(told[:8])


def _pruned_by_torch(name: str, owner: nn.Module) -> str:
    """Pruning `weight_orig` would leave torch's mask on top of ours, each unaware of the other."""
    leaf = name.rpartition(".")[2]
    plain = leaf.removesuffix("_orig")
    if plain == leaf or f"{plain}_mask" not in owner._buffers:
        return ""
    return (
        f"is what torch.nn.utils.prune has made of {plain!r}: make that pruning permanent with its"
        " remove() first, or read masks and weights with secateurs.masks.from_torch_prune"
    )
