"""The papers' comparisons as studies: frozen values, every run of which begins."""

from dataclasses import FrozenInstanceError, replace

import pytest
import torch

from secateurs.data import from_tensors
from secateurs.study import Data, Study, run
from secateurs.study.presets import PRESETS


def noise():
    source = torch.Generator().manual_seed(0)
    x, y = torch.rand(64, 1, 28, 28, generator=source), torch.arange(64) % 10
    return from_tensors("noise", train_x=x, train_y=y, test_x=x, test_y=y)


def shortened(study):
    """Two steps of each training, one compression, one strength, one seed, on noise."""
    methods = [_first_strength(method) for method in study.methods]
    return replace(
        study,
        data=Data(name="noise", make=noise()),
        methods=methods,
        compressions=study.compressions[:1],
        seeds=[0],
        train=study.train.but({"length": "2it", "decay_at": ["1it"]}),
    )


def _first_strength(method):
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
