"""The partition of definitions G.3 and G.4 against Lemma G.3, and every obstacle by name."""

import math

import pytest
import torch
from torch import nn

from secateurs.graph import Evaluate, capture, propagate
from secateurs.paths import lifting
from secateurs.theory.partition import KindsFlow, partition
from tiny_networks import KINDS, randomize

CIRCULAR = {"padding": 1, "padding_mode": "circular"}


class TwoBranches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 2, 3, **CIRCULAR), nn.Conv2d(2, 2, 1)
        self.head = nn.Linear(2 * 16, 2)

    def forward(self, x):
        h = self.a(x).relu()
        return self.head((h + self.b(h)).relu().flatten(1))


NETS = {
    "fully connected": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)),
        (3,),
    ),
    "circular": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3, **CIRCULAR), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2)
        ),
        (1, 4, 4),
    ),
    "zero padding": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(2, 1, 3, padding=1),
            nn.Flatten(),
            nn.Linear(49, 2),
        ),
        (1, 7, 7),
    ),
    "no padding, max-pool": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(8, 2),
        ),
        (1, 5, 5),
    ),
    "two branches": (TwoBranches, (1, 4, 4)),
    "transposed": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 2, stride=2),
            nn.ReLU(),
            nn.ConvTranspose2d(2, 1, 3, stride=2),
        ),
        (1, 4, 4),
    ),
}


class Scalars(Evaluate):
    """λ_v of Algorithm 1 for every neuron: ‖Φ^{→v}‖₁, by absolute weights and sums for maxima."""

    def __init__(self):
        self.found = {}

    def affine(self, node, x, params):
        weight, bias = node.weight_in(params), node.bias_in(params)
        y = node.apply(
            x,
            None if weight is None else weight.abs(),
            None if bias is None else bias.abs(),
        )
        return self._kept(node, y.expand(node.shape))

    def pool(self, node, x):
        return self._kept(node, node.total(x))

    def add(self, node, xs):
        return self._kept(node, sum(xs))

    def _kept(self, node, value):
        self.found[node.name] = value
        return value


def scalars(model, graph, draws=6):
    """λ of every neuron for several draws of the parameters: one row per neuron."""
    rows = []
    for seed in range(draws):
        randomize(model, torch.Generator().manual_seed(seed))
        flow = Scalars()
        ones = [torch.ones(node.shape, dtype=torch.float64) for node in graph.inputs]
        with torch.no_grad():
            propagate(graph, flow, ones, graph.state(model))
        rows.append(flow.found)
    return {name: torch.stack([row[name].flatten() for row in rows], 1) for name in rows[0]}


@pytest.mark.parametrize("name", NETS)
def test_lemma_g3_kinds_share_their_scalar_and_no_partition_is_coarser(name):
    """λ is a polynomial in the parameters: equal λ for six draws means one kind."""
    make, shape = NETS[name]
    model = make().eval()
    graph = capture(model, torch.zeros(1, *shape))
    flow = KindsFlow(graph, graph.state(model))
    propagate(graph, flow, [None], None)
    found = scalars(model, graph)
    for layer in flow.layers:
        if layer.node.name not in found:
            continue
        values = found[layer.node.name]
        distinct = torch.unique((values * 1e9).round(), dim=0)
        assert layer.kinds == len(distinct), layer.node.name


def test_coordinates_of_a_fully_connected_network_are_its_parameters():
    model = NETS["fully connected"][0]()
    found = partition(model, capture(model, torch.zeros(1, 3)))
    assert (found.coordinates, found.hidden, found.depth, found.outputs) == (
        26,
        4,
        2,
        2,
    )
    assert (found.parameters, found.exponent, found.obstacles) == (26, 22, ())


def test_zero_padding_counted_by_hand():
    """3×3 with one row of zeros: nine kinds a channel, (2 + 3 + 2)² = 49 edges among them."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3))
    found = partition(model, capture(model, torch.zeros(1, 1, 8, 8)))
    assert found.coordinates == 2 * (49 + 9) + 3 * 129
    assert found.hidden == 18


def test_depth_is_that_of_the_longest_explicit_path():
    for name in ("fully connected", "zero padding", "transposed"):
        make, shape = NETS[name]
        model = make().double()
        if name == "zero padding":
            model, shape = nn.Sequential(*list(model)[:4]), (1, 3, 3)
            model.double()
        graph = capture(model, torch.zeros(1, *shape, dtype=torch.float64))
        paths = lifting(model, torch.ones(1, *shape, dtype=torch.float64), graph=graph).paths
        kinds = {node.name: type(node).__name__ for node in graph.nodes}
        edges = [sum(kinds[n] in ("Affine", "Pool", "Add") for n, _ in p.neurons) for p in paths]
        assert partition(model, graph).depth == max(edges), name


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        return self.fc(self.fc(x).relu())


class Decoder(nn.Module):
    """A convolution over a map whose entries are all of different kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.conv = nn.Linear(3, 16), nn.Conv2d(1, 2, 2)

    def forward(self, x):
        return self.conv(self.fc(x).relu().view(-1, 1, 4, 4))


