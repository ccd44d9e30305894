"""Over 600 malformed files: all refused with the file and the tensor named, in bounded memory."""

import json
import tracemalloc
import zlib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from files import forging
from files.forging import (
    NAME,
    forged,
    taken_apart,
    with_header,
    with_line,
    with_text,
)
from secateurs.errors import ArgumentError, SparseFileError
from secateurs.files import load_sparse, read_sparse, save_sparse
from secateurs.files.coding import Coding
from secateurs.files.description import deflate

CUTS, FLIPS, SEALED_FLIPS = 120, 250, 200


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return forging.honest(tmp_path_factory.mktemp("honest"))


def refused(blob, path, read=read_sparse):
    """The message with which a file is refused."""
    path.write_bytes(blob)
    with pytest.raises(SparseFileError) as caught:
        read(path)
    message = str(caught.value)
    assert str(path) in message
    assert len(message) < 600
    return message


def test_the_honest_file_is_read(honest, tmp_path):
    path = tmp_path / "m"
    path.write_bytes(honest)
    codings = {line.name: line.coding for line in taken_apart(honest)[0].lines}
    assert codings["lines"].grid is not None
    assert codings["half"].k == -1 and codings["bias"].k == -2 and codings[NAME].k > 0
    assert read_sparse(path).ties == {"tied": NAME}


def test_cut_files_are_refused(honest, tmp_path):
    for length in np.linspace(0, len(honest) - 1, CUTS).astype(int):
        refused(honest[:length], tmp_path / "cut")


def test_longer_files_are_refused(honest, tmp_path):
    refused(honest + b"\0", tmp_path / "long")
    described, streams = taken_apart(honest)
    for i in range(5):
        longer = [part + b"\0" * (j == i) for j, part in enumerate(streams)]
        refused(forged(described, longer), tmp_path / "long")


def test_flipped_bits_are_refused(honest, tmp_path):
    for place in np.linspace(0, 8 * len(honest) - 1, FLIPS).astype(int):
        refused(forging.bit_flipped(honest, int(place)), tmp_path / "flipped")


