"""Sparse files with faults, made from honest ones: cut, flipped, or forged under a right seal."""

import json
import zlib
from dataclasses import replace
from pathlib import Path

import torch

from secateurs.files import save_sparse
from secateurs.files.description import (
    SEAL,
    WORDS,
    container_header,
    deflate,
    pack,
    seal_of,
    unpack,
)

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


def data_of(blob):
    """Description and streams."""
    return blob[8 + int.from_bytes(blob[:8], "little") + SEAL :]


def text_of(blob):
    """The text of the description, and the streams behind it."""
    machine = zlib.decompressobj(-15, zdict=WORDS)
    return machine.decompress(data_of(blob)).decode(), machine.unused_data


def taken_apart(blob):
    """The description and the five streams of an honest file."""
    data = data_of(blob)
    described, position = unpack(memoryview(data), Path("honest"))
    streams = []
    for length in described.streams:
        streams.append(data[position : position + length])
        position += length
    return described, streams


def forged(described, streams, *, recount=True):
    """A sealed file of this description and these streams."""
    if recount:
        described = replace(described, streams=tuple(map(len, streams)))
    return sealed([pack(described), *streams])


def sealed(parts):
    """A file of these data whose SHA-256 is right."""
    return container_header(seal_of(parts), sum(map(len, parts))) + b"".join(parts)


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


def with_text(blob, change):
    """The same file with another text of its description."""
    text, streams = text_of(blob)
    return sealed([deflate(change(text).encode("utf-8", "surrogatepass"), 9), streams])


def bit_flipped(blob, place):
    """One bit changed."""
    changed = bytearray(blob)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def flipped_and_sealed(blob, place):
    """One bit of the data changed, and the SHA-256 made right again."""
    return sealed([bit_flipped(data_of(blob), place)])
