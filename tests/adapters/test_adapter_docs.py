"""The pages of the adapters run as printed, with the real packages; zeros stay zero in both."""

import pytest
import torch
from torch import nn

from pages import DOCS, run_page
from secateurs.adapters.gradual import When
from secateurs.errors import ArgumentError


def run(page, folder, monkeypatch):
    """Every python block of a page, one after the other; what they leave."""
    monkeypatch.chdir(folder)
    return run_page(DOCS / page, {"__name__": page})


def zeros_hold(model, masks):
    known = dict(model.named_parameters())
    assert masks
    return all(not bool(known[name][~mask].any()) for name, mask in masks.items())


def test_the_page_of_hugging_face(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    names = run("huggingface.md", tmp_path, monkeypatch)
    assert "0.800" in capsys.readouterr().out
    assert zeros_hold(names["model"], names["callback"].masks)
    assert (tmp_path / "out/masks.safetensors").exists()
    assert names["pruned"].report.total.sparsity == pytest.approx(0.95, abs=0.02)
    assert names["result"].report.total.sparsity > 0.5


def test_the_trainer_logs_the_sparsity(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from secateurs import Recipe
    from secateurs.adapters import PruningCallback

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 8)

        def forward(self, x, labels=None):
            return {"loss": self.layer(x).square().mean()}

    options = {
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
    }
    args = transformers.TrainingArguments(
        str(tmp_path), max_steps=6, logging_steps=1, **options
    )
    callback = PruningCallback(Recipe(sparsity=0.5), start=0.0, end=0.5, cuts=2)
    data = [{"x": torch.randn(4), "labels": torch.tensor(0)} for _ in range(64)]
    model = Net()
    trainer = transformers.Trainer(
        model=model, args=args, train_dataset=data, callbacks=[callback]
    )
    trainer.train()
    logged = [
        row["sparsity"] for row in trainer.state.log_history if "sparsity" in row
    ]
    assert logged[-1] == 0.5
    assert int(model.layer.weight.count_nonzero()) == 16


def test_the_page_of_lightning(tmp_path, monkeypatch, capsys):
    pytest.importorskip("lightning")
    names = run("lightning.md", tmp_path, monkeypatch)
    assert "0.90" in capsys.readouterr().out
    masks = names["callback"].masks
    assert names["result"].report.total.total > 0
    assert all(name.startswith("net.") for name in masks)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"start": 0.5, "end": 0.5}, "0 <= start < end <= 1"),
        ({"end": 1.5}, "0 <= start < end <= 1"),
        ({"cuts": 0}, "cuts=0"),
    ],
)
def test_shares_that_are_none(fields, message):
    with pytest.raises(ArgumentError, match=message):
        When(**fields)


@pytest.mark.parametrize("total", [2, 7, 100, 100_003])
def test_all_cuts_lie_in_the_run(total):
    first, last, every = When(start=0.1, end=0.7, cuts=20).steps(total)
    assert 0 <= first < last <= total and every >= 1


def test_a_missing_name_is_no_import_error():
    from secateurs import adapters

    with pytest.raises(AttributeError, match="nonsense"):
        _ = adapters.nonsense
