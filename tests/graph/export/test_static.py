"""Values that a model computes from its parameters alone."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from secateurs.errors import CaptureError
from secateurs.graph import capture, evaluate


class Narrowed(nn.Module):
    """A layer whose weight goes through a narrower dtype, as in mixed precision by hand."""

    def __init__(self, dtype):
        super().__init__()
        self.a, self.dtype = nn.Linear(3, 3), dtype

    def forward(self, x):
        return F.linear(x, self.a.weight.to(self.dtype).float(), self.a.bias)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_weight_that_is_cast_to_fewer_digits_is_computed_with_them(dtype):
    model = Narrowed(dtype)
    x = torch.randn(5, 3, dtype=torch.float64)
    graph = capture(model, x[:1].float())
    state = {name: p.double() for name, p in graph.state(model).items()}
    weight = model.a.weight.to(dtype).double()
    want = F.linear(x, weight, model.a.bias.double())
    torch.testing.assert_close(evaluate(graph, [x], state), want, rtol=1e-12, atol=1e-12)
    assert not torch.equal(weight, model.a.weight.double())  # the cast does lose digits


def test_a_cast_to_more_digits_changes_nothing():
    model = Narrowed(torch.float64)
    x = torch.randn(5, 3, dtype=torch.float64)
    graph = capture(model, x[:1].float())
    state = {name: p.double() for name, p in graph.state(model).items()}
    want = F.linear(x, model.a.weight.double(), model.a.bias.double())
    torch.testing.assert_close(evaluate(graph, [x], state), want, rtol=1e-12, atol=1e-12)


def test_a_first_dimension_that_is_no_batch_is_named_and_the_way_out_works():
    """A network on a graph: nodes and edges come first, and one of each is no graph."""

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x, edges):
            sums = torch.zeros(x.shape).index_add(0, edges[1], x[edges[0]])
            return self.last(torch.relu(self.first(sums)))

    class Batched(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x, edges):
            return self.inner(x[0], edges[0])[None]

    model = Mean().eval()
    x, edges = torch.randn(5, 3), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    with pytest.raises(CaptureError, match="runs on the example, but not on its first sample"):
        capture(model, (x, edges), opaque=True)
    graph = capture(Batched(model).eval(), (x[None], edges[None]), opaque=True)
    assert graph.inputs[0].shape == (1, 5, 3)
