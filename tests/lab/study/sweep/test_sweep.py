"""A study as a whole: the same table on any engine, failures stay alone, nothing is done twice."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from secateurs.errors import ArgumentError, StoreError
from secateurs_lab.data import from_tensors
from secateurs_lab.study import (
    L1,
    ACDCMethod,
    Certify,
    Data,
    Dense,
    DGatingMethod,
    Dwf,
    Gradual,
    HAMMethod,
    How,
    Imp,
    PathPenalty,
    PowerPropagationMethod,
    Prune,
    RigLMethod,
    SETMethod,
    Study,
    Training,
    run,
)
from secateurs_lab.study.config import ENGINES
from secateurs_lab.study.export import export
from secateurs_lab.study.rerun import rerun

TRAIN = Training(length="2ep", batch=64)


def digits(**changes):
    usual = {
        "model": "lenet-300-100",
        "data": Data(name="digits", train=256, test=50),
        "train": TRAIN,
    }
    return Study(**{**usual, "methods": [Prune()], "compressions": [4], **changes})


class Uncountable(nn.Module):
    """Its way through the layers depends on the numbers it is given, so that none can be read."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x):
        h = self.first(x.flatten(1))
        return self.last(h.relu() if float(h.detach().sum()) > 0 else h)


def noise():
    g = torch.Generator().manual_seed(7)
    x, y = (
        torch.randn(64, 1, 4, 4, generator=g),
        torch.randint(0, 3, (64,), generator=g),
    )
    return from_tensors("noise", train_x=x, train_y=y, test_x=x[:21], test_y=y[:21], classes=3)


class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x):
        return self.body(x)


class Dropping(Mine):
    """Draws from torch's own generator while it trains."""

    def forward(self, x):
        return super().forward(nn.functional.dropout(x, 0.5, self.training))


def builder(generator):
    model = Mine()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=generator)
    return model


class Raising(Mine):
    def forward(self, x):
        raise ZeroDivisionError("of my own\nsecond line")


class NotANumber(Mine):
    def forward(self, x):
        return super().forward(x) * float("nan")


class Hungry(Mine):
    def forward(self, x):
        return torch.empty(2**46, 8).sum() + super().forward(x)


class Telling:
    """A watcher that remembers."""

    def __init__(self):
        self.begun, self.all = [], []

    def begin(self, rows):
        self.rows = rows

    def news(self, key, news):
        self.all.append((key, news["event"]))
        if news["event"] == "begun":
            self.begun.append(key)

    def ended(self, row):
        self.all.append((row.key, row.state))


def table(store):
    return [row.result() for row in store.rows(hidden=True)]


# `engines/test_ray.py` starts a cluster for the same question.
@pytest.mark.parametrize("engine", [e for e in ENGINES if e not in ("in-process", "ray")])
def test_the_table_is_the_same_on_any_engine(engine, tmp_path):
    study = digits(methods=[Prune(), Imp(per_round=0.5), Dwf()], seeds=[0, 1])
    with run(study, tmp_path / "here") as here:
        assert set(here.counts()) == {"done"}
        with run(study, tmp_path / "two", how=How(engine=engine, workers=2)) as two:
            assert table(two) == table(here)


@pytest.mark.parametrize("engine", [e for e in ENGINES if e not in ("in-process", "ray")])
def test_runs_side_by_side_do_not_draw_each_others_numbers(engine, tmp_path):
    study = Study(
        model=Dropping,
        data=noise,
        methods=[Prune()],
        compressions=[4],
        seeds=[0, 1, 2, 3],
        train=Training(length="8ep", batch=16),
    )
    with run(study, tmp_path / "here") as here:
        assert set(here.counts()) == {"done"}
        with run(study, tmp_path / "two", how=How(engine=engine, workers=2)) as two:
            assert table(two) == table(here)


