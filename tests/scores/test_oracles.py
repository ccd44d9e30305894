"""Scores against naive oracles: explicit Hessians, Jacobians entry by entry, one weight zeroed at a
time.
"""

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import secateurs as sc


class Small(nn.Module):
    """Convolution, batch norm, residual sum, two pools: everything that is not a plain chain, in
    few weights.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(3)
        self.again = nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False)
        self.head = nn.Linear(3, 3)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x)))
        return self.head((x + F.relu(self.again(x))).mean((2, 3)))


def small() -> Small:
    torch.manual_seed(1)
    return Small().double()


def batch(n: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 2, 6, 6, dtype=torch.float64), torch.randint(3, (n,))


NAMES = ["conv.weight", "again.weight", "head.weight"]
MODES = [True, False]


def flat_loss(model, x, y, temperature=1.0):
    """The mean loss as a function of one flat vector of the chosen weights, and that vector."""
    weights = {n: model.get_parameter(n).detach() for n in NAMES}
    shapes = [weights[n].shape for n in NAMES]
    buffers = {n: b.clone() for n, b in model.named_buffers()}

    def loss(vector):
        parts = [
            p.view(s)
            for p, s in zip(
                vector.split([s.numel() for s in shapes]), shapes, strict=True
            )
        ]
        fresh = {n: b.clone() for n, b in buffers.items()}
        return F.cross_entropy(
            functional_call(model, dict(zip(NAMES, parts, strict=True)) | fresh, (x,))
            / temperature,
            y,
        )

    return loss, torch.cat([weights[n].flatten() for n in NAMES])


def flat(scores):
    return torch.cat([scores[n].flatten() for n in NAMES])


@pytest.mark.parametrize("training", MODES)
def test_snip_is_the_derivative_to_the_mask(training):
    model, (x, y) = small().train(training), batch()
    loss, w = flat_loss(model, x, y)
    step, numeric = 1e-6, torch.empty_like(w)
    for i in range(len(w)):
        up, down = w.clone(), w.clone()
        up[i] *= 1 + step
        down[i] *= 1 - step
        numeric[i] = (loss(up) - loss(down)) / (2 * step)
    scores = sc.score(model, "snip", batch=(x, y), loss=F.cross_entropy)
    torch.testing.assert_close(flat(scores), numeric.abs(), atol=1e-8, rtol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 7.0])
@pytest.mark.parametrize("training", MODES)
def test_grasp_is_the_explicit_hessian_times_the_gradient(training, temperature):
    model, (x, y) = small().train(training), batch()
    loss, w = flat_loss(model, x, y, temperature)
    gradient = torch.autograd.functional.jacobian(loss, w)
    hessian = torch.autograd.functional.hessian(loss, w)
    scores = sc.score(
        model, "grasp", batch=(x, y), loss=F.cross_entropy, temperature=temperature
    )
    torch.testing.assert_close(flat(scores), w * (hessian @ gradient))


@pytest.mark.parametrize("per_batch", [1, 4])
def test_taylor_is_the_mean_of_squares_over_batches(per_batch):
    model, (x, y) = small().eval(), batch()
    squares = []
    for part in range(0, 4, per_batch):
        loss, w = flat_loss(
            model, x[part : part + per_batch], y[part : part + per_batch]
        )
        squares.append((w * torch.autograd.functional.jacobian(loss, w)).square())
    parts = list(zip(x.split(per_batch), y.split(per_batch), strict=True))
    scores = sc.score(model, "taylor", batch=parts, loss=F.cross_entropy)
    torch.testing.assert_close(flat(scores), torch.stack(squares).mean(0))


def brute_jacobian(model, x):
    """∂f_k(x_n)/∂w_i, one number at a time by one backward pass each."""
    model = copy.deepcopy(model).eval()
    outputs = model(x)
    rows = []
    for n, k in itertools.product(range(outputs.shape[0]), range(outputs.shape[1])):
        model.zero_grad()
        outputs[n, k].backward(retain_graph=True)
        rows.append(
            torch.cat([model.get_parameter(name).grad.flatten() for name in NAMES])
        )
    return torch.stack(rows)


def test_jacobian_is_the_norm_of_each_column():
    model, (x, _) = small(), batch()
    expected = (
        brute_jacobian(model, x).square().sum(0).sqrt()
        * flat_loss(model, x, None)[1].abs()
    )
    torch.testing.assert_close(flat(sc.score(model, "jacobian", batch=x)), expected)
    one_by_one = sc.score(model, "jacobian", batch=list(x.split(1)))
    torch.testing.assert_close(flat(one_by_one), expected)


def test_the_jacobian_sketch_is_unbiased():
    """(Jᵀv)_i² averages to ‖J_i‖². Its moments are at most those of ‖J_i‖²·χ²_1, so for the mean of
    k = 4,000 draws and t = 0.2 the upper tail is below e^-33 (Laurent & Massart) and the lower
    below e^(-k t²/6) = e^-26; about 100 entries: this test fails by chance with probability below
    1e-9.
    """
    model, (x, _) = small(), batch(2)
    draws = 4000
    exact = flat(sc.score(model, "jacobian", batch=x)).square()
    estimate = sc.score(
        model,
        "jacobian",
        batch=x,
        draws=draws,
        generator=torch.Generator().manual_seed(0),
    )
    live = exact > 0
    error = flat(estimate).square()[live] / exact[live] - 1
    assert float(error.abs().max()) < 0.2


def test_wanda_of_a_convolution_is_wanda_of_the_unfolded_linear_layer():
    for groups in (1, 2):
        conv = nn.Conv2d(
            4, 6, 3, stride=2, padding=1, dilation=1, groups=groups
        ).double()
        x = torch.randn(3, 4, 7, 7, dtype=torch.float64)
        # [channel·9, example·position].
        columns = F.unfold(x, 3, padding=1, stride=2).transpose(0, 1).flatten(1)
        norms = (
            columns.norm(dim=1)
            .view(groups, 1, 4 // groups, 3, 3)
            .expand(groups, 6 // groups, -1, -1, -1)
        )
        expected = conv.weight.detach().abs() * norms.reshape(conv.weight.shape)
        torch.testing.assert_close(
            sc.score(conv, "wanda", batch=x)["weight"], expected
        )


def test_wanda_adds_up_over_the_uses_of_a_tied_weight():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    net, x = Twice().double(), torch.randn(5, 3, dtype=torch.float64)
    met = torch.cat([x, net.a(x).detach()]).norm(dim=0)
    torch.testing.assert_close(
        sc.score(net, "wanda", batch=x)["a.weight"], net.a.weight.detach().abs() * met
    )


def flow(model, convention="paper"):
    """R = 1ᵀf(1; |w|) by the letter, in evaluation mode."""
    model = copy.deepcopy(model).eval()
    with torch.no_grad():
        for tensor in itertools.chain(
            model.parameters(), model.buffers() if convention == "reference" else ()
        ):
            tensor.abs_()
    return model, lambda: float(
        model(torch.ones(1, 2, 6, 6, dtype=torch.float64)).detach().sum()
    )


@pytest.mark.parametrize("convention", ["paper", "reference"])
def test_synflow_is_the_derivative_of_the_flow(convention):
    model = small()
    twin, total = flow(model, convention)
    scores = sc.score(model, "synflow", example=batch(1)[0], convention=convention)
    for name in NAMES:
        weight = twin.get_parameter(name).data.view(-1)
        for i in range(0, len(weight), 5):
            kept, step = float(weight[i]), 1e-6
            weight[i] = kept * (1 + step)
            up = total()
            weight[i] = kept * (1 - step)
            slope = (up - total()) / (2 * step)  # ∂R/∂log w_i = w_i ∂R/∂w_i
            weight[i] = kept
            assert float(scores[name].view(-1)[i]) == pytest.approx(
                slope, rel=1e-6, abs=1e-7
            )


def test_synflow_of_a_linear_network_is_what_each_weight_carries():
    """Every path crosses a layer once, so R loses exactly score_i when weight i goes, and each
    layer holds all of R.
    """
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(3, 4, bias=False),
        nn.ReLU(),
        nn.Linear(4, 4, bias=False),
        nn.Linear(4, 2, bias=False),
    )
    net.double()
    scores = sc.score(net, "synflow", example=torch.zeros(1, 3, dtype=torch.float64))
    twin = copy.deepcopy(net)
    with torch.no_grad():
        for p in twin.parameters():
            p.abs_()
        whole = float(twin(torch.ones(1, 3, dtype=torch.float64)).sum())
        for name, tensor in scores.items():
            assert float(tensor.sum()) == pytest.approx(whole)
            weight = twin.get_parameter(name).view(-1)
            for i in range(len(weight)):
                kept = float(weight[i])
                weight[i] = 0
                lost = whole - float(
                    twin(torch.ones(1, 3, dtype=torch.float64)).sum()
                )
                weight[i] = kept
                assert float(tensor.view(-1)[i]) == pytest.approx(lost)


def test_the_probabilities_of_sketching():
    """Linear model: SNIP on sparse data with the l1 loss and the Jacobian score are ∝ ‖X_(i)‖·|w_i|
    (eq. 2).
    """
    g = torch.Generator().manual_seed(0)
    net = nn.Linear(7, 1, bias=False).double()
    x, _ = sc.scores.probe(
        "sparse", torch.empty(1, 7, dtype=torch.float64), examples=5, generator=g
    )
    optimal = x.norm(dim=0) * net.weight.detach().abs()
    y = torch.randn(5, 1, dtype=torch.float64, generator=g)
    snip = sc.score(net, "snip", batch=(x, y), loss=sc.scores.l1)["weight"]
    jacobian = sc.score(net, "jacobian", batch=x)["weight"]
    torch.testing.assert_close(5 * snip, optimal)  # the mean over five examples
    torch.testing.assert_close(jacobian, optimal)
