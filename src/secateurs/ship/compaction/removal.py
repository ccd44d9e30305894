"""Which labels go: the dead ones, less those that something holds back, until nothing more is held
back."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from secateurs.graph import State
from secateurs.ship.compaction.computed import computed
from secateurs.ship.compaction.folding import folds
from secateurs.ship.compaction.folds import Folds
from secateurs.ship.compaction.following import Resized, resized
from secateurs.ship.compaction.labels import Labelled
from secateurs.ship.compaction.labels.groups import PINNED
from secateurs.ship.compaction.marks import together
from secateurs.ship.compaction.reach.known import Reach
from secateurs.ship.compaction.reasons import (
    Options,
    emptied,
    rearranged,
    rounded,
    uneven,
)


@dataclass(slots=True, kw_only=True)
class Removal:
    """The labels that go (a truth value per label), where their constants go, and why other dead
    labels stay."""

    gone: Tensor
    dead: Tensor
    pinned: dict[str, Tensor]
    folds: Folds
    resized: tuple[Resized, ...] = ()
    kept: dict[str, Tensor] = field(default_factory=dict)


def removal(
    model: nn.Module, found: Labelled, known: Reach, state: State, options: Options
) -> Removal:
    """Start from every dead label and give back what must stay; cheap reasons first, rounding
    last."""
    dead = _dead(found, known)
    gone = dead.clone()
    kept: dict[str, Tensor] = {}
    # Labels given back can block others. It ends,
    # because every round gives at least one back.
    while True:
        folding = folds(model, found, known, gone)
        # `or`: one reason a round, since labels given back
        # for it change what the later ones see.
        blocked = (
            emptied(found, gone)
            or uneven(found, gone)
            or rearranged(found, gone, options)
            or computed(found, gone, state)
            or folding.kept
            or rounded(found, gone, options.multiple_of)
        )
        if not blocked:
            return Removal(
                gone=gone,
                dead=dead,
                pinned=pinned_and_dead(found, known),
                folds=folding,
                resized=resized(model, found, gone, options.contested),
                kept=kept,
            )
        for why, labels in blocked.items():
            kept[why] = torch.unique(torch.cat([kept.get(why, labels[:0]), labels]))
            gone[labels] = False


def pinned_and_dead(found: Labelled, known: Reach) -> dict[str, Tensor]:
    """Dead channels that are tied to what must stay, by the reason: labels without those ties."""
    groups = found.groups
    dead = _lifeless(found, known, groups.unpinned)
    dead[PINNED] = False
    written = torch.zeros_like(dead)
    for use in found.uses:
        bound = use.out[groups.roots(use.out) == PINNED]
        written[groups.unpinned(bound)] = True
    known_whys, found_labels = groups.reasons(), dict[str, list[int]]()
    for label in (dead & written).nonzero().flatten().tolist():
        why = known_whys.get(label, "is tied to what stays")
        found_labels.setdefault(why, []).append(label)
    return {why: torch.tensor(labels) for why, labels in found_labels.items()}


def _dead(found: Labelled, known: Reach) -> Tensor:
    """Labels of which no neuron is both reached by an input and used by an output."""
    dead = _lifeless(found, known, found.groups.roots)
    dead[PINNED] = False
    return dead


def _lifeless(
    found: Labelled, known: Reach, roots: Callable[[Tensor], Tensor]
) -> Tensor:
    live = torch.zeros(len(found.groups), dtype=torch.bool)
    seen = torch.zeros_like(live)
    for node in found.graph.nodes:
        labels = roots(found.values[node.name])
        seen[labels.flatten()] = True
        both = known.arrive[node.name] & known.used[node.name]
        labels, both = together(labels, both)
        live[labels[both]] = True
    # Labels united into another are seen on no value any more: they are no channels.
    return seen & ~live