def test_own_model_data_and_metric(tmp_path):
    metrics = {"zeros": lambda model, data: sum(int((p == 0).sum()) for p in model.parameters())}
    study = Study(
        model=builder,
        data=noise,
        methods=[Prune()],
        compressions=[4],
        train=TRAIN,
        metrics=metrics,
    )
    with run(study, tmp_path / "s") as store:
        dense, pruned = store.rows()
    assert (dense.model, dense.data, dense.state) == ("builder", "noise", "done")
    # Of 128 + 24 weights a quarter is kept.
    assert pruned.metrics["own.zeros"] == 152 - 38
    assert pruned.kept == 38


def of_one(model, data):
    return 1.0


def of_two(model, data):
    return 2.0


def test_a_metric_that_comes_after_the_runs_is_warned_of(tmp_path, caplog):
    def again(metrics):
        caplog.clear()
        run(digits(metrics=metrics), tmp_path / "s").close()
        return [r.getMessage() for r in caplog.records if r.name == "secateurs_lab.study"]

    assert again({"a": of_one}) == again({"a": of_one}) == []
    (changed,) = again({"a": of_two})
    assert "2 runs are done" in changed and "'a' was changed or added" in changed
    assert again({"a": of_two}) == []
    (added,) = again({"a": of_two, "b": of_one})
    assert "'b' was changed or added" in added


def test_what_is_done_is_not_done_again(tmp_path):
    first, second = Telling(), Telling()
    with run(digits(), tmp_path / "s", watchers=(first,)) as store:
        before = table(store)
    more = digits(compressions=[4, 8], methods=[Prune(label="ours"), Dwf()])
    with run(more, tmp_path / "s", watchers=(second,)) as store:
        assert [r.label for r in store.rows()] == ["dense", "ours", "ours", "dwf D=3"]
        assert table(store)[:2] == before
    assert len(first.begun) == 2 and len(second.begun) == 2
    with run(digits(), tmp_path / "s") as store:
        # What is not asked for is out of sight, and not lost.
        assert len(store.rows()) == 2
    with run(more, tmp_path / "s", watchers=(third := Telling(),)) as store:
        assert len(store.rows()) == 4 and not third.begun


@pytest.mark.parametrize(
    ("model", "state", "reason"),
    [
        (Raising, "failed", "ZeroDivisionError: of my own"),
        (NotANumber, "diverged", "the loss is nan at step 1 of 2"),
        (Hungry, "failed", "memory"),
    ],
)
def test_a_failure_stays_alone(tmp_path, model, state, reason):
    study = Study(
        model=[Mine, model],
        data=noise,
        methods=[Prune()],
        compressions=[4],
        train=TRAIN,
    )
    with run(study, tmp_path / "s") as store:
        rows = store.rows()
    assert [row.state for row in rows] == ["done", "done", state, "failed"]
    assert reason in rows[2].reason and "second line" not in rows[2].reason
    assert rows[3].reason.startswith(f"not begun: the run {rows[2].key} it needs has {state}")


def test_a_network_that_gives_one_answer_to_all_inputs_is_left_off(tmp_path):
    study = digits(compressions=[4, 16000], train=Training(length="50ep", batch=64))
    with run(study, tmp_path / "s") as store:
        fine, hopeless = store.rows()[1:]
    assert fine.state == "done" and hopeless.state == "collapsed"
    assert hopeless.reason.startswith("after epoch 2 the network gives one answer to all inputs")
    assert len(hopeless.history) == 2 and hopeless.accuracy is not None and hopeless.kept == 3


def test_damaged_weights_are_noticed_and_made_again(tmp_path):
    with run(digits(), tmp_path / "s") as store:
        dense = store.rows()[0]
        path = store.artefacts.path(dense.weights)
    blob = path.read_bytes()
    path.write_bytes(blob[:200] + bytes([blob[200] ^ 4]) + blob[201:])
    with run(digits(compressions=[4, 8]), tmp_path / "s", watchers=(told := Telling(),)) as store:
        assert {row.state for row in store.rows()} == {"done"}
        assert store.rows()[0].result() == dense.result()
        assert store.artefacts.fits(dense.weights)
    assert told.begun.count(dense.key) == 1


