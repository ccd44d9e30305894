"""Prunes weights on disk: safetensors files and sharded folders, read piece by piece."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import reduce
from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor

from secateurs.base.interrupts import Uninterrupted
from secateurs.base.progress import Progress, show_progress
from secateurs.base.random import generator
from secateurs.base.registry import refuse_unknown
from secateurs.base.untrusted import StoredTensor
from secateurs.base.where import Rules, read_where
from secateurs.errors import (
    ArgumentError,
    DataError,
    EmptySelectionError,
    ParameterError,
    ScoreError,
)
from secateurs.files.bitmask import packed_weights
from secateurs.llm.shards import (
    Masks,
    Shard,
    Stored,
    check_masks_out,
    check_out,
    open_stored,
    write,
)
from secateurs.masks.budget import SCOPES, AmountFields, Selection
from secateurs.masks.files import MaskWriter
from secateurs.masks.patterns import NM, Grouped, Unstructured, pattern_of
from secateurs.masks.report import SparsityReport, TensorSparsity
from secateurs.masks.select import best, check_selection, check_shapes, choice_of, draw
from secateurs.masks.topk import Cut, kth_largest
from secateurs.masks.units import Units
from secateurs.scores import SCORES

# Which stored tensors are pruned. No module says what they are, so their names must.

_NOT_WEIGHTS = re.compile(
    r"norm|embed|(^|[._])(wte|wpe|ln|bn|rotary|pos|bias|lm_head|shared|codebook)([._0-9]|$)",
    re.IGNORECASE,
)
"""Parts of names of tensors that are looked up, scaled or added, and of the table that ends a
language model, which is often the embedding itself.
"""

_PARTS = re.compile(r"(^|\.)parametrizations\.\w+\.original\d*$|weight_[gv]$")
"""Names of what torch's parametrisations, and its weight_norm of old, compute weights of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenTensors:
    """The tensors to prune, in the order of the files, and why the others stay as they are."""

    chosen: tuple[tuple[Shard, StoredTensor], ...]
    left: dict[str, str]


def choose_stored(stored: Stored, where: Sequence[str] | None) -> ChosenTensors:
    """What globs of names choose ('!' leaves out), or without any every float weight of two or more
    dimensions that is not a norm, embedding, bias or head by its name.
    """
    names = [entry.name for _, entry in stored.entries()]
    if packed := packed_weights(entry for _, entry in stored.entries()):
        raise DataError(
            f"{stored.source} holds {packed[0].weight!r} packed with a bit mask: make it plain by"
            " sc.llm.unpack_bitmasks first."
        )
    rules = read_where(where or None, names, owners=False)
    # A glob that fits nothing is a misspelt name: pruning everything else would be the worst
    # response.
    if wrong := (*rules.strange, *rules.unmatched):
        raise ParameterError(f"{'; '.join(wrong)}.")
    chosen, left = list[tuple[Shard, StoredTensor]](), dict[str, str]()
    for shard, entry in stored.entries():
        reason = _reason(entry, rules)
        if reason:
            left[entry.name] = reason
        else:
            chosen.append((shard, entry))
    if not chosen:
        raise EmptySelectionError(
            f"{stored.source} has no tensor to prune: of {len(names)}, the first is left out "
            f"because {next(iter(left.values()), 'there is none')}. Choose by --where GLOB."
        )
    return ChosenTensors(chosen=tuple(chosen), left=left)


def _reason(entry: StoredTensor, rules: Rules) -> str:
    """Why a tensor is left as it is; empty if it is pruned."""
    name, wanted = entry.name, [str(rule) for rule in rules.chosen]
    if rules.excludes([name]):
        return "it is excluded"
    asked = any(fnmatchcase(name, glob) for glob in wanted)
    if wanted and not asked:
        return "no glob chooses it"
    if not entry.kind.floating or entry.kind.bits < 16:
        # Values of eight bits and less come with scales in other tensors: their sizes alone mean
        # nothing.
        problem = f"its dtype is {entry.dtype}, not a float of 16 or more bits"
    elif _PARTS.search(name):
        problem = "a weight is computed of it and others (weight_norm): make that plain and save it"
    else:
        problem = ""
    if problem:
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


# How many entries of a stored tensor are not zero, from its bits alone, whatever its dtype.

_WHOLE = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


