"""Pruning and fine-tuning in one call."""

import logging

import pytest
import torch

from optim.digits import fit, network
from secateurs.optim import FactorizedSGD, prune_and_tune_


@pytest.mark.parametrize("asked", [{"to_sparsity": 0.5}, {"compression": 2}])
def test_pruning_revives_no_zero_of_a_sparser_net(asked, caplog):
    model = network()
    with torch.no_grad():
        model[0].weight[:, 5:] = 0
    zeros = {name: parameter == 0 for name, parameter in model.named_parameters()}
    with caplog.at_level(logging.INFO, logger="secateurs.optim"):
        tuned = prune_and_tune_(model, lambda adam: fit(model, adam, 5, 1e-2), **asked)
    assert "nothing to prune: 1127 weights were to be kept, 504 are not zero" in caplog.text
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter == 0, zeros[name])
        assert torch.equal(tuned.masks[name], ~zeros[name])
    tighter = prune_and_tune_(model, lambda _: None, to_sparsity=0.9)
    assert tighter.report.total.kept == 225
    assert not any((mask & zeros[name]).any() for name, mask in tighter.masks.items())


def test_pruning_and_tuning_in_one_call():
    model = network()
    optimizer = FactorizedSGD(
        model.named_parameters(),
        lr=0.2,
        strength=2e-3,
        generator=torch.Generator().manual_seed(0),
    )
    fit(model, optimizer, 800, 0.2)
    optimizer.collapse_()
    tuned = prune_and_tune_(model, lambda adam: fit(model, adam, 200, 2e-3), compression=40)
    assert tuned.report.compression == pytest.approx(40, rel=0.02)
    assert not any(model.get_parameter(name)[~mask].any() for name, mask in tuned.masks.items())
    kept = prune_and_tune_(model, lambda _: None)
    assert kept.report.total.kept == tuned.report.total.kept
    half = prune_and_tune_(
        model,
        lambda _: None,
        to_sparsity=0.99,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    )
    assert half.report.sparsity == pytest.approx(0.99, abs=1e-3)
    none = prune_and_tune_(
        model,
        lambda _: None,
        masks={"0.weight": torch.zeros(50, 40, dtype=torch.bool)},
    )
    assert not model[0].weight.any()
    assert list(none.masks) == ["0.weight"]
