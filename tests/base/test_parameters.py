"""Models that TorchScript compiled, wherever one may be given."""

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import UnsupportedOperation


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "ask",
    [
        lambda model, x: sc.macs(model, x),
        lambda model, x: sc.path_norm(model, x),
        lambda model, x: sc.prune_channels_(model, x, channels=0.5),
        lambda model, x: sc.compact(model, x),
        lambda model, x: sc.accelerate(model, x),
        lambda model, x: sc.certify(model, model, around=x, radius=0.1),
        lambda model, x: sc.export(model, "never.onnx", x),
        lambda model, x: sc.prune_(model, "synflow", sparsity=0.5, example=x),
    ],
)
@pytest.mark.parametrize("part", ["whole", "part"])
def test_torchscript_is_refused_where_a_model_is_traced_or_copied(ask, part):
    x = torch.zeros(1, 4)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    scripted = torch.jit.script(net)
    model = scripted if part == "whole" else nn.Sequential(net, nn.Sequential(scripted)).eval()
    named = "the model" if part == "whole" else "'1.0' of Sequential"
    with pytest.raises(UnsupportedOperation, match=f"{named} is compiled by TorchScript"):
        ask(model, x)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_masks_of_torchscript_are_as_of_any_model(tmp_path):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    scripted = torch.jit.script(net)
    sc.prune_(scripted, "magnitude", sparsity=0.5)
    sc.save_sparse(scripted, tmp_path / "m.st")
    sc.load_sparse(tmp_path / "m.st", net)
    assert torch.equal(net[0].weight, dict(scripted.named_parameters())["0.weight"])