def seq(*layers):
    return nn.Sequential(*layers)


OBSTACLES = {
    "zero padding": (
        lambda: seq(nn.Conv2d(1, 2, 3, padding=1)),
        (1, 6, 6),
        "at 0 (Conv2d) falls into 18 kinds",
    ),
    "padded max-pool": (
        lambda: seq(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, padding=1)),
        (1, 8, 8),
        "at 1 (MaxPool2d) falls into",
    ),
    "padded average pool": (
        lambda: seq(nn.Conv2d(1, 2, 3), nn.AvgPool2d(2, padding=1)),
        (1, 8, 8),
        "at 1 (AvgPool2d) falls into",
    ),
    "windows of two sizes": (
        lambda: seq(nn.Conv2d(1, 2, 2), nn.AdaptiveMaxPool2d(3)),
        (1, 9, 9),
        "at 1 (AdaptiveMaxPool2d) falls into",
    ),
    "leaky": (
        lambda: seq(nn.Linear(3, 2), nn.LeakyReLU(0.1), nn.Linear(2, 1)),
        (3,),
        "has slope 0.1",
    ),
    "tied layers": (Twice, (3,), "fc.weight is used by 2 layers"),
    "shared over unlike antecedents": (
        Decoder,
        (3,),
        "shares weights between neurons whose antecedents differ",
    ),
    "transposed": (
        lambda: seq(nn.ConvTranspose2d(1, 1, 3, stride=2)),
        (1, 4, 4),
        "at its border",
    ),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_every_obstacle_is_named(name):
    make, shape, text = OBSTACLES[name]
    model = make().eval()
    found = partition(model, capture(model, torch.zeros(1, *shape)))
    assert any(text in reason for reason in found.obstacles), found.obstacles


@pytest.mark.parametrize(
    "name", ["fully connected", "circular", "no padding, max-pool", "two branches"]
)
def test_what_the_definitions_cover_meets_no_obstacle(name):
    make, shape = NETS[name]
    model = make()
    assert partition(model, capture(model, torch.zeros(1, *shape))).obstacles == ()


@pytest.mark.parametrize("name", KINDS)
def test_the_count_is_never_below_the_parameters(name, generator):
    """Every parameter is a coordinate of some kind, whatever the network."""
    make, shape = KINDS[name]
    model = randomize(make(), generator)
    found = partition(model, capture(model, torch.zeros(1, *shape)))
    assert found.coordinates >= found.parameters
    assert 0 <= found.exponent <= found.coordinates
    assert bool(found.unknown) == any(isinstance(m, nn.LeakyReLU) for m in model.modules())


def test_outputs_that_are_read_again_or_clipped_get_a_layer_of_their_own():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    found = partition(model, capture(model, torch.zeros(1, 3)))
    assert (found.depth, found.coordinates, found.hidden) == (2, 16 + 4, 4)
    assert math.isclose(found.width, 4)


class Joined(nn.Module):
    """h + g or g + g, without biases: 12 + 16 weights before the sum, 8 after it."""

    def __init__(self, *, twice):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.head, self.twice = nn.Linear(4, 2, bias=False), twice

    def forward(self, x):
        h = self.a(x).relu()
        g = self.b(h).relu()
        return self.head(g + g if self.twice else h + g)


@pytest.mark.parametrize(("twice", "depth"), [(False, 4), (True, 5)])
def test_a_sum_counted_by_hand(twice, depth):
    """a, b, the sum, the head; a neuron added to itself has an identity neuron between."""
    model = Joined(twice=twice)
    found = partition(model, capture(model, torch.zeros(1, 3)))
    assert found.depth == depth
    # Each of the four sums has two edges of its own.
    assert (found.coordinates, found.hidden) == (12 + 16 + 8 + 8, 4 + 4 + 4)


@pytest.mark.parametrize("pool", [nn.AvgPool2d(2), nn.MaxPool2d(2)])
def test_a_window_over_one_kind_has_one_coordinate(pool):
    """Two kinds of 9 weights, two kinds of windows with one weight each, 8 · 2 weights."""
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3, bias=False, **CIRCULAR),
        nn.ReLU(),
        pool,
        nn.Flatten(),
        nn.Linear(8, 2, bias=False),
    )
    found = partition(model, capture(model, torch.zeros(1, 1, 4, 4)))
    assert (found.coordinates, found.hidden) == (2 * 9 + 2 + 16, 2 + 2)
    # Circular padding reads neurons twice, which puts identity neurons before the convolution.
    assert (found.depth, found.outputs, found.parameters) == (4, 2, 34)


def test_an_activation_beside_another_reader_of_its_sum_is_an_edge_of_its_own():
    """Two edges to the sum, one more to its ReLU; through the sum itself only two."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(2, 3), nn.Linear(3, 1)

        def forward(self, x):
            h = self.first(x)
            return self.last(h.relu() + h)

    alone = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    both, x = Both(), torch.zeros(1, 2)
    depths = [partition(model, capture(model, x)).depth for model in (alone, both)]
    assert depths == [2, 4]
