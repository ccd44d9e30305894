"""A study that chooses its settings: which runs there are before and after, and what decides."""

from dataclasses import replace

import pytest
import torch

from secateurs_lab.data import from_tensors
from secateurs_lab.study import (
    Choice,
    Data,
    Dense,
    Dwf,
    HAMMethod,
    Prune,
    RigLMethod,
    Study,
    Training,
    Tuning,
    run,
)
from secateurs_lab.study.config import waiting_row
from secateurs_lab.study.file import parse
from secateurs_lab.study.measure import Bench
from secateurs_lab.study.rerun import rerun


def counted(train=200, test=40):
    """Images that carry their own number, so that each can be recognised."""
    x = torch.arange(float(train + test)).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).clone()
    y = torch.arange(train + test) % 4
    return from_tensors(
        "counted", train_x=x[:train], train_y=y[:train], test_x=x[train:], test_y=y[train:]
    )


RIGL = Choice(
    label="RigL",
    candidates=[RigLMethod(train={"lr": 0.05}), RigLMethod(train={"lr": 0.1}, fraction=0.5)],
)
CUT = Choice(
    label="HAM, cut", candidates=[Prune(after=HAMMethod(beta=b)) for b in (1e-4, 1e-3, 1e-2)]
)


def chooser(**changes):
    settings = {
        "model": "lenet-300-100",
        "data": Data(name="digits"),
        "methods": [RIGL, CUT, Prune()],
        "compressions": [5, 20],
        "tuning": Tuning(compression=10, held_out=300, seeds=[7]),
        "train": Training(length="1ep"),
    }
    return Study(**{**settings, **changes})


def ended(runs, accuracy):
    """Rows as if each run had ended with the accuracy of its place."""
    return [
        replace(waiting_row(run), state="done", accuracy=value)
        for run, value in zip(runs, accuracy, strict=True)
    ]


def tuning_of(study):
    return [run for run in study.runs() if run.data.held_out is not None]


def test_tuning_looks_at_no_test_image():
    found, _ = Bench(device="cpu").data(Data(name="counted", make=counted(), held_out=50))
    assert found.train_x[:, 0, 0, 0].tolist() == list(range(150))
    assert found.test_x[:, 0, 0, 0].tolist() == list(range(150, 200))
    few, _ = Bench(device="cpu").data(Data(name="counted", make=counted(), train=80, held_out=50))
    assert few.test_x[:, 0, 0, 0].tolist() == list(range(30, 80))


def test_before_anything_is_known_the_candidates_are_run_and_nothing_is_asked_of_the_choice():
    study = chooser()
    tuning = tuning_of(study)
    assert [run.method.title for run in tuning if run.compression] == [
        *(f"RigL, candidate {i}" for i in (1, 2)),
        *(f"HAM, cut, candidate {i}" for i in (1, 2, 3)),
    ]
    assert {run.compression for run in tuning} == {10.0, None} and {r.seed for r in tuning} == {7}
    others = [run.method.title for run in study.runs() if run.data.held_out is None]
    assert others == ["dense", "magnitude", "magnitude"]


def test_the_best_candidate_is_what_is_compared():
    study = chooser()
    tuning = tuning_of(study)
    # RigL 0.5, 0.6; HAM: parents and cuts in turn, the second cut best, the third lost.
    scores = {"RigL, candidate 2": 0.6, "HAM, cut, candidate 2": 0.7, "HAM, cut, candidate 3": 0.9}
    rows = ended(tuning, [scores.get(run.method.title, 0.5) for run in tuning])
    rows = [replace(r, state="diverged") if r.label.endswith("candidate 3") else r for r in rows]
    chosen = study.choose(rows)
    settled = [r for r in study.runs(chosen) if r.data.held_out is None]
    rigl = [run for run in settled if run.method.title == "RigL"]
    assert [(r.train.lr, r.method.fraction, r.compression) for r in rigl] == [
        (0.1, 0.5, 5),
        (0.1, 0.5, 20),
    ]
    cut = [run for run in settled if run.method.title == "HAM, cut"]
    assert {run.parent.method.beta for run in cut} == {1e-3}
    # What was looked at stays in the table.
    assert {run.key for run in tuning} <= {run.key for run in study.runs(chosen)}
    # A choice is settled once all of its candidates have ended, not before.
    assert ("digits", "lenet-300-100", "RigL") not in study.choose(rows[1:])