def nonzeros(shard: Shard, entry: StoredTensor) -> int:
    """The entries of a tensor that are not zero; −0 is zero."""
    return sum(_nonzeros(chunk, entry) for chunk in shard.chunks(entry))


def count_stored(stored: Stored, *, all: bool = False) -> SparsityReport:
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


def _nonzeros(chunk: Tensor, entry: StoredTensor) -> int:
    kind = entry.kind
    if entry.dtype == "F8_E8M0":
        return chunk.numel()  # a bare exponent: 2^(code − 127) is never zero
    if entry.dtype in ("C64", "C128"):
        half = _WHOLE[kind.bits // 2]
        parts = (chunk.view(half) & torch.iinfo(half).max).view(-1, 2)
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

Chunks = Callable[[Shard, StoredTensor], Iterator[Tensor]]
"""Yields the scores of a tensor in the pieces in which its bytes are read."""

Places = Mapping[str, tuple[Shard, StoredTensor]]
"""The place of each tensor in the files, by name, in the order of the files."""


def values(shard: Shard, entry: StoredTensor) -> Iterator[Tensor]:
    """The weights themselves; what is not finite has no rank and is refused."""
    dtype = getattr(torch, entry.kind.torch)
    for chunk in shard.chunks(entry):
        piece = chunk.view(dtype)
        if not bool(torch.isfinite(piece).all()):
            raise ScoreError(
                f"{shard.path}: {entry.name!r} holds NaN or infinite values, which cannot be "
                "ranked."
            )
        yield piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Random:
    """Independent numbers, drawn anew from the same seed at each pass instead of being kept."""

    seed: int

    def __call__(self, shard: Shard, entry: StoredTensor) -> Iterator[Tensor]:
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
        f"the score {name!r} runs the network, and a file alone has none: use prune_ or"
        " prune_blocks_ in Python. For a file choose magnitude or random."
    )


