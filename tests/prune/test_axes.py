"""Outputs and inputs come from whoever uses the weight; what is unknown is refused by name."""

import pytest
import torch
from torch import nn

from secateurs import Recipe, prune_, select
from secateurs.errors import ArgumentError, PatternError
from secateurs.masks import SELECTIONS
from secateurs.prune import GradualPruning


class Reader(nn.Module):
    """A module of its own kind that keeps (inputs, outputs), as GPT-2's Conv1D does."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.shift = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return torch.addmm(self.shift, x, self.weight)


class Experts(nn.Module):
    """Fused experts: (experts, outputs, inputs) above, (experts, inputs, outputs) below."""

    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(4, 6, 8))
        self.down = nn.Parameter(torch.randn(4, 6, 8))

    def forward(self, x):
        middle = [nn.functional.linear(x, self.up[e]) for e in range(4)]
        return sum(h @ self.down[e] for e, h in enumerate(middle))


def zero_rows(weight, dims):
    return int((weight == 0).all(dim=dims).sum())


def two_of_four(weight, dim):
    runs = (weight.detach().movedim(dim, -1).reshape(-1, 4) != 0).sum(1)
    return bool((runs == 2).all())


def test_conv1d_of_gpt2_runs_along_its_inputs():
    # (8 in, 12 out)
    layer = pytest.importorskip("transformers.pytorch_utils").Conv1D(12, 8)
    prune_(layer, "magnitude", pattern="2:4")
    assert two_of_four(layer.weight, 0)
    prune_(layer, "magnitude", sparsity=0.75, pattern="filter")
    assert zero_rows(layer.weight, 0) == 9


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions(groups):
    layer = nn.ConvTranspose2d(8, 12, 3, groups=groups, bias=False)
    prune_(layer, "magnitude", sparsity=0.5, pattern="filter")
    x = torch.randn(2, 8, 5, 5)
    dead = (layer(x) == 0).all(dim=3).all(dim=2).all(dim=0)
    assert int(dead.sum()) == 6


def test_transposed_convolution_with_n_of_m():
    layer = nn.ConvTranspose2d(8, 6, 3)
    prune_(layer, "magnitude", pattern="2:4")
    assert two_of_four(layer.weight, 0)


def test_unknown_modules_are_refused_by_name_and_told_by_an_example():
    model = nn.Sequential(Reader(8, 12))
    before = model[0].weight.detach().clone()
    with pytest.raises(PatternError, match=r"'0\.weight' \(8, 12\) of Reader.*example="):
        prune_(model, "magnitude", pattern="2:4")
    assert torch.equal(before, model[0].weight)
    prune_(model, "magnitude", pattern="2:4", example=torch.randn(2, 8))
    assert two_of_four(model[0].weight, 0)
    prune_(Reader(8, 12), "magnitude", sparsity=0.5)  # order does not matter here


def test_fused_experts_lose_neurons_and_not_experts():
    model = Experts()
    prune_(model, "magnitude", sparsity=0.5, pattern="filter", example=torch.randn(3, 8))
    assert zero_rows(model.up, 2) + zero_rows(model.down, 1) == 4 * (6 + 8) // 2
    assert not any(bool((w[e] == 0).all()) for w in (model.up, model.down) for e in range(4))


def test_fused_experts_with_n_of_m():
    model = Experts()
    prune_(model, "magnitude", pattern="2:4", where="up", example=torch.randn(3, 8))
    assert two_of_four(model.up, 2)


def test_a_weight_that_two_operators_read_differently_is_refused():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x):
            return nn.functional.linear(x, self.weight) @ self.weight

    with pytest.raises(PatternError, match="two disagree"):
        prune_(
            Both(),
            "magnitude",
            sparsity=0.5,
            pattern="filter",
            example=torch.ones(1, 8),
        )


@pytest.mark.parametrize("density", [0.25, 0.3, 0.5, 0.0])
def test_a_row_keeps_its_own_share(density):
    score = torch.randn(6, 10) * torch.arange(1, 7)[:, None]
    mask = select({"w": score.abs()}, density=density, scope="row", floor=0)["w"]
    kept = round(density * 10)
    assert mask.sum(1).tolist() == [kept] * 6
    for row, chosen in zip(score.abs(), mask, strict=True):
        assert set(row.topk(kept).values.tolist()) == set(row[chosen].tolist())


def test_rows_within_earlier_masks_and_ties():
    within = torch.ones(3, 4, dtype=torch.bool)
    within[0, :3] = False
    mask = select({"w": torch.ones(3, 4)}, density=0.5, scope="row", within={"w": within})["w"]
    assert mask.tolist() == [
        [False, False, False, True],
        [True, True, False, False],
        [True, True, False, False],
    ]


def test_wanda_by_rows_is_the_published_rule():
    layer = nn.Linear(16, 5)
    x = torch.randn(64, 16)
    rule = layer.weight.detach().abs() * x.square().sum(0).sqrt()
    weakest = rule.argsort(dim=1)[:, :8]
    prune_(layer, "wanda", sparsity=0.5, scope="row", batch=x)
    assert bool((layer.weight.gather(1, weakest) == 0).all())
    assert layer.weight.count_nonzero(dim=1).tolist() == [8] * 5


def test_rows_in_rounds_and_on_conv1d():
    layer = pytest.importorskip("transformers.pytorch_utils").Conv1D(12, 8)
    prune_(layer, "magnitude", sparsity=0.75, scope="row", rounds=3)
    assert layer.weight.count_nonzero(dim=0).tolist() == [2] * 12


def test_rows_go_with_single_entries_and_topk():
    drawn = next(name for name in SELECTIONS.names() if name != "topk")
    for other in ({"pattern": "2:4"}, {"how": drawn}):
        with pytest.raises(ArgumentError, match="scope='row' takes the largest"):
            prune_(nn.Linear(8, 8), "magnitude", density=0.5, scope="row", **other)


def test_gradual_pruning_does_not_take_the_wrong_axis():
    layer = nn.ConvTranspose2d(8, 4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    recipe = Recipe(sparsity=0.5, pattern="filter")
    with pytest.raises(PatternError, match="'weight' are not stored as"):
        GradualPruning(layer, recipe, optimizer, start=0, end=4, every=2)
