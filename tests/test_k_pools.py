"""k-max-pools for every k: capture, lifting, norm, costs, certificates; and what print says of
them.
"""

import copy

import pytest
import torch
from torch import Tensor, nn

import secateurs as sc
from secateurs.errors import CaptureError
from secateurs.graph import Pool, capture, evaluate
from secateurs.paths import lifting


class KPool(nn.Module):
    """Two linear layers around the k-th largest of groups of three."""

    def __init__(self, how) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 6), nn.Linear(2, 2)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.how(self.first(x).relu().view(-1, 2, 3) - 0.3))


class SumOfTop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).topk(2).values.sum(1, keepdim=True))


NETS = {
    "largest": lambda: KPool(lambda t: t.kthvalue(3, -1).values),
    "second": lambda: KPool(lambda t: t.kthvalue(2, 2).values),
    "smallest": lambda: KPool(lambda t: t.kthvalue(1).values),
    "median": lambda: KPool(lambda t: t.median(-1).values),
    "second of sorted": lambda: KPool(lambda t: t.sort(-1, descending=True).values[..., 1]),
    "second of the smallest": lambda: KPool(lambda t: t.topk(2, largest=False).values[..., 1]),
    "sum of two": SumOfTop,
}


METHODS = ["path-metric", "two-stream", "interval", "affine", "linear"]


def net(name, seed=0):
    torch.manual_seed(seed)
    return NETS[name]().double().eval()


@pytest.mark.parametrize("name", NETS)
def test_the_graph_computes_the_model(name):
    model, x = net(name), torch.randn(20, 3, dtype=torch.float64)
    graph = capture(model, x[:1])
    with torch.no_grad():
        assert torch.allclose(evaluate(graph, [x], graph.state(model)), model(x), atol=1e-12)


def test_ranks_are_read():
    ranks = {
        n: [p.rank for p in capture(net(n), torch.zeros(1, 3)).nodes if isinstance(p, Pool)]
        for n in NETS
    }
    assert ranks["largest"] == [1]
    assert ranks["second"] == ranks["median"] == [2]
    assert ranks["smallest"] == [3]
    assert sorted(ranks["second of sorted"]) == [1, 2, 3]
    assert ranks["second of the smallest"] == [3, 2]
    assert ranks["sum of two"] == [1, 2]


@pytest.mark.parametrize("name", NETS)
def test_lifting_norm_and_costs(name):
    """R = ⟨Φ, A(x, 1)⟩; ‖Φ‖₁ sums windows whatever k; a cost is what zeroing takes away."""
    model = net(name)
    for seed in range(5):
        x = torch.randn(1, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        found = lifting(model, x)
        assert torch.allclose(found.realisation(), model(x)[0].detach(), atol=1e-12)
    norm = sc.path_norm(model, x)
    assert float(norm) == pytest.approx(found.norm(1), rel=1e-12)
    costs = sc.path_costs(model, x)
    zeroed = copy.deepcopy(model)
    zeroed.first.weight.data[1, 2] = 0.0
    lost = float(norm) - float(sc.path_norm(zeroed, x))
    assert float(costs["first.weight"][1, 2]) == pytest.approx(lost, rel=1e-9)


@pytest.mark.parametrize("name", NETS)
def test_certificates_are_sound(name):
    """Pruned networks on boxes of three sizes: no deviation found exceeds its bound."""
    dense = net(name)
    sparse = copy.deepcopy(dense)
    generator = torch.Generator().manual_seed(1)
    for parameter in sparse.parameters():
        parameter.data *= torch.rand(parameter.shape, generator=generator).double() > 0.3
    centre = torch.randn(1, 3, dtype=torch.float64, generator=generator)
    for radius in (0.01, 0.3, 3.0):
        bounds = sc.certify(dense, sparse, around=centre, radius=radius, methods=METHODS).bounds
        assert bounds.keys() == set(METHODS)
        points = centre + radius * (2 * torch.rand(500, 3, generator=generator).double() - 1)
        with torch.no_grad():
            gaps = (dense(points) - sparse(points)).abs().amax()
        for method, bound in bounds.items():
            assert float(gaps) <= float(bound) * (1 + 1e-9), method


def test_a_second_largest_of_intervals_is_not_the_largest():
    """Interval bounds go through the k-th largest of the ends, not through the maximum."""
    model = nn.Sequential(nn.Linear(1, 3)).double()
    model[0].weight.data = torch.tensor([[0.0], [0.0], [1.0]], dtype=torch.float64)
    model[0].bias.data = torch.tensor([5.0, 1.0, 0.0], dtype=torch.float64)

    class Second(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = model

        def forward(self, x):
            return self.body(x).kthvalue(2, -1, keepdim=True).values

    dense, sparse = Second(), copy.deepcopy(Second())
    sparse.body[0].bias.data[0] = 4.0
    cert = sc.certify(
        dense,
        sparse,
        around=torch.zeros(1, 1, dtype=torch.float64),
        radius=0.1,
        methods=["interval"],
    )
    assert float(cert.bound) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (lambda t: t.topk(2).indices.double().sum(-1), "positions of a maximum"),
        (lambda t: t.topk(2, sorted=False).values.sum(-1), "leaves the order open"),
        (lambda t: t.kthvalue(2).indices.double(), "positions of a maximum"),
    ],
)
def test_what_is_not_a_pool_is_refused(how, text):
    with pytest.raises(CaptureError, match=text):
        capture(KPool(how), torch.zeros(1, 3))


def test_definition_a5_as_printed_selects_the_wrong_antecedent():
    """u = (1, 2), θ = (3, 1), k = 1: the neuron is max(3, 2) = 3, print activates the edge of u =
    2.
    """
    u, theta = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0])
    value = float((u * theta).max())
    printed, corrected = int(u.argmax()), int((u * theta).argmax())
    assert value == 3.0
    assert float(u[printed] * theta[printed]) == 2.0 != value
    assert float(u[corrected] * theta[corrected]) == value


def test_theorem_31_its_case_of_equality_is_not_the_one_of_the_proof():
    """The proof's parameters give 0 on both sides of a 2-pool; others attain the bound."""

    def out(weights, x):
        # 2nd largest of 2.
        return float((torch.tensor(weights) * torch.tensor(x)).kthvalue(1).values)

    def phi(weights):
        return torch.tensor(weights)

    one, two = (2.0, 0.0), (1.0, 0.0)  # the proof: one path, a positive input
    assert out(one, (1.0, 0.0)) == out(two, (1.0, 0.0)) == 0.0
    assert float((phi(one) - phi(two)).norm(1)) == 1.0
    one, two, x = (1.0, 1.0), (1.0, 2.0), (1.0, -1.0)
    assert abs(out(one, x) - out(two, x)) == float((phi(one) - phi(two)).norm(1)) == 1.0


@pytest.mark.parametrize("largest", [True, False])
def test_a_k_th_largest_behind_another_is_bounded_by_planes(largest):
    """The inner one is an interval and no longer a function of the input, for the planes."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(5, 5)

        def forward(self, x):
            h = torch.topk(self.l(x).relu(), 3, dim=2, largest=largest).values
            return torch.topk(h.relu(), 2, dim=2, largest=not largest).values.flatten(1)

    torch.manual_seed(0)
    dense = Twice().double()
    sparse = copy.deepcopy(dense)
    sparse.l.weight.data *= 0.9
    x = torch.randn(4, 2, 5)
    cert = sc.certify(dense, sparse, around=x, radius=0.3, methods="linear")
    assert 0 < cert.lower_bound <= cert.bound < 10
