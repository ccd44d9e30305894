"""The names of runs: frozen, so that no store is ever orphaned."""

import sys
from dataclasses import fields, replace
from types import ModuleType

import pytest

from secateurs.study import (
    L1,
    Certify,
    Data,
    Dense,
    Dwf,
    Gradual,
    Imp,
    Net,
    PathPenalty,
    Prune,
    Run,
    Training,
)
from secateurs.study.key import FIRST, SILENT, _plain, full_settings

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
    "dense": (run(), "b9b22c96b1a47165"),
    "seed": (run(seed=1), "150f6595248ce063"),
    "prune": (run(Prune(), compression=10.0, parent=run()), "5f7e1d9147cc3435"),
    "synflow": (
        run(Prune(score="synflow", rounds=100, after="init"), compression=50),
        "5b92fb6bff0b75a7",
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
        "6d22b9f27ffbd63e",
    ),
    "imp": (
        run(Imp(), compression=1.25, parent=run(), rewind=run(Dense(until="0it"))),
        "8334312cb44ab691",
    ),
    "gradual": (run(Gradual(begin="1ep"), compression=20), "59e21fa04aab9d08"),
    # What "dwf" was called before the erratum on its upper end keeps its key.
    "dwf-as-printed": (
        run(Dwf(strength=1e-3, depth=4, init="dwf-as-printed")),
        "54fb0a85bc63cbb5",
    ),
    "dwf": (run(Dwf(strength=1e-3, depth=4)), "a91a7e386facdb3b"),
    "l1": (run(L1()), "4f5bf775b6cc506c"),
    "path-penalty": (run(PathPenalty(strength=0.1)), "198d6946531471a6"),
    "training": (
        replace(run(), train=Training(length="5ep", lr=0.15, batch=256)),
        "7fdcd071964ad762",
    ),
    "network": (
        replace(run(), model=Net(name="lenet-5", options={"batch_norm": False})),
        "0013c0d9bf2dc76c",
    ),
    "certified": (
        run(Prune(), compression=10, parent=run(), certify=Certify(images=4)),
        "6bc46f60f0825343",
    ),
}


@pytest.mark.parametrize("name", FROZEN)
def test_keys_never_change(name):
    found, frozen = FROZEN[name]
    assert found.key == frozen


def test_every_field_has_a_first_default_or_is_named_as_none():
    """A new field without an entry in FIRST would rename every run."""
    needed = {
        "Run": {"data", "model", "method", "train"},
        "Net": {"name"},
        "Data": {"name"},
    }
    for cls in (
        Run,
        Net,
        Data,
        Certify,
        Training,
        Dense,
        Prune,
        Imp,
        Gradual,
        Dwf,
        L1,
        PathPenalty,
    ):
        silent = SILENT.get(cls.__name__, SILENT[""])
        wanted = {entry.name for entry in fields(cls)} - silent - needed.get(cls.__name__, set())
        assert wanted == set(FIRST[cls.__name__]), cls.__name__


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
