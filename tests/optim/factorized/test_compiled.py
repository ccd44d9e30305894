"""The compiled step and both torch steps equal the reference on the case grid; a missing compiler
is no error.
"""

import dataclasses
import logging
import math

import pytest
import torch

from optim.factorized.step.jobs import (
    KERNEL,
    OTHERS,
    RULES,
    WAYS,
    Job,
    assert_close,
    jobs,
    modules_with_a_step,
    run,
)
from secateurs.optim.factorized import compiled as fused
from secateurs.optim.factorized.compiled import CompiledStep, PreStepCheck, StepKernel
from secateurs.optim.factorized.maths import product, step


def test_every_way_to_step_has_the_laws():
    assert set(modules_with_a_step()) == set(WAYS) | OTHERS, "add it to WAYS in jobs.py"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("depth", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_the_reference(way, rule, depth, dtype):
    made = list(jobs(depth, dtype, RULES[rule]))
    momenta = [
        torch.zeros_like(job.factors) if job.momenta is None else job.momenta for job in made
    ]
    expected = [
        step(job.factors, m, job.grad, job.rule) for job, m in zip(made, momenta, strict=True)
    ]
    run(way, made)
    for job, (factors, moved, weight) in zip(made, expected, strict=True):
        assert_close(job.factors, factors)
        # What rounding makes of a factor that nearly vanishes, seven others may multiply.
        assert_close(job.weight, weight if depth < 8 else product(job.factors))
        if job.momenta is not None:
            assert_close(job.momenta, moved)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e10])
