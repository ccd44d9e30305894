"""The largest entries of tensors on a GPU: the masks of `topk`, chosen without the host.

The threshold of up to a hundred million scores is torch's own, which counts in the memory of the
multiprocessors. Of more, of each tensor by itself, and of what lies on several devices or processes
it is that of a radix select as in `topk`, but nothing is read back: counters, thresholds and ties
stay where the scores are, so nothing waits. Small tensors are joined: a hundred cost no more
launches than one.
"""

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor

from secateurs.base.bits import INTEGERS
from secateurs.masks.pieces import MANY, PART, batches, common_dtype, count_row, first_, join

_DIGIT = 16
_BASE = 1 << _DIGIT
_MOST = 32
"""So many tensors at most are ranked at once, each by itself: each needs half a megabyte of
counters."""

_LIMITS = 1024
"""So many places are tried at once, where processes agree which equal scores come first."""

ROW = 1 << 27
"""Scores that are put in one row: half a gigabyte of float32, and twice as much on the way."""


def largest_(
    masks: Mapping[str, Tensor],
    scores: Mapping[str, Tensor],
    count: int,
    *,
    within: Mapping[str, Tensor],
    absolute: bool = False,
) -> None:
    """Write the masks of the `count` largest entries of all tensors together: at least one, no more
    than are allowed.
    """
    if not _fits(scores):
        _choose_(masks, _Ranked(scores, within, absolute), [count])
        return
    batch = [*chain(*batches(scores.values(), dtype=common_dtype(scores)))]
    values = join(batch)
    if absolute:
        values = values.abs()
    if not within.keys().isdisjoint(scores):
        some = [within[n] if n in within else _all(s) for n, s in scores.items()]
        # Below all others, which are finite, and as many as are asked for.
        values = values.masked_fill(~join([*chain(*batches(some))]), -math.inf)
    kept = _largest(values, count)
    places = [*chain(*batches(masks.values()))]
    torch._foreach_copy_(places, [*torch.split(kept, [len(piece) for piece in batch])])


def _fits(scores: Mapping[str, Tensor]) -> bool:
    """Whether the scores may be put in one row, for torch's own selection: of one device, and not
    too many.
    """
    together = len({score.device for score in scores.values()}) == 1
    return together and sum(score.numel() for score in scores.values()) <= ROW


def _largest(values: Tensor, count: int) -> Tensor:
    """The largest of a row, the first ones of equals."""
    # From the nearer end, since torch writes out what it passes on the way.
    if 2 * count <= len(values):
        cut = torch.topk(values, count, sorted=False).values.amin()
    else:
        cut = torch.topk(values, len(values) - count + 1, largest=False, sorted=False).values.amax()
    # As a number of the host's: a wait, but torch compares many entries with it in half the time.
    least = float(cut) if len(values) >= MANY else cut
    kept, tied = values > least, values == least
    first_(tied, count - count_row(kept))
    return kept.logical_or_(tied)


def largest_of_each_(
    masks: Mapping[str, Tensor],
    scores: Mapping[str, Tensor],
    counts: Mapping[str, int],
    *,
    within: Mapping[str, Tensor],
    absolute: bool = False,
) -> None:
    """Write the masks of the largest entries of each tensor by itself: at least one, no more than
    are allowed.
    """
    for names in groups(scores):
        ranked = _Ranked({n: scores[n] for n in names}, within, absolute, own=len(names) > 1)
        _choose_({n: masks[n] for n in names}, ranked, [counts[n] for n in names])


def largest_of_pieces_(
    masks: Mapping[str, Tensor],
    pieces: Mapping[str, Tensor],
    count: int,
    *,
    within: Mapping[str, Tensor],
    absolute: bool = False,
    counted: Container[str],
    sizes: Mapping[str, int],
    add_: Callable[[Tensor], None],
    places: Callable[[str, Tensor], Tensor],
) -> None:
    """Write this process's pieces of the masks of the `count` largest entries of whole tensors, as
    `largest_` would choose them; every process calls this with its own pieces.

    counted: names of the pieces that are counted here; where several processes hold the same one,
    one of them counts it.
    sizes: of the whole tensors.
    add_: sums counters over the processes, in place: half a megabyte a digit.
    places: where entries of the piece of this name lie in the whole tensor.
    """
    others = {n: _all(p).logical_not() for n, p in pieces.items() if n not in counted}
    counts = {**within, **others}
    ranked = _Ranked(pieces, counts, absolute)
    cut, left = _threshold(ranked, [count], add_)
    # Made anew where they are read, for as long as that takes.
    each = {n: ({n: p}, within, absolute) for n, p in pieces.items()}
    tied = [
        len(_ties(_Ranked({n: p}, counts, absolute, dtype=ranked.dtype), cut))
        for n, p in pieces.items()
    ]
    whole = torch.tensor(tied, dtype=torch.int64, device=ranked.device)
    add_(whole)
    rest = int(left)
    for (name, one), ties in zip(each.items(), whole.tolist(), strict=True):
        mine = pieces[name].numel() if rest >= ties else 0
        if 0 < rest < ties:
            # The only tensor that keeps some of its ties and not others.
            at = places(name, _ties(_Ranked(*one, dtype=ranked.dtype), cut))
            mine = _among_first(at, rest, sizes[name], add_, name in counted)
        _write_({name: masks[name]}, _Ranked(*one, dtype=ranked.dtype), cut, left.new_tensor(mine))
        rest = max(0, rest - ties)


