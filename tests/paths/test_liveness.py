"""Dead channels are found by reachability, and removing them never changes an output."""

import json

import pytest
import torch
from torch import nn

import secateurs as sc
from architectures import BasicBlock, ResNet, build
from paths.nets import zeroed
from secateurs.paths import lost_layers
from secateurs.proof import remove_dead_


def sparse_channels(model: nn.Module, share: float) -> nn.Module:
    """Whole rows and columns of weights set to zero."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear | nn.ConvTranspose2d):
            weight = module.weight.data
            rows, columns = (
                torch.rand(weight.shape[0]) < share,
                torch.rand(weight.shape[1]) < share,
            )
            weight[rows] = 0
            weight[:, columns] = 0
    return model


def small_resnet():
    return ResNet(BasicBlock, (1, 1), classes=3, base=4).double().eval(), torch.randn(1, 3, 16, 16)


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        *(("mlp", seed) for seed in range(9)),
        ("unet-nearest", 0),
        ("unet-transposed", 1),
        ("shufflenet", 0),
    ],
)
def test_removing_dead_channels_never_changes_an_output(name, seed):
    torch.manual_seed(seed)
    model, inputs = build(name)
    sparse_channels(model, 0.3)
    graph = sc.capture(model, inputs)
    with torch.no_grad():
        before = model(*inputs)
        zeros = sum(int((p == 0).sum()) for p in model.parameters())
        found = remove_dead_(model, graph)
        after = model(*inputs)
    assert found.dead > 0 and sum(int((p == 0).sum()) for p in model.parameters()) >= zeros
    assert float((after - before).abs().max()) <= 1e-12 * float(before.abs().max() + 1)


def test_a_constant_emission_moves_into_the_next_bias():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    model[0].weight.data[1] = 0
    model[0].bias.data[1] = 3.0
    x = torch.randn(5, 2, dtype=torch.float64)
    before, bias = (
        model(x).detach(),
        float(model[2].bias) + 3 * float(model[2].weight[0, 1]),
    )
    assert sc.liveness(model, x).layers[0].constant == (1,)
    remove_dead_(model, x)
    assert float(model[2].bias) == pytest.approx(bias) and float(model[2].weight[0, 1]) == 0
    assert not model[0].bias[1] and torch.allclose(model(x), before, rtol=1e-14)


def test_a_padded_convolution_keeps_what_differs_at_its_border():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.Conv2d(2, 1, 3, padding=1)).double()
    model[0].weight.data[1] = 0
    model[0].bias.data[1] = 3.0
    x = torch.randn(2, 1, 4, 4, dtype=torch.float64)
    before, weight = model(x).detach(), model[2].weight.clone()
    remove_dead_(model, x)
    assert torch.equal(model(x), before) and torch.equal(model[2].weight, weight)


def test_collapse_and_a_lost_layer_that_does_not_matter():
    model, inputs = small_resnet()
    alive = sc.liveness(model, inputs)
    assert (
        not alive.collapsed
        and alive.lost == ()
        and 0 < min(layer.mass for layer in alive.layers) <= 1
    )
    model.blocks[0].conv1.weight.data.zero_()
    lost = sc.liveness(model, inputs)
    assert not lost.collapsed and lost.lost == (
        "blocks.0.conv1.weight",
        "blocks.0.conv2.weight",
    )
    model.fc.weight.data.zero_()
    assert sc.liveness(model, inputs).collapsed
    json.dumps(lost.to_json())


def test_masks_stand_for_a_pruned_model():
    model, x = small_resnet()
    masks = {"blocks.0.conv1.weight": torch.zeros(4, 4, 3, 3, dtype=torch.bool)}
    masked = sc.liveness(model, x, masks=masks)
    assert masked.lost == ("blocks.0.conv1.weight", "blocks.0.conv2.weight")
    assert not masked.collapsed and sc.liveness(model, x).lost == ()
    assert sc.liveness(model, x, masks={"fc.weight": torch.zeros(3, 8, dtype=torch.bool)}).collapsed


def test_the_sparsity_report_says_whether_a_lost_layer_matters():
    model, x = small_resnet()
    assert lost_layers(model, x) == {}
    model.blocks[0].conv1.weight.data.zero_()
    report = sc.sparsity_report(model, verdicts=lost_layers(model, x))
    assert report.collapsed == ("blocks.0.conv1.weight",)
    assert "does not matter" in str(report.to_json())


@pytest.mark.parametrize(
    ("name", "word"),
    [("blocks.0.conv1.weight", "does not matter"), ("fc.weight", "matters: the output")],
)
def test_masks_of_a_lost_layer_are_looked_at_before_they_are_applied(name, word):
    model, x = small_resnet()
    masks = {name: torch.zeros_like(model.get_parameter(name), dtype=torch.bool)}
    assert lost_layers(model, x, masks=masks)[name].startswith(word)


def test_of_a_model_that_cannot_be_read_it_says_why_nothing_is_known():
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
    nn.init.zeros_(model[2].weight)
    said = lost_layers(model, torch.zeros(1, 3))["2.weight"]
    assert "is unknown" in said and "gelu" in said


def test_depth_does_not_kill_by_underflow():
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(300)])
    for layer in model:
        layer.weight.data *= torch.tensor([[1e-30], [1.0], [1e30]])
    found = sc.liveness(model, torch.zeros(1, 3))
    assert found.dead == 0 and not found.collapsed


def test_agrees_with_gradients_of_random_nets():
    """A channel is dead for the all-ones mass iff its flow in or its flow out is zero: checked by
    zeroing it.
    """
    torch.manual_seed(5)
    model = zeroed(
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)),
        0.6,
    )
    from_inputs = sc.path_norm(model, torch.zeros(1, 4), split=True).inputs
    for layer, module in zip(
        sc.liveness(model, torch.zeros(1, 4)).layers[:2],
        (model[0], model[2]),
        strict=True,
    ):
        for channel in range(layer.channels):
            row = module.weight.data[channel].clone()
            module.weight.data[channel] = 0
            cut = sc.path_norm(model, torch.zeros(1, 4), split=True).inputs
            module.weight.data[channel] = row
            assert (float(cut) == float(from_inputs)) == (channel in layer.dead)