def test_extreme_scales(way, scale):
    made = list(jobs(3, torch.float64, RULES["heavy"], sizes=(100,), scale=scale))
    expected = step(made[0].factors, made[0].momenta, made[0].grad, made[0].rule)
    run(way, made)
    torch.testing.assert_close(made[0].factors, expected[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("way", WAYS)
def test_denormals_are_flushed_and_the_dead_buried(way):
    factors = torch.full((3, 64), 1e-13)
    made = Job(
        weight=torch.ones(64),
        grad=torch.ones(64),
        factors=factors,
        momenta=torch.full((3, 64), 1e-39),
        rule=RULES["heavy"],
    )
    run(way, [made])
    assert not made.factors.any()
    assert not made.momenta.any()
    assert not made.weight.any()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", ["heavy", "nesterov", "plain", "decoupled"])
def test_what_is_not_a_number_is_not_dead(way, rule):
    """A factor that is NaN or infinite becomes no number again, in the reference and every other
    way; others go on.
    """
    made = next(jobs(3, torch.float32, RULES[rule], sizes=(70,)))
    made.factors[:, :12] = 1e-20
    made.factors[0, 2], made.factors[2, 5] = math.nan, math.nan
    made.factors[1, 7], made.factors[0, 40] = math.inf, -math.inf
    made.factors[1, 50] = math.nan
    given = torch.zeros_like(made.factors) if made.momenta is None else made.momenta
    expected = step(made.factors, given, made.grad, made.rule)
    run(way, [made])
    for found, wanted in ((made.factors, expected[0]), (made.weight, expected[2])):
        assert torch.equal(found.isfinite(), wanted.isfinite())
        torch.testing.assert_close(
            found.nan_to_num(0, 0, 0),
            wanted.nan_to_num(0, 0, 0),
            rtol=1e-5,
            atol=1e-6,
        )
    assert [i for i in range(70) if not made.weight[i].isfinite()] == [
        2,
        5,
        7,
        40,
        50,
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rate", [math.nan, 1e30])
def test_a_rate_that_is_no_number_never_makes_zeros(way, rate):
    made = next(
        jobs(
            3,
            torch.float32,
            dataclasses.replace(RULES["heavy"], lr=rate),
            sizes=(70,),
        )
    )
    run(way, [made])
    assert not (made.weight == 0).any()


def test_threads_do_not_change_a_bit():
    if KERNEL is None:
        pytest.skip("no C++ compiler on this machine")
    results, before = [], torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        made = list(jobs(3, torch.float32, RULES["heavy"], sizes=(100_003,)))
        run("compiled.CompiledStep", made)
        results.append(made[0])
    torch.set_num_threads(before)
    assert torch.equal(results[0].factors, results[1].factors)
    assert torch.equal(results[0].weight, results[1].weight)


def test_what_the_kernel_takes():
    weight, factors = torch.zeros(4, 6), torch.zeros(3, 4, 6)
    assert StepKernel.takes(weight, weight, factors)
    assert not StepKernel.takes(weight.bfloat16(), weight, factors)
    assert not StepKernel.takes(weight.t(), weight.t(), factors)
    assert not StepKernel.takes(weight, weight, torch.zeros(9, 4, 6))
    assert not StepKernel.takes(weight.half(), weight.half(), factors.half())


def test_it_tells_autograd_that_the_weight_changed():
    if KERNEL is None:
        pytest.skip("no C++ compiler on this machine")
    made = next(jobs(3, torch.float32, RULES["heavy"]))
    version = made.weight._version
    run("compiled.CompiledStep", [made])
    assert made.weight._version > version


@pytest.fixture
def fresh(monkeypatch):
    fused.kernel.cache_clear()
    yield monkeypatch
    fused.kernel.cache_clear()


def test_no_compiler_is_one_log_line(fresh, caplog):
    fresh.setenv("PATH", "/nowhere")
    fresh.delenv("CXX", raising=False)
    with caplog.at_level(logging.WARNING, logger="secateurs.optim"):
        assert fused.kernel() is None
        assert fused.kernel() is None
    assert len(caplog.records) == 1
    assert "no C++ compiler found" in caplog.text


def test_it_can_be_switched_off(fresh):
    fresh.setenv("SECATEURS_FUSED", "0")
    assert fused.kernel() is None


def test_a_broken_compiler_is_one_log_line(fresh, caplog, tmp_path):
    compiler = tmp_path / "broken"
    compiler.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exit 0\necho no >&2; exit 1\n', encoding="utf-8"
    )
    compiler.chmod(0o700)
    fresh.setenv("CXX", str(compiler))
    fresh.setenv("SECATEURS_CACHE", str(tmp_path / "cache"))
    with caplog.at_level(logging.WARNING, logger="secateurs.optim"):
        assert fused.kernel() is None
    assert "failed: no" in caplog.text
    assert not list((tmp_path / "cache").iterdir())


def test_a_wrong_binary_is_refused():
    class Wrong(StepKernel):
        def __init__(self):
            self.finite = self.move = lambda *_: 0

    with pytest.raises(RuntimeError, match="disagrees with the reference"):
        fused._check(Wrong())


def block_of(made):
    if KERNEL is None:
        pytest.skip("no C++ compiler on this machine")
    found = CompiledStep(
        KERNEL,
        weights=[job.weight for job in made],
        factors=[job.factors for job in made],
        momenta=[job.momenta for job in made],
        rules=[0] * len(made),
    )
    assert found.point([job.grad for job in made])
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf, -math.inf])
def test_one_entry_that_is_not_finite_is_found_wherever_it_is(dtype, value):
    made = [
        *jobs(2, torch.float32, RULES["heavy"], sizes=(70_001,)),
        *jobs(3, dtype, RULES["plain"], sizes=(1, 5000)),
    ]
    block = block_of(made)
    assert block.check() != PreStepCheck.BROKEN
    for job, place in (
        (made[0], 0),
        (made[0], 70_000),
        (made[1], 0),
        (made[2], 4999),
        (made[2], 1024),
    ):
        kept = job.grad[place].clone()
        job.grad[place] = value
        assert block.check() == PreStepCheck.BROKEN
        job.grad[place] = kept
    assert block.check() != PreStepCheck.BROKEN


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_largest_and_the_smallest_numbers_are_finite(dtype):
    limits = torch.finfo(dtype)
    made = list(jobs(2, dtype, RULES["plain"], sizes=(9,)))
    made[0].grad.copy_(
        torch.tensor(
            [
                limits.max,
                limits.min,
                limits.tiny,
                limits.smallest_normal / 4,
                0.0,
                -0.0,
            ]
            * 2,
            dtype=dtype,
        )[:9]
    )
    assert block_of(made).check() != PreStepCheck.BROKEN


def test_a_block_asks_for_another_when_something_has_moved():
    made = list(jobs(3, torch.float32, RULES["heavy"], sizes=(8, 12)))
    block, grads = block_of(made), [job.grad for job in made]
    # Gradients come anew in every step.
    assert block.point([grad.clone() for grad in grads])
    assert not block.point([grads[0], grads[1].double()])
    assert not block.point([grads[0], torch.zeros(24)[::2]])
    assert block.point(grads)
    made[1].factors.set_(made[1].factors.clone())
    assert not block.point(grads)


def test_momenta_that_are_not_used_stay_as_they_are():
    for way in WAYS:
        made = next(jobs(3, torch.float64, RULES["heavy"], sizes=(40,)))
        before, rule = (
            made.momenta.clone(),
            dataclasses.replace(made.rule, momentum=0.0),
        )
        expected = step(made.factors, made.momenta, made.grad, rule)
        run(way, [dataclasses.replace(made, rule=rule)])
        assert_close(made.factors, expected[0])
        assert torch.equal(made.momenta, before)
