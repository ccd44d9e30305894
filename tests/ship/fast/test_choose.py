"""The fastest ways of layers: found by timing, remembered by shape and machine."""

import ctypes
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.ship.fast import accelerated, choose, compiled, layers
from secateurs.ship.fast.choose import RememberedWays, remembered_ways
from secateurs.ship.fast.compiled import KernelLibrary, library
from secateurs.ship.fast.convolve import Choice
from secateurs.ship.fast.module import FastModule

WAYS = [Choice(layout="rows", tile=4, block=2), Choice(layout="columns", tile=2, block=1, parts=3)]


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """Kernels in a folder of their own; gives the list of what they have timed."""
    if library() is None:
        pytest.skip("no compiled kernels")
    monkeypatch.setenv("SECATEURS_TUNING", "1")
    own = Path(shutil.copy(library().library._name, tmp_path))
    timed, kernels = [], library()

    class Counting(KernelLibrary):
        def time(self, op, *more):
            timed.append(op.name)
            return super().time(op, *more)

    counting = Counting(ctypes.CDLL(str(own)))
    assert counting.lanes == kernels.lanes
    monkeypatch.setattr("secateurs.ship.fast.accelerated.library", lambda: counting)
    return timed


def network(classes=5):
    torch.manual_seed(0)
    body = [nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(4 * 36, classes)).eval()


def build(model, **options):
    return sc.accelerate(model, torch.zeros(1, 2, 8, 8), keep="always", **options)


def file_of(folder):
    (path,) = folder.glob("*.ways.json")
    return path


def test_the_second_build_times_nothing(timed, tmp_path):
    first = build(network())
    count = len(timed)
    assert count > 0 and first.report.remembered == 0
    again = build(network())
    assert len(timed) == count and again.report.remembered >= 6
    assert [layer.ways for layer in again.report.layers] == [
        layer.ways for layer in first.report.layers
    ]
    x = torch.randn(3, 2, 8, 8)
    with torch.inference_mode():
        assert torch.equal(first(x), again(x))
    # A layer of another shape is timed, the others are not.
    build(network(classes=7))
    assert len(timed) > count
    assert file_of(tmp_path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("tune", ["time", "guess"])
def test_the_forms_of_a_network_are_compared_once(tune, timed, tmp_path, monkeypatch):
    compared, compare = [], accelerated.compare
    monkeypatch.setattr(
        accelerated, "compare", lambda *asked: compared.append(asked) or compare(*asked)
    )

    def built(model, **options):
        compared.clear()
        return sc.accelerate(model, torch.zeros(1, 2, 8, 8), tune=tune, **options)

    first, count = built(network()), len(compared)
    again = built(network())
    assert count == 2 and not compared and type(again) is type(first)
    if isinstance(first, FastModule):
        assert again.report.seconds == first.report.seconds
    # Another shape, another code, another form beside it: all are compared.
    model = network()
    assert built(network(classes=7)) and len(compared) == 2
    model[1] = nn.LeakyReLU()
    assert built(model) and len(compared) == 2
    assert built(network(), rivals={"other": network()}) and len(compared) == 2
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    assert built(network()) and len(compared) == 2


def test_times_end_with_the_torch_they_were_taken_with(timed, monkeypatch):
    build(network())
    count = len(timed)
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    assert build(network()).report.remembered == 0
    assert len(timed) > count


def test_layers_are_compared_with_torch_once(timed, monkeypatch):
    compared, time = [], layers._time
    monkeypatch.setattr(layers, "_time", lambda *asked: compared.append(asked) or time(*asked))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 256), nn.Linear(256, 512), nn.Linear(512, 256)).eval()
    for layer in model[1:]:
        layer.weight.data *= torch.rand(layer.weight.shape) < 0.1

    def built():
        compared.clear()
        return sc.accelerate(model, torch.zeros(1, 4, dtype=torch.long))

    first, count = built(), len(compared)
    again = built()
    assert count > 0 and not compared and type(again) is type(first)
    assert getattr(again, "report", None) is None or (
        again.report.layers == first.report.layers and again.report.seconds == first.report.seconds
    )


