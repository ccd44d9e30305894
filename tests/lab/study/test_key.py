"""The keys of runs: pinned, so that nobody renames the runs of every store without noticing."""

import sys
from dataclasses import replace
from hashlib import sha256
from types import ModuleType

import pytest

from lab.study.example import example_study
from secateurs_lab.study import (
    L1,
    METHODS,
    ACDCMethod,
    Certify,
    Data,
    Dense,
    DGatingMethod,
    Dwf,
    Gradual,
    HAMMethod,
    Imp,
    Net,
    PathPenalty,
    PowerPropagationMethod,
    Prune,
    RigLMethod,
    Run,
    SETMethod,
    Store,
    Training,
)
from secateurs_lab.study import key as keys
from secateurs_lab.study.config import waiting_row
from secateurs_lab.study.key import SCHEMA, _plain, canonical, full_settings

DIGITS, LENET = Data(name="digits"), Net(name="lenet-300-100")


def run(method=None, **changes):
    return Run(
        data=DIGITS,
        model=LENET,
        method=method or Dense(),
        train=Training(),
        **changes,
    )


FROZEN = {
    "dense": (run(), "1ace071b53234a79"),
    "seed": (run(seed=1), "34d4449008603090"),
    "prune": (run(Prune(), compression=10.0, parent=run()), "c3c30e95086168a1"),
    "synflow": (
        run(Prune(score="synflow", rounds=100, after="init"), compression=50),
        "20b8694f348d5788",
    ),
    "drawn": (
        run(
            Prune(
                score="grasp",
                how="sample",
                after="init",
                options={"temperature": 2.5},
            ),
            compression=2.5,
        ),
        "afccfd3fb90d3089",
    ),
    "imp": (
        run(Imp(), compression=1.25, parent=run(), rewind=run(Dense(until="0it"))),
        "a52ac3ecd5013c96",
    ),
    "gradual": (run(Gradual(begin="1ep"), compression=20), "04ee9cbfa192a609"),
    "dwf-as-printed": (
        run(Dwf(strength=1e-3, depth=4, init="dwf-as-printed")),
        "a9b790f49aec5b86",
    ),
    "dwf": (run(Dwf(strength=1e-3, depth=4)), "f5fe980656d63e1e"),
    "l1": (run(L1()), "233a0d5314fb75e3"),
    "path-penalty": (run(PathPenalty(strength=0.1)), "491b479af534adac"),
    "rigl": (run(RigLMethod(), compression=10), "f5e147e7b30ad300"),
    "set": (run(SETMethod(), compression=10), "916b6fed8ce3342e"),
    "acdc": (run(ACDCMethod(), compression=10), "3f3466987e405304"),
    "ham": (run(HAMMethod()), "88f03de3aa3d1333"),
    "d-gating": (run(DGatingMethod()), "005f06608d359db5"),
    "power-propagation": (run(PowerPropagationMethod()), "2eb76f6c53bf25b3"),
    "training": (
        replace(run(), train=Training(length="5ep", lr=0.15, batch=256)),
        "f100f00f1b8fcc84",
    ),
    "network": (
        replace(run(), model=Net(name="lenet-5", options={"batch_norm": False})),
        "9f6ffe9045877bfd",
    ),
    "certified": (
        run(Prune(), compression=10, parent=run(), certify=Certify(images=4)),
        "47308c0dbe293629",
    ),
}


@pytest.mark.parametrize("name", FROZEN)
def test_keys_are_as_they_were(name):
    found, frozen = FROZEN[name]
    assert found.key == frozen


def test_every_kind_has_a_pinned_key():
    pinned = {found.method.kind for found, _ in FROZEN.values()}
    assert pinned == set(METHODS), "add a line to FROZEN: a run of the kind, and its key"


PINNED = "a485135c367172f5"


def test_settings_and_their_defaults_are_as_they_were():
    """A new field, or another default, gives the runs that rely on it another key; they are then
    done anew in every store. If that is meant, write the new hash here.

    Where equal settings give another result from now on, SCHEMA is counted up instead.
    """
    kinds = Dense(), Prune(), Imp(), Gradual(), Dwf(), L1(), PathPenalty()
    every = [full_settings(run(method, certify=Certify())) for method in kinds]
    assert sha256(canonical([SCHEMA, *every]).encode()).hexdigest()[:16] == PINNED


def test_another_schema_gives_other_keys_and_leaves_old_rows_alone(tmp_path, monkeypatch):
    old = example_study(seeds=1).runs()
    with Store.create(tmp_path / "a.study") as store:
        store.add(map(waiting_row, old))
        monkeypatch.setattr(keys, "SCHEMA", SCHEMA + 1)
        new = example_study(seeds=1).runs()
        store.add(map(waiting_row, new))
        assert not {run.key for run in old} & {run.key for run in new}
        assert {row.key for row in store.rows(hidden=True)} == {run.key for run in new}
        assert store.row(old[0].key).label == "dense"


def test_what_decides_nothing_is_no_part_of_a_key():
    labelled = run(Prune(label="ours"), compression=10)
    assert labelled.key == run(Prune(), compression=10).key
    assert replace(run(), data=Data(name="digits", root="/elsewhere")).key == run().key


def test_one_setting_written_in_two_ways_has_one_key():
    assert run(Prune(), compression=10).key == run(Prune(), compression=10.0).key
    assert run(Dwf(strength=1)).key == run(Dwf(strength=1.0)).key


def test_every_literal_counts():
    names = [found.key for found, _ in FROZEN.values()]
    assert len(set(names)) == len(names)
    assert run(Prune(floor=0), compression=10).key != run(Prune(), compression=10).key


def test_a_run_depends_on_those_it_needs():
    child = run(Prune(), compression=10, parent=run(seed=1))
    assert child.key != run(Prune(), compression=10, parent=run()).key


def test_full_settings_tell_defaults_too():
    told = full_settings(run(Prune(), compression=10, parent=run()))
    assert told["method"]["score"] == "magnitude"
    assert told["train"]["lr"] == 0.1
    assert told["parent"] == run().key


def test_whole_numbers_are_written_as_such_as_far_as_floats_name_them():
    """2⁵³ as a float stands for 2⁵³ + 1, too."""
    assert [type(_plain(x)) for x in (10.0, 2.0**53 - 1, 2.0**53, 0.5)] == [
        int,
        int,
        float,
        float,
    ]


BLOCK = """
from torch import nn

class Block(nn.Module):
    def forward(self, x):
        return {}

def net():
    return nn.Sequential(nn.Linear(3, 3), Block())
"""


def test_a_changed_class_inside_an_own_network_is_another_run(tmp_path):
    def key(forward):
        # A file, because only what has a file has a text that can be read.
        space = {"__name__": f"own_{len(list(tmp_path.iterdir()))}"}
        file = tmp_path / f"{space['__name__']}.py"
        file.write_text(BLOCK.format(forward))
        module = ModuleType(space["__name__"])
        module.__file__ = str(file)
        sys.modules[module.__name__] = module
        exec(compile(file.read_text(), str(file), "exec"), module.__dict__)
        net = Net(name="net", make=module.net)
        return Run(data=DIGITS, model=net, method=Dense(), train=Training()).key

    assert key("x") == key("x") != key("x + 1")
