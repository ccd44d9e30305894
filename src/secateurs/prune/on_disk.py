"""Weights pruned where they lie: safetensors files and sharded folders, read piece by piece."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import reduce
from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor

from secateurs.errors import (
    ArgumentError,
    EmptySelectionError,
    ParameterError,
    ScoreError,
)
from secateurs.masks.budget import SCOPES, Amount, AmountFields, Demand, entries
from secateurs.masks.files import MaskWriter
from secateurs.masks.patterns import NM, Grouped, Pattern, Unstructured, pattern_of
from secateurs.masks.question import Selection, check_shapes
from secateurs.masks.report import SparsityReport, TensorSparsity
from secateurs.masks.select import select
from secateurs.masks.topk import Cut, kth_largest
from secateurs.prune.shards import (
    Entry,
    Masks,
    Shard,
    Stored,
    check_masks_out,
    check_out,
    open_stored,
    write,
)
from secateurs.random import generator
from secateurs.registry import refuse_unknown, unknown
from secateurs.scores import SCORES

# Which stored tensors are pruned. No module says what they are, so their names have to.

_NOT_WEIGHTS = re.compile(
    r"norm|embed|(^|[._])(wte|wpe|ln|bn|rotary|pos|bias|lm_head|shared|codebook)([._0-9]|$)",
    re.IGNORECASE,
)
"""Parts of names of what is looked up, scaled or added, and of the table that ends a language
model, which is often the embedding itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meant:
    """The tensors to prune, in the order of the files, and why the others are left."""

    chosen: tuple[tuple[Shard, Entry], ...]
    left: dict[str, str]


def meant(stored: Stored, where: Sequence[str] | None) -> Meant:
    """What globs of names choose ('!' leaves out), or without any every float weight of two or more
    dimensions that is no norm, embedding, bias or head by its name.
    """
    wanted = [glob for glob in where or () if not glob.startswith("!")]
    excluded = [glob[1:] for glob in where or () if glob.startswith("!")]
    names = [entry.name for _, entry in stored.entries()]
    # A glob that fits nothing is a misspelt name: pruning everything else would be the
    # worst answer.
    for glob in [*wanted, *excluded]:
        if not any(fnmatchcase(name, glob) for name in names):
            raise ParameterError(unknown("tensor", glob, names))
    chosen, left = list[tuple[Shard, Entry]](), dict[str, str]()
    for shard, entry in stored.entries():
        reason = _reason(entry, wanted, excluded)
        if reason:
            left[entry.name] = reason
        else:
            chosen.append((shard, entry))
    if not chosen:
        raise EmptySelectionError(
            f"{stored.source} has no tensor to prune: of {len(names)}, the first is left because"
            f" {next(iter(left.values()), 'there is none')}. Choose by --where GLOB."
        )
    return Meant(chosen=tuple(chosen), left=left)


def _reason(entry: Entry, wanted: Sequence[str], excluded: Sequence[str]) -> str:
    """Why a tensor is left as it is; empty if it is pruned."""
    name = entry.name
    if any(fnmatchcase(name, glob) for glob in excluded):
        return "it is excluded"
    asked = any(fnmatchcase(name, glob) for glob in wanted)
    if wanted and not asked:
        return "no glob chooses it"
    if not entry.kind.torch:
        # Eight bits and less come with scales in other tensors: their sizes say nothing alone.
        problem = f"its dtype is {entry.dtype}, not a float of 16 or more bits"
        # Named in full it is an error; caught by a glob it is only left out.
        if asked and "*" not in "".join(wanted):
            raise ParameterError(f"{name!r} cannot be pruned: {problem}.")
        return problem
    if not entry.total:
        return "it is empty"
    if asked:
        return ""
    if len(entry.shape) < 2:
        return "it has fewer than two dimensions"
    return "of its name" if _NOT_WEIGHTS.search(name) else ""


# How many entries of a stored tensor are not zero, whatever its dtype, from its bits alone.

_WHOLE = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


def nonzeros(shard: Shard, entry: Entry) -> int:
    """The entries of a tensor that are not zero; −0 is zero."""
    return sum(_nonzeros(chunk, entry) for chunk in shard.chunks(entry))


def counted(stored: Stored, *, all: bool = False) -> SparsityReport:
    """The sparsity of floating-point tensors of two or more dimensions; with `all` also of vectors
    and of tables of integers and booleans.
    """
    rows = [
        TensorSparsity(
            name=entry.name,
            shape=entry.shape,
            total=entry.total,
            kept=nonzeros(shard, entry),
        )
        for shard, entry in stored.entries()
        if (len(entry.shape) >= 2 and (all or entry.kind.floating)) or (all and entry.kind.floating)
    ]
    return SparsityReport(tensors=tuple(rows), source="tensors")


