"""The page of accelerate runs as printed, with the real package; its zeros and checkpoints are
exact.
"""

import pytest
import torch
from torch import nn

import secateurs as sc
from pages import DOCS, run_page

accelerate = pytest.importorskip("accelerate")


@pytest.fixture(autouse=True)
def alone():
    """accelerate keeps its settings for the whole process."""
    accelerate.state.AcceleratorState._reset_state(True)
    yield
    accelerate.state.AcceleratorState._reset_state(True)


def test_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = run_page(DOCS / "accelerate.md")
    assert capsys.readouterr().out.split() == ["0.90", "0.90", "1348"]
    for model, masks in (
        (names["model"], names["pruned"].masks),
        (names["again"], names["held_again"].masks),
        (names["sparse"], names["result"].masks),
    ):
        known = dict(model.named_parameters())
        assert all(not known[n][~m].any() for n, m in masks.items())
        assert any(known[n].any() for n in masks)
    assert (tmp_path / "checkpoint/masks.safetensors").exists()


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_factors_come_back_from_a_checkpoint_bit_for_bit(tmp_path, kind):
    x, y = torch.randn(64, 16), torch.randint(0, 4, (64,))
    data = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(data, batch_size=16)
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    if kind == "sgd":
        optimizer = sc.optim.FactorizedSGD(model.named_parameters(), lr=0.1)
    else:
        base = {"base": torch.optim.AdamW, "base_kwargs": {"lr": 1e-2}}
        optimizer = sc.optim.Factorized(model.named_parameters(), **base)
    accelerator = accelerate.Accelerator(cpu=True)
    model, wrapped, loader = accelerator.prepare(model, optimizer, loader)

    def epoch():
        for inputs, targets in loader:
            wrapped.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            wrapped.step()
        return [optimizer.factors(p).clone() for p in model.parameters()]

    epoch()
    accelerator.save_state(tmp_path / "state")
    first = epoch()
    accelerator.load_state(tmp_path / "state")
    assert optimizer.taken == 4
    second = epoch()
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
