"""Reading a sparse file: first everything that it claims is checked, then it is decoded tensor by
tensor.
"""

import itertools
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import torch
from torch import Tensor, nn

from secateurs.base.json_object import quote
from secateurs.base.parameters import aliases, check_model
from secateurs.base.registry import unknown
from secateurs.base.safefile import replacing
from secateurs.base.sizes import ChangedSizes, name_with, read_sizes, set_sizes_, size_problems
from secateurs.base.untrusted import (
    FileHeader,
    StoredTensor,
    begin_file,
    header_fields,
    parse_header,
    reading,
)
from secateurs.channels.verify import narrow_, sync_size_attributes_
from secateurs.errors import SparseFileError
from secateurs.files.bitmask import PackedWeight, packed_weights, shape_of, unpack_weight
from secateurs.files.coding import (
    FULL,
    KINDS,
    NAMES,
    BitReader,
    PlaceReaders,
    UnaryReader,
    Words,
    count_claimed_bits,
    join,
    read_places,
    to_tensor,
    to_words,
)
from secateurs.files.description import (
    FAMILY,
    FORMAT,
    MOST,
    SEAL,
    STREAMS,
    Description,
    TensorLine,
    container_header,
    digest_of,
    name_problem,
    seal_of,
    unpack,
)
from secateurs.files.write import FileSizes, sizes_of, spread
from secateurs.masks import from_torch_prune

# A safetensors file in memory, with its header checked.


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """All bytes of a file, sparse or not, and its header."""

    path: Path
    blob: memoryview
    header: FileHeader

    @property
    def format(self) -> str:
        """What the file says it is: by the name of its only entry, or in its metadata."""
        names = [entry.name for entry in self.header.entries]
        if len(names) == 1 and not self.header.metadata and names[0].startswith(FAMILY):
            return names[0]
        return self.header.metadata.get("format", "")

    @property
    def is_sparse(self) -> bool:
        """Whether it says it is a sparse file, of this or another version."""
        return self.format.startswith(FAMILY)

    def data(self, entry: StoredTensor) -> memoryview:
        """The bytes of a tensor."""
        return self.blob[entry.start : entry.stop]


def read_container(path: Path) -> Container:
    """Read a file and check its header; any doubt raises a SparseFileError with the file and, if
    there is one, the tensor."""
    with reading(path, SparseFileError):
        blob = memoryview(path.read_bytes())
    header = parse_header(blob, path, SparseFileError, most=MOST)
    for entry in header.entries:
        if problem := name_problem(entry.name):
            raise SparseFileError(f"{path}: {quote(entry.name)} {problem}.")
    return Container(path=path, blob=blob, header=header)


# Opening a sparse file: everything that it claims is checked, and nothing is decoded yet.

# Dense bytes that any file may claim; more only in proportion to its own size.
_ALWAYS, _PER_BYTE = 1 << 30, 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A sparse file whose claims have been checked, and of which nothing has been decoded yet."""

    path: Path
    described: Description
    sizes: FileSizes
    streams: tuple[memoryview, ...]
    sealed: bool
    """Whether the SHA-256 of the data is what the header says."""
    changed: ChangedSizes
    """Sizes to set on a model before the tensors fit."""


def open_sparse(held: Container, *, at_most: int | None = None) -> Opened:
    """Check all that a sparse file claims."""
    path, header = held.path, held.header
    if held.is_sparse and held.format != FORMAT:
        raise SparseFileError(
            f"{path} has the format {quote(held.format)}; this version reads {FORMAT!r}. Update"
            " secateurs."
        )
    entries = [(e.name, e.dtype) for e in header.entries]
    if held.format != FORMAT or entries != [(FORMAT, "U8")]:
        raise SparseFileError(
            f"{path} is not a sparse file: it has other contents than one entry {FORMAT!r} of"
            " bytes."
        )
    begin = header.body + SEAL
    data = held.blob[begin:]
    described, taken = unpack(data, path)
    # The header is compared byte by byte, so that nothing can hide in it.
    sealed = held.blob[:begin] == container_header(seal_of([data]), len(data))
    ends = np.cumsum([taken, *described.streams]).tolist()
    if ends[-1] != len(data):
        raise SparseFileError(f"{path} holds {len(data)} bytes of data, but describes {ends[-1]}.")
    streams = tuple(data[start:end] for start, end in itertools.pairwise(ends))
    sizes = sizes_of(path, described, header=begin + taken)
    opened = Opened(
        path=path,
        described=described,
        sizes=sizes,
        streams=streams,
        sealed=sealed,
        changed=_changed_sizes(path, described),
    )
    _check_claims(opened, at_most)
    return opened


def most_dense_bytes(size: int, at_most: int | None) -> int:
    """What a file of this size may unpack to."""
    return max(_ALWAYS, _PER_BYTE * size) if at_most is None else at_most


def _check_claims(opened: Opened, at_most: int | None) -> None:
    """The lines must claim what the streams hold, and no more than the file's size justifies."""
    lines, path = opened.described.lines, opened.path
    limit = most_dense_bytes(opened.sizes.bytes, at_most)
    dense = 0
    for line in lines:
        dense += line.bytes
        if dense > limit:
            raise SparseFileError(
                f"{path} claims over {limit:,} dense bytes, {quote(line.name)} "
                f"{list(line.shape)} among them. If you trust it, raise the limit: at_most=."
            )
    if not _can_hold(lines, dict(zip(STREAMS, map(len, opened.streams), strict=True))):
        lengths = ", ".join(
            f"{len(data)} of {name}" for name, data in zip(STREAMS, opened.streams, strict=True)
        )
        raise SparseFileError(f"{path}: {lengths} (bytes) are not what the tensors claim.")


