"""Why one parameter is chosen or left out, under all of its names."""

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from secateurs.parameters.default import default_skip
from secateurs.parameters.rules import Rules


def decide(
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
