"""Pruning whole channels: weights, biases, norms and every layer that reads them."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypedDict, Unpack

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn

from secateurs.base.copies import private_copy
from secateurs.base.parameters import refuse_scripted, refuse_wrapped
from secateurs.base.printing import Printed
from secateurs.base.prunable import Where
from secateurs.base.registry import refuse_unknown
from secateurs.channels import compact
from secateurs.channels.compact import idle_blocks
from secateurs.channels.labels import own_name
from secateurs.channels.prune import Channels, channels, narrow_
from secateurs.errors import ArgumentError, EmptySelectionError, ShipError
from secateurs.graph import Example
from secateurs.graph.export import check_parameters
from secateurs.graph.replay import COMPARED
from secateurs.masks import apply_
from secateurs.masks.budget import check_share, exact_density
from secateurs.scores import Rule, score

_log = logging.getLogger("secateurs.prune")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedChannels(Printed):
    """What is left after pruning whole channels.

    Attributes:
        masks: By parameter name, True = kept, for `hold`, `compact` or `save_masks`.
        channels, entries, macs: Kept and total.
        latency: Seconds of the compacted and of the dense network, where it was the budget:
            measured, or estimated where a table was given.
        idle: Blocks that were dead before, whatever is kept of them: `compact` removes them too, so
            less is left than is counted here.
        exact: Whether the smaller network computes what the masked one does. If not, channels were
            cut that norms read: outputs change beyond what the zeros do, the tensors were made
            smaller at once, and the masks, of the shapes before, say what stayed of them.
    """

    masks: Mapping[str, Tensor]
    channels: tuple[int, int]
    entries: tuple[int, int]
    macs: tuple[int, int]
    latency: tuple[float, float] | None = None
    idle: tuple[str, ...] = ()
    exact: bool = True

    def __rich__(self) -> Table:
        table = Table("", "kept", "total", "left", title="whole channels")
        said = [] if self.exact else ["norms are over fewer channels: outputs change: fine-tune"]
        if self.idle:
            said.append(f"dead before: {', '.join(self.idle)}")
        if said:
            table.caption = escape("; ".join(said))
        for name in ("channels", "entries", "macs"):
            kept, total = getattr(self, name)
            table.add_row(escape(name), f"{kept:,}", f"{total:,}", f"{kept / max(1, total):.1%}")
        if self.latency is not None:
            kept, total = (1000 * seconds for seconds in self.latency)
            table.add_row("milliseconds", f"{kept:.2f}", f"{total:.2f}", f"{kept / total:.1%}")
        return table


# Which channels are removed until a budget is met: entries, counts, multiplications, or measured
# time.


class ChannelBudget(TypedDict, total=False):
    """How much is left after pruning whole channels, as keywords: exactly one of them."""

    sparsity: float
    density: float
    compression: float
    channels: float
    macs: float
    latency: float


def read_budget(budget: ChannelBudget) -> tuple[str, float]:
    """The name of the budget, and the share that stays."""
    given: dict[str, Any] = {**budget}
    known = list(ChannelBudget.__annotations__)
    refuse_unknown(prune_channels_, given, known)
    if len(given) != 1:
        raise ArgumentError(f"give exactly one of {', '.join(known)}, not {given}.")
    name, value = next(iter(given.items()))
    if name in ("sparsity", "density", "compression"):
        return "density", float(exact_density(given) or 0)
    check_share(name, value)
    return name, float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The order in which channels go, first the worst; those a floor protects do not appear."""

    order: Tensor
    rank: Tensor
    """The score of every channel: the larger, the better."""

    def __len__(self) -> int:
        return len(self.order)


