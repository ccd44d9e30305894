"""Pruning whole channels: budgets are met, floors hold, and the compacted network is as small as
said."""

import pytest
import torch
from torch import nn

import architectures
import secateurs as sc
from secateurs.errors import ArgumentError, EmptySelectionError, UnknownNameError
from secateurs.prune import cut_channels


def net():
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
    )
    more = (
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return nn.Sequential(*layers, *more, nn.Linear(32, 5)).eval()


EXAMPLE = torch.zeros(1, 3, 8, 8)


BIG = [
    pytest.param(name, marks=pytest.mark.slow) for name in ("resnet18", "mobilenet", "densenet121")
]


@pytest.mark.parametrize("name", ["huggingface-resnet", "unet-nearest", *BIG])
def test_a_budget_in_multiplications_is_what_compact_leaves(name):
    model, example = architectures.build(name)
    pruned = sc.prune_channels_(model, example, macs=0.3)
    small = sc.compact(model, example)
    assert small.compaction.macs[1].dense == pruned.macs[0]
    assert 0.25 < pruned.macs[0] / pruned.macs[1] <= 0.3
    assert small.compaction.removed == small.compaction.dead > 0
    assert small.compaction.parameters[1] < 0.7 * small.compaction.parameters[0]


@pytest.mark.parametrize("scope", ["global", "uniform"])
@pytest.mark.parametrize(("budget", "part"), [("density", "entries"), ("channels", "channels")])
def test_budgets_are_met_from_below_by_less_than_a_channel(scope, budget, part):
    pruned = cut_channels(net(), EXAMPLE, scope=scope, **{budget: 0.5})
    kept, total = getattr(pruned, part)
    assert 0.42 < kept / total <= 0.5


def test_sparsity_and_compression_state_the_same():
    one, other = (
        cut_channels(net(), EXAMPLE, sparsity=0.75),
        cut_channels(net(), EXAMPLE, compression=4),
    )
    assert one.entries == other.entries and one.channels == other.channels


def test_uniform_keeps_the_same_share_of_every_layer():
    masks = cut_channels(net(), EXAMPLE, channels=0.25).masks
    assert int(masks["0.weight"].flatten(1).any(1).sum()) == 4
    assert int(masks["3.weight"].flatten(1).any(1).sum()) == 8


def test_every_layer_keeps_its_floor():
    masks = cut_channels(net(), EXAMPLE, scope="global", channels=0.3, floor=0.25).masks
    for name, size in (("0.weight", 16), ("3.weight", 32)):
        kept = int(masks[name].flatten(1).any(1).sum()) if name in masks else size
        assert kept >= size // 4
    with pytest.raises(ArgumentError, match="cannot be reached"):
        cut_channels(net(), EXAMPLE, channels=0.1, floor=8)


def test_nothing_changes_before_apply_and_only_masked_entries_after():
    model = net()
    before = {name: p.clone() for name, p in model.named_parameters()}
    pruned = cut_channels(model, EXAMPLE, channels=0.5)
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    sc.prune_channels_(model, EXAMPLE, channels=0.5)
    for name, p in model.named_parameters():
        mask = pruned.masks.get(name, torch.ones_like(p, dtype=torch.bool))
        assert torch.equal(p, before[name] * mask)


def test_a_budget_in_time_is_measured():
    pruned = cut_channels(net(), torch.zeros(1, 3, 32, 32), latency=0.9)
    assert pruned.latency is not None and "milliseconds" in str(pruned)


def test_what_cannot_be_asked_is_refused():
    for budget in ({}, {"macs": 0.5, "density": 0.5}):
        with pytest.raises(ArgumentError, match="exactly one of"):
            cut_channels(net(), EXAMPLE, **budget)
    for keyword, meant in (("chanels", "channels"), ("sope", "scope")):
        told = f"no keyword of prune_channels_ '{keyword}'. Did you mean '{meant}'"
        with pytest.raises(UnknownNameError, match=told):
            cut_channels(net(), EXAMPLE, **{keyword: 0.5})
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        cut_channels(net(), EXAMPLE, macs=1.5)
    with pytest.raises(ArgumentError, match="scope="):
        cut_channels(net(), EXAMPLE, macs=0.5, scope="layer")
    with pytest.raises(EmptySelectionError):
        cut_channels(nn.Linear(3, 2).eval(), torch.zeros(1, 3), macs=0.5)


@pytest.mark.parametrize(
    "options", [{}, {"scope": "erk"}, {"pattern": "filter"}, {"score": "random"}]
)
def test_a_recipe_takes_a_budget_in_multiplications(options):
    model = net()
    recipe = sc.Recipe(macs=0.3, **options)
    generator = torch.Generator().manual_seed(0)
    pruned = sc.prune_(model, recipe, example=EXAMPLE, generator=generator)
    work = sc.macs(model, EXAMPLE)
    assert 0.22 < work.density <= 0.3 and pruned.recipe == recipe


def test_equal_work_is_not_equal_sparsity():
    entries = sc.prune_(net(), sc.Recipe(density=0.3), example=EXAMPLE).report.density
    work = sc.prune_(net(), sc.Recipe(macs=0.3), example=EXAMPLE).report.density
    assert abs(entries - work) > 1e-3


def test_what_a_budget_in_multiplications_needs():
    with pytest.raises(ArgumentError, match="example="):
        sc.prune_(net(), sc.Recipe(macs=0.3))
    with pytest.raises(ArgumentError, match="leave the other amount out"):
        sc.Recipe(macs=0.3, density=0.5)
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        sc.Recipe(macs=3)
    with pytest.raises(ArgumentError, match="cannot be reached"):
        sc.prune_(net(), sc.Recipe(macs=0.01, where="7.weight"), example=EXAMPLE)
    (problem,) = sc.Recipe(macs=0.3).check(net()).problems
    assert "prune_ and cut" in str(problem)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.branch = nn.Sequential(
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 8, 3, padding=1),
            nn.BatchNorm2d(8),
        )
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        x = self.stem(x).relu()
        return self.head((x + self.branch(x)).relu().mean((2, 3)))


def test_blocks_that_are_dead_before_are_named(caplog):
    """A norm that begins at zero, as in fresh networks: `compact` takes the whole branch."""
    torch.manual_seed(0)
    model, example = Residual().eval(), torch.zeros(1, 3, 8, 8)
    assert cut_channels(model, example, channels=0.5).idle == ()
    assert "before any cut" not in caplog.text
    nn.init.zeros_(model.branch[4].weight)
    pruned = cut_channels(model, example, channels=0.5)
    assert "All of 'branch.4.weight' is zero" in caplog.text
    assert any("adds nothing" in line for line in pruned.idle)
    assert "dead before" in str(pruned)
    small = sc.compact(model, example, masks=pruned.masks)
    assert small.compaction.parameters[1] < pruned.entries[0] / 2
