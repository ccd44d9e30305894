"""The short way into a program: the compiled entry and its twin in Python agree."""

import gc
from pathlib import Path

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.ship.fast import choose, compiled
from secateurs.ship.fast.compiled import _from_python, shortcut
from ship.fast.fast_cases import check_in_threads, close, zeroed

pytestmark = [
    pytest.mark.skipif(compiled.library() is None, reason="no C++ compiler"),
    pytest.mark.skipif(compiled.entry_library() is None, reason="torch before 2.10"),
]


def perceptron(dtype: torch.dtype = torch.float32) -> nn.Module:
    layers = nn.Flatten(), nn.Linear(24, 9), nn.ReLU(), nn.Linear(9, 5)
    return zeroed(nn.Sequential(*layers), 0.5).to(dtype).eval()


def fast(model: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    example = torch.zeros(1, 4, 6, dtype=dtype)
    return sc.accelerate(model, example, tune="guess", keep="always")


def ways(module: nn.Module) -> dict[str, object]:
    """Both short ways into the program of a module."""
    program = module._runners[0].program
    given = (program, module.dtype, (4, 6), (5,))
    return {"compiled": shortcut(*given, 45), "python": _from_python(*given)}


def test_the_compiled_entry_is_what_runs():
    assert type(fast(perceptron())._quick).__name__ == "builtin_function_or_method"


@pytest.mark.parametrize("way", ["compiled", "python"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [1, 2, 17, 300])
def test_outputs_are_those_of_the_model(way, dtype, batch):
    model = perceptron(dtype)
    call, x = ways(fast(model, dtype))[way], torch.randn(batch, 4, 6, dtype=dtype)
    with torch.no_grad():
        found, wanted = call(x), model(x)
    assert found.dtype == dtype and found.shape == (batch, 5)
    assert found.is_contiguous() and not found.requires_grad
    assert close(found, wanted, 1e-5 if dtype == torch.float32 else 1e-12)


STRANGE = {
    "a gradient": lambda x: x.requires_grad_(),
    "turned signs": lambda x: x._neg_view(),
    "no sample": lambda x: x[:0],
    "another shape": lambda x: x.reshape(2, 6, 4),
    "fewer dimensions": lambda x: x.reshape(2, 24),
    "more dimensions": lambda x: x.reshape(2, 4, 6, 1),
    "one number": lambda x: x[0, 0, 0],
    "every second row": lambda x: torch.randn(4, 4, 6)[::2],
    "another order": lambda x: torch.randn(6, 4, 2).permute(2, 1, 0),
    "an expanded sample": lambda x: x[:1].expand(2, 4, 6),
    "float64": lambda x: x.double(),
    "whole numbers": lambda x: x.int(),
    "complex": lambda x: torch.complex(x, x),
    "half": lambda x: x.half(),
    "meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "a parameter": lambda x: nn.Parameter(x, requires_grad=False),
    "an array": lambda x: x.numpy(),
    "nothing": lambda x: None,
    "a text": lambda x: "x",
}


@pytest.mark.parametrize("way", ["compiled", "python"])
@pytest.mark.parametrize("name", STRANGE)
def test_whatever_is_strange_takes_the_long_way(way, name):
    call = ways(fast(perceptron()))[way]
    if (name, way) == ("no sample", "python"):
        pytest.skip("an empty batch is nothing strange to Python")
    assert call(STRANGE[name](torch.randn(2, 4, 6))) is None


def test_a_part_of_a_larger_tensor_is_read_where_it_stands():
    model = perceptron()
    module, many = fast(model), torch.randn(7, 4, 6)
    with torch.inference_mode():
        for k in range(7):
            assert close(module(many[k : k + 1]), model(many[k : k + 1]), 1e-5)


@pytest.mark.parametrize("shape", [(2, 4, 6), (1, 4, 6)])
def test_turned_signs_are_turned(shape):
    """`_neg_view` and the imaginary part of a conjugate keep their sign in a flag."""
    model = perceptron()
    module, x = fast(model), torch.randn(shape)
    turned = torch.complex(torch.zeros(shape), x).conj().imag
    with torch.inference_mode():
        assert close(module(x._neg_view()), model(-x), 1e-5)
        assert close(module(turned), model(-x), 1e-5)


def test_outputs_are_fresh_and_outlive_the_module():
    module, x = fast(perceptron()), torch.randn(1, 4, 6)
    with torch.inference_mode():
        first = module(x)
        kept = first.clone()
        second = module(2 * x).add_(1)
    assert torch.equal(first, kept) and not torch.equal(second, first)
    del module
    gc.collect()
    assert torch.equal(first, kept)


def test_outputs_outside_of_inference_mode_can_be_learned_from():
    module, weight = fast(perceptron()), torch.ones(5, requires_grad=True)
    with torch.no_grad():
        y = module(torch.randn(3, 4, 6))
    (y * weight).sum().backward()
    assert close(weight.grad, y.sum(0), 1e-5)


def test_calls_leave_no_memory_behind():
    wide = nn.Sequential(nn.Flatten(), nn.Linear(24, 1000)).eval()
    module, x = fast(wide), torch.randn(1000, 4, 6)  # an output is 4 MB

    def pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    with torch.inference_mode():
        module(x)
        before = pages()
        for _ in range(60):
            module(x)
    assert pages() - before < 60 * 1000 // 2


@pytest.mark.parametrize("kind", ["after", "before", "after all", "before all"])
def test_hooks_see_calls(kind):
    module, seen = fast(perceptron()), []
    every = torch.nn.modules.module
    register = {
        "after": module.register_forward_hook,
        "before": module.register_forward_pre_hook,
        "after all": every.register_module_forward_hook,
        "before all": every.register_module_forward_pre_hook,
    }[kind]
    handle = register(lambda called, *given: seen.append(called))
    with torch.inference_mode():
        module(torch.randn(1, 4, 6))
    handle.remove()
    assert module in seen


def test_tensors_of_vmap_are_no_plain_tensors():
    with pytest.raises(RuntimeError), torch.no_grad():
        torch.vmap(fast(perceptron()))(torch.randn(3, 2, 4, 6))


def test_threads_of_python_share_the_entry():
    """Long calls let go of the interpreter; each thread gets its own answers."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(24, 300), nn.ReLU()).eval()
    inputs = [torch.randn(64, 4, 6) for _ in range(4)]
    check_in_threads(fast(model), model, inputs, calls=100)


def test_images_are_split_over_the_threads_of_torch():
    model, before = perceptron(), torch.get_num_threads()
    module, x = fast(model), torch.randn(301, 4, 6)
    try:
        torch.set_num_threads(3)
        with torch.inference_mode():
            assert close(module(x), model(x), 1e-5)
    finally:
        torch.set_num_threads(before)


def test_more_dimensions_than_the_entry_has_room_for():
    model = nn.Sequential(nn.Flatten(), nn.Linear(2**9, 3)).eval()
    example = torch.zeros(1, *(2,) * 9)
    module = sc.accelerate(model, example, tune="guess", keep="always")
    with torch.inference_mode():
        assert close(module(example + 1), model(example + 1), 1e-5)
    assert type(module._quick).__name__ == "function"


@pytest.mark.parametrize(("tune", "times"), [("time", True), ("guess", False)])
def test_ways_are_timed_where_that_is_asked(tune, times, monkeypatch):
    asked = []
    timed = choose.Timed.__call__

    def watched(self, *about):
        asked.append(about)
        return timed(self, *about)

    monkeypatch.setattr(choose.Timed, "__call__", watched)
    model = zeroed(nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU()), 0.5).eval()
    sc.accelerate(model, torch.zeros(1, 2, 8, 8), tune=tune, keep="always")
    assert bool(asked) is times
