"""Budgets of time read from a table: deterministic, met, and told as estimates."""

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import ArgumentError
from secateurs.ship import LatencyTable, LayerTimes


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(16 * 16, 5)
    ).eval()  # fmt: skip


X = torch.zeros(1, 3, 8, 8)


def table(kind="entries", rest=1.0):
    """The second convolution is slow, the linear layer free."""
    times = {"0.weight": 1.0, "2.weight": 8.0, "4.weight": 0.0}
    layers = tuple(LayerTimes(name=n, seconds=(t, t / 10)) for n, t in times.items())
    return LatencyTable(
        kind=kind,
        densities=(1.0, 0.1),
        layers=layers,
        rest=rest,
        threads=1,
        machine="",
    )


@pytest.mark.parametrize("options", [{}, {"pattern": "filter"}, {"scope": "uniform"}])
def test_the_share_of_time_is_met_and_told(options):
    model = net()
    pruned = sc.prune_(model, sc.Recipe(latency=0.5, **options), latencies=table())
    densities = {name: float(m.double().mean()) for name, m in pruned.masks.items()}
    share = table().seconds(densities) / table().dense
    assert 0.4 < share <= 0.5
    assert f"({share:.0%})" in pruned.notes[-1] and "measure" in pruned.notes[-1]
    assert pruned.recipe.latency == 0.5


def test_one_table_gives_one_answer():
    recipe = sc.Recipe(latency=0.4, score="random")
    first, second = (
        sc.prune_(
            net(),
            recipe,
            latencies=table(),
            generator=torch.Generator().manual_seed(3),
        )
        for _ in range(2)
    )
    assert all(torch.equal(first.masks[name], second.masks[name]) for name in first.masks)


def test_the_table_decides_and_not_the_multiplications():
    fast = LatencyTable(
        kind="entries", densities=(1.0, 0.1), rest=0.0, threads=1, machine="",
        layers=(LayerTimes(name="4.weight", seconds=(1.0, 0.1)),),
    )  # fmt: skip
    one, other = (
        sc.prune_(net(), sc.Recipe(latency=0.5), latencies=t).report.density
        for t in (table(), fast)
    )
    assert abs(one - other) > 1e-3


def test_without_a_table_one_is_measured():
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)).eval()
    pruned = sc.prune_(model, sc.Recipe(latency=1.0), example=torch.zeros(1, 256))
    assert "estimated" in pruned.notes[-1]


def test_whole_channels_by_a_table():
    found = sc.prune_channels_(net(), X, latency=0.5, latencies=table("channels"))
    again = sc.prune_channels_(net(), X, latency=0.5, latencies=table("channels"))
    assert found.latency is not None and found.latency[0] <= 0.5 * found.latency[1]
    assert found.channels == again.channels and found.latency == again.latency


def test_what_a_budget_in_time_needs():
    with pytest.raises(ArgumentError, match="example="):
        sc.prune_(net(), sc.Recipe(latency=0.5))
    with pytest.raises(ArgumentError, match="leave the other amount out"):
        sc.Recipe(latency=0.5, macs=0.5)
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        sc.Recipe(latency=0)
    with pytest.raises(ArgumentError, match="cannot be reached"):
        sc.prune_(net(), sc.Recipe(latency=0.5), latencies=table(rest=100.0))
    with pytest.raises(ArgumentError, match='kind="channels"'):
        sc.prune_channels_(net(), X, latency=0.5, latencies=table())
    (problem,) = sc.Recipe(latency=0.3).check(net()).problems
    assert "latency=0.3 is met by prune_ and cut" in str(problem)
