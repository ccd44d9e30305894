"""Which maps a graph may end in front of, and that the rest of it is the network without them."""

import pytest
import torch
from torch import nn

from secateurs.errors import UnsupportedOperation
from secateurs.graph import capture, evaluate
from secateurs.graph.ir import Ending


class Behind(nn.Module):
    """A layer, a relu, and any function."""

    def __init__(self, function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.function = nn.Linear(4, 3), function

    def forward(self, x):
        return self.function(self.layer(x).relu())


X = torch.zeros(1, 4)
CUT = {
    "sigmoid of a single number": (lambda z: z[:, :1].sigmoid().squeeze(), ("sigmoid", None, 1)),
    "sigmoid in place": (lambda z: (z * 2).sigmoid_(), ("sigmoid", None, 3)),
    "tanh, another shape": (lambda z: z.tanh().reshape(-1, 3, 1).clone(), ("tanh", None, 3)),
    "softmax in another precision": (lambda z: z.softmax(-1, torch.float64), ("softmax", 1, 3)),
    "softmax over the batch": (lambda z: z.softmax(0), ("softmax", 0, 3)),
    "log-softmax of a map": (
        lambda z: nn.functional.log_softmax(z.reshape(-1, 3, 1), 1),
        ("log_softmax", 1, 3),
    ),
}


@pytest.mark.parametrize("name", CUT)
def test_the_graph_ends_in_front_of_the_map(name):
    function, (kind, dim, entries) = CUT[name]
    model = Behind(function)
    graph = capture(model, X, ending=True)
    assert (graph.ending.name, graph.ending.dim) == (kind, dim)
    assert graph.describe().endswith(f"then {graph.ending}")
    x = torch.randn(5, 4)
    before = evaluate(graph, [x.double()], graph.state(model)).flatten(1)
    assert before.shape == (5, entries)
    with torch.no_grad():
        alone = torch.stack([model(row.unsqueeze(0)).flatten() for row in x])
    assert torch.allclose(graph.ending(before), alone.double(), atol=1e-6)


def test_one_capture_does_not_serve_the_other():
    model = Behind(torch.sigmoid)
    for _ in range(2):
        assert capture(model, X, ending=True).ending == Ending(
            name="sigmoid", dim=None, inner=(1, 3), shape=(1, 3)
        )
        assert capture(model, X, opaque=True).ending is None
        with pytest.raises(UnsupportedOperation, match=r"sigmoid.*It comes last: leave it out"):
            capture(model, X)


def test_a_network_without_such_a_map_is_read_as_ever():
    model = Behind(lambda z: z + 1)
    with_, without = capture(model, X, ending=True), capture(model, X)
    assert with_.ending is None and with_.describe() == without.describe()


@pytest.mark.parametrize(
    "function",
    [
        lambda z: z.sigmoid()[:, 0],  # one of the results
        lambda z: z.softmax(1).t(),  # in another order
        lambda z: z * z.sigmoid(),
        lambda z: 1 - z.tanh(),
        lambda z: z.sigmoid().sigmoid(),
        nn.functional.softplus,
    ],
)
def test_what_is_not_such_a_map_of_all_outputs_is_refused(function):
    with pytest.raises(UnsupportedOperation):
        capture(Behind(function), X, ending=True)
