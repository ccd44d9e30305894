"""The step of parameters that the kernel does not take."""

import pytest
import torch

from optim.factorized.step.jobs import RULES, assert_close, jobs, run
from secateurs.optim.factorized import step as apart
from secateurs.optim.factorized.maths import product, step


@pytest.mark.parametrize("size", [1, 64, 65, 128, 200])
def test_apart_moves_a_large_parameter_in_pieces(size, monkeypatch):
    monkeypatch.setattr(apart, "PIECE", 64)
    made = next(jobs(3, torch.float64, RULES["heavy"], sizes=(size,)))
    expected = step(made.factors, made.momenta, made.grad, made.rule)
    run("step.Mover", [made])
    for found, wanted in zip((made.factors, made.momenta, made.weight), expected, strict=True):
        assert_close(found, wanted)


def test_apart_takes_what_lies_plainly_on_a_cpu():
    weight, factors = torch.zeros(6), torch.zeros(3, 6)
    assert apart.takes(weight, factors)
    assert not apart.takes(weight, torch.zeros(6, 3).t())
    assert not apart.takes(weight, torch.zeros(3, 6, device="meta"))
    assert not apart.takes(weight.to("meta"), factors)


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_apart_writes_half_precision_weights_of_full_precision_factors(depth):
    made = next(jobs(depth, torch.float32, RULES["heavy"], sizes=(50,)))
    weight, grad = torch.zeros(50, dtype=torch.bfloat16), made.grad.bfloat16()
    expected = step(made.factors, made.momenta, grad.float(), made.rule)
    apart.Mover(weight, made.factors, made.momenta).step_(grad, made.rule, flush=True)
    assert_close(made.factors, expected[0])
    assert torch.equal(weight, product(made.factors).bfloat16())
