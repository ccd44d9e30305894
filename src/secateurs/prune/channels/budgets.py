"""Which channels go, until a budget is met: entries, counts, multiplications, or measured time."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.masks.amount import density_of
from secateurs.prune.channels.pruned import PrunedChannels
from secateurs.ship.channels import Channels


def read_budget(budget: Mapping[str, float]) -> tuple[str, float]:
    """Which budget, and the share that stays."""
    known = ("sparsity", "density", "compression", "channels", "macs", "latency")
    if len(budget) != 1 or next(iter(budget)) not in known:
        raise ArgumentError(
            f"give exactly one of {', '.join(known)}, not {dict(budget)}."
        )
    name, value = next(iter(budget.items()))
    if name in ("sparsity", "density", "compression"):
        return "density", float(density_of(**{name: value}) or 0)
    if not 0 < value <= 1:
        raise ArgumentError(f"{name}={value!r} is not a share between 0 and 1.")
    return name, float(value)


def ranked_channels(
    found: Channels, scores: Tensor, scope: str, floor: float
) -> Tensor:
    """The order in which channels go, first the worst; those a floor protects do not appear."""
    # Channels without a finite score (outputs, and those no mask may touch) are never
    # offered.
    protected = ~torch.isfinite(scores)
    rank = torch.zeros_like(scores)
    for layer in found.layers:
        # Stable: of equal channels the first stays, on every machine.
        order = layer[scores[layer].argsort(descending=True, stable=True)]
        count = math.ceil(floor * len(layer)) if floor < 1 else int(floor)
        # One at least, even with floor=0: an empty layer cuts the network in two.
        protected[order[: max(1, count)]] = True
        place = torch.arange(len(order), 0, -1, dtype=torch.float64) / len(order)
        # A channel that lies in several layers (a residual stream) is as safe as in the
        # best of them.
        rank[order] = torch.maximum(rank[order], place)
    order = (rank if scope == "uniform" else scores).argsort(stable=True)
    return order[~protected[order]]


def largest_within(
    ranked: Tensor, found: Channels, measure: Callable[[Tensor], float], share: float
) -> Tensor:
    """As many channels as fit into the share; the measure falls as channels go, so halving finds
    the count."""
    total = measure(without(found, ranked, 0))
    if measure(without(found, ranked, len(ranked))) > share * total:
        least = measure(without(found, ranked, len(ranked))) / total
        raise ArgumentError(
            f"{share:.3g} of the network cannot be reached by removing channels: with the least "
            f"every layer keeps {least:.3g} is left. Ask for more, or lower floor=."
        )
    low, high = 0, len(ranked)
    while low < high:
        middle = (low + high) // 2
        fits = measure(without(found, ranked, middle)) <= share * total
        low, high = (low, middle) if fits else (middle + 1, high)
    return without(found, ranked, low)


def without(found: Channels, ranked: Tensor, count: int) -> Tensor:
    kept = torch.ones(len(found.labels), dtype=torch.bool)
    kept[ranked[:count]] = False
    return kept


def count_of(found: Channels, kept: Tensor) -> float:
    return float(kept.sum())


def entries_of(found: Channels, kept: Tensor) -> float:
    return sum(
        share * math.prod(found.shapes[n]) for n, share in found.shares(kept).items()
    )


def pruned_by(
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
