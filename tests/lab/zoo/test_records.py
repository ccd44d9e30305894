"""The zoo's networks are what their records say, and other records are read with suspicion."""

import functools
import json
import os
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.base.prunable import prunable
from secateurs.base.random import generator
from secateurs.cli import main
from secateurs.errors import RecordError, SecateursError
from secateurs_lab import data as sets
from secateurs_lab.models import build
from secateurs_lab.zoo import check, load, names, read_record, record, records_page, write_record
from secateurs_lab.zoo.records import LARGEST_FILE

FOLDER = Path(str(files("secateurs_lab.zoo").joinpath("networks")))
SHAPE = {"in_channels": 1, "classes": 10, "size": 8}


@pytest.fixture(scope="module")
def digits():
    return sets.load("digits")


@pytest.fixture
def handed_in(tmp_path, digits):
    """A record of a network nobody trained, on the digits."""
    model = build("lenet-300-100", **SHAPE, generator=generator(0, "init"))
    sc.prune_(model, "magnitude", compression=20)
    path = write_record(
        model,
        tmp_path,
        name="lenet-300-100/digits/20x",
        architecture="lenet-300-100",
        data=digits,
        method="drawn",
        command="tests/zoo/test_records.py",
        seeds=[0, 1],
        accuracies=[0.1, 0.2],
        balls=digits.test_x[:2],
    )
    return path, model


def changed(path, **values):
    """The record with other values, as text somebody may have written."""
    told = json.loads(path.read_text(encoding="utf-8")) | values
    path.write_text(json.dumps(told), encoding="utf-8")
    return path


def test_a_record_that_is_true_holds(handed_in, digits):
    path, model = handed_in
    found = check(path)
    assert (
        found.holds and not found.open and found.record.compression == pytest.approx(20, rel=0.01)
    )
    again = read_record(path)
    assert again.seeds == (0, 1) and again.kept == sum(
        int(p.count_nonzero()) for p in prunable(model).values()
    )
    assert str(found).startswith("lenet-300-100/digits/20x holds: 20")
    assert found.accuracy == pytest.approx(again.accuracy)


@pytest.mark.parametrize(
    "values, said",
    [
        ({"accuracy": 0.99}, "the accuracy is"),
        ({"kept": 1}, "kept is"),
        ({"total": 10**6}, "total is"),
        ({"data": "nothing"}, "data:"),
        ({"pixels": True, "pad": 1}, "which is not digits"),
        ({"certificate": {"format": "x"}}, "the certificate cannot be read"),
    ],
)
def test_what_is_not_true_is_told(handed_in, values, said):
    found = check(changed(handed_in[0], **values))
    assert not found.holds and said in str(found)


def test_a_certificate_of_another_network_does_not_hold(handed_in):
    path, _ = handed_in
    kept = json.loads(path.read_text(encoding="utf-8"))["certificate"]
    other = record("lenet-300-100/fashion-mnist/50x").certificate
    assert not check(changed(path, certificate=dict(other))).holds
    smaller = {**kept, "bound": kept["bound"] / 2}
    assert not check(changed(path, certificate=smaller)).holds


