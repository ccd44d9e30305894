"""Checkpoints of bit masks (compressed-tensors) made plain, and configurations without the entry
that described them."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from secateurs.base.json_object import json_object
from secateurs.base.progress import Progress, show_progress
from secateurs.base.safefile import replacing
from secateurs.base.untrusted import StoredTensor, begin_file, read_header, size_in_bytes
from secateurs.errors import DataError
from secateurs.files.bitmask import PackedWeight, packed_weights, shape_of, unpack_weight
from secateurs.llm.shards import (
    INDEX,
    Shard,
    Stored,
    check_out,
    new_folder,
    open_stored,
)

CONFIG = "config.json"
_HOLDERS = ("quantization_config", "compression_config")
"""The entries of a configuration in which compressed-tensors keeps its own."""


def unpack_bitmasks(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
) -> tuple[str, ...]:
    """Write the plain checkpoint of one whose weights compressed-tensors packed with bit masks.

    Kinds `sparse-bitmask` and `sparse-24-bitmask`: NAME.compressed, NAME.bitmask, NAME.shape and
    NAME.row_offsets become NAME.weight, bit for bit; every other tensor stays as it is. A copied
    `config.json` loses its `sparsity_config`, see `strip_sparsity_config`.

    Args:
        source: a safetensors file, or a folder with one or with an index.
        out: a file for a file, a new folder for a folder.
        progress: called with each weight's name as it is written.

    Returns the names of the weights that were packed. One tensor is in memory at a time.

    Raises:
        DataError: a pickle, a damaged or foreign file.
        SparseFileError: a packed weight that does not fit its mask. Nothing is written then.
    """
    stored, out = open_stored(Path(source)), Path(out)
    check_out(stored, out)
    owners = {entry.name: shard for shard, entry in stored.entries()}

    def read(entry: StoredTensor) -> bytes:
        # The parts of one weight may lie in different files.
        with owners[entry.name].path.open("rb") as file:
            file.seek(entry.start)
            return file.read(entry.stop - entry.start)

    packed = packed_weights(entry for _, entry in stored.entries())
    names = tuple(weight.weight for weight in packed)
    if twice := sorted(owners.keys() & set(names)):
        raise DataError(f"{stored.source} holds {twice[0]!r} both packed and plain.")
    for shard in stored.shards:
        for weight in _of(shard, packed):
            shape_of(weight, read, shard.path)
    with show_progress(progress, "unpack_bitmasks") as say:
        if not stored.source.is_dir():
            with replacing(out) as part:
                _write_plain(stored.shards[0], part, packed, read, say)
            return names
        out.parent.mkdir(parents=True, exist_ok=True)
        places: dict[str, str] = {}
        with new_folder(stored, out) as part:
            for shard in stored.shards:
                held = _write_plain(shard, part / shard.path.name, packed, read, say)
                places |= dict.fromkeys(held, shard.path.name)
            strip_sparsity_config(part)
            if (stored.source / INDEX).exists():
                _write_index(stored, part, places)
        return names


def strip_sparsity_config(folder: str | os.PathLike[str]) -> bool:
    """Remove `sparsity_config` from the `config.json` of a folder; whether there was one.

    Some programs refuse a model that has one, even where the weights are dense. A configuration of
    quantization that was beside it stays; one that described nothing else goes, too.
    """
    path = Path(folder) / CONFIG
    if not path.is_file():
        return False
    config = json_object(path.read_bytes(), str(path), DataError)
    plain = without_sparsity_config(config)
    if plain == config:
        return False
    with replacing(path) as part:
        part.write_text(json.dumps(plain, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return True


def without_sparsity_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without it, at the top and in what compressed-tensors keeps there."""
    plain = {key: value for key, value in config.items() if key != "sparsity_config"}
    for holder in _HOLDERS:
        held = plain.get(holder)
        if isinstance(held, dict) and "sparsity_config" in held:
            rest = {key: value for key, value in held.items() if key != "sparsity_config"}
            if rest.get("config_groups"):
                plain[holder] = rest
            else:
                # What quantizes nothing would still send a loader looking for packed weights.
                del plain[holder]
    return plain


def _of(shard: Shard, packed: list[PackedWeight]) -> list[PackedWeight]:
    mine = {entry.name for entry in shard.header.entries}
    return [weight for weight in packed if weight.parts["compressed"].name in mine]


def _write_plain(
    shard: Shard,
    path: Path,
    packed: list[PackedWeight],
    read: Callable[[StoredTensor], bytes],
    say: Callable[[str], None],
) -> list[str]:
    """One file with the plain tensors of another; returns their names."""
    parts = {part.name for weight in packed for part in weight.parts.values()}
    others = [entry for entry in shard.header.entries if entry.name not in parts]
    mine = _of(shard, packed)
    fields: dict[str, object] = {}
    if shard.header.metadata:
        fields["__metadata__"] = dict(shard.header.metadata)
    end = 0

    def place(name: str, dtype: str, shape: tuple[int, ...], size: int) -> None:
        nonlocal end
        start, end = end, end + size
        fields[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}

    for entry in others:
        place(entry.name, entry.dtype, entry.shape, entry.stop - entry.start)
    for weight in mine:
        shape = shape_of(weight, read, shard.path)
        place(weight.weight, weight.dtype, shape, size_in_bytes(weight.dtype, shape))
    with path.open("wb") as file:
        file.write(begin_file(fields, compact=True, ascii=False))
        for entry in others:
            for chunk in shard.chunks(entry):
                file.write(chunk.numpy().data)
        for weight in mine:
            say(weight.weight)
            file.write(unpack_weight(weight, read, shard.path))
    return [*(entry.name for entry in others), *(weight.weight for weight in mine)]


def _write_index(stored: Stored, part: Path, places: Mapping[str, str]) -> None:
    index = json_object((stored.source / INDEX).read_bytes(), INDEX, DataError)
    headers = [read_header(part / name, DataError) for name in sorted(set(places.values()))]
    size = sum(entry.stop - entry.start for header in headers for entry in header.entries)
    index |= {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))}
    (part / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