def ranked_channels(found: Channels, scores: Tensor, scope: str, floor: float) -> Ranking:
    """Which channels go first: by their place in the family, or by their score alone."""
    # Channels without a finite score (outputs, and those no mask may touch) are never
    # offered.
    protected = ~torch.isfinite(scores)
    rank = torch.zeros_like(scores)
    for layer in found.layers:
        # Stable, for equal scores (the rule in masks/topk.py).
        order = layer[scores[layer].argsort(descending=True, stable=True)]
        count = math.ceil(floor * len(layer)) if floor < 1 else int(floor)
        # At least one, even with floor=0: an empty layer cuts the network in two.
        protected[order[: max(1, count)]] = True
    # By family, not by layer: a residual stream that is as safe as in the best of its layers would
    # keep more than its share, and the layers between would pay for it.
    for family in found.families:
        order = family[scores[family].argsort(descending=True, stable=True)]
        rank[order] = torch.arange(len(order), 0, -1, dtype=torch.float64) / len(order)
    if scope == "uniform":
        # Equal places belong to different families, of which the first gives first.
        order = rank.argsort(stable=True)
    else:
        # From the end of the best-first order: of equal scores the later goes.
        rank, order = scores, scores.argsort(descending=True, stable=True).flip(0)
    return Ranking(order=order[~protected[order]], rank=rank)


def largest_within(
    ranked: Ranking, found: Channels, measure: Callable[[Tensor], float], share: float
) -> Tensor:
    """As many channels as fit into the share; the measure falls as channels are removed, so halving
    finds the count.
    """
    total = measure(without(found, ranked, 0))
    if measure(without(found, ranked, len(ranked))) > share * total:
        least = measure(without(found, ranked, len(ranked))) / total
        raise ArgumentError(
            f"{share:.3g} of the network cannot be reached by removing channels: with the least "
            f"that every layer keeps, {least:.3g} is left. Ask for more, or lower floor=."
        )
    low, high = 0, len(ranked)
    while low < high:
        middle = (low + high) // 2
        fits = measure(without(found, ranked, middle)) <= share * total
        low, high = (low, middle) if fits else (middle + 1, high)
    return without(found, ranked, low)


def without(found: Channels, ranked: Ranking, count: int) -> Tensor:
    """Without this many channels; a few more or fewer if heads go with a stream."""
    kept = torch.ones(len(found.labels), dtype=torch.bool)
    kept[ranked.order[:count]] = False
    for packed in found.packed:
        kept = packed.settle(kept, ranked.rank)
    return kept


def count_of(found: Channels, kept: Tensor) -> float:
    return float(kept.sum())


def entries_of(found: Channels, kept: Tensor) -> float:
    return sum(share * math.prod(found.shapes[n]) for n, share in found.shares(kept).items())


def result_of(
    found: Channels, kept: Tensor, latency: tuple[float, float] | None = None
) -> PrunedChannels:
    whole = torch.ones_like(kept)
    return PrunedChannels(
        masks=found.masks(kept),
        channels=(int(kept.sum()), len(kept)),
        entries=(round(entries_of(found, kept)), round(entries_of(found, whole))),
        macs=(found.macs(kept), found.macs(whole)),
        latency=latency,
    )


# Channels pruned to a share of the measured time of a forward pass.


def fit_to_time(
    model: nn.Module,
    example: Example,
    found: Channels,
    ranked: Ranking,
    share: float,
    *,
    exact: bool,
) -> tuple[Tensor, PrunedChannels]:
    """Halving on the measured time of the compacted network; seven tries come within a hundredth of
    the channels."""
    dense = seconds(model, example)
    low, high, best = 0, len(ranked), dense
    for _ in range(7):
        middle = (low + high) // 2
        took = _seconds_with(model, example, found, without(found, ranked, middle), exact=exact)
        if took <= share * dense:
            high, best = middle, took
        else:
            low = middle
    kept = without(found, ranked, high)
    return kept, result_of(found, kept, (best, dense))


class TimesByShare(Protocol):
    """Times of layers by the share of their weights: a `secateurs.latency_table`."""

    @property
    def kind(self) -> str: ...
    @property
    def dense(self) -> float: ...
    def seconds(self, densities: Mapping[str, float], /) -> float: ...


