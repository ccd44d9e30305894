"""Random masks on paths: both closed forms against every mask there is, and the best draw."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import secateurs as sc
from secateurs.errors import ArgumentError, ParameterError
from secateurs.graph import capture
from secateurs.masks.systematic import inclusion_of_all
from secateurs.paths import (
    draw_variance,
    expected_path_loss,
    keep_probabilities,
    path_costs,
    path_norm,
)


class Residual(nn.Module):
    """A kernel that many paths share, a batch norm, a max-pool, a skip, biases."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(1, 2, 2, padding=1), nn.BatchNorm1d(2)
        self.mix, self.out = nn.Conv1d(2, 2, 1), nn.Linear(4, 1)

    def forward(self, x):
        y = F.max_pool1d(F.relu(self.norm(self.conv(x))), 2)
        return self.out((y + F.relu(self.mix(y))).flatten(1))


NETS = {
    "dense": (lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)), (1, 2)),
    "shared kernels, max-pool, skip": (Residual, (1, 1, 4)),
    "leaky": (
        lambda: nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU(0.1), nn.Linear(2, 2, bias=False)),
        (1, 2),
    ),
}


def built(kind):
    torch.manual_seed(3)
    make, shape = NETS[kind]
    net = make().double().eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.normal_(module.weight)
    return net, torch.zeros(shape, dtype=torch.float64)


@pytest.mark.parametrize("kind", NETS)
def test_closed_forms_are_the_means_over_all_masks(kind):
    net, x = built(kind)
    names = [n for n, p in net.named_parameters() if p.ndim > 1 or n.endswith("0.bias")]
    sizes = [net.get_parameter(name).numel() for name in names]
    while sum(sizes) > 9:
        names.pop()
        sizes.pop()
    g = torch.Generator().manual_seed(0)
    p = {n: torch.rand(net.get_parameter(n).shape, generator=g).double() for n in names}
    flat = torch.cat([value.flatten() for value in p.values()])
    kept = unbiased = 0.0
    other, graph = copy.deepcopy(net), capture(net, x)
    for bits in itertools.product((0.0, 1.0), repeat=len(flat)):
        mask = torch.tensor(bits, dtype=torch.float64)
        chance = float(torch.where(mask > 0, flat, 1 - flat).prod())
        for way, weights in (("masked", mask), ("divided", mask / flat)):
            with torch.no_grad():
                for name, part in zip(names, weights.split(sizes), strict=True):
                    own = net.get_parameter(name)
                    other.get_parameter(name).copy_(own * part.reshape(own.shape))
            if way == "masked":
                kept += chance * float(path_norm(other, graph))
            else:
                unbiased += chance * float(path_norm(other, graph, q=2)) ** 2
    whole, squares = float(path_norm(net, x)), float(path_norm(net, x, q=2)) ** 2
    # A mask takes paths away; an unbiased draw has E Φ(m θ / p) = Φ(θ), so the squares subtract.
    assert expected_path_loss(net, x, p) == pytest.approx(1 - kept / whole, rel=1e-9)
    assert draw_variance(net, x, p) == pytest.approx(unbiased / squares - 1, rel=1e-9)


def wide():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 6)
    ).double()
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(torch.rand(p.shape) ** 2)
    return net, torch.zeros(1, 12, dtype=torch.float64)


def convolving():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 2), nn.ReLU(),
        nn.Flatten(), nn.Linear(24, 5),
    ).double()  # fmt: skip
    return net, torch.zeros(1, 1, 8, 8, dtype=torch.float64)


@pytest.mark.parametrize("make", [wide, convolving])
@pytest.mark.parametrize("density", [0.02, 0.1, 0.3, 0.8])
def test_no_other_draw_has_a_smaller_variance(make, density):
    net, x = make()
    best = keep_probabilities(net, x, density=density)
    keep = round(float(sum(p.sum() for p in best.values())))
    names = list(best)
    assert best.spread < 2e-3 and all(((p >= 0) & (p <= 1)).all() for p in best.values())
    w = {n: net.get_parameter(n).detach().abs() for n in names}
    q1, q2 = (path_costs(net, x, q=q) for q in (1, 2))
    rivals = {
        "|w|": w,
        "w²": {n: v**2 for n, v in w.items()},
        "uniform": {n: torch.ones_like(v) for n, v in w.items()},
        "path cost": {n: q1[n] for n in names},
        "√ path cost, q = 2": {n: q2[n].sqrt() for n in names},
    }
    g = torch.Generator().manual_seed(0)
    for number in range(4):
        rivals[f"beside it {number}"] = {
            n: p * torch.exp(0.2 * torch.randn(p.shape, generator=g)) for n, p in best.items()
        }
    for name, scores in rivals.items():
        other = draw_variance(net, x, inclusion_of_all(scores, keep))
        assert other > best.variance, name
    assert draw_variance(net, x, dict(best)) == best.variance


