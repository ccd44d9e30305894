"""A checkpoint pruned where it lies: read twice piece by piece, written once, never held whole."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.masks.amount import Amount, density_of, entries
from secateurs.masks.budget import SCOPES, Demand
from secateurs.masks.files.streamed import MaskWriter
from secateurs.masks.pattern import Pattern, Unstructured, pattern_of
from secateurs.masks.select import select
from secateurs.masks.shapes.grouped import Grouped
from secateurs.masks.shapes.nm import NM
from secateurs.masks.sparsity_report import SparsityReport
from secateurs.masks.tensor_sparsity import TensorSparsity
from secateurs.prune.on_disk.checkpoint import Shard, Stored, open_stored
from secateurs.prune.on_disk.choice import meant
from secateurs.prune.on_disk.cuts import Field, compete
from secateurs.prune.on_disk.groups import (
    by_groups,
    by_runs,
    check_fit,
    check_room,
    room_of,
)
from secateurs.prune.on_disk.header import Entry
from secateurs.prune.on_disk.scores import chunks_of
from secateurs.prune.on_disk.write import Masks, check_masks_out, check_out, write


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
    **amount: Unpack[Amount],
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
    stored, out = open_stored(source), Path(out)
    check_out(stored, out)
    found = meant(stored, where)
    places, chunks = found.chosen, chunks_of(score, seed)
    kind = pattern_of(pattern)
    share = density_of(**amount)
    if share is None and not isinstance(kind, NM):
        raise ArgumentError(
            "how much to keep is missing: give sparsity=, density= or compression=."
        )
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
            place[1].name: Field(places=[place], scores=field.scores).cut(
                counts[place[1].name]
            )
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
