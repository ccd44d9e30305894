"""A pruned model solved for against the dense one: the definition, and what is refused."""

import copy

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import ArgumentError, ParameterError, ScoreError
from secateurs.llm import least_squares, reconstruct_model
from secateurs.llm.reconstruct import DAMPING, rows_given

CONVOLUTIONS = {
    "plain": (nn.Conv2d(4, 6, 3), (5, 4, 9, 8)),
    "strided, dilated": (nn.Conv2d(4, 6, (3, 2), stride=2, dilation=(1, 2)), (5, 4, 11, 12)),
    "padded": (nn.Conv2d(4, 6, 3, padding=(2, 1), bias=False), (5, 4, 7, 6)),
    "same, reflected": (nn.Conv2d(4, 6, 4, padding="same", padding_mode="reflect"), (5, 4, 7, 6)),
    "groups": (nn.Conv2d(4, 6, 3, groups=2, padding=1), (5, 4, 7, 6)),
    "depthwise": (nn.Conv2d(4, 8, 3, groups=4, padding=1), (5, 4, 7, 6)),
    "one dimension": (nn.Conv1d(4, 6, 3, padding=1, padding_mode="circular"), (9, 4, 12)),
    "three dimensions": (nn.Conv3d(2, 3, 2, stride=(1, 2, 1)), (4, 2, 4, 5, 4)),
    "linear": (nn.Linear(6, 5), (20, 3, 6)),
}


def answers_by_weight(layer, x):
    """The matrix of the outputs as a function of the weight: ∂ output / ∂ weight, for each output
    channel (outputs, samples, inputs).
    """
    layer = copy.deepcopy(layer).double()
    if layer.bias is not None:
        layer.bias.data.zero_()
    shape = layer.weight.shape

    def run(weight):
        return torch.func.functional_call(layer, {"weight": weight}, (x.double(),))

    whole = torch.autograd.functional.jacobian(run, layer.weight.detach().clone())
    out = 1 if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) else x.ndim - 1
    whole = whole.flatten(x.ndim).unflatten(x.ndim, (shape[0], -1)).movedim(out, 0)
    # Output channel o depends on row o of the weight alone.
    return torch.stack([part.flatten(0, -3)[:, o] for o, part in enumerate(whole)])


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_patches_are_what_the_weight_multiplies(kind):
    layer, shape = CONVOLUTIONS[kind]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    rows = torch.cat(list(rows_given(layer, x)), 1)
    each = len(layer.weight) // len(rows)
    for o, wanted in enumerate(answers_by_weight(layer, x)):
        assert torch.allclose(rows[o // each].double(), wanted, atol=1e-6)


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_a_layer_answers_other_inputs_by_least_squares(kind, monkeypatch):
    """X comes from the pruned first layer, Z from the dense one: normal equations, row by row."""
    monkeypatch.setattr(least_squares, "RESIDUAL", 1e-7)
    monkeypatch.setattr("secateurs.llm.reconstruct.PATCHES", 400)
    layer, shape = CONVOLUTIONS[kind]
    g = torch.Generator().manual_seed(1)
    first = nn.Linear(shape[-1], shape[-1])
    with torch.no_grad():
        first.weight.copy_(torch.randn(first.weight.shape, generator=g))
    dense = nn.Sequential(first, nn.ReLU(), copy.deepcopy(layer)).double()
    model, x = copy.deepcopy(dense), torch.randn(shape, generator=g).double()
    masks = sc.prune_(model, "magnitude", sparsity=0.4, scope="layer", where=["*.weight"]).masks
    done = sc.reconstruct_(
        model, dense, batch=[x[:2], x[2:]], masks={"2.weight": masks["2.weight"]}
    )
    assert list(done.layers) == ["2.weight"] and not done.notes
    with torch.no_grad():
        ours, theirs = (answers_by_weight(layer, net[:2](x)) for net in (model, dense))
    old, new = (net[2].weight.detach().flatten(1) for net in (dense, model))
    keep = masks["2.weight"].flatten(1)
    groups = getattr(layer, "groups", 1)
    lost = size = 0.0
    for o, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        gram, s = a.T @ a, keep[o]
        # The rows of a group share H, and so the mean of its diagonal.
        damping = DAMPING * gram.diagonal().mean()
        system = gram[s][:, s] + damping * torch.eye(int(s.sum()), dtype=torch.float64)
        wanted = torch.linalg.solve(system, (a.T @ (b @ old[o]))[s] + damping * old[o][s])
        assert torch.allclose(new[o][s], wanted, atol=1e-5), (o, groups)
        assert not new[o][~s].any()
        lost += float((a @ new[o] - b @ old[o]).square().sum())
        size += float((b @ old[o]).square().sum())
    assert done.layers["2.weight"].error == pytest.approx((lost / size) ** 0.5, rel=1e-6)
    assert done.layers["2.weight"].error < done.layers["2.weight"].masked


def convolving():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=4),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12 * 9, 5),
    )
    x = torch.randn(256, 1, 8, 8)
    for _ in range(3):
        net(x)
    return net.eval(), x