def fit_to_table(
    table: TimesByShare, found: Channels, ranked: Ranking, share: float
) -> tuple[Tensor, PrunedChannels]:
    """As many channels as a table of the layers' times lets stay: an estimate, always the same."""
    if table.kind != "channels":
        raise ArgumentError(
            f"the table holds times by {table.kind}; whole channels need "
            'latency_table(model, example, kind="channels").'
        )

    def took(kept: Tensor) -> float:
        return table.seconds(found.shares(kept))

    kept = largest_within(ranked, found, took, share)
    return kept, result_of(found, kept, (took(kept), table.dense))


def _seconds_with(
    model: nn.Module, example: Example, found: Channels, kept: Tensor, *, exact: bool
) -> float:
    """The time of the network with these channels alone."""
    small = private_copy(model, error=ShipError)
    if exact:
        COMPARED.share(small, model)
        apply_(small, found.masks(kept))
        return seconds(compact(small, example), example)
    narrow_(small, example, found, kept)
    return seconds(small, example)


@torch.no_grad()
def seconds(model: nn.Module, example: Example) -> float:
    """The median time of a forward pass on the example, of fifteen."""
    import statistics
    import time

    from secateurs.channels.verify import run

    run(model, example)
    seen = []
    for _ in range(15):
        start = time.perf_counter()
        run(model, example)
        seen.append(time.perf_counter() - start)
    # The median, since other work on the machine only makes some passes longer.
    return statistics.median(seen)


# Pruning whole channels: weights, biases, norms and every layer that reads them, so that `compact`
# shrinks the net.

SCOPES = ("global", "uniform")


def prune_channels_(
    model: nn.Module,
    example: Example,
    rule: str | Rule = "magnitude",
    *,
    exact: bool = True,
    scope: str = "uniform",
    floor: float = 1,
    where: Where = None,
    batch: Any = None,
    loss: Any = None,
    generator: torch.Generator | None = None,
    latencies: TimesByShare | None = None,
    **budget: Unpack[ChannelBudget],
) -> PrunedChannels:
    """Set whole channels to zero, in place: rows, columns, biases and norms alike; then `compact`
    cuts them out.

    A channel's score is the mean score of all weights that go with it. The best channels stay, as
    many as the budget allows, and in every layer `floor` of them.

    With `exact=False` the channels that a norm reads may go too: the residual stream of a
    transformer or a ConvNeXt, its embeddings, the heads of `nn.MultiheadAttention`. A norm over
    fewer channels is another function than one over zeros, so the tensors become smaller at once,
    and what is trained afterwards is what `compact` keeps. Make the optimizer after the cut.

    Args:
        model: read by `secateurs.capture`, in evaluation mode.
        example: an input of the right shape.
        rule: a score of `secateurs.score`.
        exact: whether the network without the channels computes what it does with zeros in them.
        scope: "uniform": each layer keeps about the same share; "global": all channels compete,
            which by magnitude nearly empties wide layers, whose weights are small.
        floor: channels every layer keeps at least; below 1 a share of them.
        where, batch, loss, generator: for the score.
        budget: exactly one of sparsity, density, compression (of all entries of the network),
            channels (the share of channels kept), macs (the share of multiplications kept) and
            latency (the share of the measured time of a forward pass on the example, compacted).
        latencies: a `secateurs.latency_table` of kind "channels", from which the time is then
            estimated: the same table gives the same channels again.

    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).eval()
    >>> print(prune_channels_(model, torch.zeros(1, 8), channels=0.25).channels)
    (4, 16)
    >>> from secateurs import compact
    >>> compact(model, torch.zeros(1, 8))[0].weight.shape
    torch.Size([4, 8])
    """
    found, kept, pruned = _choose(
        model,
        example,
        rule,
        read_budget(budget),
        exact=exact,
        scope=scope,
        floor=floor,
        where=where,
        batch=batch,
        loss=loss,
        generator=generator,
        latencies=latencies,
    )
    if exact:
        apply_(model, pruned.masks)
    else:
        narrow_(model, example, found, kept)
    return pruned


