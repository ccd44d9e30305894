"""The compiled step and the foreach step equal the reference on the case grid; a missing compiler is no error."""

import copy
import logging

import pytest
import torch

from secateurs.optim import batched, fused
from secateurs.optim.factors import EPS, Rule, step
from secateurs.optim.fused import Job, Kernel

KERNEL = fused.kernel()  # built once per machine and kept
RULES = {
    "heavy": Rule(lr=0.1, decay=0.01, momentum=0.9),
    "nesterov": Rule(lr=0.1, decay=0.01, momentum=0.9, nesterov=True),
    "plain": Rule(lr=0.1, decay=0.01),
    "decoupled": Rule(lr=0.1, decay=0.01, momentum=0.9, decoupled=True),
    "free": Rule(lr=0.1, decay=0.0, momentum=0.5),
    "freezing": Rule(lr=0.1, decay=0.01, momentum=0.9, freeze=1e-6),
}
SIZES = (1, 5, 17, 4096, 9000)


def jobs(depth, dtype, rule, sizes=SIZES, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    for size in sizes:
        factors = torch.randn(depth, size, generator=generator, dtype=dtype) * scale
        factors[:, ::3] = torch.randn(depth, len(factors[0, ::3]), generator=generator, dtype=dtype) * 1e-4
        momenta = torch.randn(depth, size, generator=generator, dtype=dtype) * scale if rule.momentum else None
        grad = torch.randn(size, generator=generator, dtype=dtype)
        yield Job(weight=torch.zeros(size, dtype=dtype), grad=grad, factors=factors, momenta=momenta, rule=rule)


def assert_close(found, expected):
    """To a few roundings of the largest number: a fused multiply-add rounds once where torch rounds twice."""
    eps = torch.finfo(expected.dtype).eps
    atol = 8 * eps * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found, expected, rtol=16 * eps, atol=atol)


def run(way, made):
    if way == "fused":
        if KERNEL is None:
            pytest.skip("no C++ compiler on this machine")
        KERNEL.step_(made)
    else:
        batched.step_(made, flush=True)


@pytest.mark.parametrize("way", ["fused", "foreach"])
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("depth", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_the_reference(way, rule, depth, dtype):
    made = list(jobs(depth, dtype, RULES[rule]))
    momenta = [torch.zeros_like(job.factors) if job.momenta is None else job.momenta for job in made]
    expected = [step(job.factors, m, job.grad, job.rule) for job, m in zip(made, momenta, strict=True)]
    run(way, made)
    for job, (factors, moved, weight) in zip(made, expected, strict=True):
        assert_close(job.factors, factors)
        assert_close(job.weight, weight)
        if job.momenta is not None:
            assert_close(job.momenta, moved)


@pytest.mark.parametrize("way", ["fused", "foreach"])
@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e10])
def test_extreme_scales(way, scale):
    made = list(jobs(3, torch.float64, RULES["heavy"], sizes=(100,), scale=scale))
    expected = step(made[0].factors, made[0].momenta, made[0].grad, made[0].rule)
    run(way, made)
    torch.testing.assert_close(made[0].factors, expected[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("way", ["fused", "foreach"])
def test_denormals_are_flushed_and_the_dead_buried(way):
    factors = torch.full((3, 64), 1e-13)
    made = Job(weight=torch.ones(64), grad=torch.ones(64), factors=factors, momenta=torch.full((3, 64), 1e-39),
               rule=RULES["heavy"])  # fmt: skip
    run(way, [made])
    assert not made.factors.any()
    assert not made.momenta.any()
    assert not made.weight.any()


def test_threads_do_not_change_a_bit():
    if KERNEL is None:
        pytest.skip("no C++ compiler on this machine")
    results, before = [], torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        made = list(jobs(3, torch.float32, RULES["heavy"], sizes=(100_003,)))
        KERNEL.step_(made)
        results.append(made[0])
    torch.set_num_threads(before)
    assert torch.equal(results[0].factors, results[1].factors)
    assert torch.equal(results[0].weight, results[1].weight)


def test_what_the_kernel_takes():
    weight, factors = torch.zeros(4, 6), torch.zeros(3, 4, 6)
    assert Kernel.takes(weight, weight, factors)
    assert not Kernel.takes(weight.bfloat16(), weight, factors)
    assert not Kernel.takes(weight.t(), weight.t(), factors)
    assert not Kernel.takes(weight, weight, torch.zeros(9, 4, 6))
    assert not Kernel.takes(weight.half(), weight.half(), factors.half())


def test_it_tells_autograd_that_the_weight_changed():
    if KERNEL is None:
        pytest.skip("no C++ compiler on this machine")
    made = next(jobs(3, torch.float32, RULES["heavy"]))
    version = made.weight._version
    KERNEL.step_([made])
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
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && exit 0\necho no >&2; exit 1\n')
    compiler.chmod(0o700)
    fresh.setenv("CXX", str(compiler))
    fresh.setenv("SECATEURS_CACHE", str(tmp_path / "cache"))
    with caplog.at_level(logging.WARNING, logger="secateurs.optim"):
        assert fused.kernel() is None
    assert "failed: no" in caplog.text
    assert not list((tmp_path / "cache").iterdir())


def test_a_wrong_binary_is_refused():
    class Wrong(Kernel):
        def __init__(self):
            pass

        def step_(self, made):
            pass

    with pytest.raises(RuntimeError, match="disagrees with the reference"):
        fused._check(Wrong())


def test_foreach_leaves_the_look_for_the_dead_to_every_few_steps():
    made = next(jobs(3, torch.float32, RULES["heavy"], sizes=(10,), scale=1e-20))
    made.factors.fill_(1e-14)
    made.momenta.zero_()
    twin = copy.deepcopy(made)
    batched.step_([made], flush=False)
    batched.step_([twin], flush=True)
    assert made.factors.any()
    assert not twin.factors.any()
    assert EPS > 1e-14