def _ties(ranked: "_Ranked", cut: Tensor) -> Tensor:
    """The places of the entries with this key, one after the other."""
    # A piece may have no entries, and so no parts.
    found, begin = [torch.zeros(0, dtype=torch.int64, device=ranked.device)], 0
    for part in ranked.parts():
        tied = part.keys == part.spread(cut)
        tied = tied if part.allowed is None else tied.logical_and_(part.allowed)
        found.append(begin + tied.nonzero().flatten())
        begin += len(part.keys)
    return torch.cat(found)


def _among_first(
    at: Tensor, count: int, size: int, add_: Callable[[Tensor], None], counted: bool
) -> int:
    """How many of these rising numbers, all below `size`, are among the `count` smallest of all
    processes. A thousand limits are tried at once: each sum over the processes takes its time.
    """
    # Below `low` are too few, below `high` enough.
    low, high = 0, size
    while high - low > 1:
        step = -(-(high - low) // _LIMITS)
        limits = torch.arange(low + step, high + step, step, device=at.device).clamp(max=high)
        below = torch.searchsorted(at, limits)
        seen = below if counted else torch.zeros_like(below)
        add_(seen)
        first = int((seen < count).sum())
        low, high = (int(limits[first - 1]) if first else low), int(limits[first])
    return int(torch.searchsorted(at, high))


def groups(scores: Mapping[str, Tensor]) -> Iterator[list[str]]:
    """Names of tensors of one device and dtype that fit into one part; of a larger one, its own."""
    names, size, kind = list[str](), 0, None
    for name, score in scores.items():
        own = (score.device, score.dtype)
        if names and (own != kind or len(names) == _MOST or size + score.numel() > PART):
            yield names
            names, size = [], 0
        names.append(name)
        size, kind = size + score.numel(), own
    yield names


# Scores as whole numbers that rise as the scores fall.


@dataclass(frozen=True, slots=True)
class _Part:
    """Entries that are ranked at once: their keys, where they may be kept (None: everywhere), and
    the threshold that each belongs to (None: there is one for all).
    """

    keys: Tensor
    allowed: Tensor | None
    owner: Tensor | None
    lengths: list[int]

    def spread(self, values: Tensor) -> Tensor:
        """One value per threshold, for every entry."""
        values = values.to(self.keys.device)
        return values if self.owner is None else values.index_select(0, self.owner)


class _Ranked:
    """Scores part by part, in the order of the mapping and of row-major indices. `own`: each tensor
    has a threshold of its own.
    """

    def __init__(
        self,
        scores: Mapping[str, Tensor],
        within: Mapping[str, Tensor],
        absolute: bool,
        *,
        own: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.scores, self.absolute, self.own = list(scores.values()), absolute, own
        self.dtype = common_dtype(scores) if dtype is None else dtype
        self.integer = INTEGERS[self.dtype.itemsize]
        self.device = self.scores[0].device
        # The first digit of the smallest key.
        self.lowest = 0 if absolute else -_BASE // 2
        self.within = []
        if not within.keys().isdisjoint(scores):
            self.within = [within[n] if n in within else _all(s) for n, s in scores.items()]
        # What fits into one part is made once, not once for every digit.
        fits = sum(score.numel() for score in self.scores) <= PART
        self._parts = list(self._made()) if fits else None

    def parts(self) -> Iterator[_Part]:
        """Every part, made anew where they are too large to be kept."""
        return self._made() if self._parts is None else iter(self._parts)

    def _made(self) -> Iterator[_Part]:
        allowed = batches(self.within)
        for batch in batches(self.scores, dtype=self.dtype):
            yield _Part(
                self._keys(join(batch)),
                join(next(allowed)) if self.within else None,
                _owner(batch) if self.own else None,
                [len(piece) for piece in batch],
            )

    def _keys(self, values: Tensor) -> Tensor:
        # The bits of a float without its sign are ordered as its size is; -0.0 becomes 0.0.
        raw, most = values.view(self.integer), torch.iinfo(self.integer).max
        size = raw & most
        return size ^ most if self.absolute else torch.where(raw < 0, size, raw.neg())


def _all(score: Tensor) -> Tensor:
    """A mask of everything, from a single True."""
    return score.new_ones((), dtype=torch.bool).expand(score.shape)


def _owner(batch: Sequence[Tensor]) -> Tensor:
    lengths = torch.tensor([len(piece) for piece in batch], device=batch[0].device)
    places = torch.arange(len(batch), dtype=torch.int32, device=batch[0].device)
    return places.repeat_interleave(lengths, output_size=sum(map(len, batch)))


# The selection: the threshold digit by digit, then the masks.


def _choose_(masks: Mapping[str, Tensor], ranked: _Ranked, counts: Sequence[int]) -> None:
    """Write masks by one threshold for all entries, or by one for each tensor."""
    _write_(masks, ranked, *_threshold(ranked, counts))


def _write_(masks: Mapping[str, Tensor], ranked: _Ranked, cut: Tensor, left: Tensor) -> None:
    """Keep what comes before the key, and the first `left` of those with that key."""
    spent: Tensor | None = None
    for part, batch in zip(ranked.parts(), batches(masks.values()), strict=True):
        # What the parts before have used up of the ties.
        left = left if spent is None else left - spent.to(left.device)
        kept, spent = _keep(part, cut, left)
        torch._foreach_copy_(batch, list(torch.split(kept, part.lengths)))


def _threshold(
    ranked: _Ranked, counts: Sequence[int], add_: Callable[[Tensor], None] | None = None
) -> tuple[Tensor, Tensor]:
    """The key of each rank, and how many entries with that key are among those up to the rank."""
    new: Any = {"device": ranked.device, "dtype": torch.int64}
    left = torch.tensor(counts, **new) if ranked.own else torch.full((), counts[0], **new)
    digits = torch.iinfo(ranked.integer).bits // _DIGIT
    # The first counter of each digit stays zero: nothing comes before the first bucket.
    counters = left.new_zeros((digits, *left.shape, _BASE + 1))
    # What the keys begin with: nothing yet.
    found: Tensor | None = None
    for counter, shift in zip(counters, range(_DIGIT * digits - _DIGIT, -1, -_DIGIT), strict=True):
        for part in ranked.parts():
            _count_(counter, part, shift, found, ranked.lowest)
        if add_ is not None:
            add_(counter)
        before = counter.cumsum(-1)
        place = torch.searchsorted(before[..., 1:].contiguous(), left.unsqueeze(-1))
        left = left - before.gather(-1, place).squeeze(-1)
        found = _joined(found, place.squeeze(-1), ranked.lowest)
    key = left if found is None else found
    # A single number is compared in the dtype of the keys, many are not.
    return (key.to(ranked.integer) if ranked.own else key), left


def _joined(found: Tensor | None, digit: Tensor, lowest: int) -> Tensor:
    """The digits found so far and the next one, as one number."""
    if found is not None:
        return torch.add(digit, found, alpha=_BASE)
    return digit + lowest if lowest else digit


def _count_(counter: Tensor, part: _Part, shift: int, found: Tensor | None, lowest: int) -> None:
    """Count the digits at `shift`, of entries that begin as what was found."""
    # Half precision has one digit, and no index may be of 16 bits.
    digit = part.keys >> shift if part.keys.dtype != torch.int16 else part.keys.to(torch.int32)
    allowed = part.allowed
    if found is not None:
        digit = digit & (_BASE - 1)
        begins = (part.keys >> (shift + _DIGIT)) == part.spread(found)
        allowed = begins if allowed is None else begins.logical_and_(allowed)
    elif lowest:
        digit = digit - lowest
    if part.owner is not None:
        digit = torch.add(digit, part.owner, alpha=_BASE + 1)
    here = counter if counter.device == digit.device else counter.to(digit.device).zero_()
    # The others are counted as nothing, each where it stands: to sort them out would be to wait for
    # their number, and in a bucket of their own they would be counted one by one.
    ones = here.new_ones(()) if allowed is None else allowed.to(here.dtype)
    here.view(-1)[1:].index_add_(0, digit, ones.expand_as(digit))
    if here is not counter:
        counter += here.to(counter.device)


def _keep(part: _Part, cut: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """What is kept: entries before the key, and of those with that key the first `left`, which is
    the rule in masks/topk.py; and how many have it.
    """
    cut = part.spread(cut)
    tied = part.keys == cut
    if part.allowed is not None:
        tied.logical_and_(part.allowed)
    place = tied.cumsum(0, dtype=torch.int32)
    if part.owner is not None:
        ends = [place[end - 1] for end in accumulate(part.lengths[:-1])]
        left = left + torch.stack([torch.zeros_like(ends[0]), *ends])
    kept = torch.where(tied, place <= part.spread(left), part.keys < cut)
    if part.allowed is not None:
        kept.logical_and_(part.allowed)
    return kept, place[-1]
