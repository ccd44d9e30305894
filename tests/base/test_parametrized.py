"""Where a weight is computed of parameters, the weight that acts is ranked, never a part of it."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import secateurs as sc
from secateurs.errors import MaskError, ParameterError
from secateurs.optim import HAM, SET, DGating, PowerPropagation, RigL
from secateurs.prune import GradualPruning
from secateurs.scores import SCORES

NORMS = {
    "weight_norm": parametrizations.weight_norm,
    "weight_norm of old": torch.nn.utils.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "spectral_norm of old": torch.nn.utils.spectral_norm,
    "weight_norm as a whole": lambda layer: parametrizations.weight_norm(layer, dim=None),
    "weight_norm of inputs": lambda layer: parametrizations.weight_norm(layer, dim=1),
}
OLD = pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")


class Half(nn.Module):
    """A parametrisation of somebody's own that keeps zeros."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight / 2


def network(norm) -> nn.Sequential:
    """Directions of very different lengths, which the function does not know of."""
    torch.manual_seed(0)
    net = nn.Sequential(norm(nn.Linear(12, 8)), nn.ReLU(), nn.Linear(8, 3)).eval()
    with torch.no_grad():
        for name, p in net.named_parameters():
            if name.endswith(("original1", "weight_v")):
                p[:3] *= 1e-3
    return net


def plain(net: nn.Sequential) -> nn.Sequential:
    """The same function without a parametrisation."""
    net(torch.zeros(1, 12))
    twin = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    with torch.no_grad():
        for own, other in ((twin[0], net[0]), (twin[2], net[2])):
            own.weight.copy_(other.weight)
            own.bias.copy_(other.bias)
    return twin


DATA = {
    "example": torch.ones(1, 12),
    "batch": (torch.randn(9, 12, generator=torch.Generator().manual_seed(1)), torch.arange(9) % 3),
    "loss": nn.functional.cross_entropy,
}


@OLD
@pytest.mark.parametrize("score", SCORES.names())
@pytest.mark.parametrize("norm", NORMS)
def test_every_score_is_that_of_the_weight_that_acts(norm, score):
    net = network(NORMS[norm])
    before = copy.deepcopy(net.state_dict())
    draws = {"generator": torch.Generator().manual_seed(2)}
    own = sc.score(net, score, **DATA, **draws)
    draws = {"generator": torch.Generator().manual_seed(2)}
    expected = sc.score(plain(net), score, **DATA, **draws)
    for mine, theirs in zip(own.values(), expected.values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-7 * float(theirs.abs().max()))
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert [name.startswith(("0.", "2.")) for name in own] == [True, True]
    assert all(name in dict(net.named_parameters()) for name in own)


@OLD
@pytest.mark.parametrize("score", ["magnitude", "synflow", "snip"])
@pytest.mark.parametrize("norm", NORMS)
def test_later_rounds_see_the_weight_that_acts_after_the_cut(norm, score):
    """A norm that has lost entries gives the rest more weight: a plain copy would not know it."""
    net = network(NORMS[norm])
    scorer = sc.scores.Scorer(net, score, **DATA)
    names = list(scorer.scores())
    masks = {
        name: torch.rand(net.get_parameter(name).shape, generator=torch.Generator().manual_seed(3))
        < 0.6
        for name in names
    }
    found = scorer.scores(masks)
    cut = network(NORMS[norm])
    sc.masks.apply_(cut, masks)
    expected = sc.score(plain(cut), score, **DATA)
    for mine, theirs in zip(found.values(), expected.values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-7 * float(theirs.abs().max()))


@OLD
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("sparsity", [0.5, 0.9, 0.97])
@pytest.mark.parametrize("norm", NORMS)
def test_networks_stay_finite_at_any_sparsity(norm, sparsity, rounds):
    net = network(NORMS[norm])
    pruned = sc.prune_(net, "magnitude", sparsity=sparsity, rounds=rounds)
    assert net(torch.randn(5, 12)).isfinite().all()
    total, kept = pruned.report.total.total, pruned.report.total.kept
    asked = total - round(total * sparsity)
    # At most one entry more for each of twelve norms, and a note says so.
    assert asked <= kept <= asked + 12
    assert (kept == asked) or any("norm" in note for note in pruned.notes)
    name = next(iter(pruned.masks))
    net(torch.zeros(1, 12))
    assert torch.equal(net[0].weight.detach() != 0, pruned.masks[name])


