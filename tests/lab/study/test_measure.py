"""The figures of a row are those of the network that is kept."""

import pytest

from secateurs_lab.models import build
from secateurs_lab.study import L1, Data, Dwf, Prune, Study, Training, run, stages
from secateurs_lab.study.measure import Bench
from secateurs_lab.train import evaluate


@pytest.mark.parametrize(
    ("method", "every", "again"),
    [
        (Prune(), 1, 0),
        (Prune(after="init"), 1, 0),
        (Prune(after="init"), 0, 1),
        # What is below the threshold is cleared after the last epoch was tested.
        (Dwf(threshold=1e-2), 1, 1),
        (L1(strength=1e-2, threshold=1e-2), 1, 1),
    ],
)
def test_a_network_is_tested_again_only_where_it_was_changed(
    tmp_path, monkeypatch, method, every, again
):
    calls = []

    def counted(model, data):
        calls.append(model)
        return evaluate(model, data)

    monkeypatch.setattr(stages, "evaluate", counted)
    study = Study(
        data=Data(name="digits", train=256, test=50), methods=[method],
        compressions=[4], train=Training(length="3ep", batch=32, evaluate_every=every),
    )  # fmt: skip
    with run(study, tmp_path / "s") as store:
        row = store.rows()[-1]
        weights = store.tensors(row.weights)
    model = build("lenet-300-100", in_channels=1, size=8)
    model.load_state_dict(weights)
    seen, _ = Bench().data(Data(name="digits", train=256, test=50))
    found = evaluate(model, seen)
    assert row.accuracy == found.accuracy
    # A GPU adds in another order every time.
    assert row.metrics["loss"] == pytest.approx(found.loss, rel=1e-6)
    dense = 0 if every else 1
    # Once more right after it was cut, before it trains on.
    assert len(calls) == dense + again + ("accuracy_before" in row.metrics)
