"""Densities for a share of the multiplications or of the time: met, and always the same."""

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
def test_the_share_of_time_is_met(options):
    model = net()
    density = sc.density_for(model, latency=0.5, latencies=table(), **options)
    masks = sc.prune_(model, "magnitude", density=density, **options).masks
    densities = {name: float(mask.double().mean()) for name, mask in masks.items()}
    assert 0.4 < table().seconds(densities) / table().dense <= 0.5


@pytest.mark.parametrize(
    "options", [{}, {"scope": "erk"}, {"pattern": "filter"}, {"score": "random"}]
)
def test_the_share_of_multiplications_is_met(options):
    model = net()
    recipe = sc.Recipe(density=1.0, **options)
    generator = torch.Generator().manual_seed(0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    density = sc.density_for(model, recipe, macs=0.3, example=X, generator=generator)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    # The search has left the generator as it was, so that the same masks are drawn again.
    sc.prune_(model, recipe.keeping(density), generator=generator)
    assert 0.22 < sc.macs(model, X).density <= 0.3


def test_equal_work_is_not_equal_sparsity():
    assert abs(sc.density_for(net(), macs=0.3, example=X) - 0.3) > 1e-3


def test_one_table_gives_one_answer():
    first, second = (
        sc.density_for(
            net(),
            "random",
            latency=0.4,
            latencies=table(),
            generator=torch.Generator().manual_seed(3),
        )
        for _ in range(2)
    )
    assert first == second


def test_the_table_decides_and_not_the_multiplications():
    fast = LatencyTable(
        kind="entries", densities=(1.0, 0.1), rest=0.0, threads=1, machine="",
        layers=(LayerTimes(name="4.weight", seconds=(1.0, 0.1)),),
    )  # fmt: skip
    one, other = (sc.density_for(net(), latency=0.5, latencies=t) for t in (table(), fast))
    assert abs(one - other) > 1e-3


def test_without_a_table_one_is_measured():
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)).eval()
    assert sc.density_for(model, latency=1.0, example=torch.zeros(1, 256)) > 0.99


def test_whole_channels_by_a_table():
    found = sc.prune_channels_(net(), X, latency=0.5, latencies=table("channels"))
    again = sc.prune_channels_(net(), X, latency=0.5, latencies=table("channels"))
    assert found.latency is not None and found.latency[0] <= 0.5 * found.latency[1]
    assert found.channels == again.channels and found.latency == again.latency


def test_what_a_budget_of_work_needs():
    for one in ({"latency": 0.5}, {"macs": 0.5}):
        with pytest.raises(ArgumentError, match="example="):
            sc.density_for(net(), **one)
    for several in ({}, {"latency": 0.5, "macs": 0.5}):
        with pytest.raises(ArgumentError, match="one of macs= and latency="):
            sc.density_for(net(), example=X, **several)
    for wrong in ({"latency": 0}, {"macs": 3}, {"macs": True}):
        with pytest.raises(ArgumentError, match="between 0 and 1"):
            sc.density_for(net(), example=X, **wrong)
    with pytest.raises(ArgumentError, match="cannot be reached"):
        sc.density_for(net(), latency=0.5, latencies=table(rest=100.0))
    with pytest.raises(ArgumentError, match="cannot be reached"):
        sc.density_for(net(), macs=0.01, where="4.weight", example=X)
    with pytest.raises(ArgumentError, match="density is what density_for looks for"):
        sc.density_for(net(), macs=0.5, density=0.5, example=X)
    with pytest.raises(ArgumentError, match="scope= already gives"):
        sc.density_for(net(), macs=0.5, scope={"*": 0.5}, example=X)
    with pytest.raises(ArgumentError, match='kind="channels"'):
        sc.prune_channels_(net(), X, latency=0.5, latencies=table())
