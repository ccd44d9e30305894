"""A study under torchrun: two processes train each network together."""

import os
import subprocess
import sys

import pytest

from secateurs.study import Store
from study import chaos

pytestmark = pytest.mark.slow

FILE = """\
data = { name = "digits", train = 200, test = 50 }
compressions = [4]
train = { length = "3ep", batch = 64 }
[[methods]]
score = "magnitude"
[[methods]]
kind = "dwf"
"""


def test_two_processes_train_the_study_of_one(tmp_path):
    env = {**os.environ, "PYTHONPATH": chaos.SOURCE, "OMP_NUM_THREADS": "1"}
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text(FILE)
    one = [
        sys.executable,
        "-m",
        "secateurs",
        "study",
        "run",
        "one.toml",
        "--engine",
        "here",
    ]
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    two = [
        *torchrun,
        "-m",
        "secateurs",
        "study",
        "run",
        "two.toml",
        "--engine",
        "ranks",
    ]
    for command in (one, two):
        told = subprocess.run(
            command,
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert told.returncode == 0, told.stderr
    with (
        Store.open(tmp_path / "one.study") as alone,
        Store.open(tmp_path / "two.study") as both,
    ):
        pairs = list(zip(alone.rows(), both.rows(), strict=True))
        assert [row.state for _, row in pairs] == ["done"] * 3
        assert all(row.provenance["processes"] == 2 for _, row in pairs)
        for ours, theirs in pairs:
            assert ours.key == theirs.key and ours.kept == theirs.kept
            losses = [point.loss for point in theirs.history]
            assert losses == pytest.approx([point.loss for point in ours.history], rel=1e-3)