def test_equal_candidates_give_the_first_and_several_seeds_their_median():
    study = chooser(methods=[RIGL], tuning=Tuning(compression=10, seeds=[7, 8, 9]))
    tuning = tuning_of(study)
    assert len(tuning) == 6
    even = study.choose(ended(tuning, [0.5] * 6))
    assert [method.train["lr"] for method in even.values()] == [0.05]
    spread = study.choose(ended(tuning, [0.9, 0.1, 0.2, 0.3, 0.3, 0.3]))
    assert [method.train["lr"] for method in spread.values()] == [0.1]


def test_each_network_has_its_own_settings():
    study = chooser(methods=[RIGL], model=["lenet-300-100", "lenet-5"])
    tuning = tuning_of(study)
    assert len(tuning) == 4
    chosen = study.choose(ended(tuning, [0.5, 0.6, 0.6, 0.5]))
    rates = {(r.model.name, r.train.lr) for r in study.runs(chosen) if r.method.title == "RigL"}
    assert rates == {("lenet-300-100", 0.1), ("lenet-5", 0.05)}


def test_a_study_tunes_and_compares_in_one_call_and_goes_on_where_it_was(tmp_path):
    study = chooser(methods=[RIGL], compressions=[10])
    with run(study, tmp_path / "s", watchers=()) as store:
        rows = store.rows()
    assert [(row.label, row.data) for row in rows] == [
        ("RigL, candidate 1", "digits, 300 held out"),
        ("RigL, candidate 2", "digits, 300 held out"),
        ("dense", "digits"),
        ("RigL", "digits"),
    ]
    assert all(row.state == "done" for row in rows)
    with run(study, tmp_path / "s", watchers=()) as store:
        again = store.rows()
        assert rerun(study, store, again[-1].key).same
    assert [row.provenance["ended"] for row in again] == [row.provenance["ended"] for row in rows]


def test_a_file_says_the_same():
    text = """
data = "digits"
tuning = { compression = 10, held_out = 300, seeds = [7] }
[[methods]]
kind = "choice"
label = "RigL"
[[methods.candidates]]
kind = "rigl"
train = { lr = 0.05 }
[[methods.candidates]]
kind = "rigl"
fraction = 0.5
train = { lr = 0.1 }
"""
    assert parse(text).methods[0] == RIGL


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: chooser(tuning=None), "a choice needs tuning"),
        (lambda: Choice(label="x", candidates=[RigLMethod()]), "two candidates or more"),
        (lambda: Choice(label="x", candidates=[Prune(), Prune()]), "given twice"),
        (lambda: Choice(candidates=[Prune(), RigLMethod()]), "needs a label"),
        (lambda: Choice(label="x", candidates=[RIGL, CUT]), "a choice among choices"),
        (lambda: Choice(label="x", candidates=[Prune(), 3]), "3 is not a method"),
        (
            lambda: Choice(label="x", candidates=[Dwf(strength=(1e-3, 1e-2)), Dwf()]),
            "list of strengths",
        ),
        (lambda: replace(RIGL, train={"lr": 1.0}), "give each candidate its own train"),
        (lambda: Data(name="digits", held_out=5, test=5), "leave test out"),
        (lambda: chooser(data=Data(name="digits", held_out=5)), "leave held_out out"),
    ],
)
def test_what_is_wrong_is_said(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_holding_all_images_out_is_refused():
    with pytest.raises(ValueError, match="leaves none to train on"):
        Bench(device="cpu").data(Data(name="counted", make=counted(), held_out=200))


def test_what_is_held_out_is_part_of_the_key_and_nothing_else_changes():
    plain = Study(methods=[], model="lenet-300-100", data="digits").runs()[0]
    held = replace(plain, data=Data(name="digits", held_out=300))
    assert plain.method == Dense() and plain.key != held.key
    assert "held_out" not in waiting_row(plain).settings["data"]
