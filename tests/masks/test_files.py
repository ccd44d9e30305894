"""Masks on disk: round trips, what other readers see, and files that lie."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from masks.grid import equal
from secateurs import apply_, hold, prune_
from secateurs.errors import MaskError, MaskFileError
from secateurs.masks import load_masks, save_masks, select


def some_masks() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(2)
    shapes = {
        "z.last": (3, 3, 3),
        "a": (8,),
        "µ": (7, 1),
        "scalar": (),
        "none": (0, 5),
        "nine": (9,),
        "b": (16, 2),
    }
    return {name: torch.rand(shape, generator=g) < 0.5 for name, shape in shapes.items()}


def test_round_trip_keeps_order_shapes_and_bits(tmp_path):
    save_masks(some_masks(), tmp_path / "m.safetensors")
    assert equal(load_masks(tmp_path / "m.safetensors"), some_masks())


def test_one_bit_per_entry_and_readable_by_safetensors(tmp_path):
    mask = torch.rand(1000, 80) < 0.3
    save_masks({"w": mask.T.contiguous().T}, tmp_path / "m")
    assert (tmp_path / "m").stat().st_size < 10_000 + 400
    packed = load_file(tmp_path / "m")["w"]
    bits = (packed[:, None] >> torch.arange(8)).bitwise_and(1).flatten().bool()
    assert torch.equal(bits.view(1000, 80), mask)


def test_saving_is_deterministic_and_replaces_whole_files(tmp_path):
    for _ in range(2):
        save_masks(some_masks(), tmp_path / "one")
    save_masks(some_masks(), tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with pytest.raises(MaskError, match="not w"):
        save_masks({"w": torch.ones(3)}, tmp_path / "one")
    assert equal(load_masks(tmp_path / "one"), some_masks())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_names_and_shapes_are_checked_against_the_model(tmp_path):
    model = nn.Linear(4, 4)
    save_masks(select({"weight": torch.rand(4, 4)}, density=0.5), tmp_path / "m")
    assert load_masks(tmp_path / "m", model)["weight"].sum() == 8
    with pytest.raises(
        MaskError,
        match=r"'weight' has shape \(5, 4\), but its mask has shape \(4, 4\)",
    ):
        load_masks(tmp_path / "m", nn.Linear(4, 5))
    with pytest.raises(MaskError, match="no parameter 'weight'"):
        load_masks(tmp_path / "m", nn.Sequential(model))


def header_and_body(blob: bytes) -> tuple[dict, bytes]:
    length = int.from_bytes(blob[:8], "little")
    return json.loads(blob[8 : 8 + length]), blob[8 + length :]


def joined(header: str | bytes | dict, body: bytes) -> bytes:
    text = (
        header
        if isinstance(header, bytes)
        else (header if isinstance(header, str) else json.dumps(header)).encode()
    )
    return len(text).to_bytes(8, "little") + text + body


def forged(blob: bytes):
    """Files made by someone who knows the format."""
    header, body = header_and_body(blob)

    def changed(name, **fields):
        return joined({**header, name: {**header[name], **fields}}, body)

    def metadata(**fields):
        return joined({**header, "__metadata__": {**header["__metadata__"], **fields}}, body)

    text = json.dumps(header)
    yield joined(
        text[:-1] + ', "a": {"dtype": "U8", "shape": [1], "data_offsets": [4, 5]}}',
        body,
    )
    yield joined(text.replace('"__metadata__"', '"__metadata__": {}, "__metadata__"', 1), body)
    yield joined(
        text[:-1] + ', "x": {"dtype": "U8", "dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}',
        body,
    )
    yield from (
        changed("a", data_offsets=offsets)
        for offsets in ([0, 1], [-1, 0], [4, 10**18], [5, 4], [4], "45", None)
    )
    yield from (
        changed("a", data_offsets=offsets)
        for offsets in ([True, 1], [4.0, 5.0], [4, 5, 6], [None, 5])
    )
    yield from (changed("a", dtype=dtype) for dtype in ("F32", "BOOL", 1, None, ["U8"]))
    yield from (
        changed("a", shape=shape) for shape in ([8], [], [-1], [1, 1], [True], None, [2**63])
    )
    yield changed("a", extra=1)
    yield from (joined({**header, "a": field}, body) for field in (None, [], 3, "U8"))
    yield joined({key: value for key, value in header.items() if key != "a"}, body)
    yield joined({key: value for key, value in header.items() if key != "__metadata__"}, body)
    yield from (joined({**header, "__metadata__": value}, body) for value in (None, [], "x", 7))
    shapes = json.loads(header["__metadata__"]["shapes"])
    for shape in (
        [4, 2],
        [9],
        [2**31, 2**31],
        [-8],
        [8.0],
        [True],
        "8",
        None,
        [1] * 17,
        [0, 2**60],
        [[8]],
        [10**400],
    ):
        yield metadata(shapes=json.dumps({**shapes, "a": shape}))
    yield metadata(shapes=json.dumps({**shapes, "more": [1]}))
    yield from (
        metadata(shapes=value)
        for value in ("", "[]", "{", "null", "[" * 100_000, "\ud800", 5, None, "NaN")
    )
    yield from (metadata(seal=value) for value in ("", "0" * 32, None, 5))
    yield from (metadata(format=value) for value in ("secateurs.masks/2", "", None))
    yield joined(text, body + b"\0")
    yield joined(text, body[:-1])
    yield joined(text, body[::-1])
    yield joined(text, body + body)
    yield from (
        joined(value, body)
        for value in (
            "",
            "[]",
            "null",
            "{}",
            "[" * 200_000,
            "1" * 10_000,
            "{" + '"a":{' * 50_000,
        )
    )
    yield from (
        joined(value, b"") for value in (b"\xff\xfe{}", b"{}", b"\0" * 16, b'{"\\ud800": 1}')
    )
    yield from (
        n.to_bytes(8, "little") + blob[8:]
        for n in (0, 1, 2**63, 2**64 - 1, len(blob), len(blob) - 8, 2**27)
    )
    spare = bytearray(body)
    spare[-1] ^= (
        # nothing uses the last bits of "nine" and "µ"; whichever byte this is, the seal or the bits
        # object
        0x80
    )
    yield joined(text, bytes(spare))
    yield b""
    yield b"\x80\x04\x95pickle"
    yield b"PK\x03\x04" + blob


def mutated(blob: bytes):
    """Every truncation, every byte changed, and random damage."""
    yield from (blob[:length] for length in range(len(blob)))
    yield from (
        blob[:i] + bytes([blob[i] ^ (1 << (i % 8))]) + blob[i + 1 :] for i in range(len(blob))
    )
    chance = random.Random(0)
    for _ in range(500):
        damaged = bytearray(blob)
        for _ in range(chance.choice((1, 2, 8, 40))):
            kind, i = chance.randrange(3), chance.randrange(len(damaged))
            if kind == 0:
                damaged[i] = chance.randrange(256)
            elif kind == 1:
                del damaged[i : i + chance.randrange(1, 9)]
            else:
                damaged[i:i] = bytes(
                    chance.choices(b'{}[]",:0123456789\\ue', k=chance.randrange(1, 9))
                )
        yield bytes(damaged)


@pytest.mark.parametrize("kind", [forged, mutated])
def test_damaged_and_hostile_files_are_refused_or_mean_the_same(tmp_path, kind):
    """Over 2,000 files: MaskFileError, or exactly the masks that were saved (a space for a space in
    the header).
    """
    save_masks(some_masks(), tmp_path / "m")
    blob, tried, refused = (tmp_path / "m").read_bytes(), 0, 0
    for damaged in kind(blob):
        (tmp_path / "d").write_bytes(damaged)
        tried += 1
        try:
            masks = load_masks(tmp_path / "d")
        except MaskFileError as error:
            refused += 1
            assert str(error).startswith(str(tmp_path)), "the message names the file"
        else:
            assert equal(masks, some_masks())
    assert tried >= (80 if kind is forged else 1500)
    assert refused >= 0.98 * tried


def test_even_a_seal_made_anew_does_not_help_bits_after_the_end(tmp_path, monkeypatch):
    from secateurs.masks import files

    monkeypatch.setattr(files, "pack", lambda mask: b"\xff")
    save_masks({"seven": torch.ones(7, dtype=torch.bool)}, tmp_path / "m")
    with pytest.raises(MaskFileError, match="after the last entry"):
        load_masks(tmp_path / "m")


def test_foreign_and_missing_files(tmp_path):
    save_file({"w": torch.ones(3)}, tmp_path / "weights")
    with pytest.raises(MaskFileError, match="weights: not a mask file of this library"):
        load_masks(tmp_path / "weights")
    with pytest.raises(MaskFileError, match="missing cannot be read"):
        load_masks(tmp_path / "missing")
    with pytest.raises(MaskFileError, match="cannot be read"):
        load_masks(tmp_path)


def wrapped(kind):
    model = nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.Linear(3, 2)))
    if kind == "compiled":
        return torch.compile(model)
    if kind == "a part compiled":
        model[1] = torch.compile(model[1])
    if kind == "averaged":
        return torch.optim.swa_utils.AveragedModel(model)
    return model


KINDS = ["plain", "compiled", "a part compiled", "averaged"]


@pytest.mark.parametrize("there", KINDS)
@pytest.mark.parametrize("here", KINDS)
def test_masks_go_from_any_wrapper_into_any_other(tmp_path, here, there):
    first, second = wrapped(here), wrapped(there)
    masks = prune_(first, "magnitude", sparsity=0.5).masks
    save_masks(masks, tmp_path / "m")
    loaded = load_masks(tmp_path / "m", second)
    known = dict(second.named_parameters())
    assert [*loaded] == [name for name in known if name.endswith("weight")]
    assert equal(dict(zip(masks, loaded.values(), strict=True)), masks)
    for given in (loaded, load_masks(tmp_path / "m"), masks):
        apply_(second, given)
        hold(second, given, torch.optim.SGD(second.parameters(), lr=0.1)).release()
        prune_(second, "magnitude", sparsity=0.6, within=given)


def test_the_names_in_a_file_are_those_before_compiling(tmp_path):
    save_masks(prune_(wrapped("compiled"), "magnitude", sparsity=0.5), tmp_path / "m")
    assert set(load_masks(tmp_path / "m")) == {"0.weight", "1.0.weight"}
    both = {"_orig_mod.w": torch.ones(1) > 0, "w": torch.zeros(1) > 0}
    save_masks(both, tmp_path / "m")
    assert equal(load_masks(tmp_path / "m"), both)