def _nonzeros(chunk: Tensor, entry: Entry) -> int:
    kind = entry.kind
    if entry.dtype == "F8_E8M0":
        return chunk.numel()  # a bare exponent: 2^(code − 127) is never zero
    if entry.dtype == "C64":
        parts = (chunk.view(torch.int32) & torch.iinfo(torch.int32).max).view(-1, 2)
        return int((parts != 0).any(1).sum())
    if kind.bits == 4:
        # Two numbers to a byte; the fourth bit of each is its sign.
        return int((chunk & 0x07 != 0).sum() + (chunk & 0x70 != 0).sum())
    if kind.bits == 6:
        return _nonzero_sixes(chunk)
    raw = chunk.view(_WHOLE[kind.bits])
    if kind.floating and not entry.dtype.endswith("FNUZ"):
        # All but the sign. The FNUZ types have no −0: that code is their NaN.
        raw = raw & torch.iinfo(raw.dtype).max
    return int(raw.count_nonzero())


def _nonzero_sixes(chunk: Tensor) -> int:
    """Four numbers of six bits lie in three bytes, the first in the lowest bits."""
    a, b, c = chunk.view(-1, 3).to(torch.int32).unbind(1)
    word = a | b << 8 | c << 16
    return sum(int((word >> shift & 0x1F != 0).sum()) for shift in (0, 6, 12, 18))


# Scores of stored weights, made while they are read: magnitudes, or random numbers.

Chunks = Callable[[Shard, Entry], Iterator[Tensor]]
"""The scores of a tensor, in the pieces in which its bytes are read."""


def values(shard: Shard, entry: Entry) -> Iterator[Tensor]:
    """The weights themselves; what is not finite has no rank and is refused."""
    dtype = getattr(torch, entry.kind.torch)
    for chunk in shard.chunks(entry):
        piece = chunk.view(dtype)
        if not bool(torch.isfinite(piece).all()):
            raise ScoreError(
                f"{shard.path}: {entry.name!r} holds NaN or infinite values, which have no rank."
            )
        yield piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Random:
    """Independent numbers, drawn anew from the same seed at each pass instead of being kept."""

    seed: int

    def __call__(self, shard: Shard, entry: Entry) -> Iterator[Tensor]:
        # By name, so that the order of the tensors and the number of shards change
        # nothing.
        own = generator(self.seed, f"prune {entry.name}")
        for piece in values(shard, entry):
            # One dtype whatever the weights have: 16 bits would make many ties.
            yield torch.rand(piece.shape, generator=own, dtype=torch.float32)


def chunks_of(score: str, seed: int) -> Chunks:
    """The reader of a score. Only scores that look at nothing but the weights can be read here."""
    rules: dict[str, Chunks] = {"magnitude": values, "random": Random(seed=seed)}
    if score in rules:
        return rules[score]
    # A name that nobody registered is refused by the registry, with the nearest known one.
    name = SCORES[score].name
    raise ArgumentError(
        f"the score {name!r} runs the network, and a file alone has none: name it with --arch, or"
        " use prune_ or prune_blocks_ in Python. Of a file: magnitude, random."
    )


# Which entries of stored tensors are kept, decided while reading: a threshold, and how many ties
# of it.