def test_rerun_gives_the_same_weights_and_tells_when_not(tmp_path):
    study = digits(methods=[Prune(), Dwf()])
    with run(study, tmp_path / "s", threads=1) as store:
        for row in store.rows():
            assert rerun(study, store, row.key[:8]).same
        store.put(type(row)(**{**as_fields(row), "weights_hash": "0" * 64}))
        found = rerun(study, store, row.key)
    assert not found.same and found.differences[0].startswith("weights_hash: '0000")


def as_fields(row):
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


def test_without_saving_only_what_is_still_needed_is_kept(tmp_path):
    study = digits(methods=[Prune(), Imp(per_round=0.5)], save=False)
    held = []

    class Look:
        def begin(self, rows):
            pass

        def news(self, key, what):
            pass

        def ended(self, row):
            held.append(len(list((tmp_path / "lean/artefacts").rglob("*.safetensors"))))

    with run(study, tmp_path / "lean", watchers=(Look(),)) as lean:
        rows = lean.rows(hidden=True)
        assert not list((tmp_path / "lean/artefacts").rglob("*.safetensors"))
    with run(replace(study, save=True), tmp_path / "whole") as whole:
        hashes = [row.weights_hash for row in whole.rows(hidden=True)]
    assert all(row.weights is None for row in rows)
    assert [row.weights_hash for row in rows] == hashes
    assert 1 < max(held) < len(rows)


def test_what_a_later_method_needs_is_trained_again(tmp_path):
    with run(digits(save=False), tmp_path / "s") as first:
        dense = first.rows()[0]
    with run(digits(save=False, compressions=[4, 8]), tmp_path / "s") as more:
        rows = more.rows()
    assert [row.state for row in rows] == ["done"] * 3
    assert rows[0].weights_hash == dense.weights_hash
    assert rows[0].provenance["begun"] >= dense.provenance["ended"]


def test_rerun_says_when_the_weights_it_needs_were_not_saved(tmp_path):
    study = digits(save=False)
    with run(study, tmp_path / "s") as done:
        dense, pruned = done.rows()
        assert rerun(study, done, dense.key).same
        with pytest.raises(StoreError, match="save = false"):
            rerun(study, done, pruned.key)


def test_every_kind_runs_and_says_what_it_found(tmp_path):
    methods = [
        L1(strength=0.01),
        PathPenalty(),
        Prune(after=L1(strength=0.01), label="l1, cut"),
    ]
    study = digits(
        methods=[*methods, Prune(rewind="1ep", label="ticket")],
        certify=Certify(images=2),
    )
    with run(study, tmp_path / "s") as store:
        rows = {row.label: row for row in store.rows()}
        assert {row.state for row in rows.values()} == {"done"}
        export(store, tmp_path / "runs.csv")
        export(store, tmp_path / "history.csv", table="history")
        export(store, tmp_path / "layers.csv", table="layers")
    assert [c.kind for c in rows["ticket"].certificates] == ["proven", "statistical"]
    assert rows["ticket"].certificates[0].bound >= rows["ticket"].certificates[0].lower_bound > 0
    assert rows["l1"].history[-1].strength == 0.01
    assert rows["l1, cut"].compression == 4.0
    assert (tmp_path / "runs.csv").read_text().count("\n") == len(rows) + 1
    assert (tmp_path / "history.csv").read_text().count("\n") == 2 * len(rows) + 1
    with (
        run(study, tmp_path / "s") as store,
        pytest.raises(ArgumentError, match=r"does not end in \.csv"),
    ):
        export(store, tmp_path / "runs.txt")


