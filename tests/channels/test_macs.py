"""Multiplications: published figures, an oracle by loops, masks, shared and transposed layers."""

import pytest
import torch
from torch import nn

import secateurs as sc
from architectures import build, conv_bn, resnet18
from secateurs.errors import UnsupportedOperation
from secateurs.graph import capture


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
    model = resnet18(classes=10)
    model.stem = conv_bn(3, 64)  # that of small images
    model.eval()
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
    class Distances(nn.Module):
        def __init__(self):
            super().__init__()
            self.places = nn.Parameter(torch.randn(5, 4))

        def forward(self, x):
            return torch.cdist(x, self.places)

    with pytest.raises(UnsupportedOperation, match="cdist"):
        sc.macs(Distances().eval(), torch.zeros(1, 3, 4))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("directions", [1, 2])
def test_recurrent_layers_use_each_weight_once_a_step(kind, directions):
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = kind(4, 6, 2, batch_first=True, bidirectional=directions == 2)
            self.out = nn.Linear(6 * directions, 3)

        def forward(self, x):
            return self.out(self.steps(x)[0])

    model = Steps().eval()
    gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[kind]
    rows, wide = gates * 6, 6 * directions
    weights = directions * (rows * (4 + 6) + rows * (wide + 6))
    model.steps.weight_hh_l0.data[:2] = 0
    work = sc.macs(model, torch.zeros(2, 5, 4))
    assert work.dense == 5 * (weights + wide * 3)
    assert work.nonzero == work.dense - 5 * 2 * 6
    masks = {"steps.weight_ih_l1": torch.zeros(rows, wide, dtype=torch.bool)}
    assert sc.macs(model, torch.zeros(2, 5, 4), masks=masks).nonzero == (
        work.nonzero - 5 * rows * wide
    )


def test_an_embedding_multiplies_nothing():
    model = nn.Sequential(nn.Embedding(10, 4), nn.LayerNorm(4), nn.Linear(4, 2)).eval()
    assert sc.macs(model, torch.tensor([[1, 2, 3]])).dense == 3 * 4 * 2


class Experts(nn.Module):
    """Two of four experts for each row, as libraries write them: the matrices are picked."""

    def __init__(self):
        super().__init__()
        self.into, self.gate = nn.Linear(5, 6), nn.Linear(6, 4)
        self.up = nn.Parameter(torch.randn(4, 6, 8))
        self.down = nn.Parameter(torch.randn(4, 8, 6))
        self.hidden, self.out = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x):
        x = torch.relu(self.into(x))
        shares, chosen = self.gate(x).softmax(-1).topk(2, -1)
        rows = x.repeat_interleave(2, 0)[:, None]
        found = torch.bmm(
            torch.relu(torch.bmm(rows, self.up[chosen.flatten()])), self.down[chosen.flatten()]
        )
        mixed = (found[:, 0].view(len(x), 2, 6) * shares[..., None]).sum(1)
        return self.out(torch.relu(self.hidden(mixed)))


def test_experts_are_counted_for_the_rows_that_use_them():
    model, x = Experts().eval(), torch.randn(1, 5)
    model.up.data[:, 0] = 0
    work = sc.macs(model, x)
    plain = 5 * 6 + 6 * 4 + 6 * 16 + 16 * 3
    assert work.dense == plain + 2 * (6 * 8 + 8 * 6)
    assert work.nonzero == work.dense - 2 * 8


def test_networks_are_cut_around_experts():
    torch.manual_seed(0)
    model, x = Experts().eval(), torch.randn(3, 5)
    pruned = sc.prune_channels_(model, x, macs=0.8)
    small = sc.compact(model, x)
    assert pruned.macs[0] <= 0.8 * pruned.macs[1] == 0.8 * sc.macs(Experts().eval(), x).dense
    assert small.up.shape == (4, 6, 8) and small.hidden.weight.shape[0] < 16
    with torch.no_grad():
        torch.testing.assert_close(small(x), model(x))
