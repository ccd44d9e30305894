"""Rescaling and normalisation keep function, norm and costs; magnitude does not survive them."""

import pytest
import torch
from torch import nn

import secateurs as sc
import secateurs_lab as lab
from architectures import build
from channels.neurons import into
from paths.nets import TINY, tiny
from secateurs.errors import ArgumentError
from secateurs.proof.normalize import first_neurons
from secateurs.proof.scaling import coupling

NETS = [
    "shufflenet",
    "unet-transposed",
    "unet-nearest",
    "huggingface-resnet",
    "siamese",
]


def outputs(model, inputs):
    out = model(*inputs)
    return (out if isinstance(out, torch.Tensor) else out["logits"]).detach()


@pytest.mark.parametrize("name", NETS)
def test_function_and_norm_stay_and_costs_are_equal(name, generator):
    model, inputs = build(name)
    graph = sc.capture(model, inputs)
    before, costs = outputs(model, inputs), sc.path_costs(model, graph, relative=True)
    log2, weights = (
        sc.log2_path_norm(model, graph),
        {n: p.clone() for n, p in model.named_parameters()},
    )
    done = sc.proof.rescale_random_(
        model, graph, factors=[2.0**k for k in range(-10, 11)], generator=generator
    )
    assert done.channels > 0 and done.changed
    assert any(not torch.equal(weights[n], p) for n, p in model.named_parameters())
    after = outputs(model, inputs)
    assert float((after - before).abs().max()) <= 1e-12 * float(before.abs().max())
    assert sc.log2_path_norm(model, graph) == pytest.approx(log2, rel=1e-12)
    again = sc.path_costs(model, graph, relative=True)
    for key in costs:
        assert torch.allclose(costs[key], again[key], rtol=1e-9, atol=1e-300), key


def test_a_weight_that_is_also_used_transposed_keeps_its_values(generator):
    model, inputs = build("tied")
    before = outputs(model, inputs)
    done = sc.proof.rescale_random_(model, inputs, generator=generator)
    assert done.channels == 0 and done.changed == ()
    assert torch.equal(outputs(model, inputs), before)


def test_in_float32(generator):
    model, (x,) = build("unet-nearest")
    model, x = model.float(), x.float()
    before = model(x).detach()
    sc.proof.rescale_random_(model, x, generator=generator)
    assert float((model(x) - before).abs().max()) <= 1e-6 * float(before.abs().max())


@pytest.mark.parametrize("name", TINY)
def test_every_path_keeps_its_product(name, generator):
    model, x = tiny(name)
    before = sc.paths.lifting(model, x)
    sc.proof.rescale_random_(model, x, factors=(0.25, 2.0, 8.0), generator=generator)
    after = sc.paths.lifting(model, x)
    assert torch.allclose(before.phi, after.phi, rtol=1e-12) and torch.equal(
        before.active, after.active
    )


def test_a_layer_that_standardises_its_weight_is_left_alone(generator):
    normed = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), normed, nn.ReLU(), nn.Linear(4, 2)).double()
    x = torch.randn(3, 3, dtype=torch.float64)
    before = model(x).detach()
    assert sc.proof.rescale_random_(model, x, generator=generator).channels == 0
    assert torch.equal(model(x), before)


def test_the_same_generator_gives_the_same_weights():
    one, two = (build("unet-nearest")[0] for _ in range(2))
    two.load_state_dict(one.state_dict())
    for model in (one, two):
        sc.proof.rescale_random_(
            model,
            torch.zeros(1, 1, 18, 23),
            generator=torch.Generator().manual_seed(7),
        )
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.parametrize("factors", [(), (0,), (-1, 2), (float("nan"),), (float("inf"),)])
def test_bad_factors(factors):
    with pytest.raises(ArgumentError, match="positive finite factors"):
        sc.proof.rescale_random_(nn.Linear(2, 2), torch.zeros(1, 2), factors=factors)