# Which entries of stored tensors are kept, decided while reading: `best` of masks/select.py asks
# for thresholds here as it asks for masks in memory. One tensor is in memory at a time at most.


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredScores:
    """The scores of tensors that compete, read in one dtype; of N:M, those it does not allow lie
    below all others.
    """

    places: Mapping[str, tuple[Shard, StoredTensor]]
    chunks: Chunks
    runs: NM | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The smallest dtype that holds all scores exactly."""
        if isinstance(self.chunks, Random):
            return torch.float32
        each = [getattr(torch, entry.kind.torch) for _, entry in self.places.values()]
        common: torch.dtype = reduce(torch.promote_types, each)
        return common

    def read(self, name: str) -> Iterator[Tensor]:
        """The scores of one tensor, piece by piece."""
        if self.runs is None:
            yield from self._magnitudes(name)
            return
        whole = self.whole(name)
        # Scores are magnitudes: −1 is below every one of them.
        whole[~self.runs.eligible(whole)] = -1
        yield from torch.split(whole.flatten(), self.lengths(name))

    def whole(self, name: str) -> Tensor:
        """The scores of one tensor at once, in its shape."""
        pieces = [piece.clone() for piece in self._magnitudes(name)]
        return torch.cat(pieces).view(self.places[name][1].shape)

    def lengths(self, name: str) -> list[int]:
        """How many entries of it are read and written at a time."""
        return [len(piece) for piece in self.chunks(*self.places[name])]

    def _magnitudes(self, name: str) -> Iterator[Tensor]:
        for piece in self.chunks(*self.places[name]):
            # A common dtype, so that bfloat16 and float32 weights of one network are
            # compared exactly.
            yield piece.abs().to(self.dtype)


class Threshold:
    """Where the scores that are kept end, and how many equal to it are left to keep.

    Equal scores are kept in the order of the bytes (the rule in masks/topk.py), so tensors that
    compete share one threshold and are asked in their order.
    """

    def __init__(self, value: float = math.inf, ties: int = 0) -> None:
        # Nothing lies above infinity, so nothing is kept.
        self.value, self.left = value, ties

    def copy(self) -> "Threshold":
        """The same threshold, from the first entry."""
        return Threshold(self.value, self.left)

    def mask(self, scores: Tensor) -> Tensor:
        """Which of the next scores are kept; call it in the order of the entries."""
        kept = scores > self.value
        if self.left:
            tied = (scores == self.value).nonzero().flatten()[: self.left]
            kept[tied] = True
            self.left -= len(tied)
        return kept


class StoredEntries(Units[Threshold]):
    """Units are entries: every one is compared with a threshold."""

    whole = False

    def __init__(self, scores: StoredScores) -> None:
        self.scores = scores
        self.allowed: Mapping[str, Tensor] = {}

    def capacity(self, name: str) -> int:
        total, runs = self.scores.places[name][1].total, self.scores.runs
        return total if runs is None else total // runs.m * runs.n

    def choose(self, names: Sequence[str], keep: int) -> dict[str, Threshold]:
        shared = Threshold()
        if keep > 0:
            every = lambda: (piece for name in names for piece in self.scores.read(name))  # noqa: E731
            cut = kth_largest(every, keep, self.scores.dtype)
            shared = Threshold(cut.value, cut.ties)
        return dict.fromkeys(names, shared)

    def at_least(self, name: str, keep: int) -> Threshold:
        return self.choose([name], keep)[name]

    def count_kept(self, name: str, chosen: Threshold) -> int:
        return self._count(name, chosen.copy())

    def short(self, chosen: Mapping[str, Threshold], floor: Mapping[str, int]) -> list[str]:
        # The cheap check first: it nearly always succeeds, and reads one piece per tensor.
        if all(self._reaches(name, cut.value, floor[name]) for name, cut in chosen.items()):
            return []
        return self._below_floor(chosen, floor)

    def masks(self, name: str, chosen: Threshold) -> Iterator[Tensor]:
        """Which entries are kept, in the pieces in which the bytes are read."""
        for piece in self.scores.read(name):
            yield chosen.mask(piece)

    def _below_floor(self, chosen: Mapping[str, Threshold], floor: Mapping[str, int]) -> list[str]:
        shared = {id(cut): cut.copy() for cut in chosen.values()}
        return [n for n, cut in chosen.items() if self._count(n, shared[id(cut)]) < floor[n]]

    def _count(self, name: str, cut: Threshold) -> int:
        return sum(int(cut.mask(piece).sum()) for piece in self.scores.read(name))

    def _reaches(self, name: str, value: float, least: int) -> bool:
        """Whether at least this many entries lie above the threshold. Reading ends as soon as they
        are found: with the usual floor of one entry that is at the first piece.
        """
        found = 0
        for piece in self.scores.read(name):
            if found >= least:
                break
            found += int((piece > value).sum())
        return found >= least


class StoredGroups(StoredEntries):
    """Units are groups (blocks, kernels, filters), by their mean scores.

    The scores of all groups are never held: the threshold is found by passes over the files.
    """

    whole = True

    def __init__(self, scores: StoredScores, pattern: Grouped) -> None:
        super().__init__(scores)
        self.pattern = pattern

    def choose(self, names: Sequence[str], keep: int) -> dict[str, Threshold]:
        """Every group stands for as many entries as it has, so their threshold is the mean of the
        group in which the last of them lies.
        """
        shared = Threshold()
        if keep > 0:
            total = sum(self.capacity(name) for name in names)
            entries = lambda: self._entries(names)  # noqa: E731
            found = kth_largest(entries, min(keep, total), torch.float64)
            shared = Threshold(found.value, self._tied(names, found))
        return dict.fromkeys(names, shared)

    def at_least(self, name: str, keep: int) -> Threshold:
        """The fewest groups of one tensor that have this many entries."""
        scores, size = self._groups(name)
        if keep <= 0:
            return Threshold()
        cut = kth_largest(lambda: iter([scores]), -(-keep // size), scores.dtype)
        return Threshold(cut.value, cut.ties)

    def short(self, chosen: Mapping[str, Threshold], floor: Mapping[str, int]) -> list[str]:
        return self._below_floor(chosen, floor)

    def masks(self, name: str, chosen: Threshold) -> Iterator[Tensor]:
        kept = chosen.mask(self._groups(name)[0])
        whole = self.pattern.spread(kept, self.scores.places[name][1].shape).flatten()
        yield from torch.split(whole, self.scores.lengths(name))

    def _groups(self, name: str) -> tuple[Tensor, int]:
        """The mean score of every group of a tensor, and the entries in a group."""
        scores = self.pattern.group_scores(self.scores.whole(name))
        return scores, self.capacity(name) // len(scores)

    def _count(self, name: str, cut: Threshold) -> int:
        scores, size = self._groups(name)
        return int(cut.mask(scores).sum()) * size

    def _entries(self, names: Sequence[str]) -> Iterator[Tensor]:
        for name in names:
            scores, size = self._groups(name)
            for piece in torch.split(scores, max(1, _PIECE // size)):
                yield piece.repeat_interleave(size)

    def _tied(self, names: Sequence[str], found: Cut) -> int:
        """How many groups at the threshold are kept: as many as are whole, and one more where that
        comes nearer to the number asked.
        """
        groups, left = 0, found.ties
        for name in names:
            scores, size = self._groups(name)
            for _ in range(int((scores == found.value).sum())):
                if left < size:
                    # Of two numbers that are equally near the smaller is taken.
                    return groups + (size - left < left)
                groups, left = groups + 1, left - size
        return groups


_PIECE = 1 << 20
"""Entries that are counted at a time."""


# Prunes a checkpoint on disk: read twice piece by piece, written once, never held whole.


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
    progress: Progress | None = None,
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
            dimensions that is not a norm, embedding, bias or head by its name.
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
    found = choose_stored(stored, where)
    places, chunks = {e.name: (s, e) for s, e in found.chosen}, chunks_of(score, seed)
    selection = Selection(scope=scope, pattern=pattern, floor=floor, **amount)
    _check_scope(scope)
    chosen = {entry.name: entry.shape for _, entry in found.chosen}
    with show_progress(progress, "prune_file") as say:
        masks = _masks(selection, places, chunks)
        kept = _write(stored, out, chosen, masks, say, masks_out)
    rows = [
        TensorSparsity(name=e.name, shape=e.shape, total=e.total, kept=kept[e.name])
        for _, e in found.chosen
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


def _write(
    stored: Stored,
    out: Path,
    chosen: dict[str, tuple[int, ...]],
    masks: Masks,
    say: Progress,
    masks_out: str | Path | None,
) -> dict[str, int]:
    """Write the pruned tensors and, on the way, their masks. Returns the kept entries by name."""
    if masks_out is None:
        return write(stored, out, chosen, masks, say)
    check_masks_out(stored, out, Path(masks_out))
    bits: MaskWriter | None = None
    *_, last = chosen
    with ExitStack() as ending:
        try:
            with Uninterrupted():
                bits = own = MaskWriter(Path(masks_out), chosen)

            def noted(shard: Shard, entry: StoredTensor) -> Iterator[Tensor]:
                for piece in masks(shard, entry):
                    own.add(entry.name, piece)
                    yield piece
                if entry.name == last:
                    # From here on both files get their names, or neither does.
                    ending.enter_context(Uninterrupted())

            kept = write(stored, out, chosen, noted, say)
            own.close()
        except BaseException:
            if bits is not None:
                bits.drop()
            raise
    return kept


def _masks(selection: Selection, places: Places, chunks: Chunks) -> Masks:
    """How the masks of stored tensors are found: by thresholds, or tensor by tensor."""
    pattern, amount = pattern_of(selection.pattern), selection.fraction
    shapes = {name: entry.shape for name, (_, entry) in places.items()}
    check_shapes(pattern, shapes)
    runs = pattern if isinstance(pattern, NM) else None
    scores = StoredScores(places=places, chunks=chunks, runs=runs)
    entries = StoredEntries(scores)
    units = StoredGroups(scores, pattern) if isinstance(pattern, Grouped) else entries
    single = isinstance(pattern, Unstructured) and selection.scope != "row"
    if single or (selection.scope == "global" and amount is not None):
        cuts = best(choice_of(selection, shapes, units, scores={}))
        return lambda shard, entry: units.masks(entry.name, cuts[entry.name])
    # Groups and rows need their whole tensor: one at a time is in memory.
    counts = None if amount is None else choice_of(selection, shapes, entries, scores={}).counts

    def masks(shard: Shard, entry: StoredTensor) -> Iterator[Tensor]:
        name = entry.name
        keep = None if counts is None else {name: counts[name]}
        ((_, part),) = draw(check_selection(selection, {name: scores.whole(name)}, keep=keep))
        yield from torch.split(part.mask.flatten(), scores.lengths(name))

    return masks
