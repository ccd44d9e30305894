"""The linearised features: Jacobian, probabilities and expectations against plain autograd and
enumeration.
"""

import copy
import math

import pytest
import torch
from torch import nn

from secateurs.errors import ArgumentError, EmptySelectionError, TheoryError
from secateurs.theory import NtkConstants, lemma_43, ntk_sketch, sketch_mask, theorem_72
from theory.monte_carlo import assert_mean, mean_margin


@pytest.fixture
def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.BatchNorm1d(5), nn.Linear(5, 2))


WEIGHTS = ["0.weight", "3.weight"]


def jacobian(model, x, names=None):
    """Row by row with torch.autograd.grad in double precision: the oracle. Of all parameters, or of
    those named.
    """
    model, x = copy.deepcopy(model).eval().double(), x.double()
    names = [name for name, _ in model.named_parameters()] if names is None else names
    parameters = [dict(model.named_parameters())[name] for name in names]
    rows = [torch.autograd.grad(y, parameters, retain_graph=True) for y in model(x).flatten()]
    J = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
    return J, torch.cat([p.detach().flatten() for p in parameters])


@pytest.mark.parametrize("where", [None, WEIGHTS, ["*bias"], nn.BatchNorm1d])
def test_expectations_are_those_of_the_jacobian(model, where):
    """All parameters unless `where` says otherwise, in double precision for a model in single."""
    x, names = torch.randn(6, 3), None if where is None else WEIGHTS
    if where == ["*bias"]:
        names = ["0.bias", "2.bias", "3.bias"]
    if where is nn.BatchNorm1d:
        where, names = (
            lambda name, parameter, owner: isinstance(owner, nn.BatchNorm1d),
            ["2.weight", "2.bias"],
        )
    J, theta = jacobian(model, x, names)
    found = ntk_sketch(model, x, s=7, chunk_size=5, where=where)
    p = torch.cat([value.flatten() for value in found.probabilities.values()])
    scores = J.norm(dim=0) * theta.abs()
    assert names is None or list(found.probabilities) == names
    torch.testing.assert_close(p, scores / scores.sum())
    assert found.expected == pytest.approx(lemma_43(J.T, theta, p, s=7), rel=1e-10)
    assert found.energy == pytest.approx(float((J @ theta).square().sum()), rel=1e-10)
    assert found.frobenius == pytest.approx(float(J.norm()), rel=1e-10)
    assert found.expected < found.uniform


def test_frozen_parameters_are_left_out_unless_named(model):
    x = torch.randn(6, 3)
    model[0].requires_grad_(False)
    assert list(ntk_sketch(model, x, s=2).probabilities) == [
        "2.weight",
        "2.bias",
        "3.weight",
        "3.bias",
    ]
    assert list(ntk_sketch(model, x, s=2, where="0.*").probabilities) == [
        "0.weight",
        "0.bias",
    ]
    with pytest.raises(EmptySelectionError, match="Sequential has no trainable parameter"):
        ntk_sketch(model.requires_grad_(False), x, s=2)


def test_expectation_by_simulation(model, generator):
    """10,000 masks; squared errors are at most that of the worst single draw (convexity): the
    margin is proven.
    """
    x = torch.randn(6, 3)
    J, theta = jacobian(model, x)
    found = ntk_sketch(model, x, s=7)
    p = torch.cat([value.flatten() for value in found.probabilities.values()])
    masks = torch.stack([sketch_mask(p, 7, generator) for _ in range(10_000)])
    errors = ((theta * (1 - masks)) @ J.T).square().sum(1)
    rows = J * torch.where(p > 0, theta / p, 0.0)
    width = float((rows - (J @ theta)[:, None]).square().sum(0).max())
    assert_mean(errors, found.expected, width)
    assert abs(float(errors.mean()) - found.uniform) > mean_margin(errors.numpy(), width)


def test_the_model_is_untouched(model):
    before = copy.deepcopy(model.state_dict())
    model.train()
    ntk_sketch(model, torch.randn(4, 3), s=2)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_a_trained_model_uses_the_masks_of_the_start(model):
    x, trained = torch.randn(6, 3), copy.deepcopy(model)
    with torch.no_grad():
        trained[0].weight += 0.1
    J, theta = jacobian(trained, x)
    found = ntk_sketch(model, x, s=3, trained=trained)
    p = torch.cat([value.flatten() for value in found.probabilities.values()])
    assert found.expected == pytest.approx(lemma_43(J.T, theta, p, s=3), rel=1e-10)


