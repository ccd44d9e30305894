"""Opaque nodes: only where they are asked for, and equal to the model."""

import pytest
import torch
from torch import nn

from secateurs import compact
from secateurs.errors import UnsupportedOperation
from secateurs.graph import LOWERINGS, Opaque, capture, evaluate, propagate
from secateurs.graph.operators import OPAQUES
from secateurs.paths import path_norm


class Products(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(4, 6)

    def forward(self, x):
        a, b = self.one(x), self.two(x)
        scores = torch.einsum("bi,bj->bij", a, b).softmax(-1)
        return (scores @ b.unsqueeze(-1)).squeeze(-1) * torch.sigmoid(a) + a / (1 + b * b)


X = torch.randn(3, 4, dtype=torch.float64)


def test_products_are_refused_by_name_unless_asked_for():
    model = Products().double()
    with pytest.raises(UnsupportedOperation, match="product of two activations"):
        capture(model, X)
    graph = capture(model, X, opaque=True)
    assert sum(isinstance(node, Opaque) for node in graph.nodes) >= 5
    state = graph.state(model)
    assert torch.allclose(evaluate(graph, [X[:1]], state), model(X[:1]))
    # What was read before is not handed to those who did not ask for it.
    with pytest.raises(UnsupportedOperation, match="product of two activations"):
        capture(model, X)


def test_paths_refuse_an_opaque_node():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double()
    graph = capture(model, torch.zeros(1, 3), opaque=True)

    class Counting:
        def input(self, node, value):
            return value

        def affine(self, node, x, params):
            return x

    with pytest.raises(UnsupportedOperation, match="tanh"):
        propagate(graph, Counting(), [torch.zeros(1, 3)], {})
    with pytest.raises(UnsupportedOperation, match="tanh"):
        path_norm(model, torch.zeros(1, 3))


def test_ids_are_inputs_only_of_opaque_graphs():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2)).double()
    ids = torch.tensor([[1, 2, 3]])
    with pytest.raises(UnsupportedOperation, match="int64"):
        capture(model, ids)
    graph = capture(model, ids, opaque=True)
    assert torch.allclose(evaluate(graph, [ids], graph.state(model)), model(ids))


def test_an_unknown_operator_mixes_everything():
    class Sorted(nn.Module):
        def forward(self, x):
            return torch.fft.rfft(x).abs() + 1

    graph = capture(Sorted(), torch.zeros(1, 4), opaque=True)
    opaque = [node for node in graph.nodes if isinstance(node, Opaque)]
    assert opaque and opaque[0].carried == ((None, None),)


class Steps(nn.Module):
    """Steps of time as diffusion models read them: times ones of integers, one for each sample."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x, step):
        step = step * torch.ones(x.shape[0], dtype=step.dtype)
        return self.last(torch.relu(self.first(x) + torch.sin(step.to(x.dtype))[:, None]))


def test_what_is_read_as_a_literal_is_no_factor_of_the_node():
    model, example = Steps().double().eval(), (torch.zeros(1, 4).double(), torch.tensor([3]))
    nodes = [n for n in capture(model, example, opaque=True).nodes if isinstance(n, Opaque)]
    assert any("mul" in node.place.operation and len(node.inputs) == 1 for node in nodes)
    assert all(i < len(node.inputs) for node in nodes for i in node.zeros)
    # What is known of values is carried through every node.
    assert not compact(model, example).compaction.removed


aten = torch.ops.aten
# The clips hand over where channels count; the others are read opaquely where two activations meet
# or a statistic is the input's own.
READ_BOTH_WAYS = {
    *(aten.clamp.default, aten.clip.default, aten.clamp_min.default, aten.clamp_max.default),
    *(aten.hardtanh.default, aten.relu6.default, aten.hardsigmoid.default, aten.threshold.default),
    *(aten.mul.Tensor, aten.div.Tensor, aten.matmul.default, aten.bmm.default),
    *(aten.einsum.default, aten.instance_norm.default),
}


def test_a_lowering_rule_takes_over_from_an_opaque_one_knowingly():
    both = {operator for operator in LOWERINGS._rules if operator in OPAQUES}
    assert both == READ_BOTH_WAYS, (
        "the lowering rule is asked first, also by `compact`: if it knows less of channels than the"
        " one in graph/lowering/opaque.py, raise Gap where build.opaque, and name the operator here"
    )
