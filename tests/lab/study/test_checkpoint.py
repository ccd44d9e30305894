"""A run left at any step and taken up again gives the same weights, bit for bit."""

import dataclasses
import json

import pytest

from secateurs_lab.study import METHODS as KINDS
from secateurs_lab.study import (
    ACDCMethod,
    Data,
    DGatingMethod,
    Dwf,
    Gradual,
    HAMMethod,
    Imp,
    Net,
    PowerPropagationMethod,
    Prune,
    RigLMethod,
    SETMethod,
    Study,
    Training,
)
from secateurs_lab.study.fitting import TRAINERS
from secateurs_lab.study.jobs import Interrupted, MemoryContext
from secateurs_lab.study.measure import Bench
from secateurs_lab.study.stages import perform

METHODS = {
    "magnitude": Prune(),
    "imp": Imp(per_round=0.5, rewind="1ep"),
    "synflow drawn": Prune(score="synflow", rounds=10, how="sample", after="init"),
    "dwf": Dwf(strength=0.05, strength_schedule="ramp-hold-relax"),
    "dwf, steered": Dwf(target=True),
    "gradual": Gradual(every="2it", how="sample"),
    "rigl": RigLMethod(every="2it"),
    "set": SETMethod(every="3it"),
    "set, adam": SETMethod(every="3it", train={"optimizer": "adam", "lr": 1e-3}),
    "acdc": ACDCMethod(),
    "ham": HAMMethod(),
    "d-gating": DGatingMethod(strength=1e-3),
    "power-propagation": PowerPropagationMethod(train={"optimizer": "adam", "lr": 1e-3}),
}
EPOCHS, PER_EPOCH = 6, 4
BENCH = Bench()


class Impatient(MemoryContext):
    """A context that asks the run to leave off after so many steps."""

    def __init__(self, stop_at=None, blobs=None):
        super().__init__(blobs=dict(blobs or {}))
        self.steps, self.stop_at = 0, stop_at

    def stopping(self):
        self.steps += 1
        return self.steps == self.stop_at


def study(method):
    train = Training(length=f"{EPOCHS}ep", batch=64, augment=True)
    return Study(
        model=Net(name="lenet-300-100"),
        data=Data(name="digits", train=PER_EPOCH * 64, test=50),
        methods=[method],
        compressions=[4],
        train=train,
    )


def prepared(method):
    """The run of the method that comes last, with what the runs before it have left."""
    left = {}
    runs = study(method).runs()
    for run in runs[:-1]:
        context = MemoryContext(blobs=needed(run, left))
        perform(run, BENCH, context)
        left[run.key] = context.blobs["weights"]
    return runs[-1], needed(runs[-1], left)


def needed(run, left):
    found = {"parent": run.parent, "rewind": run.rewind}
    return {purpose: left[other.key] for purpose, other in found.items() if other is not None}


def check(method, stops):
    run, blobs = prepared(METHODS[method])
    whole = perform(run, BENCH, MemoryContext(blobs=dict(blobs)))
    assert whole.state == "done", whole.reason
    for stop in stops:
        first = Impatient(stop, blobs)
        with pytest.raises(Interrupted):
            perform(run, BENCH, first)
        # Twice: what was resumed can be left and resumed again.
        second = Impatient(2, first.blobs) if stop + 2 < EPOCHS * PER_EPOCH else first
        if second is not first:
            with pytest.raises(Interrupted):
                perform(run, BENCH, second)
        found = perform(run, BENCH, MemoryContext(blobs=dict(second.blobs)))
        assert found.weights_hash == whole.weights_hash, (method, stop)
        assert found.result() == whole.result(), (method, stop)


@pytest.mark.parametrize("method", METHODS)
def test_resuming_is_bit_exact(method):
    check(method, [3, 16])


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_resuming_is_bit_exact_at_every_step(method, capsys):
    stops = range(1, EPOCHS * PER_EPOCH)
    check(method, stops)
    with capsys.disabled():
        print(f"\n{method}: {len(stops)} stop points, each left twice, bit-equal")


def test_another_seed_is_another_network():
    """The comparison above can fail."""
    run, blobs = prepared(METHODS["dwf"])
    other = json.loads(perform(run, BENCH, MemoryContext(blobs=blobs)).result())
    shifted = study(METHODS["dwf"])
    again = [r for r in Study(**{**fields(shifted), "seeds": [1]}).runs() if r.method.kind == "dwf"]
    assert (
        json.loads(perform(again[0], BENCH, MemoryContext()).result())["weights"]
        != other["weights"]
    )


def fields(value):
    return {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}


def test_every_kind_of_method_has_a_trainer():
    assert set(KINDS) == set(TRAINERS), "register one in lab/src/secateurs_lab/study/fitting.py"


def test_this_file_names_every_kind_that_saves_more_than_a_network():
    """A new kind of method belongs in METHODS above."""
    kinds = {method.kind for method in METHODS.values()} | {
        "dense",
        "l1",
        "path-penalty",
    }
    assert set(map(str, TRAINERS)) == kinds, "add a line to METHODS of this file"
