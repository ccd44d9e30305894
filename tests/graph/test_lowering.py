"""Laws of every registered lowering rule, whoever registered it: it is reached, it agrees with the
operator, and the path norm bounds what comes out.
"""

import pytest
import torch
from torch import nn

import secateurs as sc
from graph.every_operator import CASES, UNREACHED
from secateurs.errors import UnsupportedOperation
from secateurs.graph import LOWERINGS, evaluate


class Call(nn.Module):
    """A function of the input and of weights."""

    def __init__(self, function, shapes) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(4)
        self.function = function
        self.weights = nn.ParameterList(
            torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes
        )

    def forward(self, x):
        return self.function(x, *self.weights)


@pytest.fixture
def reached(monkeypatch):
    """The operators whose rules are called meanwhile."""
    names = set()

    def noted(operator, rule):
        def call(*args, **kwargs):
            names.add(operator)
            return rule(*args, **kwargs)

        return call

    rules = {operator: noted(operator, rule) for operator, rule in LOWERINGS._rules.items()}
    monkeypatch.setattr(LOWERINGS, "_rules", rules)
    return names


def test_every_registered_operator_has_a_case():
    known = set(LOWERINGS._rules)
    assert known - set(CASES) - set(UNREACHED) == set(), (
        "add a line to tests/graph/every_operator.py"
    )
    assert set(CASES) - known == set(), "no rule is registered for these"


@pytest.mark.parametrize("operator", CASES, ids=str)
def test_the_rule_is_reached_and_agrees_with_the_operator(operator, reached):
    function, shape, weights = CASES[operator]
    model = Call(function, weights).eval()
    graph = sc.capture(model, torch.randn(1, *shape, dtype=torch.float64))
    assert operator in reached
    # Loops over the batch are unrolled for the size captured, which is one.
    x = torch.randn(1, *shape, dtype=torch.float64)
    with torch.no_grad():
        theirs, ours = model(x), evaluate(graph, [x], graph.state(model))
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    bound = sc.path_norm(model, graph, per_output=True) * max(1.0, float(x.abs().max()))
    assert bool((theirs.abs() <= bound * (1 + 1e-12)).all())


@pytest.mark.parametrize("train", [True, None])
def test_dropout_that_drops_is_refused(train):
    operator = torch.ops.aten.native_dropout.default
    model = Call(lambda x: operator(x, 0.5, train)[0], ()).eval()
    with pytest.raises(UnsupportedOperation, match="training mode"):
        sc.capture(model, torch.randn(1, 6))


def test_the_mask_of_a_dropout_is_refused():
    operator = torch.ops.aten.native_dropout.default
    model = Call(lambda x: x * operator(x, 0.5, False)[1], ()).eval()
    with pytest.raises(UnsupportedOperation, match="mask of a dropout"):
        sc.capture(model, torch.randn(1, 6))
