"""A ResNet-20 on CIFAR-10 within minutes of a card: what does not need one, on small networks."""

import csv
import io
import json
import multiprocessing
import threading
import time
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from experiments import cifar_card
from experiments.cifar_card import (
    MARGIN,
    SMALL,
    Fit,
    Images,
    Ready,
    Table,
    Wish,
    pretended_images,
    read_images,
    serve,
    shifted,
    strength_for,
    wishes,
)
from secateurs_lab.study.methods import Dense, Dwf, Gradual, Prune, RigLMethod

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def images():
    return Images.of(pretended_images(), "cpu")


def test_the_command_rehearses_and_writes_rows_like_those_of_the_study(tmp_path, capfd):
    asked = ["--rehearse", "--first", "2", "--processes", "1", "--out", str(tmp_path)]
    cifar_card.main(asked)
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert sorted(line["label"] for line in lines) == ["dense", "dwf D=2"]
    assert {line["state"] for line in lines} == {"done"}, capfd.readouterr()
    with (tmp_path / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with (ROOT / "benchmarks/results/sparse-cifar.csv").open(newline="") as file:
        columns = next(csv.reader(file))
    assert {row["key"] for row in rows} == {line["key"] for line in lines}
    missing = {c for c in columns if c.startswith(("settings.train", "metrics."))} - {*rows[0]}
    assert missing == {"metrics.loss"}


def test_every_run_of_the_list_has_a_row_of_its_own():
    keys = [
        cifar_card.row_of(wish, SMALL.settings(wish)).key
        for wish in wishes()
        if not isinstance(wish.method, Dwf)
    ]
    assert len({*keys}) == len(keys) == 40
    aims = [w.compression for w in wishes() if isinstance(w.method, Dwf) and w.seed == 0]
    assert sorted(aims) == sorted([10, 20, 50, 100, 200] * 2)


def test_a_strength_is_read_off_what_is_known():
    known = [(1e-4, 10.0), (4e-4, 40.0)]
    assert strength_for(20, known, 2) == pytest.approx(2e-4)
    assert strength_for(10, known, 2) == pytest.approx(1e-4)
    assert strength_for(80, known, 2) == pytest.approx(4e-4 * 2 ** (1 / cifar_card.SLOPE))
    assert strength_for(5, known, 2) == pytest.approx(1e-4 * 0.5 ** (1 / cifar_card.SLOPE))
    for depth, (strength, compression) in cifar_card.GUESS.items():
        assert strength_for(compression, [], depth) == pytest.approx(strength)
    # A dense network and one that is gone say where to go, and not to infinity.
    assert 1e-4 < strength_for(20, [(1e-4, 1.0)], 2) < 1e-3
    assert 1e-4 < strength_for(20, [(1e-3, 1e7)], 2) < 1e-3


def test_jpeg_files_that_share_a_header_are_read_as_they_were(tmp_path):
    draw = np.random.default_rng(0)
    files, pixels = [], []
    for _ in range(3):
        file = io.BytesIO()
        image = Image.fromarray(draw.integers(256, size=(32, 32, 3), dtype=np.uint8))
        image.save(file, "JPEG", quality=75)
        files.append(file.getvalue())
        pixels.append(np.asarray(Image.open(file)))
    size = files[0].index(b"\xff\xda")
    assert len({file[:size] for file in files}) == 1
    found = {"header": np.frombuffer(files[0][:size], np.uint8)}
    for name, some in (("train", files[:2]), ("test", files[2:])):
        scans = [file[size:] for file in some]
        found[f"{name}_scans"] = np.frombuffer(b"".join(scans), np.uint8)
        found[f"{name}_sizes"] = np.array([len(scan) for scan in scans], np.uint16)
        found[f"{name}_y"] = np.arange(len(scans), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", **found)
    made = read_images(str(tmp_path / "images.npz"))
    assert np.array_equal(made["train_x"], np.stack(pixels[:2]))
    assert np.array_equal(made["test_x"], np.stack(pixels[2:]))
    assert made["train_y"].tolist() == [0, 1]


def test_images_are_shifted_and_mirrored(images):
    plain = images.train_x[:, MARGIN:-MARGIN, MARGIN:-MARGIN].permute(0, 3, 1, 2)
    chosen = torch.tensor([5, 3, 3, 3])
    down, right = torch.tensor([4, 4, 4, 6]), torch.tensor([4, 4, 1, 4])
    x = shifted(images.train_x, chosen, down, right, torch.tensor([0, 1, 0, 0]))
    assert torch.equal(x[0], plain[5])
    assert torch.equal(x[1], plain[3].flip(-1))
    assert torch.equal(x[2, :, :, 3:], plain[3, :, :, :-3])
    assert not x[2, :, :, :3].any()
    assert torch.equal(x[3, :, :-2], plain[3, :, 2:])
    assert not x[3, :, -2:].any()


def test_turns_are_the_steps_of_a_plain_loop(images):
    fit = Fit(Wish(method=Dense()), images, replace(SMALL, epochs=3))
    # A second one, whose weights a plain loop moves.
    other = Fit(Wish(method=Dense()), images, replace(SMALL, epochs=3))
    epochs = []
    for _ in range(3):
        epochs.append(fit.drawn.clone())
        for _ in range(fit.per_epoch):
            fit.turn()
    assert fit.done == fit.total == 24
    with pytest.raises(RuntimeError, match="bounds"):  # the epoch is used up: nobody draws another
        fit._passes()
    # Every image comes once an epoch, in another order each time.
    assert all(sorted(epoch[0].flatten().tolist()) == [*range(64)] for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])

    optimizer = torch.optim.SGD(other.parameters, lr=1.0, momentum=0.9, weight_decay=5e-4)
    for step in range(24):
        rate = (step + 1) / 9 if step < 8 else (1 + np.cos(np.pi * (step - 8) / 16)) / 2
        optimizer.param_groups[0]["lr"] = 0.1 * rate
        optimizer.zero_grad()
        batch = epochs[step // 8][:, step % 8]
        # Its first passes have moved the statistics of batch norm, which training does not read.
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(
                other.model(shifted(images.train_x, *batch)), images.train_y[batch[0]]
            )
        loss.backward()
        optimizer.step()
    for one, its in zip(fit.parameters, other.parameters, strict=True):
        torch.testing.assert_close(one, its)


@pytest.mark.parametrize(
    "method",
    [
        Gradual(),
        RigLMethod(),
        Prune(score="synflow", rounds=3, after="init"),
        Prune(score="snip", examples=32, how="sample", after="init"),
    ],
    ids=lambda method: method.title,
)
def test_compressions_are_those_asked_for(method, images):
    fit = Fit(Wish(method=method, compression=5), images, SMALL)
    while fit.done < fit.total:
        fit.turn()
    row = fit.end()
    assert row.compression == pytest.approx(5, rel=0.02)
    assert row.state == "done" and 0 <= row.accuracy <= 1
    assert row.metrics["cost.share"] < 0.9


def test_factorized_weights_become_exact_zeros(images):
    wish = Wish(method=Dwf(depth=2, strength=0.5, train={"lr": 0.2}), compression=20)
    fit = Fit(wish, images, replace(SMALL, epochs=16))
    while fit.done < fit.total:
        fit.turn()
    row = fit.end()
    assert row.compression > 1.05 and row.strength == 0.5
    weights = torch.cat([p.flatten() for p in fit.parameters])
    assert not ((weights != 0) & (weights.abs() < 1.19e-7)).any()
    assert row.metrics["compression_all"] > 1.05 and row.metrics["aim"] == 20


def test_scores_on_noise_see_other_images(images):
    data, noise = (images.some(32, noise=noise, seed=0) for noise in (False, True))
    plain = images.train_x[:, MARGIN:-MARGIN, MARGIN:-MARGIN].permute(0, 3, 1, 2)
    assert all((plain == x).flatten(1).all(1).any() for x in data.train_x)
    assert not any((plain == x).flatten(1).all(1).any() for x in noise.train_x)


def served(answers, tmp_path, until=60.0, scale=SMALL):
    """What a process says that is given these runs."""
    for name, array in pretended_images().items():
        np.save(tmp_path / f"{name}.npy", array)
    ours, theirs = Pipe()
    ours.send(str(tmp_path))
    threads = torch.get_num_threads()
    thread = threading.Thread(target=serve, args=(theirs, scale, time.monotonic() + until))
    thread.start()
    found = []
    while thread.is_alive() or ours.poll():
        if not ours.poll(0.05):
            continue
        said = ours.recv()
        if isinstance(said, Ready):
            ours.send(answers.pop(0) if answers else None)
        else:
            found.append(said)
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = False
    return found


def test_an_error_in_one_run_takes_nothing_else_along(tmp_path):
    # A compression that leaves less than one weight.
    broken = Wish(method=Gradual(), compression=1e9)
    found = served([broken, Wish(method=Dense())], tmp_path)
    states = {wish.method.title: row.state for wish, row in found}
    assert states == {"gradual magnitude": "failed", "dense": "done"}


def test_what_has_not_ended_in_time_is_tested_as_it_is(tmp_path):
    scale = replace(SMALL, epochs=10_000)
    found = served([Wish(method=Dense())] * 2, tmp_path, until=2.0, scale=scale)
    assert [row.state for _, row in found] == ["cancelled"] * 2
    assert all(0 < row.progress < 1 and row.accuracy is not None for _, row in found)
    assert "epochs" in found[0][1].reason


def test_nothing_goes_on_that_cannot_end_in_time(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cifar_card, "WINDOW", 2)
    scale = replace(SMALL, epochs=10_000)
    found = served([Wish(method=Dense())] * 2, tmp_path, until=30.0, scale=scale)
    assert [row.progress for _, row in found] == [6 / 80_000] * 2
    said = capsys.readouterr().out
    assert said.count("ms a turn of 2 networks") == 2 and "none would end in time" in said


@pytest.mark.slow
def test_what_a_lost_process_had_is_done_by_another(tmp_path, capsys):
    scale = replace(SMALL, epochs=100)
    some = [Wish(method=Dense()), Wish(method=Gradual(), compression=5)]
    table = Table(some, scale, tmp_path, time.monotonic() + 300)

    def kill():
        until = time.monotonic() + 100
        while len(table.left) > 0 and time.monotonic() < until:
            time.sleep(0.1)
        multiprocessing.active_children()[0].kill()

    thread = threading.Thread(target=kill)
    thread.start()
    cifar_card.oversee(table, pretended_images(), 1)
    thread.join()
    assert "a process ended with -9" in capsys.readouterr().out
    assert sorted(row.label for row in table.rows) == ["dense", "gradual magnitude"]
    assert {row.state for row in table.rows} == {"done"}


def test_a_run_that_could_not_end_in_time_is_not_begun(tmp_path, capsys):
    some = [Wish(method=Dense())]
    table = Table(some, SMALL, tmp_path, time.monotonic() + 30)
    assert table.next(Ready(pace=0.1, steps=400)) is None
    assert "1 runs" in capsys.readouterr().out
    assert table.next(Ready(pace=0.01, steps=400)) == some[0]
    assert table.next(Ready(pace=0.01, steps=400)) is None


def test_a_strength_is_chosen_by_the_runs_before(tmp_path, images):
    wish = Wish(method=Dwf(depth=2, train={"lr": 0.2}), compression=20)
    dense = Wish(method=Dense())
    table = Table([wish, wish, dense, wish], SMALL, tmp_path, time.monotonic() + 30)
    first = table.next(Ready(pace=None, steps=1))
    # The next one had better know what the first has reached.
    assert table.next(Ready(pace=None, steps=1)) == dense
    assert first.method.strength == cifar_card.GUESS[2][0]
    row = Fit(first, images, SMALL)
    while row.done < row.total:
        row.turn()
    table.keep(replace(row.end(), compression=2.0))
    second = table.next(Ready(pace=None, steps=1))
    asked = first.method.strength * 10 ** (1 / cifar_card.SLOPE)
    assert second.method.strength == pytest.approx(asked, rel=0.01)
    assert table.next(Ready(pace=None, steps=1)).method.strength == second.method.strength
    assert table.next(Ready(pace=None, steps=1)) is None