def test_theorem_72_bounds_the_exact_expectation_and_print_is_larger(model):
    """With K ≥ ‖J‖_F and θt within 3KR0/λ of θ0, for 20 random directions."""
    x, names = torch.randn(6, 3), WEIGHTS
    J, theta = jacobian(model, x, names)
    constants = NtkConstants(K=3 * float(J.norm()), R0=0.01, lambda_min=1.0)
    bound = theorem_72(theta, J.norm(dim=0), constants=constants, s=4)
    assert ntk_sketch(model, x, s=4, where=names, constants=constants).bound == pytest.approx(
        bound, rel=1e-10
    )
    assert theorem_72(theta, J.norm(dim=0), constants=constants, s=4, as_printed=True) > bound
    radius = 3 * constants.K * constants.R0 / constants.lambda_min
    for _ in range(20):
        trained = copy.deepcopy(model)
        step = torch.randn(len(theta))
        step *= radius / step.norm()
        with torch.no_grad():
            trained[0].weight += step[:15].view(5, 3)
            trained[3].weight += step[15:].view(2, 5)
        assert float(jacobian(trained, x, names)[0].norm()) <= constants.K
        assert ntk_sketch(model, x, s=4, where=names, trained=trained).expected <= bound


def test_theorem_72_by_simulation(model, generator):
    """Its left side by 10,000 masks of the start on the trained network, against the expectation
    and the bound.
    """
    x, trained, names = torch.randn(6, 3), copy.deepcopy(model), WEIGHTS
    start, theta0 = jacobian(model, x, names)
    constants = NtkConstants(K=3 * float(start.norm()), R0=0.01, lambda_min=1.0)
    with torch.no_grad():
        trained[3].weight += 3 * constants.K * constants.R0 / math.sqrt(10)
    J, theta = jacobian(trained, x, names)
    p = start.norm(dim=0) * theta0.abs()
    p = p / p.sum()
    masks = torch.stack([sketch_mask(p, 4, generator) for _ in range(10_000)])
    errors = ((theta * (1 - masks)) @ J.T).square().sum(1).numpy()
    width = float((J * (theta / p) - (J @ theta)[:, None]).square().sum(0).max())
    assert_mean(
        errors,
        ntk_sketch(model, x, s=4, where=names, trained=trained).expected,
        width,
    )
    assert errors.mean() + mean_margin(errors, width) < theorem_72(
        theta0, start.norm(dim=0), constants=constants, s=4
    )


def test_theorem_72_frozen():
    """By hand: K³·‖θ‖₁·F(J)·(‖θ‖₁ + 9K²F(θ) + 6√2·K) = 8·2·2·(2 + 72 + 16.97); as printed K⁴,
    K³.
    """
    one, constants = torch.ones(2), NtkConstants(K=2.0, R0=1.0, lambda_min=1.0)
    assert theorem_72(one, one, constants=constants, s=1) == pytest.approx(
        32 * (74 + 12 * math.sqrt(2))
    )
    printed = theorem_72(one, one, constants=constants, s=1, as_printed=True)
    assert printed == pytest.approx(32 * (2 + 288 + 48 * math.sqrt(2)))


def test_bad_input_is_named(model):
    x = torch.randn(2, 3)
    with pytest.raises(ArgumentError, match="s = 0"):
        ntk_sketch(model, x, 0)
    theta, columns = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])
    with pytest.raises(TheoryError, match="1 zero entries or columns in theta_0"):
        theorem_72(theta, columns, constants=NtkConstants(K=2.0, R0=1.0, lambda_min=1.0), s=1)
    with pytest.raises(TheoryError, match="K = 1 is below"):
        theorem_72(
            torch.ones(2),
            columns,
            constants=NtkConstants(K=1.0, R0=1.0, lambda_min=1.0),
            s=1,
        )
    with pytest.raises(ArgumentError, match="lambda_min = 0"):
        theorem_72(
            torch.ones(2),
            columns,
            constants=NtkConstants(K=2.0, R0=1.0, lambda_min=0.0),
            s=1,
        )
    with pytest.raises(ArgumentError, match="theta has 3 entries, columns 2"):
        theorem_72(
            torch.ones(3),
            columns,
            constants=NtkConstants(K=2.0, R0=1.0, lambda_min=1.0),
            s=1,
        )
    with pytest.raises(ArgumentError, match=r"s = 2.5"):
        theorem_72(
            torch.ones(2),
            columns,
            constants=NtkConstants(K=2.0, R0=1.0, lambda_min=1.0),
            s=2.5,
        )
    zero = nn.Linear(3, 2)
    nn.init.zeros_(zero.weight), nn.init.zeros_(zero.bias)
    with pytest.raises(TheoryError, match="sum to 0"):
        ntk_sketch(zero, x, 1)
    with pytest.raises(TheoryError, match=r"probability 0 \(1 in 'weight'\)"):
        half = nn.Linear(3, 1)
        full = copy.deepcopy(half)
        with torch.no_grad():
            half.weight[0, 0] = 0
        ntk_sketch(half, x, 1, trained=full)


