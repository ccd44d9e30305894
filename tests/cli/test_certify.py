"""`secateurs certify`: the table, the JSON, and what is refused."""

import copy
import json

import pytest
import torch

from secateurs import apply_, score, select
from secateurs.models import build
from secateurs.train import save_model


@pytest.fixture
def pair(tmp_path):
    dense = build("lenet-300-100", size=8, generator=torch.Generator().manual_seed(0))
    sparse = copy.deepcopy(dense)
    apply_(sparse, select(score(sparse, "magnitude"), sparsity=0.5))
    return save_model(dense, tmp_path / "dense.safetensors"), save_model(
        sparse, tmp_path / "sparse.safetensors"
    )


SHAPE = ("--arch", "lenet-300-100", "--size", 8)


def test_json_around_zero(run, pair):
    code, out, err = run(
        "certify", *pair, *SHAPE, "--radius", 0.1, "--method", "interval", "--json"
    )
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert 0 < told["lower_bound"] <= told["bound"]
    assert told["domain"] == "ℓ∞-ball of radius 0.1"
    assert list(told["bounds"]) == ["interval"]


def test_a_table_with_a_share_on_data(run, pair):
    pytest.importorskip("sklearn")
    code, out, err = run(
        "certify", *pair, *SHAPE, "--radius", 0.001, "--data", "digits", "--points", 5
    )
    assert (code, err) == (0, "")
    assert "two-stream" in out and "linear" in out
    assert "of 5 test inputs cannot change their class" in out


def test_errors(run, pair, tmp_path):
    assert run("certify", *pair, *SHAPE, "--radius", -1)[::2] == (
        2,
        "error: radius=-1.0: a radius is a finite number ≥ 0.\n",
    )
    code, _, err = run("certify", *pair, *SHAPE, "--method", "magic")
    assert code == 2 and "there is no certificate method 'magic'" in err
    code, _, err = run("certify", *pair, *SHAPE, "--points", 0)
    assert code == 2 and "--points 0" in err
    code, _, err = run("certify", *pair)
    assert code == 2 and "--arch" in err
    code, _, err = run("certify", pair[0], tmp_path / "none.safetensors", *SHAPE)
    assert code == 2 and "none.safetensors" in err


def test_a_kept_certificate_is_proved_again(run, pair, tmp_path):
    kept = tmp_path / "cert.json"
    ball = ("--radius", 0.1, "--method", "interval", "--seconds", 60, "--save", kept)
    told = run("certify", *pair, *SHAPE, *ball, "--json")[1]
    assert kept.read_text() == told.rstrip("\n")
    code, out, err = run("recheck", kept, *pair, *SHAPE)
    assert (code, err) == (0, "") and out.startswith("holds: proved again")
    code, out, err = run("recheck", kept, pair[0], pair[0], *SHAPE)
    assert code == 1 and "the weights of the sparse network are not those certified" in out
    kept.write_text("{}")
    assert "this is not a certificate" in run("recheck", kept, *pair, *SHAPE)[2]
