"""Laws of every registered rule of the fast path, whoever registered it: it is reached, and the
program computes what the model computes, whatever part of it stays in torch.
"""

from functools import cache

import pytest
import torch
from torch import nn

import secateurs as sc
from graph.every_operator import S
from graph.test_lowering import Call
from secateurs.errors import UnsupportedOperation
from secateurs.graph.operators import functional
from secateurs.ship.fast import compiled
from secateurs.ship.fast.operations import Add, Cat, Conv, Gather, Pool, Scale
from secateurs.ship.fast.read import RULES, read
from secateurs.ship.fast.trace import trace
from ship.fast.rule_cases import CASES, UNREACHED

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="no C++ compiler")


@cache
def steps_of(operator):
    """The steps of the case of an operator, and the operators whose rules were called."""
    function, shape, weights = CASES[operator]
    model = Call(function, weights).eval()
    called = set()

    def noted(key, rule):
        def call(*args, **kwargs):
            called.add(key)
            return rule(*args, **kwargs)

        return call

    rules = {key: noted(key, rule) for key, rule in RULES._rules.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RULES, "_rules", rules)
        x = torch.randn(2, *shape, dtype=torch.float64)
        steps = read(trace(model, (x,)), torch.float64)
    return steps.steps, called


def fast(model, *shape):
    example = torch.randn(2, *shape, dtype=torch.float64)
    return sc.accelerate(model, (example,), tune="guess", keep="always")


def test_every_rule_has_a_case():
    assert set(RULES._rules) - set(CASES) == set(), "add a line to rule_cases.py"


@pytest.mark.parametrize("operator", CASES, ids=str)
def test_the_program_computes_what_the_model_computes(operator):
    function, shape, weights = CASES[operator]
    assert UNREACHED.get(operator, functional(operator)) in steps_of(operator)[1]
    model = Call(function, weights).eval()
    program = fast(model, *shape)
    for batch in (2, 5):
        x = torch.randn(batch, *shape, dtype=torch.float64)
        before = x.clone()
        with torch.inference_mode():
            ours, theirs = program(x), model(x.clone())
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        assert torch.equal(x, before)


def test_every_operation_is_written_by_some_rule():
    written = {type(step) for operator in CASES for step in steps_of(operator)[0]}
    assert {Add, Cat, Conv, Gather, Pool, Scale} <= written


@pytest.mark.parametrize("value", [0.5, -1.0])
def test_padding_with_other_numbers_stays_in_torch(value):
    model = Call(lambda x: torch.constant_pad_nd(x, [1, 2], value), ()).eval()
    program = fast(model, *S)
    assert any(f"padding with {value}" in reason for reason in program.report.outside)
    x = torch.randn(3, *S, dtype=torch.float64)
    with torch.inference_mode():
        assert torch.equal(program(x), model(x))


def test_a_loop_over_the_batch_is_refused():
    """It is traced for two samples; a third would be left out without a word."""

    class Loop(nn.Module):
        def forward(self, x):
            return torch.stack([row.relu() for row in x.unbind(0)])

    with pytest.raises(UnsupportedOperation, match="Loop behaves differently for each"):
        fast(Loop().eval(), 6)