@pytest.mark.parametrize("s", [2.5, math.nan, math.inf, -1, True, "3"])
def test_draws_are_whole_numbers(model, s):
    with pytest.raises(ArgumentError, match="s = .* is not a whole number"):
        ntk_sketch(model, torch.randn(2, 3), s)


def spoiled(model, name):
    other = copy.deepcopy(model)
    dict([*other.named_parameters(), *other.named_buffers()])[name].data.view(-1)[0] = math.nan
    return other


def test_models_that_do_not_fit_are_named(model):
    x = torch.randn(2, 3)
    turned = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.BatchNorm1d(2), nn.Linear(2, 5))
    with pytest.raises(ArgumentError, match=r"'0.weight' is \(2, 3\), in the model \(5, 3\)"):
        ntk_sketch(model, x, 1, trained=turned)
    with pytest.raises(ArgumentError, match=r"'2.weight' \(5,\) is missing"):
        ntk_sketch(model, x, 1, trained=nn.Sequential(nn.Linear(3, 5), nn.Tanh()))
    with pytest.raises(ArgumentError, match=r"trained= '3.weight' has 1 NaN"):
        ntk_sketch(model, x, 1, trained=spoiled(model, "3.weight"))
    with pytest.raises(ArgumentError, match=r"the model '2.running_mean' has 1 NaN"):
        ntk_sketch(spoiled(model, "2.running_mean"), x, 1)
    with pytest.raises(
        ArgumentError,
        match=r"x has 1 NaN or infinite entries of 6 \(first: \[1, 2\]\)",
    ):
        ntk_sketch(model, torch.tensor([[0.0, 1, 2], [3, 4, math.nan]]), 1)
    with pytest.raises(TheoryError, match=r"does not run on x of shape \(2, 4\)"):
        ntk_sketch(model, torch.randn(2, 4), 1)
    with pytest.raises(ArgumentError, match="the model returns a tuple"):
        ntk_sketch(nn.LSTM(3, 2), torch.randn(2, 1, 3), 1)


class Single(nn.Linear):
    def forward(self, x):
        return super().forward(x) @ torch.eye(2, dtype=torch.float32)


def test_a_module_of_its_own_precision_runs_in_it():
    x = torch.randn(2, 3)
    with pytest.raises(TheoryError, match=r"dtype=torch.float32"):
        ntk_sketch(Single(3, 2), x, 1)
    assert ntk_sketch(Single(3, 2), x, 1, dtype=torch.float32).energy > 0


class WithFunction(nn.Module):
    """An activation held as a function."""

    def __init__(self, function):
        super().__init__()
        self.fc, self.function = nn.Linear(3, 2), function

    def forward(self, x):
        return self.function(self.fc(x))


@pytest.mark.parametrize(
    ("ours", "theirs", "named"),
    [
        (
            nn.Sequential(nn.Linear(3, 2), nn.ReLU()),
            nn.Sequential(nn.Linear(3, 2), nn.Tanh()),
            "Tanh",
        ),
        (
            nn.Sequential(nn.Linear(3, 2), nn.LeakyReLU(0.1)),
            nn.Sequential(nn.Linear(3, 2), nn.LeakyReLU(0.2)),
            "negative_slope=0.2",
        ),
        (WithFunction(torch.relu), WithFunction(torch.tanh), "tanh"),
        (
            nn.Sequential(nn.Linear(3, 2)),
            nn.Sequential(nn.Linear(3, 2), nn.ReLU()),
            "missing",
        ),
    ],
)
def test_another_activation_is_no_trained_version(ours, theirs, named):
    with pytest.raises(ArgumentError, match=named):
        ntk_sketch(ours, torch.ones(2, 3), 2, trained=theirs)


def test_what_only_training_sees_may_differ():
    ours = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4, 2))
    theirs = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(4, 2))
    assert ntk_sketch(ours, torch.ones(2, 3), 2, trained=theirs, uniform=0.1).expected > 0


@pytest.mark.parametrize("width", [10_000, 40_000])
def test_erratum_the_jacobian_of_a_wide_network_is_bounded_only_after_dividing(width):
    """‖J‖²_F of Σ a_i·max(w_i x, 0) at x = 1 is about n: no K bounds it, and (1/n)JJᵀ converges."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, width, bias=False), nn.ReLU(), nn.Linear(width, 1, bias=False))
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    J, _ = jacobian(net, torch.ones(1, 1))
    kernel = float(J.square().sum())
    # Per unit w²·1[w > 0] + a²·1[w > 0], of variance 3 by its moments; six deviations.
    assert kernel / width == pytest.approx(1, abs=6 * math.sqrt(3 / width))