Places = Sequence[tuple[Shard, Entry]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Tensors that compete, as scores of one dtype."""

    places: Places
    scores: Chunks

    @property
    def dtype(self) -> torch.dtype:
        """The smallest dtype that holds all scores exactly."""
        if isinstance(self.scores, Random):
            return torch.float32
        each = [getattr(torch, entry.kind.torch) for _, entry in self.places]
        common: torch.dtype = reduce(torch.promote_types, each)
        return common

    def read(self, place: tuple[Shard, Entry]) -> Iterator[Tensor]:
        """The scores of one tensor, piece by piece."""
        for piece in self.scores(*place):
            # A common dtype, so that bfloat16 and float32 weights of one network are
            # compared exactly.
            yield piece.abs().to(self.dtype)

    def whole(self, place: tuple[Shard, Entry]) -> Tensor:
        """The scores of one tensor at once, in its shape."""
        pieces = [piece.clone() for piece in Field.read(self, place)]
        return torch.cat(pieces).view(place[1].shape)

    def lengths(self, place: tuple[Shard, Entry]) -> list[int]:
        """In how many entries a time its bytes are read and written."""
        return [len(piece) for piece in self.scores(*place)]

    def cut(self, keep: int) -> "Ties":
        """Where the `keep` largest scores end. Of equal ones the first are kept."""
        if keep <= 0:
            # Nothing lies above infinity, so nothing is kept.
            return Ties(cut=Cut(value=float("inf"), ties=0))
        every = lambda: (piece for place in self.places for piece in self.read(place))  # noqa: E731
        return Ties(cut=kth_largest(every, keep, self.dtype))


class Ties:
    """A cut, and how many of its ties are left to keep."""

    def __init__(self, cut: Cut) -> None:
        self.value, self.left = cut.value, cut.ties

    def again(self) -> "Ties":
        """The same cut, from the first entry."""
        return Ties(cut=Cut(value=self.value, ties=self.left))

    def mask(self, scores: Tensor) -> Tensor:
        """Which of the next entries are kept; call it in the order of the entries."""
        kept = scores > self.value
        if self.left:
            tied = (scores == self.value).nonzero().flatten()[: self.left]
            kept[tied] = True
            # Ties are kept in the order of the bytes, as `select` keeps them in memory.
            self.left -= len(tied)
        return kept


def compete(field: Field, keep: int, floor: Mapping[str, int]) -> dict[str, Ties]:
    """One cut for all tensors; those below their floor get exactly that, the others compete again.

    The same as `select` does in memory: every turn settles a tensor at least.
    """
    total = sum(floor[entry.name] for _, entry in field.places)
    if keep < total:
        raise ArgumentError(
            f"{keep} entries cannot keep the floor of {total} in {len(field.places)} tensors. Ask"
            " for more, or allow tensors to vanish with floor=0."
        )
    settled: dict[str, Ties] = {}
    free = list(field.places)
    while free:
        left = keep - sum(floor[name] for name in settled)
        together = replace(field, places=free)
        shared = together.cut(left)
        short = _short(together, shared, floor)
        if not short:
            return settled | {entry.name: shared for _, entry in free}
        for place in short:
            alone = replace(field, places=[place])
            settled[place[1].name] = alone.cut(floor[place[1].name])
        free = [place for place in free if place not in short]
    return settled


def _short(field: Field, cut: Ties, floor: Mapping[str, int]) -> list[tuple[Shard, Entry]]:
    """The tensors that would keep less than their floor."""
    # The cheap question first: it is nearly always yes, and reads one piece per tensor.
    if all(_reaches(field, place, cut.value, floor[place[1].name]) for place in field.places):
        return []
    short, counting = [], cut.again()
    for place in field.places:
        kept = sum(int(counting.mask(piece).sum()) for piece in field.read(place))
        if kept < floor[place[1].name]:
            short.append(place)
    return short


def _reaches(field: Field, place: tuple[Shard, Entry], value: float, least: int) -> bool:
    """Whether so many entries lie above the cut. Reading ends as soon as they do: with the usual
    floor of one entry that is at the first piece.
    """
    found = 0
    for piece in field.read(place):
        if found >= least:
            break
        found += int((piece > value).sum())
    return found >= least


# Groups of all stored tensors (blocks, kernels, filters, N of M) that compete for one budget.
#
# One tensor is in memory at a time, never the scores of all groups: the threshold is found by
# passes over the files, as for single entries (`cuts`).

_PIECE = 1 << 20
"""Entries that are counted at a time."""


def check_fit(field: Field, pattern: Pattern) -> None:
    """Refuse tensors that the pattern does not divide, before anything is read."""
    shapes = {e.name: torch.empty(e.shape, device="meta") for _, e in field.places}
    check_shapes(shapes, pattern)


def by_groups(field: Field, keep: int, floor: Mapping[str, int], pattern: Grouped) -> Masks:
    """Masks of the groups with the largest means, `keep` entries together or the nearest number
    that can be reached; the same as `select` gives in memory.
    """
    groups = _Groups(field, pattern)
    settled: dict[str, Ties] = {}
    free = list(field.places)
    while free:
        spent = sum(
            groups.kept(place, settled[place[1].name].again())
            for place in field.places
            if place[1].name in settled
        )
        shared = groups.cut(free, max(0, keep - spent))
        counting = shared.again()
        short = [p for p in free if groups.kept(p, counting) < floor[p[1].name]]
        if not short:
            settled |= {entry.name: shared for _, entry in free}
            break
        for place in short:
            settled[place[1].name] = groups.at_least(place, floor[place[1].name])
        free = [place for place in free if place not in short]

    def masks(shard: Shard, entry: Entry) -> Iterator[Tensor]:
        chosen = settled[entry.name].mask(groups.scores((shard, entry)))
        whole = pattern.spread(chosen, entry.shape).flatten()
        yield from torch.split(whole, field.lengths((shard, entry)))

    return masks


class _Groups:
    """The groups of stored tensors, by their mean scores."""

    def __init__(self, field: Field, pattern: Grouped) -> None:
        self.field, self.pattern = field, pattern

    def scores(self, place: tuple[Shard, Entry]) -> Tensor:
        """The mean score of every group of a tensor."""
        return self.pattern.group_scores(self.field.whole(place))

    def size(self, place: tuple[Shard, Entry], groups: int) -> int:
        """Entries in a group."""
        return place[1].total // groups

    def kept(self, place: tuple[Shard, Entry], ties: Ties) -> int:
        """Entries of a tensor that a cut keeps; call it in the order of the tensors."""
        scores = self.scores(place)
        return int(ties.mask(scores).sum()) * self.size(place, len(scores))

    def at_least(self, place: tuple[Shard, Entry], keep: int) -> Ties:
        """The fewest groups of one tensor with so many entries."""
        scores = self.scores(place)
        count = -(-keep // self.size(place, len(scores)))
        return Ties(cut=kth_largest(lambda: iter([scores]), count, scores.dtype))

    def cut(self, places: list[tuple[Shard, Entry]], keep: int) -> Ties:
        """Where `keep` entries end. Every group stands for as many entries as it has, so their
        threshold is the mean of the group in which the last of them lies.
        """
        total = sum(entry.total for _, entry in places)
        if keep <= 0:
            return Ties(cut=Cut(value=float("inf"), ties=0))
        entries = lambda: self._entries(places)  # noqa: E731
        found = kth_largest(entries, min(keep, total), torch.float64)
        return Ties(cut=Cut(value=found.value, ties=self._tied(places, found)))

    def _entries(self, places: list[tuple[Shard, Entry]]) -> Iterator[Tensor]:
        for place in places:
            scores = self.scores(place)
            size = self.size(place, len(scores))
            for piece in torch.split(scores, max(1, _PIECE // size)):
                yield piece.repeat_interleave(size)

    def _tied(self, places: list[tuple[Shard, Entry]], found: Cut) -> int:
        """How many groups at the threshold are kept: as many as are whole, and one more where that
        comes nearer to the number asked.
        """
        groups, left = 0, found.ties
        for place in places:
            scores = self.scores(place)
            size = self.size(place, len(scores))
            for _ in range(int((scores == found.value).sum())):
                if left < size:
                    # Of two numbers that are equally near the smaller is taken.
                    return groups + (size - left < left)
                groups, left = groups + 1, left - size
        return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs(Field):
    """Tensors of which N entries of every M compete; the others lie below all scores."""

    runs: NM

    def read(self, place: tuple[Shard, Entry]) -> Iterator[Tensor]:
        """The scores of one tensor, piece by piece."""
        whole = self.whole(place)
        # Scores are magnitudes: −1 is below every one of them.
        whole[~self.runs.eligible(whole)] = -1
        yield from torch.split(whole.flatten(), self.lengths(place))


def room_of(field: Field, runs: NM) -> dict[str, int]:
    """How many entries of each tensor N:M allows."""
    return {e.name: e.total // runs.m * runs.n for _, e in field.places}


def check_room(
    keep: int, sizes: Mapping[str, int], room: Mapping[str, int], pattern: Pattern
) -> None:
    """Refuse to keep more than a pattern allows."""
    if keep > sum(room.values()):
        raise ArgumentError(
            f"{keep} of {sum(sizes.values())} entries are asked for, but the pattern {pattern}"
            f" leaves only {sum(room.values())}. Ask for no more than that."
        )


def by_runs(field: Field, keep: int, floor: Mapping[str, int], runs: NM) -> Masks:
    """Masks of the largest entries among those that N:M allows."""
    room = room_of(field, runs)
    check_room(keep, {e.name: e.total for _, e in field.places}, room, runs)
    least = {name: min(count, room[name]) for name, count in floor.items()}
    eligible = Runs(places=field.places, scores=field.scores, runs=runs)
    cuts = compete(eligible, keep, least)

    def masks(shard: Shard, entry: Entry) -> Iterator[Tensor]:
        for piece in eligible.read((shard, entry)):
            yield cuts[entry.name].mask(piece)

    return masks


# A checkpoint pruned where it lies: read twice piece by piece, written once, never held whole.


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedFile:
    """What was written, how sparse it is, and which tensors were left as they were, and why."""

    path: Path
    report: SparsityReport
    left: dict[str, str]


def prune_file(
    source: str | Path,
    out: str | Path,
    *,
    score: str = "magnitude",
    scope: str = "global",
    pattern: str = "unstructured",
    floor: float = 1,
    where: Sequence[str] | None = None,
    seed: int = 0,
    masks_out: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
    **amount: Unpack[AmountFields],
) -> PrunedFile:
    """Prune the weights of a safetensors file, or of a folder of them, without their network.

    The result has the same header, names, dtypes and bytes, but for the zeros. The file is read in
    pieces of four megabytes, once or twice to find the threshold and once to write, so memory does
    not grow with it. With scope="row" or a pattern one tensor at a time is held.

    Args:
        source: a `.safetensors` file, or a folder with one or with `model.safetensors.index.json`.
            Of a folder the other files (config, tokenizer) are copied.
        out: a file for a file, a new folder for a folder.
        score: "magnitude" or "random"; other scores run the network.
        sparsity, density, compression: one of them, of all chosen entries together.
        scope: "global", "layer", "row", "uniform" or "erk".
        pattern: "unstructured", "2:4", "4x4", "filter", … as the tensors lie; no module says which
            dimension is which, so (outputs, inputs, …) is taken for granted.
        floor: entries (below 1, a density) that every tensor keeps at least.
        where: globs of tensor names; '!' leaves out. By default every float weight of two or more
            dimensions that is no norm, embedding, bias or head by its name.
        seed: where random scores come from.
        masks_out: a file for the masks, one bit per entry, as `save_masks` writes it: for
            `load_masks` and `hold`.
        progress: called with each tensor's name as it is written.

    Raises:
        DataError: a pickle (with the lines that convert it), a damaged or foreign file.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"fc.weight": torch.arange(8.0).view(2, 4)}, f"{folder}/m.safetensors")
    ...     done = prune_file(f"{folder}/m.safetensors", f"{folder}/s.safetensors", sparsity=0.75)
    >>> done.report.total.kept, done.report.sparsity
    (2, 0.75)
    """
    refuse_unknown(prune_file, amount, AmountFields.__annotations__)
    stored, out = open_stored(source), Path(out)
    check_out(stored, out)
    found = meant(stored, where)
    places, chunks = found.chosen, chunks_of(score, seed)
    kind = pattern_of(pattern)
    selection = Selection(amount=Amount(**amount), scope=scope, pattern=pattern, floor=floor)
    selection.check()
    share = selection.amount.fraction
    _check_scope(scope)
    field = Field(places=places, scores=chunks)
    masks: Masks
    if isinstance(kind, Unstructured) and scope != "row":
        masks = _by_threshold(field, share or Fraction(0), scope, floor)
    elif scope == "global" and share is not None:
        masks = _together(field, share, kind, floor)
    else:
        masks = _by_tensor(field, share, scope, pattern, floor)
    say = progress or (lambda name: None)
    chosen = {entry.name: entry.shape for _, entry in places}
    kept = _written(stored, out, chosen, masks, say, masks_out)
    rows = [
        TensorSparsity(name=e.name, shape=e.shape, total=e.total, kept=kept[e.name])
        for _, e in places
    ]
    report = SparsityReport(tensors=tuple(rows), source="pruned tensors")
    return PrunedFile(path=out, report=report, left=found.left)


def _check_scope(scope: str) -> None:
    """Other scopes look at the weights of all layers at once (spectral does)."""
    known = ("global", "layer", "row", "uniform", "erk")
    if scope not in known:
        # A name that nobody registered is refused here with the nearest known one.
        _ = SCOPES[scope]
        raise ArgumentError(
            f"scope={scope!r} looks at the weights of all layers, and a file is read in pieces: use"
            f" {', '.join(known)}, or prune_ on the model in memory."
        )


def _written(
    stored: Stored,
    out: Path,
    chosen: dict[str, tuple[int, ...]],
    masks: Masks,
    say: Callable[[str], None],
    masks_out: str | Path | None,
) -> dict[str, int]:
    """Write the pruned tensors and, on the way, their masks. Returns the kept entries by name."""
    if masks_out is None:
        return write(stored, out, chosen, masks, say)
    check_masks_out(stored, out, Path(masks_out))
    bits = MaskWriter(Path(masks_out), chosen)

    def noted(shard: Shard, entry: Entry) -> Iterator[Tensor]:
        for piece in masks(shard, entry):
            bits.add(entry.name, piece)
            yield piece

    try:
        kept = write(stored, out, chosen, noted, say)
    except BaseException:
        bits.drop()
        raise
    bits.close()
    return kept


def _by_threshold(field: Field, amount: Fraction, scope: str, floor: float) -> Masks:
    """Every entry is compared with a threshold: of all tensors, or of its own."""
    sizes = {entry.name: entry.total for _, entry in field.places}
    keep = entries(amount, sum(sizes.values()))
    least = _floors(floor, sizes, off=amount == 0)
    demand = Demand(
        density=amount,
        keep=keep,
        shapes={entry.name: entry.shape for _, entry in field.places},
        capacity=sizes,
        floor=least,
        scores={},
    )
    # None means that all tensors compete for one budget.
    counts = SCOPES[scope](demand)
    if counts is None:
        cuts = compete(field, keep, least)
    else:
        cuts = {
            place[1].name: Field(places=[place], scores=field.scores).cut(counts[place[1].name])
            for place in field.places
        }

    def masks(shard: Shard, entry: Entry) -> Iterator[Tensor]:
        for piece in field.read((shard, entry)):
            yield cuts[entry.name].mask(piece)

    return masks


def _together(field: Field, amount: Fraction, kind: Pattern, floor: float) -> Masks:
    """The groups of all tensors compete for one budget."""
    check_fit(field, kind)
    sizes = {entry.name: entry.total for _, entry in field.places}
    keep = entries(amount, sum(sizes.values()))
    least = _floors(floor, sizes, off=amount == 0)
    if isinstance(kind, NM):
        return by_runs(field, keep, least, kind)
    if isinstance(kind, Grouped):
        return by_groups(field, keep, least, kind)
    raise ArgumentError("scope='global' with single entries needs no groups.")


def _by_tensor(
    field: Field, amount: Fraction | None, scope: str, pattern: str, floor: float
) -> Masks:
    """Groups and rows need their whole tensor: one at a time is in memory."""
    each: dict[str, Fraction | None] = dict.fromkeys(
        (entry.name for _, entry in field.places), amount
    )
    if amount is not None and scope in ("uniform", "erk"):
        each = dict(_densities(field, amount, scope, floor, pattern_of(pattern)))

    def masks(shard: Shard, entry: Entry) -> Iterator[Tensor]:
        scores = field.whole((shard, entry))
        lengths = field.lengths((shard, entry))
        own = each[entry.name]
        chosen = select(
            {entry.name: scores},
            density=own,  # type: ignore[arg-type]  # an exact fraction is read exactly
            scope=scope if scope == "row" else "layer",
            pattern=pattern,
            floor=floor,
        )
        yield from torch.split(chosen[entry.name].flatten(), lengths)

    return masks


def _densities(
    field: Field, amount: Fraction, scope: str, floor: float, kind: Pattern
) -> Iterator[tuple[str, Fraction]]:
    sizes = {entry.name: entry.total for _, entry in field.places}
    room = room_of(field, kind) if isinstance(kind, NM) else sizes
    keep = entries(amount, sum(sizes.values()))
    check_room(keep, sizes, room, kind)
    least = _floors(floor, sizes, off=amount == 0)
    demand = Demand(
        density=amount,
        keep=keep,
        shapes={entry.name: entry.shape for _, entry in field.places},
        capacity=room,
        floor={name: min(count, room[name]) for name, count in least.items()},
        scores={},
    )
    for name, count in (SCOPES[scope](demand) or {}).items():
        yield name, Fraction(count, sizes[name])


def _floors(floor: float, sizes: dict[str, int], *, off: bool) -> dict[str, int]:
    if isinstance(floor, bool) or floor < 0 or (floor != int(floor) and floor > 1):
        raise ArgumentError(
            f"floor={floor!r} is neither a number of entries (0, 1, 2, ...) nor a density below 1."
        )
    if off:
        return dict.fromkeys(sizes, 0)
    # repr gives the decimal that was typed: 0.1 of 30 is 3, not 4 by a rounded-up
    # binary fraction.
    share = None if floor == int(floor) else Fraction(repr(floor))
    return {
        name: min(size, int(floor) if share is None else math.ceil(share * size))
        for name, size in sizes.items()
    }