def test_rows_say_what_their_training_cost(tmp_path):
    gating = DGatingMethod(strength=0.01, groups="neuron")
    methods = [
        RigLMethod(every="2it"),
        SETMethod(every="2it"),
        ACDCMethod(start="0it", every="1ep", last_dense="0it", end="1ep"),
        Gradual(begin="0it", end="1ep", every="1ep"),
        Prune(score="snip", after="init"),
        Dwf(strength=0.01),
        Prune(after=HAMMethod(alpha=1.0), label="ham, cut"),
        Prune(after=PowerPropagationMethod(), label="power, cut"),
        gating,
    ]
    with run(digits(methods=methods, compressions=[4]), tmp_path / "s") as store:
        rows = {row.label: row for row in store.rows()}
    assert {row.state for row in rows.values()} == {"done"}, [r.reason for r in rows.values()]
    steps = rows["dense"].metrics["cost.steps"]
    share = {label: row.metrics["cost.share"] for label, row in rows.items()}
    # In a fully connected network every weight is multiplied once: a quarter of them, a quarter.
    for label in ("snip, at init", "ham, cut", "power, cut"):
        assert rows[label].compression == 4 and share[label] == pytest.approx(0.25)
    assert share["set, 2it"] == share["acdc, 0it, 1ep, 0it, 1ep"] == pytest.approx(0.25)
    # Two of the eight steps grow by the gradient and need it whole.
    assert share["rigl, 2it"] == pytest.approx((8 * 3 * 0.25 + 2 * 0.75) / (8 * 3))
    assert share["dense"] == share[gating.title] == share["dwf D=3"] == 1
    gradual = next(row for row in rows.values() if row.kind == "gradual")
    # Cut in the middle of the training.
    assert gradual.metrics["cost.share"] == pytest.approx((1 + 0.25) / 2)
    assert all(
        row.metrics["cost.steps"] == row.metrics["cost.share"] * steps for row in rows.values()
    )


def test_what_cannot_be_counted_counts_every_weight_once(tmp_path):
    with run(
        digits(model=lambda: Uncountable(), methods=[Prune(after="init")]), tmp_path / "s"
    ) as store:
        rows = store.rows()
    assert [row.state for row in rows] == ["done"] * 2, [row.reason for row in rows]
    assert rows[1].metrics["cost.share"] == pytest.approx(1 / rows[1].compression)


def test_dense_is_not_hidden_and_the_network_to_rewind_to_is(tmp_path):
    with run(digits(methods=[Prune(rewind="1ep")]), tmp_path / "s") as store:
        assert [row.label for row in store.rows()] == [
            "dense",
            "magnitude, rewound to 1ep",
        ]
        hidden = [row for row in store.rows(hidden=True) if row.hidden]
        assert [row.label for row in hidden] == [Dense(until="1ep").title]
        assert hidden[0].history[-1].iteration == 4


def test_iterative_pruning_is_that_of_the_library(tmp_path):
    """The rounds of a study, each a run of its own, give the network of `secateurs.imp`."""
    from secateurs.base.random import generator
    from secateurs.prune import imp_
    from secateurs_lab.study.measure import Bench
    from secateurs_lab.train import Loop, cosine

    study = digits(methods=[Imp(per_round=0.5, rewind="0it")], compressions=[6])
    data = Bench().data(study.data[0])[0]
    model = Bench().network(study.model[0], data, 0)

    def train(model, round):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        round.hold(optimizer)
        Loop(
            model=model, data=data, optimizer=optimizer, length="2ep", batch=64, schedule=cosine(),
            generator=generator(0, "batches"),
        ).run()  # fmt: skip

    imp_(model, train, compression=6, per_round=0.5)
    with run(study, tmp_path / "s") as store:
        rows = [row for row in store.rows() if row.kind == "imp"]
        assert [row.asked for row in rows] == [2.0, 4.0, 6.0]
        found = store.tensors(rows[-1].weights)
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())
