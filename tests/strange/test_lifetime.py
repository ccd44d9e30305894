"""Networks of others, from their weights to a file: each stage is right or refused in words."""

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import ShipError
from strange.foreign import NETWORKS
from strange.lifetime import STAGES, live

# What is refused of those in plain torch; of the others it depends on the version.
CUTS = {"cut", "cut, exact=False"}
REFUSED = {
    "lstm_tagger": set(),
    "lstm_of_160_steps": set(),
    "gru_ctc": CUTS,
    "encoder_decoder": {"accelerate"},
    "positions_in_float32": set(),
    "unet": set(),
    "unet_with_one_step": {*CUTS, "compact", "accelerate"},
    "scripted": {*CUTS, "compact", "accelerate"},
    "masked_in_training": CUTS,
    "vocoder": set(),
    "graph_network": {*CUTS, "compact", "accelerate"},
    "graph_network_in_a_batch": {"accelerate"},
    "own_experts": {*CUTS, "compact", "accelerate"},
}

pytestmark = pytest.mark.filterwarnings("ignore")


def lived(name):
    torch.manual_seed(0)
    return {stage.name: stage for stage in live(*NETWORKS[name]())}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_every_stage_is_right_or_refused(name):
    if name.startswith("hf_"):
        pytest.importorskip("transformers")
    stages = lived(name)
    assert [*stages] == [*STAGES]
    wrong = {stage.name: stage.said for stage in stages.values() if stage.verdict == "wrong"}
    assert not wrong, wrong
    if name in REFUSED:
        refused = {n: stage.said for n, stage in stages.items() if stage.verdict == "refused"}
        assert {*refused} == REFUSED[name], refused


def test_weights_with_norms_live_through_every_stage():
    assert {stage.verdict for stage in lived("vocoder").values()} == {"right"}


def test_networks_of_plain_torch_are_those_whose_refusals_are_known():
    assert {*REFUSED} == {name for name in NETWORKS if not name.startswith("hf_")}


def verdicts(monkeypatch, name, instead):
    monkeypatch.setattr(sc, name, instead)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return {stage.name: stage for stage in live(net, torch.randn(2, 4))}


def test_the_harness_sees_what_is_wrong(monkeypatch):
    with monkeypatch.context() as patch:
        found = verdicts(patch, "compact", lambda m, x: nn.Sequential(m, nn.Hardtanh(0, 1e-3)))
        assert found["compact"].verdict == "wrong" and "apart" in found["compact"].said
    with monkeypatch.context() as patch:
        found = verdicts(patch, "accelerate", lambda m, x, **_: m.no_such_thing)
        assert found["accelerate"].verdict == "wrong" and "raw" in found["accelerate"].said
    with monkeypatch.context() as patch:
        found = verdicts(patch, "hold", lambda *_: torch.no_grad())
        assert found["hold"].verdict == "wrong"

    def refuse(model, *_, **__):
        model[0].weight.data.zero_()
        raise ShipError("in words, but too late")

    with monkeypatch.context() as patch:
        found = verdicts(patch, "prune_channels_", refuse)
        assert found["cut"].verdict == "wrong" and "changed the model" in found["cut"].said
    with monkeypatch.context() as patch:
        found = verdicts(patch, "prune_", refuse)
        assert found["prune"].verdict == "wrong" and "has changed" in found["prune"].said
