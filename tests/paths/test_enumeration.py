"""The lifting is the oracle: R = ⟨Φ, A(x, 1)⟩, and its norms are those of the one forward pass."""

from fractions import Fraction

import pytest
import torch
from torch import nn

import secateurs as sc
from paths.nets import TINY, tiny
from secateurs.errors import ArgumentError


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", TINY)
def test_the_realisation_is_phi_times_activations(name, seed):
    torch.manual_seed(seed)
    model, x = tiny(name)
    found = sc.paths.lifting(model, x)
    truth = model(x).detach().flatten()
    assert torch.allclose(
        found.realisation(), truth, rtol=0, atol=1e-12 * float(truth.abs().max() + 1)
    )


@pytest.mark.parametrize("q", [1, 2, 3.5])
@pytest.mark.parametrize("name", TINY)
def test_norms_of_the_forward_pass_are_norms_of_the_lifting(name, q):
    model, x = tiny(name)
    phi = sc.paths.lifting(model, x)
    norm = sc.path_norm(model, x, q=q, split=True)
    assert float(norm) == pytest.approx(phi.norm(q), rel=1e-12)
    from_input = phi.starts >= 0
    assert float(norm.inputs) == pytest.approx(
        float((phi.phi[from_input].abs() ** q).sum() ** (1 / q)), rel=1e-12
    )
    assert float(norm.biases) == pytest.approx(
        float((phi.phi[~from_input].abs() ** q).sum() ** (1 / q)), rel=1e-12
    )
    each = sc.path_norm(model, x, q=q, per_output=True).flatten()
    for output in range(phi.outputs):
        assert float(each[output]) == pytest.approx(
            float((phi.phi[phi.ends == output].abs() ** q).sum() ** (1 / q))
        )


@pytest.mark.parametrize("name", TINY)
def test_exact_rational_arithmetic_agrees(name):
    model, x = tiny(name)
    exact = sc.paths.lifting(model, x).exact_norm()
    assert isinstance(exact, Fraction)
    assert abs(Fraction(float(sc.path_norm(model, x))) - exact) <= exact * Fraction(1, 10**14)


def test_a_hand_made_net():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1))
    model[0].weight.data = torch.tensor([[1.0, -2.0], [3.0, 0.0]])
    model[2].weight.data, model[2].bias.data = (
        torch.tensor([[2.0, -1.0]]),
        torch.tensor([0.5]),
    )
    found = sc.paths.lifting(model.double(), torch.tensor([[1.0, 1.0]]))
    assert sorted(found.phi.tolist()) == [-4.0, -3.0, 0.0, 0.5, 2.0]
    assert found.exact_norm() == Fraction(19, 2) and found.norm() == 9.5
    assert found.activations.shape == (5, 3)
    assert found.realisation().tolist() == [-2.5]


def test_erratum_paths_from_inputs_have_no_entry_in_the_bias_column():
    """Definition A.5 gives every active path a 1 there; (3) then counts inputs of 1 as well."""

    def both(model, *x):
        found = sc.paths.lifting(model.double(), torch.tensor([x]))
        printed = found.activations.clone()
        printed[:, -1] = found.active.double()
        fed = torch.cat([found.sample, torch.ones(1, dtype=torch.float64)])
        return found.realisation().item(), float(found.phi @ (printed @ fed))

    line = nn.Linear(1, 1)
    nn.init.constant_(line.weight, 2.0), nn.init.constant_(line.bias, 1.0)
    assert both(line, 3.0) == (7.0, 9.0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    right, printed = both(model, 1.0, -0.5)
    truth = model(torch.tensor([[1.0, -0.5]], dtype=torch.float64)).item()
    assert right == pytest.approx(truth, abs=1e-12) and abs(printed - truth) > 0.01


def test_ties_in_a_pool_activate_the_first_only():
    model = nn.MaxPool1d(2)
    found = sc.paths.lifting(model, torch.ones(1, 1, 2))
    assert found.active.tolist() == [
        True,
        False,
    ] and found.realisation().tolist() == [1.0]


def test_too_many_paths_are_refused():
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(8)])
    with pytest.raises(ArgumentError, match="tiny networks"):
        sc.paths.lifting(model, torch.ones(1, 8))