@pytest.mark.parametrize("values", ["exact", "int8"])
def test_flipped_bits_under_a_right_seal_change_nothing_unnoticed(values, tmp_path):
    """Only bits that mean nothing, such as those after the end of a zlib stream, may differ."""
    honest, path = forging.honest(tmp_path, values), tmp_path / "flipped"
    path.write_bytes(honest)
    state, noticed = read_sparse(path).state, 0
    size = 8 * len(forging.data_of(honest))
    for place in np.linspace(0, size - 1, SEALED_FLIPS // 2).astype(int):
        path.write_bytes(forging.flipped_and_sealed(honest, int(place)))
        try:
            found = read_sparse(path).state
        except SparseFileError as error:
            noticed += str(path) in str(error)
        else:
            assert all(torch.equal(found[name], value) for name, value in state.items())
    assert noticed >= 0.95 * (SEALED_FLIPS // 2)


def test_a_damaged_value_names_its_tensor(honest, tmp_path):
    # A mantissa of the last float.
    flipped = forging.bit_flipped(honest, 8 * (len(honest) - 1))
    assert "'last'" in refused(flipped, tmp_path / "m")


def entry(start, end, shape=None, dtype="U8"):
    return {
        "dtype": dtype,
        "shape": shape or [end - start],
        "data_offsets": [start, end],
    }


NOW = "secateurs.sparse/3"


def headers(length):
    """Headers that must be refused, by what is wrong with them, with what the message says."""
    whole = entry(0, length)
    yield {NOW: entry(0, length, dtype="U9")}, f"'{NOW}' has the unknown"
    yield {NOW: entry(0, length, dtype="F32")}, f"'{NOW}' claims F32"
    yield {NOW: entry(0, length // 4, dtype="F32")}, "claims F32"
    yield {NOW: entry(0, length, [length + 1])}, f"'{NOW}' claims U8"
    for shape in ([-1], [length, 1.0], [True], [1 << 70], [1] * 100):
        yield {NOW: entry(0, length, shape)}, f"shape of '{NOW}'"
    yield {NOW: entry(0, length + 5)}, "ends at byte"
    yield {NOW: entry(5, length)}, "overlap or gap"
    yield {NOW: entry(0, length - 5)}, "but describes"
    yield {NOW: whole, "other": entry(3, 9)}, "overlap or gap"
    yield {NOW: {**whole, "more": 1}}, f"'{NOW}' is not described by"
    yield {NOW: 7}, f"'{NOW}' is not described by"
    yield {"other": whole}, "is not a sparse file"
    yield {"../sparse": whole}, "path out of its folder"
    yield {"a" * 1_000_000: whole}, "a name of 1000000 characters"
    for other in ("secateurs.sparse/1", "secateurs.sparse/4"):
        yield {other: whole}, "this version reads"
        yield {"__metadata__": {"format": other}, "sparse": whole}, "this version reads"
    yield {"__metadata__": {"format": NOW}, "sparse": whole}, "is not a sparse file"
    yield {"__metadata__": {"format": "pt"}, NOW: whole}, "is not a sparse file"
    yield {"__metadata__": {"format": 1}, NOW: whole}, "not a table of texts"
    yield {"__metadata__": [], NOW: whole}, "not a table of texts"
    yield {NOW: whole}, "damaged in its header"
    yield [NOW], "not a JSON object"
    yield b'{"__metadata__":{},"sparse":{},"sparse":{}}', "'sparse' is given twice"
    yield b'{"a":{"dtype":"U8","dtype":"U8"}}', "'dtype' is given twice"
    yield b'{"\\ud800":1}', "not valid JSON"
    yield b"[" * 60_000, "not valid JSON"
    yield b"\xff\xfe", "not valid JSON"
    yield b"{}" * 70_000, "more than 65536"
    yield {NOW: whole} | {f"t{i}": entry(0, 0, [0]) for i in range(100_000)}, "more than 65536"


def test_headers_that_lie_are_refused(honest, tmp_path):
    length = len(honest) - 8 - int.from_bytes(honest[:8], "little")
    for header, message in headers(length):
        assert message in refused(with_header(honest, header), tmp_path / "header")


def lines():
    """Changes of the line of one tensor that must be refused under its name."""
    yield {"kept": 10**9}
    yield {"kept": -1}
    yield {"kept": 119}
    yield {"kept": 1.5}
    yield {"kept": True}
    yield {"shape": (30, 41)}
    yield {"shape": (30, 40, 10**6, 10**9)}
    yield {"shape": (1200,)}
    yield {"shape": (-30, -40)}
    yield {"dtype": "F64"}
    yield {"dtype": "F16"}
    yield {"dtype": "I32"}
    yield {"dtype": "C64"}
    yield {"dtype": "U32"}
    yield {"dtype": 4}
    yield {"digest": "0" * 16}
    yield {"digest": "0"}
    yield {"stored": "BF16"}
    yield {"stored": "I8"}
    yield {"stored": "F64"}
    for k in (-3, -2, -1, 0, 1, 2, 4, 5, 20, 47, 48, 1.0, "2"):
        yield {"coding": Coding(k=k)}
    for grid in ((30, 40), (0, 0), (30, 41), (31, 40), (-1, 4), (1 << 40, 1 << 40)):
        yield {"coding": Coding(k=3, grid=grid)}


@pytest.mark.parametrize("changes", list(lines()), ids=str)
def test_lines_that_lie_are_refused(changes, honest, tmp_path):
    message = refused(with_line(honest, **changes), tmp_path / "line")
    streams = "are not what the tensors claim"  # counts that fit no stream accuse the sum, not one
    assert any(text in message for text in (NAME, streams, "'lines'", "digests are not"))


def bad_names():
    yield from (
        "",
        "../up",
        "a/../b",
        "/root",
        "..\\up",
        "a\x00b",
        "a\nb",
        "__metadata__",
        "bias",
    )
    yield from ("n" * 1025, "n" * 1_000_000, "\u202e")


@pytest.mark.parametrize("name", list(bad_names()), ids=lambda name: ascii(name[:12]))
def test_names_that_are_none_are_refused(name, honest, tmp_path):
    assert "line" in refused(with_line(honest, name=name), tmp_path / "line")


def texts(text):
    """Texts of a description that must be refused."""
    first, *rest = text.split("\n")
    counts = json.loads(first)
    for changes in (
        {"lines": 10**9},
        {"lines": 100_000},
        {"lines": -1},
        {"lines": 3},
        {"lines": 1e1},
        {"ties": 2},
        {"ties": 0},
        {"streams": [1, 2, 3]},
        {"streams": [0] * 5},
        {"streams": [1 << 60] * 5},
        {"streams": [-1, *counts["streams"][1:]]},
        {"streams": "12345"},
        {"more": 1},
        {"digests": counts["digests"][1:] + "g"},
        {"digests": counts["digests"] + "0000"},
        {"digests": 7},
        # A number with as many digits as there should be.
        {"digests": int("1" * len(counts["digests"]))},
    ):
        yield "\n".join([json.dumps({**counts, **changes}), *rest])
    yield from ("", "[]", "7", first, "\n".join(rest), text.replace("\n", " "))
    yield text.replace(NAME, "half", 1)
    yield text.replace(f'["tied","{NAME}"]', '["tied","nobody"]')
    yield text.replace(f'["tied","{NAME}"]', f'["half","{NAME}"]')
    yield text.replace(f'["tied","{NAME}"]', f'["../up","{NAME}"]')
    yield text.replace(f'["tied","{NAME}"]', '["tied",{}]')
    yield text.replace(f'["tied","{NAME}"]', '["tied"]')
    yield text.replace('"F32"', '"F32"' + " " * 70_000, 1)
    yield text.replace('["', "[" * 5000 + '["', 1)
    yield text.replace('"F32"', '"\ud800"', 1)
    yield "\n".join([*text.split("\n")[:-1], "[1]"])
    yield "\n".join([*text.split("\n")[:-1], '{"notes":7}'])
    yield "\n".join([*text.split("\n")[:-1], '{"notes":'])


def test_descriptions_that_lie_are_refused(honest, tmp_path):
    whole, _ = forging.text_of(honest)
    changed = [text for text in texts(whole) if text != whole]
    assert len(changed) > 28
    for text in changed:
        refused(with_text(honest, lambda _, text=text: text), tmp_path / "text")


def test_streams_of_other_lengths_or_contents_are_refused(honest, tmp_path):
    described, streams = taken_apart(honest)
    for i, stream in enumerate(streams):
        for other in (
            b"",
            stream[:-1],
            bytes(len(stream)),
            b"\xff" * len(stream),
            stream[::-1],
        ):
            changed = [other if j == i else part for j, part in enumerate(streams)]
            refused(forged(described, changed), tmp_path / "stream")
            refused(forged(described, changed, recount=False), tmp_path / "stream")


def test_top_bytes_that_unpack_too_long_or_short_are_refused(honest, tmp_path):
    described, streams = taken_apart(honest)
    tops = zlib.decompress(streams[3], -15)
    for other in (tops + b"\0", tops[:-1], tops * 1000, b""):
        changed = [*streams[:3], zlib.compress(other, wbits=-15), streams[4]]
        refused(forged(described, changed), tmp_path / "tops")
    refused(
        forged(described, [*streams[:3], streams[3] + streams[3], streams[4]]),
        tmp_path / "tops",
    )


def test_random_bytes_are_refused(tmp_path):
    draw = np.random.default_rng(0)
    for length in (0, 1, 7, 8, 9, 10, 100, 10_000):
        for _ in range(3):
            blob = draw.bytes(length)
            refused(blob, tmp_path / "noise")
            refused(len(blob).to_bytes(8, "little") + blob, tmp_path / "noise")


def peak(read, path):
    """The most memory that Python and numpy held while a file was refused."""
    tracemalloc.start()
    try:
        with pytest.raises(SparseFileError):
            read(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


SPARE = 4 << 20  # modules, messages and the smallest blocks


def bombs(honest):
    """Small files that claim or unpack to much, large ones that hold nothing; the tensors named."""
    described, streams = taken_apart(honest)
    packed = partial(deflate, level=9)
    zeros = zlib.compress(bytes(1 << 26), 9, wbits=-15)
    counts = {"streams": [0] * 5, "lines": 1, "ties": 0, "digests": "0000"}
    first = json.dumps(counts, separators=(",", ":")).encode() + b"\n"
    yield forging.sealed([packed(bytes(1 << 26))]), 0
    yield forging.sealed([packed(first + b" " * (1 << 26))]), 0
    yield forging.sealed([packed(b"[" * (1 << 24))]), 0
    yield forged(described, [*streams[:3], zeros, streams[4]]), 7
    yield with_line(honest, shape=(1 << 20, 1 << 20), kept=0, coding=Coding(k=0)), 7
    yield with_line(honest, shape=(1 << 46,), coding=Coding(k=40)), 7
    line = next(line for line in described.lines if line.name == NAME)
    many = tuple(replace(line, name=f"n{i}") for i in range(10_000))
    yield forged(replace(described, lines=many, ties={}), streams), len(many)
    header = {"__metadata__": {}, "x": entry(0, 1 << 24)}
    yield with_header(bytes(8) + bytes(1 << 24), header), 1
    yield (1 << 40).to_bytes(8, "little") + bytes(1 << 24), 0


def test_bombs_are_refused_in_bounded_memory(honest, tmp_path):
    """At most twice the file, and a kilobyte for every tensor that it names."""
    path = tmp_path / "bomb"
    for blob, named in bombs(honest):
        path.write_bytes(blob)
        assert peak(read_sparse, path) < 2 * len(blob) + 1024 * named + SPARE


def test_a_file_larger_than_the_model_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / "large"
    save_sparse({"weight": torch.zeros(3000, 3000), "bias": torch.zeros(3)}, path)
    assert peak(lambda p: load_sparse(p, into=torch.nn.Linear(3, 3)), path) < SPARE


def test_claims_beyond_the_limit_want_consent(tmp_path):
    path = tmp_path / "zeros"
    save_sparse({"weight": torch.zeros(2000, 2000)}, path)
    with pytest.raises(SparseFileError, match="'weight' \\[2000, 2000\\].*at_most="):
        read_sparse(path, at_most=10**6)
    assert read_sparse(path, at_most=10**8).sizes.kept == 0


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SparseFileError, match="missing cannot be read: No such file"):
        read_sparse(tmp_path / "missing")


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
@pytest.mark.parametrize("old", [False, True], ids=["archive", "bare pickle"])
def test_a_pickle_is_refused_with_the_lines_that_convert_it(tmp_path, monkeypatch, name, old):
    monkeypatch.chdir(tmp_path)
    layer = nn.Linear(3, 2)
    state = layer.state_dict()
    torch.save(state, name, _use_new_zipfile_serialization=not old)
    with pytest.raises(SparseFileError, match="is a pickle") as refused:
        load_sparse(name)
    for into in (None, nn.Linear(3, 2)):
        with pytest.raises(SparseFileError, match="is a pickle"):
            load_sparse(name, into)
    # What is printed does what it says.
    exec(str(refused.value).partition(":\n")[2].replace("\n    ", "\n").strip())
    again = load_sparse("model.safetensors")
    assert all(torch.equal(state[key], again[key]) for key in state)


def test_a_class_is_no_model(tmp_path):
    save_sparse(nn.Linear(3, 2), tmp_path / "f")
    with pytest.raises(ArgumentError, match=r"the class Linear.*Linear\(\.\.\.\)"):
        load_sparse(tmp_path / "f", into=nn.Linear)
    with pytest.raises(ArgumentError, match="a int"):
        load_sparse(tmp_path / "f", into=3)