def test_missing_data_and_certificate_are_left_open(handed_in, monkeypatch, tmp_path):
    path, _ = handed_in
    monkeypatch.setenv("SECATEURS_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))

    def absent(name, **_):
        raise sc.errors.DataError(f"{name} is not here.")

    monkeypatch.setattr(sets, "load", absent)
    found = check(changed(path, certificate=None))
    assert found.holds and found.accuracy is None and len(found.open) == 2


HOSTILE = [
    ({"format": "secateurs.record/9"}, "none of"),
    ({"name": "../../etc/passwd"}, "network/data/name"),
    ({"file": "../20x.safetensors"}, "plain name"),
    ({"file": "/etc/passwd"}, "plain name"),
    ({"file": "other.safetensors"}, "cannot be read"),
    ({"sha256": "0" * 64}, "has the SHA-256"),
    ({"sha256": "abc"}, "64 hexadecimal"),
    ({"kept": -3}, "not at least 1"),
    ({"kept": True}, "not a whole number"),
    ({"accuracy": float("nan")}, "not finite"),
    ({"accuracy": 1.5}, "between 0 and 1"),
    ({"seeds": [0]}, "accuracies for 1 seeds"),
    ({"kept": 10**9, "total": 10}, "more than all"),
    ({"model": "os.system"}, "os.system"),
    ({"model": "resnet-20"}, "not the network"),
    ({"options": {"width": 10**12}}, "not between 0 and 4096"),
    ({"options": {"colour": 3}}, "cannot be built"),
    ({"model": "resnet-18", "options": {"width": 4096}}, "at most 50,000,000"),
    ({"size": 10**9}, "not between 1 and 1024"),
    ({"surprise": 1}, "surprise"),
]


@pytest.mark.parametrize("values, said", HOSTILE, ids=[str(v)[:40] for v, _ in HOSTILE])
def test_what_no_record_may_say_is_refused(handed_in, values, said):
    with pytest.raises(RecordError, match=said):
        check(changed(handed_in[0], **values))


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{", b'{"name": 1, "name": 2}', b"\xff\xfe", b"[" * 100_000, b"{}"],
    ids=["empty", "list", "cut", "twice", "bytes", "deep", "nothing"],
)
def test_a_text_that_is_no_record_is_refused(tmp_path, text):
    path = tmp_path / "r.json"
    path.write_bytes(text)
    with pytest.raises(RecordError):
        check(path)


def test_files_that_are_too_large_missing_or_links_are_refused(handed_in, tmp_path):
    path, _ = handed_in
    file = tmp_path / read_record(path).file
    content = file.read_bytes()
    file.write_bytes(content + bytes(LARGEST_FILE))
    with pytest.raises(RecordError, match="larger than 200,000"):
        check(path)
    file.unlink()
    with pytest.raises(RecordError, match="cannot be read"):
        check(path)
    (tmp_path / "elsewhere").write_bytes(content)
    os.symlink(tmp_path / "elsewhere", file)
    with pytest.raises(RecordError, match="is a link"):
        check(path)
    path.write_bytes(b" " * 1_000_001)
    with pytest.raises(RecordError, match="larger than 1,000,000"):
        check(path)


def test_damage_to_the_file_is_found_even_with_a_fitting_hash(handed_in, tmp_path):
    import hashlib

    path, _ = handed_in
    file = tmp_path / read_record(path).file
    content = bytearray(file.read_bytes())
    for place in range(0, len(content), max(1, len(content) // 12)):
        broken = bytearray(content)
        broken[place] ^= 0x55
        file.write_bytes(broken)
        changed(path, sha256=hashlib.sha256(broken).hexdigest())
        with pytest.raises(SecateursError):
            check(path)


def test_every_network_of_the_zoo_is_small_and_what_it_says():
    assert names(), "the zoo is empty"
    for name in names():
        found = record(name)
        assert found.name == name and found.command
        assert (FOLDER / found.file).stat().st_size <= LARGEST_FILE
        model = load(name)
        assert not model.training
        x = torch.zeros(2, found.in_channels, found.size, found.size)
        assert model(x).shape == (2, found.classes)
    together = sum(path.stat().st_size for path in FOLDER.iterdir())
    assert together < 1_500_000, "the wheel has to stay small"


loaded = functools.cache(sets.load)
SAME_NETWORK = "resnet-20/fashion-mnist/compacted"


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n == SAME_NETWORK else n for n in names()],
)
def test_every_record_of_the_zoo_holds(name, monkeypatch):
    # All are about one set of images, which is unpacked once.
    monkeypatch.setattr(sets, "load", loaded)
    found = check(FOLDER / f"{name.replace('/', '_')}.json")
    assert found.holds, str(found)


def test_an_unknown_network_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"lenet-300-100/fashion-mnist/50x"):
        load("lenet-300-100/fashion-mnist/51x")


def test_prepare_gives_pixels_with_black_around_them(digits):
    found = replace(record(names()[0]), pixels=True, pad=2)
    shown = found.prepare(digits).test_x
    assert (
        shown.shape[-1] == digits.size + 4 and float(shown.min()) == 0 and float(shown.max()) <= 1
    )
    assert float(shown[..., 0, :].abs().max()) == 0
    assert replace(found, pixels=False, pad=0).prepare(digits) is digits


def test_the_page_has_every_record_and_no_hostile_text():
    found = replace(record(names()[0]), method="<script>|x|")
    text = records_page([found])
    assert "<script>" not in text and f"{found.compression:.4g}×" in text


def test_the_page_counts_weights_and_beside_them_all_parameters():
    """The paper on factorization counts biases, too: 347 of 266,200 are 355 of 266,610."""
    found, model = (
        record("lenet-300-100/fashion-mnist/750x"),
        load("lenet-300-100/fashion-mnist/750x"),
    )
    left = sum(int(p.count_nonzero()) for p in model.parameters())
    assert (found.kept, found.total, left) == (347, 266_200, 355)
    [line] = [line for line in records_page([found]).splitlines() if line.startswith("| 750x")]
    assert "| 767.1× | 347 of 266,200 | 751× |" in line
    nothing = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(nothing.weight)
    assert "| 2.666e+05× |" in records_page([found], networks=[nothing])
    with pytest.raises(ValueError, match="zip"):
        records_page([found], networks=[])


def test_the_page_of_the_docs_is_that_of_the_records():
    page = Path(__file__).parents[3] / "docs" / "records.md"
    assert page.read_text(encoding="utf-8") == records_page(map(record, names()))


def command(*arguments):
    try:
        main(["zoo", *map(str, arguments)])
    except SystemExit as left:
        return left.code or 0
    return 0


def test_the_command_lists_checks_and_writes(handed_in, tmp_path, capsys):
    path, _ = handed_in
    assert command() == 0
    told = capsys.readouterr().out
    assert all(name in told for name in names())
    assert command("check", path) == 0 and "holds" in capsys.readouterr().out
    assert command("records", path, "-o", tmp_path / "page.md") == 0
    assert "20x" in (tmp_path / "page.md").read_text(encoding="utf-8")
    bad = changed(tmp_path / path.name, accuracy=0.9)
    assert command("check", tmp_path / "none.json", bad) == 1
    told = capsys.readouterr().err
    assert "none.json cannot be read" in told and "does not hold" in told
    assert command("sell") == 2 and command("list", "-o", "x") == 2