def cut_channels(
    model: nn.Module,
    example: Example,
    rule: str | Rule = "magnitude",
    *,
    exact: bool = True,
    scope: str = "uniform",
    floor: float = 1,
    where: Where = None,
    batch: Any = None,
    loss: Any = None,
    generator: torch.Generator | None = None,
    latencies: TimesByShare | None = None,
    **budget: Unpack[ChannelBudget],
) -> PrunedChannels:
    """What `prune_channels_` would do, without doing it."""
    return _choose(
        model,
        example,
        rule,
        read_budget(budget),
        exact=exact,
        scope=scope,
        floor=floor,
        where=where,
        batch=batch,
        loss=loss,
        generator=generator,
        latencies=latencies,
    )[2]


def _choose(
    model: nn.Module,
    example: Example,
    rule: str | Rule,
    budget: tuple[str, float],
    *,
    exact: bool,
    scope: str,
    floor: float,
    where: Where,
    batch: Any,
    loss: Any,
    generator: torch.Generator | None,
    latencies: TimesByShare | None,
) -> tuple[Channels, Tensor, PrunedChannels]:
    """The channels of a model, which of them stay, and what is left then."""
    kind, share = budget
    refuse_wrapped(model)
    refuse_scripted(model)
    check_parameters(model)
    idle = _say_idle(model, example)
    if scope not in SCOPES:
        raise ArgumentError(f"scope={scope!r} is neither 'global' nor 'uniform'.")
    found = channels(model, example, exact=exact)
    if not _are_any(found):
        raise EmptySelectionError(_why_none(model, example, found, exact=exact))
    inputs = example if isinstance(example, Tensor) else None
    scores = score(
        model,
        rule,
        where=where,
        example=inputs,
        batch=batch,
        loss=loss,
        generator=generator,
    )
    ranked = ranked_channels(found, found.score(scores), scope, floor)
    if kind == "latency" and latencies is None:
        kept, done = fit_to_time(model, example, found, ranked, share, exact=exact)
    elif kind == "latency" and latencies is not None:
        kept, done = fit_to_table(latencies, found, ranked, share)
    else:
        measure = {"density": entries_of, "channels": count_of, "macs": Channels.macs}[kind]
        kept = largest_within(ranked, found, lambda some: measure(found, some), share)
        done = result_of(found, kept)
    return found, kept, replace(done, idle=idle, exact=exact)


def _are_any(found: Channels) -> bool:
    """Whether any channel may go: what a norm joins is one channel, and each layer keeps one."""
    return any(len(layer) > 1 for layer in found.layers)


def _why_none(model: nn.Module, example: Example, found: Channels, *, exact: bool) -> str:
    """Why no channel can go, layer by layer, and whether a cut that changes outputs could."""
    groups = found.labelled.groups
    reasons = groups.reasons()
    said = []
    for use in found.labelled.uses:
        why = next(
            (reasons[n] for n in groups.unpinned(use.out).tolist() if n in reasons),
            "its channels go together or not at all",
        )
        said.append(f"{own_name(use.weight.direct or use.node.name)}: {why}")
    text = f"{type(model).__name__} has no channel that could be removed whole"
    text += f" ({'; '.join(said[:4])}{' and more' if len(said) > 4 else ''})." if said else "."
    if exact and _are_any(channels(model, example, exact=False)):
        text += " With exact=False there are some: outputs then change, and fine-tuning follows."
    return text


def _say_idle(model: nn.Module, example: Example) -> tuple[str, ...]:
    """Warn of blocks that are dead before anything is cut, naming them and the weights that are
    zero.

    Fresh residual networks often begin with scales of zero in the last norm of every block.
    """
    # Biases begin at zero in every network. Only where a whole weight is zero is the graph looked
    # at.
    empty = [
        name
        for name, parameter in model.named_parameters()
        if parameter.numel() and not name.endswith("bias") and not bool(parameter.any())
    ]
    idle = idle_blocks(model, example) if empty else ()
    if idle:
        _log.warning(
            "before any cut %d blocks are dead: %s. All of %s is zero, as in a fresh network; "
            "`compact` removes these blocks whatever is kept of them, and less is left than the "
            "masks say. Train first, or give these scales other values.",
            len(idle),
            _several(idle),
            _several([repr(name) for name in empty]),
        )
    return idle


def _several(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
