"""Clipped and smooth activations, gates, shuffles and averages: read for their channels alone."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import secateurs as sc
from channels.test_compact import chain, check_equal
from dead_filters import dead_filters
from secateurs.channels.removal import kept_box
from secateurs.graph import Affine
from secateurs.paths.reach import _sees_border as sees_border

X = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(0)).double()


class Gate(nn.Module):
    """Squeeze and excitation: every channel times a number made of all channels' means."""

    def __init__(self, channels, inner=4, gate=torch.sigmoid):
        super().__init__()
        self.down, self.up = (
            nn.Conv2d(channels, inner, 1),
            nn.Conv2d(inner, channels, 1),
        )
        self.gate = gate

    def forward(self, x):
        inner = F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))
        return x * self.gate(self.up(inner))


class Shuffle(nn.Module):
    """(b, g, c, h, w) with the sizes taken from the input."""

    def forward(self, x):
        b, c, h, w = x.shape
        return x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)


def block(act, width=12):
    return chain(
        nn.Conv2d(3, width, 3, padding=1),
        nn.BatchNorm2d(width),
        act,
        nn.Conv2d(width, width, 3, padding=1, groups=width),
        act,
        nn.Conv2d(width, 8, 1),
        nn.BatchNorm2d(8),
        act,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


ACTIVATIONS = [
    nn.ReLU6(), nn.Hardtanh(), nn.Hardswish(), nn.SiLU(), nn.GELU(), nn.Mish(), nn.ELU(),
    nn.Tanh(), nn.Sigmoid(), nn.Hardsigmoid(), nn.Softplus(), nn.PReLU(), nn.SELU(),
]  # fmt: skip


@pytest.mark.parametrize("act", ACTIVATIONS, ids=lambda a: type(a).__name__)
def test_constants_pass_through_every_activation(act):
    """Dead filters keep biases and norms: what they emit goes through the activation, exactly."""
    torch.manual_seed(0)
    net = block(act)
    dead_filters(net, 0.4)
    small = sc.compact(net, X)
    assert small[0].weight.shape[0] < 12 and small[5].weight.shape[0] < 8
    check_equal(net, small, [[X], [torch.randn(1, 3, 12, 7).double()]])


def test_slopes_go_with_their_channels():
    torch.manual_seed(0)
    act = nn.PReLU(12)
    nn.init.normal_(act.weight)
    net = chain(nn.Conv2d(3, 12, 3), act, nn.Conv2d(12, 2, 1))
    net[0].weight.data[:5] = 0
    net[0].bias.data[:5] = -1.0
    small = sc.compact(net, X)
    assert small[1].weight.shape == (7,)
    check_equal(net, small, [[X]])


def test_a_sigmoid_far_out_is_no_constant():
    """It rounds to 0 for every input, but inputs reach it, and so what reads it lives."""
    net = chain(
        nn.Linear(2, 3), nn.ReLU6(), nn.Linear(3, 1), nn.Sigmoid(), nn.Linear(1, 3), nn.ReLU(),
        nn.Linear(3, 1),
    )  # fmt: skip
    net[2].bias.data[0] = -4000.0
    assert sc.compact(net, torch.zeros(1, 2)).compaction.narrowed == ()


def test_a_clipped_channel_is_a_constant():
    """The same far below a ReLU6 is exactly 0: what reads it alone is dead."""
    net = chain(
        nn.Linear(2, 3), nn.ReLU6(), nn.Linear(3, 1), nn.ReLU6(), nn.Linear(1, 3), nn.ReLU(),
        nn.Linear(3, 1),
    )  # fmt: skip
    net[2].bias.data[0] = -4000.0
    small = sc.compact(net, torch.zeros(1, 2))
    assert small[4].weight.shape == (1, 1)
    check_equal(net, small, [[torch.randn(4, 2).double()]])


@pytest.mark.parametrize("gate", [torch.sigmoid, F.hardsigmoid, lambda t: F.relu6(t + 3) / 6])
def test_gates_lose_the_rows_and_columns_of_dead_channels(gate):
    torch.manual_seed(0)
    net = chain(
        nn.Conv2d(3, 10, 3, padding=1),
        nn.ReLU(),
        Gate(10, gate=gate),
        nn.Conv2d(10, 4, 3),
    )
    net[0].weight.data[:4], net[0].bias.data[:4] = 0, 0
    small = sc.compact(net, X)
    assert small[0].weight.shape[0] == 6 and small[2].up.weight.shape[0] == 6
    assert small[2].down.weight.shape[1] == 6 and small[3].weight.shape[1] == 6
    check_equal(net, small, [[X]])


def test_a_constant_behind_a_gate_stays():
    """Constant times a gate is not a constant."""
    torch.manual_seed(0)
    net = chain(nn.Conv2d(3, 10, 3), nn.ReLU(), Gate(10), nn.Conv2d(10, 4, 3))
    net[0].weight.data[:4], net[0].bias.data[:4] = 0, 1.0
    small = sc.compact(net, X)
    assert small[0].weight.shape[0] == 10
    check_equal(net, small, [[X]])


def test_a_dead_inner_channel_of_a_gate_goes():
    torch.manual_seed(0)
    net = chain(nn.Conv2d(3, 10, 3), nn.ReLU(), Gate(10), nn.Conv2d(10, 4, 3))
    net[2].down.weight.data[1] = 0
    small = sc.compact(net, X)
    assert small[2].down.weight.shape == (3, 10, 1, 1)
    check_equal(net, small, [[X]])


def test_one_gate_for_all_channels_stays():
    """A map of attention over pixels belongs to no channel."""

    class Spatial(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(10, 1, 3, padding=1)

        def forward(self, x):
            return x * torch.sigmoid(self.conv(x))

    torch.manual_seed(0)
    net = chain(nn.Conv2d(3, 10, 3), nn.ReLU(), Spatial(), nn.Conv2d(10, 4, 3))
    net[0].weight.data[:4], net[0].bias.data[:4] = 0, 0
    small = sc.compact(net, X)
    assert small[0].weight.shape[0] == 6 and small[2].conv.weight.shape == (
        1,
        6,
        3,
        3,
    )
    check_equal(net, small, [[X]])


def test_shuffles_by_shape_follow_where_both_groups_lose_alike():
    torch.manual_seed(0)
    net = chain(nn.Conv2d(3, 8, 3), nn.ReLU(), Shuffle(), nn.Conv2d(8, 4, 3))
    net[0].weight.data[[0, 1, 4, 5]], net[0].bias.data[[0, 1, 4, 5]] = 0, 0
    small = sc.compact(net, X)
    assert small[0].weight.shape[0] == 4 and small[3].weight.shape[1] == 4
    check_equal(net, small, [[X]])


def test_a_shuffle_gives_back_only_what_makes_its_groups_even():
    torch.manual_seed(0)
    net = chain(nn.Conv2d(3, 8, 3), nn.ReLU(), Shuffle(), nn.Conv2d(8, 4, 3))
    net[0].weight.data[[0, 1, 2, 5]], net[0].bias.data[[0, 1, 2, 5]] = 0, 0
    small = sc.compact(net, X)
    # Channel 1 of both groups goes; 0 and 2 have a partner that lives.
    assert small[0].weight.shape[0] == 6
    check_equal(net, small, [[X]])


def test_pruned_channels_shrink_through_shuffles():
    torch.manual_seed(0)
    net = chain(nn.Conv2d(3, 8, 3), nn.ReLU(), Shuffle(), nn.Conv2d(8, 4, 3))
    assert sc.prune_channels_(net, X, channels=0.5).channels == (2, 4)
    small = sc.compact(net, X)
    assert small[0].weight.shape[0] == 4
    check_equal(net, small, [[X]])


@pytest.mark.parametrize("seed", range(3))
def test_pruned_channels_shrink_through_gates_and_clips(seed):
    torch.manual_seed(seed)
    net = chain(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Hardswish(), Gate(16),
        nn.Conv2d(16, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU6(), nn.Conv2d(12, 4, 1),
    )  # fmt: skip
    sc.prune_channels_(net, X, channels=0.5)
    small = sc.compact(net, X)
    assert small[0].weight.shape[0] == 8 and small[4].weight.shape[:2] == (6, 8)
    assert small[3].up.weight.shape == (8, 2, 1, 1)
    check_equal(net, small, [[X]])


def test_a_layer_norm_keeps_its_channels_and_is_named():
    net = chain(nn.Linear(3, 6), nn.LayerNorm(6), nn.Linear(6, 2))
    net[0].weight.data[0], net[0].bias.data[0] = 0, 0
    small = sc.compact(net, torch.zeros(1, 3))
    assert small[0].weight.shape == (6, 3)
    check_equal(net, small, [[torch.randn(4, 3).double()]])


def test_a_group_norm_says_what_it_holds():
    net = chain(nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.Conv2d(6, 2, 1))
    net[0].weight.data[:3], net[0].bias.data[:3] = 0, 0
    small = sc.compact(net, X)
    assert small[0].weight.shape[0] == 6
    assert any("group_norm" in kept.why for kept in small.compaction.kept)


def test_halves_of_a_gated_unit_go_in_pairs():
    torch.manual_seed(0)
    net = chain(nn.Conv2d(3, 12, 3), nn.GLU(dim=1), nn.Conv2d(6, 2, 1))
    net[0].weight.data[1], net[0].bias.data[1] = (
        0,
        0,
    )  # what is gated, and with it its gate
    net[2].weight.data[:, 4] = 0
    small = sc.compact(net, X)
    assert small[0].weight.shape[0] == 8 and small[2].weight.shape[1] == 4
    check_equal(net, small, [[X]])


class Odd(nn.Module):
    """Squares, quotients and sums of a value with itself."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x):
        x = self.a(x)
        x = x * x + x / (1 + x.abs())
        y = torch.tanh(self.b(x)) * torch.nn.functional.softplus(x)
        return self.c(y - x * x.sigmoid())


@pytest.mark.parametrize("seed", range(6))
def test_products_of_a_value_with_itself(seed):
    torch.manual_seed(seed)
    net = Odd().double().eval()
    dead = torch.rand(8) < 0.4
    # Some with a bias left: a constant goes through all of it.
    net.a.weight.data[dead] = 0
    net.a.bias.data[dead & (torch.rand(8) < 0.6)] = 0
    net.b.weight.data[torch.rand(8) < 0.3] = 0
    net.c.weight.data[:, torch.rand(8) < 0.3] = 0
    small = sc.compact(net, torch.zeros(1, 5))
    check_equal(net, small, [[torch.randn(9, 5).double()]])


CONVOLUTIONS = [
    nn.Conv2d(4, 4, kernel, stride, padding, dilation, groups)
    for kernel in (1, 2, (3, 1))
    for padding in (0, 1, (0, 1), "same")
    for stride, dilation, groups in ((1, 1, 1), (2, 2, 1), (1, 2, 4))
    if padding != "same" or stride == 1
]


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("layer", CONVOLUTIONS, ids=str)
def test_padding_tells_what_a_trial_tells(layer):
    graph = sc.capture(layer, torch.zeros(1, 4, 9, 9))
    for node in graph.nodes:
        if isinstance(node, Affine):
            tried = replace(node, operation=replace(node.operation, sliding=None))
            assert sees_border(node, (1, 4, 9, 9)) is sees_border(tried, (1, 4, 9, 9))


def whole_slices(gone, shape):
    """`kept_box` on marks in the value's full shape."""
    marks = gone.expand(shape)
    kept = []
    for dim, size in enumerate(shape):
        cut = marks.movedim(dim, 0).flatten(1).all(1)
        kept.append((~cut).nonzero().flatten() if gone.shape[dim] > 1 else torch.arange(size))
    left = marks[torch.meshgrid(*kept, indexing="ij")]
    return None if bool(left.any()) or not left.numel() else kept


@pytest.mark.parametrize("seed", range(40))
def test_a_box_is_found_on_short_marks_as_on_those_in_full(seed):
    generator = torch.Generator().manual_seed(seed)
    shape = torch.randint(1, 4, (3,), generator=generator).tolist()
    short = [size if torch.rand((), generator=generator) < 0.6 else 1 for size in shape]
    slices = [torch.rand(n, generator=generator) < 0.5 if n > 1 else False for n in short]
    gone = torch.zeros(short, dtype=torch.bool)
    for dim, cut in enumerate(slices):
        if isinstance(cut, torch.Tensor):
            gone.movedim(dim, 0)[cut] = True
    if seed % 2:  # single entries, too: no whole slices any more
        gone |= torch.rand(short, generator=generator) < 0.3
    one, other = kept_box(gone, shape), whole_slices(gone, shape)
    assert (one is None) == (other is None)
    assert one is None or all(map(torch.equal, one, other))
