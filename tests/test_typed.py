"""The package is typed for those who use it: mypy reads our annotations in a user's own file."""

import os
import subprocess
import sys
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import Unpack, get_origin

import pytest

import secateurs
from secateurs.scores import SCORES
from secateurs.scores.task import ScoreFields

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


# What takes many keywords, and one of them misspelt: each is an error before the program runs.
MISSPELT = {
    "prune_": 'sc.prune_(model, "magnitude", sparsty=0.9)',
    "imp_": "sc.imp_(model, print, sparsty=0.9)",
    "prune_channels_": "sc.prune_channels_(model, x, chanels=0.5)",
    "prune_blocks_": 'sc.prune_blocks_(model, "wanda", batch=x, sparsty=0.5)',
    "prune_file": 'sc.prune_file("a", "b", sparsty=0.5)',
    "prune_to_bound_": "sc.prune_to_bound_(model, x, bound=1.0, efort=1e9)",
    "certify": "sc.certify(model, model, around=x, radius=0.1, restart=1)",
}


def checked(tmp_path, text):
    """What mypy says of a user's file: line by line."""
    (tmp_path / "user.py").write_text(text)
    (tmp_path / "mypy.ini").write_text("[mypy]\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "user.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    # Older mypy writes builtins.int where newer writes int.
    return done.stdout.replace("builtins.", "")


@pytest.mark.parametrize("name", MISSPELT)
def test_further_keywords_are_named(name):
    keywords = [
        parameter
        for parameter in signature(attrgetter(name)(secateurs)).parameters.values()
        if parameter.kind is parameter.VAR_KEYWORD
    ]
    assert get_origin(keywords[0].annotation) is Unpack


@pytest.mark.parametrize("name", SCORES.names())
def test_the_keywords_of_scores_are_those_of_all_rules(name):
    """`ScoreFields` is for functions that hand keywords on to any registered score."""
    options = [
        parameter.name
        for parameter in signature(SCORES[name].rule).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    assert set(options) <= set(ScoreFields.__annotations__)


@pytest.mark.slow
def test_no_public_name_is_any_and_no_misspelt_keyword_passes(tmp_path):
    pytest.importorskip("mypy")
    names = secateurs.__all__
    lines = [
        "import secateurs as sc",
        "import torch",
        *(f"reveal_type(sc.{name})" for name in names),
        "model, x = torch.nn.Linear(4, 2), torch.zeros(1, 4)",
        *MISSPELT.values(),
    ]
    found = checked(tmp_path, "\n".join(lines) + "\n").splitlines()
    revealed = [line for line in found if "Revealed type is" in line]
    assert len(revealed) == len(names)
    assert not [line for line in revealed if 'Revealed type is "Any"' in line]
    errors = [line for line in found if "Unexpected keyword argument" in line]
    assert len(errors) == len(MISSPELT), found


@pytest.mark.slow
def test_a_users_file_sees_our_types(tmp_path):
    pytest.importorskip("mypy")
    revealed = checked(tmp_path, USER)
    assert "dict[str, torch" in revealed, revealed
    assert 'note: Revealed type is "int"' in revealed
    assert 'Argument "depth" to "FactorizedSGD" has incompatible type "str"' in revealed
    assert "found 1 error" in revealed.lower().replace("found 1 error in 1 file", "found 1 error")
