"""Sparse files with faults, made from honest ones: cut, flipped, or forged under a right seal."""

import json
import zlib
from dataclasses import replace
from pathlib import Path

import torch

from secateurs.base.untrusted import parse_header
from secateurs.files import save_sparse
from secateurs.files.description import (
    COMPACT,
    PLAIN,
    SEAL,
    WORDS,
    container_header,
    deflate,
    digest_of,
    pack,
    seal_of,
    unpack,
)
from secateurs.files.read import Container, read_sparse

NAME = "fc.weight"


def honest(folder, values="exact"):
    """The bytes of a small honest file with every kind of coding in it."""
    draw = torch.Generator().manual_seed(0)
    scattered = torch.randn(30, 40, generator=draw)
    scattered[torch.rand(30, 40, generator=draw) < 0.9] = 0
    lines = torch.randn(60, 50, generator=draw)
    lines[torch.rand(60, generator=draw) < 0.8] = 0
    lines[torch.rand(60, 50, generator=draw) < 0.9] = 0
    half = torch.randn(9, 9, generator=draw)
    half[torch.rand(9, 9, generator=draw) < 0.5] = 0
    state = {
        NAME: scattered,
        "lines": lines,
        "half": half,
        "bias": torch.randn(30, generator=draw),
    }
    state |= {"count": torch.tensor(3), "zero": torch.zeros(5), "tied": scattered}
    state["last"] = torch.randn(20, generator=draw)
    path = Path(folder) / "honest.safetensors"
    save_sparse(state, path, values=values, certificate={"bound": 1.0}, notes={"arch": "none"})
    return path.read_bytes()


def older(blob, path):
    """The same file in version 1, which is no longer written."""
    path.write_bytes(blob)
    tensors = read_sparse(path).tensors
    described, streams = taken_apart(blob)
    lines = [
        replace(line, digest=digest_of(line.name, tensors[line.name])) for line in described.lines
    ]
    machine = zlib.compressobj(9, zlib.DEFLATED, 15, 9, zlib.Z_HUFFMAN_ONLY)
    streams[3] = machine.compress(zlib.decompress(streams[3], -15)) + machine.flush()
    return forged(replace(described, lines=tuple(lines), compact=False), streams)


def version(blob):
    """What a file says it is."""
    path = Path("honest")
    return Container(
        path=path, blob=memoryview(blob), header=parse_header(blob, path, ValueError)
    ).format


def data_of(blob):
    """Description and streams."""
    seal = SEAL if version(blob) == COMPACT else 0
    return blob[8 + int.from_bytes(blob[:8], "little") + seal :]


def text_of(blob):
    """The text of the description, and the streams behind it."""
    compact = version(blob) == COMPACT
    machine = zlib.decompressobj(-15, zdict=WORDS) if compact else zlib.decompressobj()
    return machine.decompress(data_of(blob)).decode(), machine.unused_data


def taken_apart(blob):
    """The description and the five streams of an honest file."""
    data = data_of(blob)
    described, position = unpack(memoryview(data), Path("honest"), compact=version(blob) == COMPACT)
    streams = []
    for length in described.streams:
        streams.append(data[position : position + length])
        position += length
    return described, streams


def forged(described, streams, *, recount=True):
    """A sealed file of this description and these streams."""
    if recount:
        described = replace(described, streams=tuple(map(len, streams)))
    format = COMPACT if described.compact else PLAIN
    return sealed([pack(described), *streams], format)


def sealed(parts, format=COMPACT):
    """A file of these data whose SHA-256 is right."""
    return container_header(format, seal_of(parts), sum(map(len, parts))) + b"".join(parts)


def with_header(blob, header):
    """The data of a file under another header (a mapping or bytes)."""
    data = blob[8 + int.from_bytes(blob[:8], "little") :]
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def with_line(blob, **changes):
    """The same file with another line for the tensor NAME."""
    described, streams = taken_apart(blob)
    lines = tuple(
        replace(line, **changes) if line.name == NAME else line for line in described.lines
    )
    return forged(replace(described, lines=lines), streams)


def with_text(blob, change, format=None):
    """The same file with another text of its description."""
    text, streams = text_of(blob)
    changed = change(text).encode("utf-8", "surrogatepass")
    format = format or version(blob)
    return sealed([deflate(changed, 9, compact=format == COMPACT), streams], format)


def bit_flipped(blob, place):
    """One bit changed."""
    changed = bytearray(blob)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def flipped_and_sealed(blob, place):
    """One bit of the data changed, and the SHA-256 made right again."""
    return sealed([bit_flipped(data_of(blob), place)], version(blob))
