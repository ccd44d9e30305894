"""The callback inside the Trainer of Hugging Face."""

import pytest
import torch
from torch import nn

from secateurs import Recipe


def test_the_trainer_logs_the_sparsity(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
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
    args = transformers.TrainingArguments(str(tmp_path), max_steps=6, logging_steps=1, **options)
    callback = PruningCallback(Recipe(sparsity=0.5), start=0.0, end=0.5, cuts=2)
    data = [{"x": torch.randn(4), "labels": torch.tensor(0)} for _ in range(64)]
    model = Net()
    trainer = transformers.Trainer(model=model, args=args, train_dataset=data, callbacks=[callback])
    trainer.train()
    logged = [row["sparsity"] for row in trainer.state.log_history if "sparsity" in row]
    assert logged[-1] == 0.5
    assert int(model.layer.weight.count_nonzero()) == 16
