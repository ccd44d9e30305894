"""The papers' comparisons as studies: frozen values, every run of which begins."""

from dataclasses import FrozenInstanceError, replace

import pytest
import torch

from secateurs_lab.data import from_tensors
from secateurs_lab.study import Choice, Data, Dense, Study, Tuning, run
from secateurs_lab.study.presets import PRESETS


def noise():
    source = torch.Generator().manual_seed(0)
    x, y = torch.rand(64, 1, 28, 28, generator=source), torch.arange(64) % 10
    return from_tensors("noise", train_x=x, train_y=y, test_x=x, test_y=y)


def shortened(study):
    """Two steps of each training, one compression, one strength, one seed, on noise; 20 steps where
    AC/DC needs room for its phases."""
    methods = [_first_strength(method) for method in study.methods]
    steps = 20 if any("AC/DC" in method.title for method in study.methods) else 2
    return replace(
        study,
        data=Data(name="noise", make=noise()),
        methods=methods,
        model=study.model[:1],
        tuning=study.tuning and Tuning(held_out=16, compression=study.tuning.compression),
        compressions=study.compressions[:1],
        seeds=[0],
        train=study.train.but({"length": f"{steps}it", "decay_at": ["1it"]}),
    )


def _first_strength(method):
    if isinstance(method, Choice):
        return replace(method, candidates=method.candidates[:2])
    strength = getattr(method, "strength", None)
    return replace(method, strength=strength[0]) if isinstance(strength, tuple) else method


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_frozen_study(name):
    study = PRESETS[name]
    assert isinstance(study, Study) and study.name == name
    assert len({run.key for run in study.runs()}) == len(study.runs())
    with pytest.raises(FrozenInstanceError):
        study.seeds = (0,)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_the_first_two_steps_of_every_method(name, tmp_path):
    with run(shortened(PRESETS[name]), tmp_path / "s") as store:
        ended = {row.label: (row.state, row.reason) for row in store.rows()}
    assert all(state in ("done", "collapsed") for state, _ in ended.values()), ended
    assert {method.title for method in shortened(PRESETS[name]).methods} <= ended.keys()


SPARSE = [study for study in PRESETS.values() if study.tuning is not None]


@pytest.mark.parametrize("study", SPARSE, ids=lambda study: study.name)
def test_every_method_has_eight_tuning_runs_of_equal_steps(study):
    """Nobody may look at more settings than the others, nor train for longer."""
    ends = [method for method in study.methods if isinstance(method, Choice)]
    assert len(ends) == len(study.methods) >= 9
    assert {len(choice.candidates) for choice in ends} == {8}
    tuning = [run for run in study.runs() if run.data.held_out is not None]
    needed = {run.parent.key for run in tuning if run.parent is not None}
    whole = [run for run in tuning if run.key not in needed]
    assert len(whole) == 8 * len(ends) * len(study.model)
    assert {_epochs(run) for run in whole} == {_epochs(study.runs(study.choose(()))[-1])}


def test_what_is_compared_has_equal_steps():
    study = PRESETS["sparse-training"]
    runs = study.runs(study.choose((), or_first=True))
    needed = {run.parent.key for run in runs if run.parent is not None}
    ends = [run for run in runs if run.key not in needed and run.data.held_out is None]
    assert {_epochs(run) for run in ends} == {30}
    asked = [run for run in ends if not isinstance(run.method, Dense)]
    assert len(asked) == 12 * 5 * 3 * 3  # methods, sparsities, seeds, networks


def _epochs(run):
    own = int(run.train.length.removesuffix("ep"))
    return own + (_epochs(run.parent) if run.parent is not None else 0)
