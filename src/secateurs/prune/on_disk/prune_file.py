"""A checkpoint pruned where it lies: read twice piece by piece, written once, never held whole."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.masks.amount import density_of, entries
from secateurs.masks.budget import SCOPES, Demand
from secateurs.masks.pattern import Unstructured, pattern_of
from secateurs.masks.select import select
from secateurs.masks.shapes.nm import NM
from secateurs.masks.sparsity_report import SparsityReport
from secateurs.masks.tensor_sparsity import TensorSparsity
from secateurs.prune.on_disk.checkpoint import Shard, open_stored
from secateurs.prune.on_disk.choice import meant
from secateurs.prune.on_disk.cuts import Field, compete
from secateurs.prune.on_disk.header import Entry
from secateurs.prune.on_disk.scores import chunks_of
from secateurs.prune.on_disk.write import Masks, check_out, write


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
    sparsity: float | None = None,
    density: float | None = None,
    compression: float | None = None,
    scope: str = "global",
    pattern: str = "unstructured",
    floor: float = 1,
    where: Sequence[str] | None = None,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
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
        pattern: "unstructured", "2:4", "4x4", …; but for N:M, a pattern wants another scope than
            global.
        floor: entries (below 1, a density) that every tensor keeps at least.
        where: globs of tensor names; '!' leaves out. By default every float weight of two or more
            dimensions that is no norm, embedding, bias or head by its name.
        seed: where random scores come from.
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
    amount = density_of(sparsity=sparsity, density=density, compression=compression)
    if amount is None and not isinstance(kind, NM):
        raise ArgumentError(
            "how much to keep is missing: give sparsity=, density= or compression=."
        )
    field = Field(places=places, scores=chunks)
    masks: Masks
    if isinstance(kind, Unstructured) and scope != "row":
        masks = _by_threshold(field, amount or Fraction(0), scope, floor)
    else:
        masks = _by_tensor(field, amount, scope, pattern, floor)
    say = progress or (lambda name: None)
    chosen = {entry.name for _, entry in places}
    kept = write(stored, out, chosen, masks, say)
    rows = [
        TensorSparsity(name=e.name, shape=e.shape, total=e.total, kept=kept[e.name])
        for _, e in places
    ]
    report = SparsityReport(tensors=tuple(rows), source="pruned tensors")
    return PrunedFile(path=out, report=report, left=found.left)


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


def _by_tensor(
    field: Field, amount: Fraction | None, scope: str, pattern: str, floor: float
) -> Masks:
    """Groups and rows need their whole tensor: one at a time is in memory."""
    each: dict[str, Fraction | None] = dict.fromkeys(
        (entry.name for _, entry in field.places), amount
    )
    if amount is not None and scope in ("uniform", "erk"):
        each = dict(_densities(field, amount, scope, floor))
    elif scope not in ("layer", "row") and amount is not None:
        raise ArgumentError(
            f"scope={scope!r} with pattern={pattern!r} compares groups of all tensors at once,"
            " which a file is too large for: use scope='layer', 'uniform' or 'erk'."
        )

    def masks(shard: Shard, entry: Entry) -> Iterator[Tensor]:
        pieces = list(field.read((shard, entry)))
        lengths = [len(piece) for piece in pieces]
        scores = torch.cat([piece.clone() for piece in pieces]).view(entry.shape)
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
    field: Field, amount: Fraction, scope: str, floor: float
) -> Iterator[tuple[str, Fraction]]:
    sizes = {entry.name: entry.total for _, entry in field.places}
    demand = Demand(
        density=amount,
        keep=entries(amount, sum(sizes.values())),
        shapes={entry.name: entry.shape for _, entry in field.places},
        capacity=sizes,
        floor=_floors(floor, sizes, off=amount == 0),
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