def test_of_one_layer_it_is_equation_2_of_the_sketching_paper():
    """Σ w²/p is smallest for p ∝ |w|, as far as no p exceeds 1."""
    torch.manual_seed(0)
    layer = nn.Linear(30, 4, bias=False).double()
    best = keep_probabilities(layer, torch.zeros(1, 30, dtype=torch.float64), density=0.1)
    wanted = inclusion_of_all({"weight": layer.weight.detach().abs()}, 12)
    assert torch.allclose(best["weight"], wanted["weight"], rtol=1e-2)
    assert best.steps < 30


def test_rescaling_hidden_neurons_changes_no_probability():
    net, x = wide()
    scaled = copy.deepcopy(net)
    by = torch.exp2(torch.randint(-8, 9, (20,)).double())
    with torch.no_grad():
        scaled[0].weight.mul_(by[:, None])
        scaled[0].bias.mul_(by)
        scaled[2].weight.div_(by)
    one, two = (keep_probabilities(each, x, density=0.2) for each in (net, scaled))
    assert all(torch.allclose(one[name], two[name], rtol=1e-9) for name in one)
    # Magnitudes are not blind to it.
    w = [{n: p.detach().abs() for n, p in each.named_parameters()} for each in (net, scaled)]
    chances = [inclusion_of_all(each, 100) for each in w]
    assert not torch.allclose(chances[0]["0.weight"], chances[1]["0.weight"])


def test_everything_kept_changes_nothing():
    net, x = wide()
    best = keep_probabilities(net, x, sparsity=0)
    assert all((p == 1).all() for p in best.values()) and best.variance == 0
    assert expected_path_loss(net, x, dict(best)) == 0
    none = {"2.weight": torch.zeros(16, 20)}
    assert draw_variance(net, x, none) == float("inf")


def test_entries_on_no_path_come_last():
    net, x = wide()
    with torch.no_grad():
        net[2].weight[3] = 0
        net[2].bias[3] = 0
    best = keep_probabilities(net, x, density=0.3)
    # Nothing reaches what neuron 3 writes.
    assert not best["4.weight"][:, 3].any() and not best["2.weight"][3].any()


DRAWN = {"how": "systematic", "scope": "proportional"}


def test_prune_keeps_each_entry_with_its_probability():
    net, x = wide()
    best = keep_probabilities(net, x, density=0.25)
    often = {n: torch.zeros_like(p) for n, p in best.items()}
    g = torch.Generator().manual_seed(0)
    for _ in range(100):
        masks = sc.prune_(
            copy.deepcopy(net), "path-draw", example=x, density=0.25, generator=g, **DRAWN
        ).masks
        for name, mask in masks.items():
            often[name] += mask
            assert abs(int(mask.sum()) - float(best[name].sum())) < 1
    # Weights alone are drawn: `prune_` leaves biases, which keep_probabilities does as well.
    assert set(masks) == set(best)
    gaps = torch.cat([(often[n] / 100 - best[n]).flatten() for n in best])
    # Of one entry five standard deviations, at most 0.05 each.
    assert gaps.abs().max() < 0.25 and gaps.abs().mean() < 0.045


def test_in_rounds_it_is_drawn_within_what_is_left():
    net, x = convolving()
    done = sc.prune_(net, "path-draw", example=x, sparsity=0.9, rounds=3, **DRAWN)
    assert done.report.sparsity == pytest.approx(0.9, abs=0.01)
    assert all(mask.any() for mask in done.masks.values())


def test_alone_the_score_is_of_one_entry_kept():
    net, x = wide()
    total = sum(float(p.sum()) for p in sc.score(net, "path-draw", example=x).values())
    assert total == pytest.approx(1)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        return self.a(self.a(x).relu())


def test_what_cannot_be_drawn_is_refused():
    net, x = wide()
    with pytest.raises(ArgumentError, match="how much to keep is missing"):
        keep_probabilities(net, x)
    with pytest.raises(ParameterError, match="used twice along one path"):
        keep_probabilities(Twice(), torch.zeros(1, 4), density=0.5)
    with pytest.raises(ParameterError, match="nothing"):
        draw_variance(net, x, {"nothing": torch.ones(2)})
    with pytest.raises(ArgumentError, match="not all between 0 and 1"):
        draw_variance(net, x, {"0.bias": torch.full((20,), 1.5)})
    with pytest.raises(ArgumentError, match=r"shape \(3,\)"):
        expected_path_loss(net, x, {"0.bias": torch.ones(3)})