def test_errors_of_earlier_layers_are_made_up_for():
    """On inputs that were never seen; what was not pruned stays as it was."""
    dense, x = convolving()
    plain = copy.deepcopy(dense)
    masks = sc.prune_(plain, "magnitude", sparsity=0.7, scope="layer").masks
    ours = copy.deepcopy(plain)
    done = sc.reconstruct_(ours, dense, batch=x)
    assert set(done.layers) == set(masks)
    fresh = torch.randn(256, 1, 8, 8)
    with torch.no_grad():
        wanted = dense(fresh)
        gaps = [float((net(fresh) - wanted).norm() / wanted.norm()) for net in (ours, plain)]
    assert gaps[0] < 0.7 * gaps[1]
    for name, weight in ours.named_parameters():
        kept = masks.get(name, torch.ones_like(weight, dtype=torch.bool))
        assert not weight[~kept].any()
        if name not in masks:
            assert torch.equal(weight, plain.get_parameter(name)), name
    assert "layers reconstructed" in str(done) and not ours.training


class PadsItself(nn.Conv2d):
    """As TensorFlow pads, more on one side; EfficientNets of others keep strides in a list."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.stride = list(self.stride)

    def forward(self, x):
        x = nn.functional.pad(x, (0, 1, 0, 1))
        return nn.functional.conv2d(
            x, self.weight, self.bias, self.stride, self.padding, groups=self.groups
        )


class ChangesItsWeight(nn.Conv2d):
    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, weight - weight.mean(), bias)


class PadsOtherwise(nn.Conv2d):
    """What it is said to pad is not what it pads."""

    def forward(self, x):
        return nn.functional.conv2d(x, self.weight, self.bias, self.stride, 1)


def test_a_convolution_that_pads_in_its_own_forward_is_solved_on_what_it_multiplies():
    torch.manual_seed(0)
    ours = nn.Sequential(PadsItself(4, 6, 3, stride=2, groups=2), nn.ReLU(), nn.Conv2d(6, 3, 2))
    plain = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(4, 6, 3, stride=2, groups=2))
    plain = nn.Sequential(*plain, nn.ReLU(), nn.Conv2d(6, 3, 2))
    for mine, other in zip(ours.parameters(), plain.parameters(), strict=True):
        other.data.copy_(mine)
    x, weights = torch.randn(40, 4, 8, 8), []
    for dense in (ours, plain):
        model = copy.deepcopy(dense)
        sc.prune_(model, "magnitude", sparsity=0.5)
        done = sc.reconstruct_(model, dense, batch=x)
        assert len(done.layers) == 2 and not done.notes
        weights.append([p.detach() for p in model.parameters()])
    for mine, other in zip(*weights, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("kind", [ChangesItsWeight, PadsOtherwise])
def test_a_convolution_that_is_not_what_it_says_is_left_and_named(kind):
    dense = nn.Sequential(kind(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 2))
    model = copy.deepcopy(dense)
    sc.prune_(model, "magnitude", sparsity=0.5)
    before = model[0].weight.clone()
    done = sc.reconstruct_(model, dense, batch=torch.randn(20, 2, 7, 7))
    assert list(done.layers) == ["2.weight"] and torch.equal(model[0].weight, before)
    assert "0.weight was left as it was: its own forward changes the weight" in done.notes[0]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.out(self.b(self.a(x).relu()).relu())


def test_a_weight_of_two_layers_is_left_and_named():
    dense = Tied()
    model = copy.deepcopy(dense)
    sc.prune_(model, "magnitude", sparsity=0.5)
    before = model.a.weight.clone()
    done = sc.reconstruct_(model, dense, batch=torch.randn(99, 6))
    assert list(done.layers) == ["out.weight"] and torch.equal(model.a.weight, before)
    assert "'" not in done.notes[0] and "a.weight was left as it was" in done.notes[0]


def test_a_layer_that_runs_twice_is_solved_on_all_it_meets():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 6)

        def forward(self, x):
            return self.a(self.a(x).relu())

    dense = Twice()
    model = copy.deepcopy(dense)
    sc.prune_(model, "magnitude", sparsity=0.5)
    done = sc.reconstruct_(model, dense, batch=torch.randn(50, 6))
    assert done.layers["a.weight"].samples == 100


def test_one_run_of_the_dense_model_serves_several_layers(monkeypatch):
    """As many as can be held, with the same result; also where a layer works in the place of what
    an earlier one was given.
    """

    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.runs = 0
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

        def forward(self, x):
            self.runs += 1
            x = x.clone()
            for layer in self.layers:
                x += layer(x).relu_()
            return x

    torch.manual_seed(0)
    model = InPlace()
    batch = [torch.randn(40, 8), torch.randn(30, 8)]
    found = []
    # The first batch gives each layer 320 numbers, and 640 are counted for both.
    for held, runs in ((0, 12), (2 * 640, 6), (6 * 640, 2), (1 << 26, 2)):
        monkeypatch.setattr(reconstruct_model, "HELD", held)
        dense, pruned = copy.deepcopy(model), copy.deepcopy(model)
        sc.prune_(pruned, "magnitude", sparsity=0.5)
        done = sc.reconstruct_(pruned, dense, batch=batch)
        assert dense.runs == runs and len(done.layers) == 6
        found.append([layer.weight.detach() for layer in pruned.layers])
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            assert torch.equal(one, same)


def test_after_an_error_the_weights_are_as_they_were():
    dense, x = convolving()
    model = copy.deepcopy(dense)
    sc.prune_(model, "magnitude", sparsity=0.5)
    before = copy.deepcopy(model.state_dict())

    def stop(name):
        if name.startswith("5"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sc.reconstruct_(model, dense, batch=x, progress=stop)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    with pytest.raises(ScoreError, match="NaN or infinite"):
        sc.reconstruct_(model, dense, batch=x * float("nan"))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_what_cannot_be_meant_is_refused():
    dense, x = convolving()
    model = copy.deepcopy(dense)
    with pytest.raises(ArgumentError, match="nothing was pruned"):
        sc.reconstruct_(model, dense, batch=x)
    sc.prune_(model, "magnitude", sparsity=0.5)
    with pytest.raises(ParameterError, match=r"share '0\.weight': keep a copy"):
        sc.reconstruct_(model, model, batch=x)
    with pytest.raises(ParameterError, match="the dense one none"):
        sc.reconstruct_(model, nn.Linear(3, 3), batch=x)
    with pytest.raises(ArgumentError, match="batch is empty"):
        sc.reconstruct_(model, dense, batch=[])


def test_with_too_few_inputs_a_layer_stays_and_says_so():
    dense = nn.Sequential(nn.Linear(30, 4))
    model = copy.deepcopy(dense)
    sc.prune_(model, "magnitude", sparsity=0.5)
    before = model[0].weight.clone()
    done = sc.reconstruct_(model, dense, batch=torch.randn(5, 30))
    assert not done.layers and "it met 5 inputs, too few" in done.notes[0]
    assert torch.equal(model[0].weight, before)


class Branches(nn.Module):
    """Two convolutions of one input that see other patches of it, with as many weights a row."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv1d(2, 3, 3, padding=1), nn.Conv1d(2, 3, 3, padding=2, dilation=2)

    def forward(self, x):
        return self.a(x) + self.b(x)


def test_convolutions_of_one_input_are_solved_each_on_its_patches():
    dense, x = Branches(), torch.randn(40, 2, 12).cumsum(2)
    together, alone = copy.deepcopy(dense), copy.deepcopy(dense)
    masks = sc.prune_(together, "magnitude", sparsity=0.5, scope="layer").masks
    sc.apply_(alone, masks)
    sc.reconstruct_(together, dense, batch=x)
    for name, mask in masks.items():
        sc.reconstruct_(alone, dense, batch=x, masks={name: mask})
    for name in masks:
        assert torch.allclose(together.get_parameter(name), alone.get_parameter(name)), name