@pytest.mark.parametrize("shape", [(6, 1), (1, 5), (2, 3)])
def test_a_row_of_which_nothing_is_asked_for_keeps_its_largest_entry(shape):
    layer = parametrizations.weight_norm(nn.Linear(shape[1], shape[0], bias=False))
    name = "parametrizations.weight.original1"
    pruned = sc.prune_(layer, "magnitude", density=0.0, where=name, floor=0)
    largest = layer.get_parameter(name).detach().abs().argmax(1)
    assert pruned.masks[name].sum(1).tolist() == [1] * shape[0]
    assert pruned.masks[name].to(torch.uint8).argmax(1).tolist() == largest.tolist()


def test_a_mask_that_empties_a_norm_is_refused_and_changes_nothing():
    layer = parametrizations.weight_norm(nn.Linear(4, 3))
    name = "parametrizations.weight.original1"
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1] = False
    before = copy.deepcopy(layer.state_dict())
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for attempt in (
        lambda: sc.masks.apply_(layer, {name: mask}),
        lambda: sc.hold(layer, {name: mask}, optimizer),
        lambda: sc.prune_(layer, "magnitude", density=0.3, within={name: mask}),
    ):
        with pytest.raises(MaskError, match=r"norms of which the mask keeps no entry.*be NaN"):
            attempt()
    assert all(torch.equal(before[key], value) for key, value in layer.state_dict().items())


def test_parts_whose_zeros_are_no_zeros_of_the_weight_are_left_out_with_a_note():
    net = nn.Sequential(parametrizations.orthogonal(nn.Linear(6, 6)), nn.Linear(6, 6))
    pruned = sc.prune_(net, "magnitude", sparsity=0.5)
    assert list(pruned.masks) == ["1.weight"]
    assert "zeros are no zeros of that weight" in " ".join(pruned.notes)
    with pytest.raises(ParameterError, match="'0.weight' is computed, and its zeros are no zeros"):
        sc.prune_(net, "magnitude", sparsity=0.5, where="0.parametrizations.*")


def test_a_parametrisation_of_ones_own_is_found_by_what_it_does():
    layer = nn.Linear(6, 4)
    parametrize.register_parametrization(layer, "weight", Half())
    found = sc.score(layer, "magnitude")
    assert torch.equal(found["parametrizations.weight.original"], layer.weight.detach().abs())
    sc.prune_(layer, "magnitude", sparsity=0.5)
    assert int(layer.weight.count_nonzero()) == 12


def test_gradual_pruning_keeps_an_entry_of_each_norm():
    net = network(parametrizations.weight_norm)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    recipe = sc.Recipe(score="magnitude", sparsity=0.97)
    gradual = GradualPruning(net, recipe, optimizer, start="0it", end="4it", every="1it")
    for _ in range(5):
        net(torch.randn(7, 12)).square().mean().backward()
        optimizer.step()
        gradual.step()
        assert net(torch.randn(5, 12)).isfinite().all()


def test_blocks_of_computed_weights_are_refused_before_anything_is_pruned():
    net = nn.Sequential(nn.Linear(4, 4), parametrizations.weight_norm(nn.Linear(4, 4)))
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ParameterError, match="'1': .*'weight' is computed, and its sizes say"):
        sc.prune_blocks_(
            net, "wanda", sparsity=0.5, scope="row", batch=torch.ones(2, 4), blocks=["0", "1"]
        )
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())


METHODS = {
    "RigL": lambda net, own: RigL(net, own, sparsity=0.5, steps=9),
    "SET": lambda net, own: SET(net, own, sparsity=0.5, steps=9, every=3),
    "HAM": HAM,
    "PowerPropagation": PowerPropagation,
    "DGating": lambda net, own: DGating(net, own, strength=0.1),
}


@pytest.mark.parametrize("method", METHODS)
def test_methods_that_rank_or_shrink_parts_of_a_weight_say_so(method):
    net = network(parametrizations.weight_norm)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ParameterError, match="'0.weight' is computed, and its sizes say nothing"):
        METHODS[method](net, optimizer)