def test_normalisation_of_a_plain_net():
    model = nn.Sequential(
        nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)
    ).double()
    model[0].weight.data[2] = 0
    model[0].bias.data[2] = 0
    x = torch.randn(4, 3, dtype=torch.float64)
    before, phi = model(x).detach(), sc.paths.lifting(model, x).phi
    done = sc.normalize_(model, x)
    assert done.channels == 9 and done.left == 2
    for layer in (model[0], model[2]):
        norms = (layer.weight.abs().sum(1) + layer.bias.abs()).detach()
        assert all(n == pytest.approx(1, rel=1e-12) or n == 0 for n in norms.tolist())
    assert not model[2].weight[:, 2].any() and float(model[0].weight[2].abs().sum()) == 0
    assert torch.allclose(model(x), before, rtol=1e-12) and torch.allclose(
        sc.paths.lifting(model, x).phi, phi, rtol=1e-12
    )


@pytest.mark.parametrize("name", ["shufflenet", "unet-transposed", "huggingface-resnet"])
def test_normalisation_keeps_the_function(name):
    model, inputs = build(name)
    before, log2 = outputs(model, inputs), sc.log2_path_norm(model, inputs)
    assert sc.normalize_(model, inputs).channels > 0
    assert torch.allclose(
        outputs(model, inputs),
        before,
        rtol=1e-9,
        atol=1e-12 * float(before.abs().max()),
    )
    assert sc.log2_path_norm(model, inputs) == pytest.approx(log2, rel=1e-9)


def test_inputs_and_outputs_are_pinned():
    model, inputs = build("mlp")
    found = coupling(sc.capture(model, inputs))
    assert (
        not found.root_of(found.uses[0].into).any() and not found.root_of(found.uses[-1].out).any()
    )


class TwoWriters(nn.Module):
    """Two layers write the channels that one reads."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(2, 3), nn.Linear(2, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.out((self.a(x) + self.b(x)).relu())


def test_two_layers_that_add_up_to_one_neuron_are_normalised_together():
    model, x = TwoWriters().double(), torch.ones(1, 2, dtype=torch.float64)
    before, ratio = model(x).detach(), into(model.a) / into(model.b)
    assert float((ratio - 1).abs().max()) > 0.1
    found = sc.normalize_(model, x)
    assert (found.channels, found.left) == (3, 1)
    ones = torch.ones(3, dtype=torch.float64)
    torch.testing.assert_close(into(model.a, model.b), ones)
    torch.testing.assert_close(model(x).detach(), before)
    # One λ for both layers: each by itself cannot be brought to 1.
    torch.testing.assert_close(into(model.a) / into(model.b), ratio)


def test_every_norm_of_resnet_20_is_one_or_has_a_fixed_edge():
    model, x = lab.models.build("resnet-20").eval().double(), torch.zeros(1, 3, 8, 8)
    graph = sc.capture(model, x.double())
    found = coupling(graph)
    done = sc.normalize_(model, graph)
    assert (done.channels, done.left) == (
        336 + 16 + 32 + 64,
        3 * 16 + 2 * 32 + 2 * 64 + 10,
    )
    hidden = torch.ones(len(found.groups), dtype=torch.bool)
    hidden[0] = False
    for neurons in first_neurons(graph, found, graph.state(model), hidden):
        assert not neurons.fixed.any()
        torch.testing.assert_close(neurons.norms, torch.ones_like(neurons.norms))


def test_a_layer_from_tied_channels_to_themselves_is_left_alone():
    """x + W x: every entry is times λ and over λ."""

    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.w, self.out = (
                nn.Linear(2, 3),
                nn.Linear(3, 3),
                nn.Linear(3, 1),
            )

        def forward(self, x):
            x = self.stem(x)
            return self.out((x + self.w(x)).relu())

    assert_left_alone(Loop().double(), torch.ones(1, 2, dtype=torch.float64))


def test_a_skip_around_the_first_activation_is_left_alone():
    """The pool passes the channel on with weight 1 before any activation receives it."""

    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.b = nn.Conv1d(1, 3, 1), nn.Conv1d(1, 3, 1)
            self.out = nn.Conv1d(3, 1, 1)

        def forward(self, x):
            pooled = nn.functional.max_pool1d(self.stem(x), 2)
            return self.out((pooled + self.b(x[..., ::2])).relu())

    assert_left_alone(Pooled().double(), torch.ones(1, 1, 4, dtype=torch.float64))


def assert_left_alone(model, x):
    before = model(x).detach()
    assert sc.normalize_(model, x).channels == 0
    torch.testing.assert_close(model(x).detach(), before)
