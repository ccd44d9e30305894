"""Backward passes on windows: equal to passes over whole maps, on every kind of layer."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from proof.pairs import problem_of
from secateurs.graph import propagate
from secateurs.proof import linear
from secateurs.proof.domain import ball_domain
from secateurs.proof.forms import FIELDS
from secateurs.proof.linear import Backward, Relaxation
from secateurs.proof.patches import Window, cone
from tiny_networks import randomize, tuned

SHAPE = (2, 9, 8)


def conv(*channels, **options):
    return nn.Conv2d(*channels, options.pop("kernel", 3), **options)


class Skip(nn.Module):
    """x + body(x), with a second body on the branch if there is one."""

    def __init__(self, body, side=None):
        super().__init__()
        self.body, self.side = body, nn.Identity() if side is None else side

    def forward(self, x):
        return self.side(x) - self.body(x)


class PerPixel(nn.Module):
    """A factor and an offset for every entry of the map."""

    def __init__(self, *shape):
        super().__init__()
        self.factor = nn.Parameter(torch.randn(1, *shape))
        self.offset = nn.Parameter(torch.randn(1, *shape))

    def forward(self, x):
        return x * self.factor + self.offset


class Mean(nn.Module):
    def __init__(self, keepdim):
        super().__init__()
        self.keepdim = keepdim

    def forward(self, x):
        return x.mean((2, 3), self.keepdim)


NETS = {
    "plain": [conv(4, 3)],
    "padded": [conv(4, 3, padding=1), nn.ReLU(), conv(3, 3, padding=2)],
    "stride": [conv(4, 3, stride=2, padding=1), nn.ReLU(), conv(3, 2, kernel=2)],
    "uneven": [
        conv(4, 3, kernel=(2, 3), stride=(1, 2), padding=(1, 0)),
        nn.ReLU(),
        conv(3, 2, kernel=(3, 1), padding=(2, 1)),
    ],
    "dilation": [
        conv(4, 3, dilation=2, padding=2),
        nn.ReLU(),
        conv(3, 3, dilation=2),
    ],
    "groups": [conv(4, 6, groups=2, padding=1), nn.ReLU(), conv(6, 6, groups=6)],
    "same": [conv(4, 3, kernel=4, padding="same"), nn.ReLU(), conv(3, 2)],
    "twice": [conv(4, 3, padding=1), conv(3, 3, padding=1, bias=False)],
    "average": [nn.AvgPool2d(2), conv(4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)],
    "overlapping average": [
        nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        conv(4, 3),
        nn.ReLU(),
        nn.AvgPool2d(2, 1, 1),
    ],
    "average over the edge": [nn.AvgPool2d(2, ceil_mode=True), conv(4, 3)],
    "adaptive": [nn.AdaptiveAvgPool2d((7, 3)), conv(4, 3, kernel=2)],
    "batch norm": [conv(4, 3, padding=1), nn.BatchNorm2d(3), nn.LeakyReLU(0.1)],
    "leaky beyond": [conv(4, 3, padding=1), nn.LeakyReLU(1.7), conv(3, 2, padding=1)],
    "entries": [PerPixel(4, 7, 6), conv(4, 3, padding=1)],
    "skip": [Skip(conv(4, 4, padding=1)), nn.ReLU(), conv(4, 2)],
    "skip with stride": [
        Skip(
            nn.Sequential(conv(4, 3, stride=2, padding=1), nn.ReLU(), conv(3, 3, padding=1)),
            conv(4, 3, kernel=1, stride=2),
        ),
        nn.ReLU(),
        conv(3, 2),
    ],
    "numbers": [conv(4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(40, 5)],
    "rows of padding": [
        conv(4, 2, kernel=(7, 1)),
        nn.ReLU(),
        conv(2, 2, padding=1),
        nn.Flatten(),
        nn.LazyLinear(4),
    ],
    "mean": [conv(4, 3), nn.ReLU(), Mean(False), nn.Linear(3, 4)],
    "mean kept": [conv(4, 3), nn.ReLU(), Mean(True), conv(3, 4, kernel=1)],
}


def problem(layers, generator, boxes=2):
    head = [conv(2, 4), nn.ReLU(), *copy.deepcopy(layers), nn.ReLU(), nn.Flatten()]
    dense = nn.Sequential(*head, nn.LazyLinear(3)).eval()
    dense(torch.zeros(1, *SHAPE))
    dense = randomize(dense.double(), generator)
    for module in dense.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
    x = torch.randn(boxes, *SHAPE, generator=generator, dtype=torch.float64)
    return problem_of(dense, tuned(dense, generator), x), ball_domain(x, 0.3)


def bounds_of(problem, domain, monkeypatch, *, windows):
    """The improved bounds of every layer, and for how many of them windows served."""

    def behind(self, name):
        return cone(self.record.nodes, name) if windows else None

    seen, cones = [], set()
    improve, ends = Backward.improve, linear.ends

    def watched(self, x, name):
        found = improve(self, x, name)
        seen.append(found)
        return found

    def counted(record, behind, *rows):
        cones.add(behind.root)
        return ends(record, behind, *rows)

    with monkeypatch.context() as patch:
        patch.setattr(Backward, "_cone", behind)
        patch.setattr(Backward, "improve", watched)
        patch.setattr(linear, "ends", counted)
        with torch.enable_grad():
            flow = Relaxation(unit=problem.unit)
            propagate(problem.graph, flow, [problem.flow_input(domain)], problem.pair)
    return seen, len(cones)


@pytest.mark.parametrize("kind", NETS)
def test_windows_give_the_bounds_of_whole_maps(kind, generator, monkeypatch):
    """With a coarse unit the margin for rounding is most of the bound, and has to agree as well."""
    pair, domain = problem(NETS[kind], generator)
    for unit in (2.0**-53, 2.0**-20):
        pair = replace(pair, unit=unit)
        windows, used = bounds_of(pair, domain, monkeypatch, windows=True)
        maps, none = bounds_of(pair, domain, monkeypatch, windows=False)
        assert used >= 1 and none == 0
        for one, two in zip(windows, maps, strict=True):
            for field in FIELDS:
                torch.testing.assert_close(
                    getattr(one, field), getattr(two, field), rtol=1e-9, atol=1e-9
                )


def last_relu(pair):
    """The nodes of the graph, and what the last activation reads."""
    nodes = {node.name: node for node in pair.graph.nodes}
    return nodes, [n for n in nodes.values() if type(n).__name__ == "Activation"][-1]


@pytest.mark.parametrize("kind", NETS)
def test_a_neuron_depends_on_nothing_outside_of_its_windows(kind, generator, monkeypatch):
    """Each entry of the input that moves a neuron lies in the window that is foretold."""
    pair, _ = problem(NETS[kind], generator, boxes=1)
    nodes, relu = last_relu(pair)
    found = cone(nodes, relu.inputs[0])
    (entry,) = pair.graph.inputs
    place = found.places[entry.name]
    graph = replace(pair.graph, output=relu.inputs[0])
    x = torch.randn(1, *SHAPE, generator=generator).double().requires_grad_()
    value = propagate(graph, _Linear(), [x], pair.pair.f)
    width = value.shape[-1] if value.ndim == 4 else 1
    for neuron in range(0, value.numel(), 3):
        (slope,) = torch.autograd.grad(value.flatten()[neuron], x, retain_graph=True)
        at = divmod(neuron % (value[0, 0].numel()), width)
        for side, entries in enumerate((slope[0].sum((0, 2)), slope[0].sum((0, 1)))):
            # A neuron that reads padding alone touches nothing: then any window will do.
            touched = entries.nonzero().flatten().tolist()
            first = at[side] * place.step[side] + place.start[side]
            assert all(first <= t < first + place.size[side] for t in touched)


class _Linear:
    """The flow of ordinary values in which no activation cuts anything off."""

    def __getattr__(self, name):
        from secateurs.graph import Evaluate

        return getattr(Evaluate(), name)

    def activation(self, node, x):
        return x


def test_the_windows_of_two_convolutions(generator):
    pair, _ = problem(NETS["stride"], generator)
    nodes, relu = last_relu(pair)
    places = cone(nodes, relu.inputs[0]).places
    assert places[relu.inputs[0]] == Window(step=(1, 1), start=(0, 0), size=(1, 1))
    # Kernels 2, then 3 with stride 2 and padding 1, then 3.
    entry = pair.graph.inputs[0].name
    assert places[entry] == Window(step=(2, 2), start=(-1, -1), size=(7, 7))


class Turned(nn.Module):
    def forward(self, x):
        return x.flip(2)


@pytest.mark.parametrize(
    "layer",
    [
        nn.MaxPool2d(2),
        nn.ConvTranspose2d(4, 3, 3),
        Turned(),
        nn.AdaptiveAvgPool2d((4, 4)),
    ],
    ids=lambda m: type(m).__name__,
)
def test_what_has_no_windows_is_bounded_by_whole_maps(layer, generator, monkeypatch):
    pair, domain = problem([layer, nn.ReLU()], generator)
    nodes, relu = last_relu(pair)
    assert cone(nodes, relu.inputs[0]) is None
    windows, _ = bounds_of(pair, domain, monkeypatch, windows=True)
    maps, _ = bounds_of(pair, domain, monkeypatch, windows=False)
    assert torch.allclose(windows[-1].dh, maps[-1].dh, rtol=1e-9)


def test_the_windows_of_one_ball_do_not_see_another(generator, monkeypatch):
    pair, domain = problem(NETS["skip with stride"], generator, boxes=3)
    together, _ = bounds_of(pair, domain, monkeypatch, windows=True)
    for number, one in enumerate(domain.split(1)):
        alone, _ = bounds_of(pair, one, monkeypatch, windows=True)
        for a, b in zip(alone, together, strict=True):
            assert torch.allclose(a.dh[0], b.dh[number], rtol=1e-9)
