"""What it costs to take a name from the package, and what editors see of it."""

import subprocess
import sys

import pytest

import secateurs
from secateurs import optim, paths, prune, ship

LOADED = """
import sys, time
import torch
sys.pycache_prefix, sys.dont_write_bytecode = sys.argv[1], False
start = time.process_time()
from secateurs import {name}
took = time.process_time() - start
modules = [module for module in sys.modules if module.split(".")[0] == "secateurs"]
print(len(modules), took, *modules)
"""


# Modules: what a call of one function should have to load; the rest of the package stays shut.
@pytest.mark.parametrize("name, most", [("hold", 20), ("prune_", 40)])
def test_a_name_loads_little_of_the_package(name, most, tmp_path):
    code = LOADED.format(name=name)
    # The first run writes the byte code that every installation has.
    runs = [
        subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
        for _ in range(2)
    ]
    assert runs[-1].returncode == 0, runs[-1].stderr
    count, took, *modules = runs[-1].stdout.split()
    assert int(count) <= most, modules
    assert ("secateurs.masks.select" in modules) == (name == "prune_")
    # Time of this process alone, so that a busy machine does not decide.
    assert float(took) < 0.3


def test_a_name_loads_no_statistics_of_scipy():
    # scipy.stats takes longer to import than proving or saving a small network takes.
    names = "prune_, certify, save_sparse, compact"
    code = f"import sys\nfrom secateurs import {names}\nsys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("room", [secateurs, optim, prune, paths, ship], ids=lambda r: r.__name__)
def test_a_room_offers_what_it_states(room):
    assert set(room.__all__) <= set(dir(room))
    for name in room.__all__:
        assert getattr(room, name) is not None
    with pytest.raises(AttributeError, match=r"has no attribute 'prume_'"):
        getattr(room, "prume_")  # noqa: B009


def test_a_module_of_the_same_name_does_not_hide_a_function(tmp_path, monkeypatch):
    package = tmp_path / "tools_shop"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from secateurs.base.lazy import open_on_first_use\n"
        "if TYPE_CHECKING:\n    from tools_shop.saw import saw\n"
        "open_on_first_use(__name__)\n",
        encoding="utf-8",
    )
    (package / "saw.py").write_text("def saw():\n    return 'sawn'\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import tools_shop.saw

    assert tools_shop.saw() == "sawn"
    from tools_shop import saw

    assert saw is tools_shop.saw


def test_every_name_of_a_registry_is_known_before_its_file_is_opened():
    """A scope in a file of its own was unknown until something else had loaded that file."""
    code = (
        "import torch, secateurs as sc\n"
        "net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))\n"
        "print(sc.prune_(net, 'magnitude', sparsity=0.5, scope='spectral').report.sparsity)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["0.5"], done.stderr


def test_the_name_of_a_rule_is_taken_before_its_file_is_opened():
    code = (
        "from secateurs.scores import SCORES, score_rule\n"
        "try:\n"
        "    score_rule('snip')(lambda task: {})\n"
        "except ValueError as error:\n"
        "    print(error, 'snip' in SCORES, SCORES['snip'].name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    told = "the score 'snip' is already registered; choose another name. True snip\n"
    assert done.stdout == told, done.stderr
