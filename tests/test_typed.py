"""The package is typed for those who use it: mypy reads our annotations in a user's own file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
USER = """
import torch

from secateurs.masks import select
from secateurs.optim import FactorizedSGD
from secateurs.prune import prune_
from secateurs.scores import score

model = torch.nn.Linear(4, 2)
scores = score(model, "magnitude")
reveal_type(select(scores, sparsity=0.5))
reveal_type(prune_(model, "magnitude", sparsity=0.5).report.total.kept)
optimizer = FactorizedSGD(model.parameters(), lr=0.1, depth="three")
"""


def test_a_users_file_sees_our_types(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "mypy.ini").write_text("[mypy]\n")
    env = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "user.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    # Older mypy writes builtins.int where newer writes int.
    revealed = done.stdout.replace("builtins.", "")
    assert "dict[str, torch" in revealed, done.stdout
    assert 'note: Revealed type is "int"' in revealed
    assert (
        'Argument "depth" to "FactorizedSGD" has incompatible type "str"'
        in done.stdout
    )
    assert "found 1 error" in done.stdout.lower().replace(
        "found 1 error in 1 file", "found 1 error"
    )