@pytest.mark.parametrize(
    "entry",
    [
        [1],
        {"one": {"a": 0.5}},
        {"1": [0.5]},
        {"1": {"a": 0.0}},
        {"1": {"a": "0.5"}},
        {"1": {"a": 1}},
    ],
    ids="list name times zero text integer".split(),  # noqa: SIM905
)
def test_times_that_are_none_are_not_read(entry, tmp_path):
    path, good = tmp_path / "k.ways.json", {1: {"a": 0.5}}
    known = RememberedWays(path=path)
    known.note_times("net", good)
    known.save()
    assert choose._read(path)[1] == {choose._digest("net"): good}
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "times": {choose._digest("net"): entry}}))
    assert choose._read(path)[1] == {}


def test_times_are_found_for_the_same_forms():
    known = RememberedWays(path=None, times={choose._digest("net"): {1: {"a": 0.5, "b": 1.0}}})
    assert known.find_times("net", {"a", "b"}) == {1: {"a": 0.5, "b": 1.0}}
    assert known.find_times("net", {"a"}) is None and known.find_times("other", {"a", "b"}) is None


def test_a_switch_turns_it_off(timed, tmp_path, monkeypatch):
    monkeypatch.setenv("SECATEURS_TUNING", "0")
    build(network())
    count = len(timed)
    build(network())
    assert len(timed) > count and not [*tmp_path.glob("*.json")]


def test_a_guess_neither_reads_nor_writes(timed, tmp_path):
    build(network(), tune="guess")
    assert not timed and not [*tmp_path.glob("*.json")]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text("{"),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text(" " * (choose._LARGEST + 1)),
        lambda path: path.write_text(path.read_text().replace('"code": "', '"code": "0')),
        lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "ways": [1]})),
        lambda path: path.write_text(
            path.read_text().replace(", 1]", ", 977]").replace("[", "[0, ")
        ),
        lambda path: path.chmod(0o622),
        lambda path: (path.rename(path.with_name("x")), path.symlink_to(path.with_name("x"))),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids="cut nested large version list entries writable link folder".split(),  # noqa: SIM905
)
def test_a_spoilt_file_is_as_good_as_none(spoil, timed, tmp_path):
    build(network())
    count = len(timed)
    spoil(file_of(tmp_path))
    fast = build(network())
    assert len(timed) > count and fast.report.remembered == 0


def test_a_way_that_is_none_of_those_to_time_is_not_taken(tmp_path):
    """A file must not choose how far a kernel reads."""
    known = RememberedWays(path=tmp_path / "k.ways.json")
    known.note("layer", Choice(layout="rows", tile=16, block=977))
    known.note("other", WAYS[1])
    known.save()
    read = RememberedWays(path=known.path, known=choose._read(known.path)[0])
    assert read.find("layer", WAYS) is None and read.find("unknown", WAYS) is None
    assert read.find("other", WAYS) == WAYS[1] and read.used == 1


def test_what_another_process_has_added_stays_and_the_oldest_go(tmp_path, monkeypatch):
    monkeypatch.setattr(choose, "MOST_WAYS", 3)
    path = tmp_path / "k.ways.json"
    one, two = RememberedWays(path=path), RememberedWays(path=path)
    for number in range(2):
        one.note(f"a{number}", WAYS[0])
        two.note(f"b{number}", WAYS[1])
    one.save()
    two.save()
    read = RememberedWays(path=path, known=choose._read(path)[0])
    assert [read.find(key, WAYS) for key in ("a0", "a1", "b0", "b1")] == [
        None,
        WAYS[0],
        *2 * [WAYS[1]],
    ]


def test_where_nothing_can_be_written_a_line_says_so(tmp_path, caplog):
    ways = RememberedWays(path=tmp_path / "gone" / "k.ways.json")
    ways.note("layer", WAYS[0])
    with caplog.at_level("INFO", logger="secateurs.ship"):
        ways.save()
    assert "not remembered" in caplog.text and not [*tmp_path.iterdir()]


def test_the_file_lies_beside_the_kernels(monkeypatch):
    if library() is None:
        pytest.skip("no compiled kernels")
    monkeypatch.delenv("SECATEURS_TUNING")
    path = remembered_ways(library()).path
    assert path.name.startswith(compiled.SOURCE.stem) and os.path.samefile(
        path.parent, Path(library().library._name).parent
    )
