"""Multiplications: published figures, an oracle by loops, masks, shared and transposed layers."""

import pytest
import torch
from torch import nn

import secateurs as sc
from architectures import build
from secateurs.errors import UnsupportedOperation
from secateurs.graph import capture
from secateurs.models import build as ours


def by_hooks(model, x):
    """Weights times pixels written (read, for a transposed convolution), by forward hooks on the
    modules.
    """
    counts = {"dense": 0, "nonzero": 0}

    def hook(module, args, out):
        transposed = isinstance(module, nn.modules.conv._ConvTransposeNd)
        at = args[0] if transposed else out
        channels = at.shape[-1] if isinstance(module, nn.Linear) else at.shape[1]
        positions = at[0].numel() // channels
        counts["dense"] += module.weight.numel() * positions
        counts["nonzero"] += int(module.weight.count_nonzero()) * positions

    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    handles = [m.register_forward_hook(hook) for m in model.modules() if isinstance(m, kinds)]
    with torch.no_grad():
        model(*x)
    for handle in handles:
        handle.remove()
    return counts


@pytest.mark.parametrize(
    "name",
    ["resnet18", "mobilenet", "shufflenet", "unet-transposed", "siamese", "mlp"],
)
def test_counts_are_those_of_hooks(name):
    model, example = build(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(torch.rand(parameter.shape) > 0.3)
    work = sc.macs(model, example)
    assert {"dense": work.dense, "nonzero": work.nonzero} == by_hooks(model, example)


def test_resnet18_at_32_has_the_published_work():
    model = ours("resnet-18", classes=10, in_channels=3).eval()
    assert sc.macs(model, torch.zeros(1, 3, 32, 32)).dense == pytest.approx(555e6, rel=0.01)


def test_masks_count_without_being_applied():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    masks = {"0.weight": torch.zeros(3, 4, dtype=torch.bool)}
    graph = capture(model, torch.zeros(1, 4))
    assert sc.macs(model, graph, masks=masks).nonzero == 6
    assert sc.macs(model, graph).nonzero == 18


def test_a_weight_used_through_an_einsum_is_counted():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 5))
            self.weight.data[0] = 0

        def forward(self, x):
            return torch.einsum("bij,jk->bik", x, self.weight)

    work = sc.macs(Mixed(), torch.zeros(1, 2, 3))
    assert (work.dense, work.nonzero) == (2 * 3 * 5, 2 * 2 * 5)


def test_the_table_prints():
    text = str(sc.macs(nn.Linear(3, 2), torch.zeros(1, 3)))
    assert "multiplications" in text and "100.0%" in text


def test_weights_inside_an_unknown_operator_are_not_left_out_in_silence():
    model = nn.Sequential(nn.LSTM(4, 4, batch_first=True)).eval()
    with pytest.raises(UnsupportedOperation, match="lstm"):
        sc.macs(model, torch.zeros(1, 3, 4))


def test_an_embedding_multiplies_nothing():
    model = nn.Sequential(nn.Embedding(10, 4), nn.LayerNorm(4), nn.Linear(4, 2)).eval()
    assert sc.macs(model, torch.tensor([[1, 2, 3]])).dense == 3 * 4 * 2