def _can_hold(lines: Sequence[TensorLine], held: Mapping[str, int]) -> bool:
    """Whether streams of these lengths can hold what the lines claim."""
    bits = [count_claimed_bits(line.coding, line.kept, line.size, line.rows) for line in lines]
    masks, quotients, remainders = ((sum(b[i] for b in bits) + 7) // 8 for i in range(3))
    return (
        held["masks"] == masks
        # Only bounded, since the length of the quotients is known only after reading them.
        and held["quotients"] <= quotients
        and held["remainders"] == remainders
        and held["rests"] == sum(line.kept * (line.kind.width - 1) for line in lines)
        and 8 * held["tops"]
        >= sum(line.kept for line in lines)  # a Huffman code takes a bit at least
    )


def about(opened: Opened) -> dict[str, Any]:
    """Certificate, rounding and notes: JSON whose content is not interpreted here."""
    held = _beside(opened.path, opened.described)
    return {key: held.get(key, {}) for key in ("certificate", "rounding", "notes")}


def _beside(path: Path, described: Description) -> dict[str, Any]:
    """The JSON object after the lines of the tensors."""
    try:
        held = json.loads(described.about)
    except (ValueError, RecursionError):
        held = None
    if not isinstance(held, dict) or any(not isinstance(part, dict) for part in held.values()):
        raise SparseFileError(f"{path}: the text beside the tensors is not a JSON object.")
    return held


def _changed_sizes(path: Path, described: Description) -> ChangedSizes:
    beside = _beside(path, described)
    if "sizes" not in beside:
        return ChangedSizes()
    try:
        return read_sizes(beside["sizes"])
    except ValueError as error:
        raise SparseFileError(f"{path}: {error}.") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseFile:
    """The contents of a sparse file: tensors under their first names, the other names of tied ones,
    and texts.

    Attributes:
        certificate: That of the model, as passed when the file was written.
        rounding: What storing values in fewer bits changed.
        notes: Texts. Each of these is empty if there is none.
        changed: The sizes that pruning changed besides those of tensors.
    """

    tensors: dict[str, Tensor] = field(repr=False)
    ties: dict[str, str]
    sizes: FileSizes
    certificate: dict[str, Any] = field(repr=False)
    rounding: dict[str, Any] = field(repr=False)
    notes: dict[str, str]
    changed: ChangedSizes = field(default_factory=ChangedSizes)

    @property
    def state(self) -> dict[str, Tensor]:
        """The tensors under all their names, as in a state dict."""
        return self.tensors | {alias: self.tensors[first] for alias, first in self.ties.items()}


def read_sparse(path: str | os.PathLike[str], *, at_most: int | None = None) -> SparseFile:
    """The whole contents of a file that `save_sparse` wrote: tensors, ties, certificate, notes,
    sizes.

    Args:
        path: the file.
        at_most: how many dense bytes it may unpack to; by default 1 GiB, or 10,000 times its own
            size if that is more.

    Anything damaged, foreign or made up raises a SparseFileError with the file and, if there is
    one, the tensor. Nothing in the file is executed, and memory is taken only for what its own size
    justifies.
    """
    opened = open_sparse(read_container(Path(path)), at_most=at_most)
    tensors = decode(opened)
    return SparseFile(
        tensors=tensors,
        ties=opened.described.ties,
        sizes=opened.sizes,
        changed=opened.changed,
        **about(opened),
    )


def decode(opened: Opened) -> dict[str, Tensor]:
    """The dense tensors by name."""
    tensors: dict[str, Tensor] = {}
    for line, tensor in _decode_each(opened):
        if digest_of(line.name, tensor) != line.digest:
            raise SparseFileError(
                f"{opened.path} is damaged: {quote(line.name)} has another SHA-256."
            )
        if line.name:
            tensors[line.name] = tensor
    # Last, so that damage within a tensor is reported with the tensor's name.
    if not opened.sealed:
        raise SparseFileError(
            f"{opened.path} is damaged in its header or description: its SHA-256 or its spelling "
            "is not the one that was written."
        )
    return tensors


def _decode_each(opened: Opened) -> Iterator[tuple[TensorLine, Tensor]]:
    masks, quotients, remainders, packed, rests = opened.streams
    lines = opened.described.lines
    readers = PlaceReaders(BitReader(masks), UnaryReader(quotients), BitReader(remainders))
    tops, top, rest = (
        memoryview(_inflate(packed, sum(line.kept for line in lines), opened)),
        0,
        0,
    )
    # Rounded values wait here for their scales, which are in the next line.
    waiting: tuple[TensorLine, Tensor] | None = None
    for line in lines:
        end, last = top + line.kept, rest + line.kept * (line.kind.width - 1)
        try:
            words = _words(line, join(tops[top:end], rests[rest:last], line.kind), readers)
        except ValueError as error:
            raise SparseFileError(f"{opened.path}: {quote(line.name)}: {error}.") from None
        top, rest = end, last
        tensor = to_tensor(words, line.kind, line.shape)
        if waiting is not None:
            first, stored = waiting
            yield first, spread(stored, tensor, KINDS[first.dtype].dtype)
            waiting = None
        if line.stored == "I8":
            waiting = line, tensor
        else:
            yield (
                line,
                tensor if not line.stored else tensor.to(KINDS[line.dtype].dtype),
            )
    _finish(readers, opened.path)


def _words(line: TensorLine, kept: Words, readers: PlaceReaders) -> Words:
    """The dense words of a tensor."""
    if line.coding.k == FULL and line.coding.grid is None:
        return kept
    places = read_places(line.coding, line.kept, line.size, line.rows, readers)
    words: Words = np.zeros(line.size, kept.dtype)
    words[places] = kept
    return words


def _inflate(data: memoryview, count: int, opened: Opened) -> bytes:
    """Exactly `count` top bytes; a stream that holds more is stopped after one extra byte."""
    machine = zlib.decompressobj(-15)
    try:
        tops = machine.decompress(data, count + 1)
        # All bytes may have been produced before the end of the stream has been read.
        tail = b"" if machine.eof else machine.decompress(machine.unconsumed_tail, 1)
    except zlib.error as error:
        raise SparseFileError(
            f"{opened.path}: the stream of top bytes is damaged ({error})."
        ) from None
    if len(tops) + len(tail) != count or not machine.eof or machine.unused_data:
        raise SparseFileError(
            f"{opened.path}: the stream of top bytes does not hold the {count} that are claimed."
        )
    return tops


def _finish(readers: PlaceReaders, path: Path) -> None:
    try:
        for reader in (readers.masks, readers.quotients, readers.remainders):
            reader.expect_end()
    except ValueError as error:
        raise SparseFileError(f"{path}: {error}.") from None


# Loads tensors into a model: one error lists everything that does not fit; then values are copied
# and, for compacted models, shapes narrowed.


def check_fit(
    model: nn.Module,
    state: Mapping[str, Tensor],
    path: Path,
    *,
    narrow: bool = False,
    changed: ChangedSizes,
) -> None:
    """Raise one error for everything that keeps these tensors out of the model; with `narrow` they
    may be smaller than its own, biases may be new, and the changed sizes of the file are set
    first."""
    problems: list[str] = []
    sizes = size_problems(model, changed) if narrow else _unwanted(changed)
    # As the model will be: dropped blocks take their tensors along, and the others move up.
    rename = name_with(model, changed)
    wanted = {new: value for old, value in model.state_dict().items() if (new := rename(old))}
    tied = _aliases_of(model, rename)
    free = {new for old in _free_biases(model) if (new := rename(old))}
    problems += _missing(wanted, tied, state)
    for name, value in state.items():
        if name in wanted:
            problems += _misfit(name, wanted[name], value, narrow=narrow)
        elif not (narrow and name in free):
            problems.append(unknown("tensor", name, wanted).rstrip("."))
    problems += [
        f"{alias!r} and {first!r} are one tensor in the model and differ in the file"
        for alias, first in tied.items()
        if {alias, first} <= state.keys() and not _same(state[alias], state[first])
    ]
    # A wrong size is the reason for wrong shapes.
    if problems := [*sorted(sizes), *sorted(problems)]:
        more = f" and {len(problems) - 6} more" if len(problems) > 6 else ""
        listed = "; ".join(problems[:6])
        raise SparseFileError(f"{path} does not fit {type(model).__name__}: {listed}{more}.")


@torch.no_grad()
def fill_(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy the values; if a shape in the state is smaller, narrow the module to it first. Tensors
    that the state does not hold stay as they are."""
    wanted, tied = model.state_dict(), aliases(model)
    fresh = {name for name in state if name not in wanted}
    smaller = {
        name: value
        for name, value in state.items()
        if name not in tied and (name in fresh or value.shape != wanted[name].shape)
    }
    if smaller:
        _narrow_(model, smaller, fresh)
    # Looked up again, since narrowing has replaced tensors.
    for name, value in model.state_dict().items():
        if name in state:
            # Into the existing tensors, so that ties and other references to them stay.
            value.copy_(state[name])


def _narrow_(model: nn.Module, smaller: Mapping[str, Tensor], fresh: set[str]) -> None:
    """Narrow modules, with their attributes, to the shapes of the file."""
    convolutions = [m for m in model.modules() if isinstance(m, nn.modules.conv._ConvNd)]
    before = {module: len(module.weight) for module in convolutions if module.groups > 1}
    narrow_(model, smaller, fresh)
    for module, rows in before.items():  # compaction takes whole groups or none
        module.groups = module.groups * len(module.weight) // rows
    for owner in model.modules():
        sync_size_attributes_(owner)


def _missing(
    wanted: Mapping[str, Tensor], tied: Mapping[str, str], state: Mapping[str, Tensor]
) -> list[str]:
    names = [
        # A tied tensor need not be present twice: its first name is enough.
        name
        for name in wanted
        if name not in state and tied.get(name) not in state
    ]
    return [f"it lacks {name!r}" for name in names]


def _misfit(name: str, ours: Tensor, theirs: Tensor, *, narrow: bool) -> list[str]:
    if ours.is_meta and not theirs.is_meta:
        return [f"{name!r} is on the meta device: use model.to_empty(device='cpu') first"]
    if ours.dtype != theirs.dtype:
        types = f"{theirs.dtype} in the file and {ours.dtype} in the model"
        return [f"{name!r} is {types}: convert the model first"]
    if ours.shape == theirs.shape or (narrow and _fits_inside(theirs, ours)):
        return []
    return [f"{name!r} is {list(theirs.shape)} in the file and {list(ours.shape)} in the model"]


def _fits_inside(small: Tensor, large: Tensor) -> bool:
    sizes = zip(small.shape, large.shape, strict=False)
    return small.ndim == large.ndim and all(0 < a <= b for a, b in sizes)


def _unwanted(changed: ChangedSizes) -> list[str]:
    names = ", ".join([*changed.blocks, *changed.resized][:3])
    return [f"it changes sizes ({names}), which narrow=False leaves as they are"] if changed else []


def _aliases_of(model: nn.Module, rename: Callable[[str], str | None]) -> dict[str, str]:
    """`aliases`, by the names of a model that has dropped blocks."""
    groups: dict[str, list[str]] = {}
    for alias, first in aliases(model).items():
        groups.setdefault(first, [first]).append(alias)
    tied: dict[str, str] = {}
    for names in groups.values():
        left = [new for name in names if (new := rename(name))]
        tied |= dict.fromkeys(left[1:], left[0]) if left else {}
    return tied


def _free_biases(model: nn.Module) -> set[str]:
    """Biases of modules that have none, into which compaction puts constants."""
    return {
        f"{path}.bias" if path else "bias"
        for path, owner in model.named_modules()
        if getattr(owner, "bias", 0) is None
    }


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same bits; tensors without values count as equal."""
    if a is b or a.is_meta:
        return True
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    kind = KINDS[NAMES[a.dtype]]
    return bool((to_words(a, kind) == to_words(b, kind)).all())


# Loads files into models: sparse files, dense checkpoints and those of torch.nn.utils.prune,
# completely or not at all.

Model = TypeVar("Model", bound=nn.Module)


@overload
def load_sparse(
    path: str | os.PathLike[str], into: None = None, *, at_most: int | None = None
) -> dict[str, Tensor]: ...
@overload
def load_sparse(
    path: str | os.PathLike[str],
    into: Model,
    *,
    at_most: int | None = None,
    narrow: bool | None = None,
) -> Model: ...


def load_sparse(
    path: str | os.PathLike[str],
    into: nn.Module | None = None,
    *,
    at_most: int | None = None,
    narrow: bool | None = None,
) -> nn.Module | dict[str, Tensor]:
    """Read a file into a model of the original class, under the original keys; or as a state dict.

    Reads what `save_sparse` wrote, any dense safetensors checkpoint, one saved while
    `torch.nn.utils.prune` was active, and weights that compressed-tensors packed with bit masks. A
    file of a compacted model narrows the modules of `into` to the shapes in the file, sets the
    attributes that count channels or heads to their saved values, and drops the blocks that were
    dropped, so that the model runs.

    Args:
        path: the file.
        into: the model that gets the values, in place; it is returned. Without one a state dict is
            returned.
        at_most: how many dense bytes the file may unpack to; see `read_sparse`.
        narrow: whether smaller shapes narrow the model; by default those of a sparse file do.

    Whatever keeps the tensors out of the model is listed in one SparseFileError; then nothing has
    changed.

    >>> import tempfile
    >>> from secateurs.files.write import save_sparse
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save_sparse(nn.Linear(2, 1), f"{folder}/layer.safetensors")
    ...     load_sparse(f"{folder}/layer.safetensors", into=nn.Linear(2, 1))
    Linear(in_features=2, out_features=1, bias=True)
    """
    path = Path(path)
    if into is not None:
        check_model(into)
    held = read_container(path)
    if into is None:
        return _state(held, at_most)
    narrow = held.is_sparse if narrow is None else narrow
    # Before anything is decoded, since tensors that fit a model are no larger than it.
    changed = ChangedSizes()
    if held.is_sparse:
        opened = open_sparse(held, at_most=at_most)
        changed = opened.changed
        check_fit(into, _claims(opened.described), path, narrow=narrow, changed=changed)
    # Checked again below with values: only then can tied tensors be compared.
    state = _state(held, at_most)
    check_fit(into, state, path, narrow=narrow, changed=changed)
    set_sizes_(into, changed)
    fill_(into, state)
    return into


def load_shards(paths: Sequence[Path], into: nn.Module, *, at_most: int | None = None) -> nn.Module:
    """Read sparse files that hold a model together, one after the other, into a fresh model.

    Its tensors adopt the files' dtypes. After an error the model must be discarded.
    """
    changed = fit_shards_(paths, into, at_most=at_most)
    set_sizes_(into, changed)
    for path in paths:
        fill_(into, _state(read_container(path), at_most))
    return into


def claims_of(
    paths: Sequence[Path], *, at_most: int | None = None
) -> tuple[dict[str, Tensor], ChangedSizes]:
    """What files that hold a model together say they hold: tensors without values, on the device
    `meta`, and changed sizes.
    """
    claims: dict[str, Tensor] = {}
    changed = ChangedSizes()
    for path in paths:
        opened = open_sparse(read_container(path), at_most=at_most)
        mine = _claims(opened.described)
        if twice := sorted(claims.keys() & mine.keys()):
            raise SparseFileError(f"{path} holds {quote(twice[0])}, which another file holds too.")
        if changed and opened.changed:
            raise SparseFileError(f"{path} changes sizes, which another file does too.")
        claims |= mine
        changed = changed or opened.changed
    return claims, changed


def fit_shards_(
    paths: Sequence[Path], into: nn.Module, *, at_most: int | None = None
) -> ChangedSizes:
    """Give a fresh model, which may be on the device `meta`, the dtypes of the files; raise an
    error if they do not fit it. Returns the sizes to set.
    """
    claims, changed = claims_of(paths, at_most=at_most)
    rename = name_with(into, changed)
    dtypes = {name: claim.dtype for name, claim in claims.items() if claim.is_floating_point()}
    state = into.state_dict(keep_vars=True)
    converted = {
        tensor: dtypes[new]
        for old, tensor in state.items()
        if tensor.is_floating_point() and (new := rename(old)) in dtypes
    }
    for tensor, dtype in converted.items():
        tensor.data = tensor.data.to(dtype)
    check_fit(into, claims, paths[0].parent, narrow=True, changed=changed)
    return changed


def check_file(path: str | os.PathLike[str], model: nn.Module) -> None:
    """Raise an error if a file does not fit a model (meta device allowed); decode nothing."""
    opened = open_sparse(read_container(Path(path)))
    claims, changed = _claims(opened.described), opened.changed
    check_fit(model, claims, opened.path, narrow=True, changed=changed)


def is_sparse_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file says that it is a sparse one; False if it is not a safetensors file."""
    try:
        return read_container(Path(path)).is_sparse
    except SparseFileError:
        return False


def notes_of(path: str | os.PathLike[str]) -> dict[str, str]:
    """The notes of a safetensors file, sparse or not, without its tensors."""
    held = read_container(Path(path))
    return about(open_sparse(held))["notes"] if held.is_sparse else dict(held.header.metadata)


def unpack_sparse(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    at_most: int | None = None,
) -> Path:
    """Write the dense safetensors file of a sparse one: tied tensors once, under their first names,
    notes kept."""
    file = read_sparse(path, at_most=at_most)
    metadata = {"format": "pt"} | {key: text for key, text in file.notes.items() if key != "format"}
    entries = {
        name: (NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in file.tensors.items()
    }
    words = (to_words(tensor, KINDS[NAMES[tensor.dtype]]) for tensor in file.tensors.values())
    header = begin_file(header_fields(metadata, entries), compact=True, ascii=False)
    with replacing(Path(out), error=SparseFileError) as part, part.open("wb") as opened:
        opened.writelines(itertools.chain([header], (w.tobytes() for w in words)))
    return Path(out)


def _state(held: Container, at_most: int | None) -> dict[str, Tensor]:
    """The tensors under all their names, for any kind of file."""
    if held.is_sparse:
        opened = open_sparse(held, at_most=at_most)
        tensors = decode(opened)
        return tensors | {alias: tensors[first] for alias, first in opened.described.ties.items()}
    if held.format.startswith("secateurs.masks"):
        raise SparseFileError(f"{held.path} holds masks, not weights: read it with load_masks.")
    packed = packed_weights(held.header.entries)
    parts = {part.name for weight in packed for part in weight.parts.values()}
    dense = {
        entry.name: _dense(entry, held.data(entry), held.path)
        for entry in held.header.entries
        if entry.name not in parts
    }
    for weight in packed:
        if weight.weight in dense:
            raise SparseFileError(f"{held.path} holds {quote(weight.weight)} twice.")
        dense[weight.weight] = _unpacked(weight, held)
    return (
        # torch.nn.utils.prune keeps weight_orig and weight_mask instead of weight.
        from_torch_prune(dense).state if any(name.endswith("_orig") for name in dense) else dense
    )


def _claims(described: Description) -> dict[str, Tensor]:
    """Tensors without values, of the shapes and dtypes that a description claims."""
    named = {line.name: line for line in described.lines if line.name}
    named |= {alias: named[first] for alias, first in described.ties.items()}
    return {
        # On the meta device no memory is taken for what a file merely claims.
        n: torch.empty(x.shape, dtype=KINDS[x.dtype].dtype, device="meta")
        for n, x in named.items()
    }


def _unpacked(weight: PackedWeight, held: Container) -> Tensor:
    shape = shape_of(weight, held.data, held.path)
    # Its values, with the sizes of the whole.
    whole = replace(weight.parts["compressed"], name=weight.weight, shape=shape)
    return _dense(whole, unpack_weight(weight, held.data, held.path), held.path)


def _dense(entry: StoredTensor, data: bytes | memoryview, path: Path) -> Tensor:
    if entry.dtype not in KINDS:
        raise SparseFileError(
            f"{path}: {quote(entry.name)} has dtype {entry.dtype}, which is not supported."
        )
    dtype = KINDS[entry.dtype].dtype
    # frombuffer refuses an empty buffer.
    if not entry.total:
        return torch.zeros(entry.shape, dtype=dtype)
    # A copy that can be written to, which the bytes of the file cannot.
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(entry.shape)
