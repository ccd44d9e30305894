"""The fast module as a module: what it takes, what it refuses, and that threads may share it."""

import copy
import logging

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import ArgumentError, CaptureError, ParameterError, SecateursError, ShipError
from secateurs.ship import accelerate as public
from secateurs.ship.fast import accelerated, compiled
from secateurs.ship.fast.module import FastReport
from ship.fast.fast_cases import check_in_threads, close, zeroed
from ship.fast.fast_nets import KINDS, build

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="no C++ compiler")


def small() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(6 * 16, 5),
    )
    return zeroed(model, 0.5).eval()


def fast(model: nn.Module, *shape: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    example = torch.zeros(1, *(shape or (2, 8, 8)), dtype=dtype)
    return public(model, example, tune="guess", keep="always")


@pytest.mark.parametrize("batch", [1, 2, 7, 8, 9, 33])
def test_every_batch_size(batch):
    model = small()
    x = torch.randn(batch, 2, 8, 8)
    with torch.inference_mode():
        assert close(fast(model)(x), model(x), 1e-5)


def test_an_empty_batch():
    with torch.inference_mode():
        assert fast(small())(torch.zeros(0, 2, 8, 8)).shape == (0, 5)


@pytest.mark.parametrize(
    "shape", [(1, 2, 8), (1, 2, 8, 9), (1, 3, 8, 8), (2, 8, 8), (1, 2, 8, 8, 1), (8,)]
)
def test_wrong_shapes_are_refused_before_anything_runs(shape):
    with pytest.raises(ArgumentError, match="accelerate the model again"):
        fast(small())(torch.zeros(shape))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_inputs_of_another_dtype_are_refused(dtype):
    with pytest.raises(ArgumentError, match="convert the input"):
        fast(small())(torch.zeros(1, 2, 8, 8, dtype=dtype))


def test_other_devices_and_layouts_are_refused():
    module = fast(small())
    with pytest.raises(ArgumentError, match="on meta"):
        module(torch.zeros(1, 2, 8, 8, device="meta"))
    with pytest.raises(ArgumentError, match="dense"):
        module(torch.zeros(1, 2, 8, 8).to_sparse())
    with pytest.raises(ArgumentError, match="2 inputs where the model takes 1"):
        module(torch.zeros(1, 2, 8, 8), torch.zeros(1))


def test_inputs_in_any_memory_order():
    model = small()
    module = fast(model)
    x = torch.randn(4, 2, 8, 8)
    with torch.inference_mode():
        wanted = model(x)
        assert close(module(x.to(memory_format=torch.channels_last)), wanted, 1e-5)
        assert close(module(x.transpose(2, 3).contiguous().transpose(2, 3)), wanted, 1e-5)
        assert close(module(torch.cat([x, x])[::2]), model(torch.cat([x, x])[::2]), 1e-5)


def test_training_is_refused():
    module = fast(small())
    with pytest.raises(ArgumentError, match="cannot be trained"):
        module.train()
    assert not module.eval().training
    x = torch.zeros(1, 2, 8, 8, requires_grad=True)
    with pytest.raises(ShipError, match="no gradients"):
        module(x)
    with torch.no_grad():
        module(x)
    with pytest.raises(ArgumentError, match="eval"):
        fast(small().train())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_floats_stay_in_torch(dtype, caplog):
    model = small().to(dtype)
    with caplog.at_level(logging.WARNING, logger="secateurs.ship"):
        assert fast(model, dtype=dtype) is model
    assert "no gain" in caplog.text and "has no kernels" in caplog.text


def test_what_has_no_values_is_refused():
    with pytest.raises(ParameterError, match="meta"):
        fast(small().to("meta"))
    with pytest.raises(ParameterError, match="complex"):
        fast(nn.Linear(3, 2).to(torch.complex64).eval(), 3)
    with pytest.raises(CaptureError, match="tensors only"):
        public(small(), [3])


def test_without_compiled_kernels_the_model_comes_back(monkeypatch, caplog):
    monkeypatch.setattr("secateurs.ship.fast.accelerated.library", lambda: None)
    model = small()
    assert fast(model) is model
    assert "no compiled kernels" in caplog.text


def test_where_nothing_is_gained_the_model_comes_back(monkeypatch, caplog):
    monkeypatch.setattr(
        "secateurs.ship.fast.accelerated.compare",
        lambda forms, *_: {name: 1.0 + (name == "fast") for name in forms},
    )
    model = small()
    assert public(model, torch.zeros(1, 2, 8, 8), tune="guess") is model
    assert "no gain from the program for Sequential" in caplog.text
    assert "it stays as it is" in caplog.text


def test_a_program_without_gain_names_what_it_left_to_torch(monkeypatch, caplog):
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.out = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.inner(x)[0][:, -1])

    monkeypatch.setattr(
        "secateurs.ship.fast.accelerated.compare",
        lambda forms, *_: {name: 1.0 + (name == "fast") for name in forms},
    )
    model = Last().eval()
    assert public(model, torch.zeros(1, 5, 3), tune="guess") is model
    assert "the program left to torch: " in caplog.text
    assert "aten.lstm.input at inner (LSTM): no kernel)" in caplog.text


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_layers_without_gain_name_the_recurrence_beside_them(kind, monkeypatch, caplog):
    class Read(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.out = kind(8, 256, batch_first=True), nn.Linear(256, 256)

        def forward(self, x):
            return self.out(self.inner(x)[0][:, -1])

    monkeypatch.setattr(
        "secateurs.ship.fast.accelerated.compare",
        lambda forms, *_: {name: 1.0 + (name == "layers") for name in forms},
    )
    model = Read().eval()
    sc.prune_(model, "magnitude", sparsity=0.9)
    assert public(model, torch.zeros(1, 5, 8), tune="guess") is model
    assert "it stays as it is (no kernel runs recurrent layers: inner)" in caplog.text


def test_the_comparison_times_both():
    model = small()
    forms = {"model": model, "fast": fast(model)}
    seconds = accelerated.compare(forms, torch.zeros(1, 2, 8, 8), 2)
    assert list(seconds) == list(forms)
    assert all(0 < s < 10 for s in seconds.values())


def with_dead_channels() -> nn.Module:
    model = small()
    with torch.no_grad():
        model[0].weight[1:4] = 0
    return model


def test_a_program_is_made_from_the_compacted_model():
    model = with_dead_channels()
    module, x = fast(model), torch.randn(3, 2, 8, 8)
    assert module.plain is model
    conv, linear = module.report.layers
    # Three channels of six are gone: of 18 weights each here, of 16 positions there.
    assert conv.macs <= 3 * 18 * 64 and linear.macs <= 3 * 16 * 5
    with torch.inference_mode():
        assert close(module(x), model(x), 1e-5)


def test_the_compacted_model_comes_back_where_it_is_faster(monkeypatch, caplog):
    monkeypatch.setattr(
        "secateurs.ship.fast.accelerated.compare",
        lambda forms, *_: {name: 2.0 - (name == "compact") for name in forms},
    )
    model = with_dead_channels()
    found = public(model, torch.zeros(1, 2, 8, 8), tune="guess")
    assert type(found) is type(model) and found[0].weight.shape[0] == 3
    assert "runs compacted in torch" in caplog.text


def test_the_compacted_model_comes_back_without_a_compiler(monkeypatch, caplog):
    monkeypatch.setattr("secateurs.ship.fast.accelerated.library", lambda: None)
    model = with_dead_channels()
    found, x = fast(model), torch.randn(3, 2, 8, 8)
    assert found[0].weight.shape[0] == 3 and "no compiled kernels" in caplog.text
    with torch.inference_mode():
        assert close(found(x), model(x), 1e-5)


def test_what_cannot_be_compacted_is_made_fast_all_the_same():
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.b(torch.special.i0(self.a(x)))

    model = Gated().eval()
    with torch.no_grad():
        model.a.weight[2] = 0
    x = torch.randn(3, 4)
    with torch.inference_mode():
        assert close(fast(model, 4)(x), model(x), 1e-5)


def test_timing_every_layer_gives_the_same_outputs():
    model = small()
    steps: list[str] = []
    module = public(
        model,
        torch.zeros(1, 2, 8, 8),
        keep="always",
        progress=steps.append,
    )
    x = torch.randn(10, 2, 8, 8)
    with torch.inference_mode():
        assert close(module(x), model(x), 1e-5)
    assert steps[-2:] == ["timing layer 1 of 2", "timing layer 2 of 2"]
    assert "MMAC" in str(module.report)


def test_the_model_stays_untouched():
    model = small()
    before = copy.deepcopy(model.state_dict())
    module = fast(model)
    with torch.inference_mode():
        module(torch.randn(3, 2, 8, 8))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_program_holds_the_weights_of_its_making():
    model = small()
    module, x = fast(model), torch.randn(2, 2, 8, 8)
    with torch.inference_mode():
        before = module(x).clone()
        model[0].weight.zero_()
        assert torch.equal(module(x), before)


def test_two_threads_call_one_program():
    model = small()
    inputs = [torch.randn(19, 2, 8, 8) for _ in range(4)]
    check_in_threads(fast(model), model, inputs, calls=50)


def test_threads_over_images(monkeypatch):
    monkeypatch.setattr("secateurs.ship.fast.plan.WORTH_A_THREAD", 1)
    model = small()
    module = fast(model)
    x = torch.randn(37, 2, 8, 8)
    with torch.inference_mode():
        wanted = model(x)
        for threads in (1, 2, 3, 50):
            monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
            assert close(module.forward(x), wanted, 1e-5)


def test_small_work_stays_on_the_callers_thread(monkeypatch):
    module = fast(small())
    program = module._runners[0].program
    # An image has 128 inputs and at least as many products, and less than all dense ones.
    assert 100 < program.least < 4_000_000 // 128
    x = torch.randn(37, 2, 8, 8)
    with torch.inference_mode():
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
        alone = module.forward(x)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 50)
        # Nothing is divided, so that not even the last bit differs.
        assert torch.equal(module.forward(x), alone)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_share_one_image(monkeypatch, kind):
    """Whoever takes which piece, the bits are those of one thread."""
    monkeypatch.setattr("secateurs.ship.fast.plan.WORTH_SHARING", 1)
    model = build(kind, 3).float()
    module, x = fast(model, 3, 12, 12), torch.randn(1, 3, 12, 12)
    with torch.inference_mode():
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
        alone = module.forward(x)
        assert close(alone, model(x), 1e-5)
        for threads in (2, 3, 5):
            monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
            for _ in range(20):
                assert torch.equal(module.forward(x), alone)


def test_divided_images_of_several_callers(monkeypatch):
    monkeypatch.setattr("secateurs.ship.fast.plan.WORTH_SHARING", 1)
    model = small()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    inputs = [torch.randn(1, 2, 8, 8) for _ in range(4)]
    check_in_threads(fast(model), model, inputs, calls=50)


def test_only_a_large_image_is_divided():
    assert fast(small())._runners[0].program.shared < 2
    large = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()).eval()
    # 37.7 million products, and the numbers read and written: a thread for every ten.
    assert fast(large, 64, 32, 32)._runners[0].program.shared == 3


class Clock:
    """A clock that only modules of `Waiting` move on, so that no other load is seen."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(accelerated, "time", made)
    return made


class Waiting(nn.Module):
    """A call takes so many seconds for each sample; one call, where it is named, far longer."""

    def __init__(self, clock: Clock, seconds: float, disturbed: int | None = None) -> None:
        super().__init__()
        self.clock, self.seconds, self.disturbed, self.calls = clock, seconds, disturbed, []

    def forward(self, x):
        self.calls.append(len(x))
        self.clock.now += self.seconds * len(x)
        self.clock.now += 0.2 if len(self.calls) == self.disturbed else 0
        return x


@pytest.mark.parametrize("disturbed", [2, 3, 4])
def test_one_disturbed_call_does_not_decide(clock, disturbed):
    forms = {"a": Waiting(clock, 0.001, disturbed), "b": Waiting(clock, 0.003)}
    seconds = accelerated.compare(forms, torch.zeros(1, 2), 2)
    assert seconds["a"] < seconds["b"]


def test_two_calls_of_which_one_was_disturbed_do_not_decide(clock):
    # So slow that time is up after the fewest rounds.
    forms = {"a": Waiting(clock, 0.1, disturbed=3), "b": Waiting(clock, 0.12)}
    seconds = accelerated.compare(forms, torch.zeros(1, 2), 1)
    assert [len(form.calls) for form in forms.values()] == [3, 3]
    assert seconds["a"] < seconds["b"]


def test_a_comparison_ends_when_the_fastest_is_clear(clock):
    forms = {"a": Waiting(clock, 0.03), "b": Waiting(clock, 0.005), "c": Waiting(clock, 0.006)}
    seconds = accelerated.compare(forms, torch.zeros(1, 2), 1)
    assert seconds["b"] < seconds["c"] < seconds["a"]
    # Two calls decide that a is out; b and c are too close to tell apart soon.
    assert len(forms["a"].calls) == 2 and len(forms["b"].calls) == len(forms["c"].calls) >= 4
    forms = {"a": Waiting(clock, 0.02), "b": Waiting(clock, 0.001)}
    accelerated.compare(forms, torch.zeros(1, 2), 1)
    assert [len(form.calls) for form in forms.values()] == [2, 2]


def test_a_slow_first_call_does_not_put_a_form_out(clock):
    forms = {"a": Waiting(clock, 0.001, disturbed=1), "b": Waiting(clock, 0.003)}
    seconds = accelerated.compare(forms, torch.zeros(1, 2), 1)
    assert seconds["a"] < seconds["b"] and len(forms["a"].calls) > 2


@pytest.mark.parametrize(
    "seconds, many",
    [(0.0, 64), (0.006, 32), (0.02, 8), (1.0, 3)],
    ids=["short", "some", "long", "longest"],
)
def test_long_calls_are_compared_with_fewer_samples(monkeypatch, seconds, many):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)  # a sample each, at least
    asked = []
    monkeypatch.setattr(
        "secateurs.ship.fast.accelerated.compare",
        lambda forms, example, batch: asked.append(batch) or dict.fromkeys(forms, seconds),
    )
    public(small(), torch.zeros(1, 2, 8, 8), tune="guess")
    assert asked == [1, many]


def test_it_is_found_under_its_public_name():
    assert sc.accelerate is public


def test_unknown_options_are_refused():
    with pytest.raises(ArgumentError, match="'quickly'"):
        public(small(), torch.zeros(1, 2, 8, 8), tune="quickly")


def weights_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(model, before):
    now = model.state_dict()
    return all(
        value.dtype == now[name].dtype and torch.equal(value, now[name])
        for name, value in before.items()
    )


CHANGES = {
    "load_state_dict": lambda m, sd: m.load_state_dict(sd),
    "load_state_dict, assign": lambda m, sd: m.load_state_dict(sd, assign=True),
    "within another module": lambda m, sd: nn.Sequential(m).load_state_dict(
        {f"0.{name}": value for name, value in sd.items()}
    ),
    "half": lambda m, sd: m.half(),
    "double": lambda m, sd: m.double(),
    "to": lambda m, sd: m.to(torch.bfloat16),
    "to meta": lambda m, sd: m.to("meta"),
    "half within another module": lambda m, sd: nn.Sequential(m).half(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_model_is_not_changed_behind_the_programs_back(change):
    model = small()
    module = fast(model)
    x = torch.randn(2, 2, 8, 8)
    with torch.inference_mode():
        before, answer = weights_of(model), module(x)
    other = {name: value + 1 for name, value in module.state_dict().items()}
    with pytest.raises(ArgumentError, match=r"weights that its model had.*`\.plain`"):
        change(module, other)
    assert same(model, before)
    with torch.inference_mode():
        assert torch.equal(module(x), answer)


def test_what_changes_nothing_is_taken():
    module = fast(small())
    assert module.float() is module and module.to("cpu") is module and module.cpu()
    assert nn.Sequential(module).eval().float()


def test_a_copy_has_a_model_of_its_own_and_is_never_pickled():
    model = small()
    module, x = fast(model), torch.randn(2, 2, 8, 8)
    before = weights_of(model)
    twin = copy.deepcopy(module)
    assert twin is not module and twin.plain is not model and module.plain is model
    with torch.inference_mode():
        assert torch.equal(twin(x), module(x))
    with pytest.raises(ArgumentError, match="cannot be moved to torch.float16"):
        twin.half()
    twin.plain.half()
    twin.register_forward_hook(lambda *_: None)
    assert same(model, before) and not module._forward_hooks
    both = copy.deepcopy(nn.ModuleList([module, model]))
    assert both[0].plain is both[1] is not model
    with pytest.raises(ShipError, match="belongs to its process"):
        module.__reduce_ex__(2)


@pytest.mark.parametrize(
    "trace",
    [
        lambda module, x: sc.path_norm(module, x),
        lambda module, x: sc.certify(module.plain, module, around=x, radius=0.1),
        lambda module, x: torch.export.export(module, (x,), strict=False),
        lambda module, x: torch.func.vmap(module)(x[None]),
    ],
)
def test_tensors_without_values_never_reach_the_kernels(trace):
    """A kernel would read at address 0, which ends the process."""
    with pytest.raises(SecateursError, match=r"computes with values.*`\.plain`"):
        trace(fast(small()), torch.zeros(1, 2, 8, 8))


def test_a_report_tells_the_gain_of_its_own_form():
    def gain(groups, **took):
        rest = {"layers": (), "outside": (), "threads": 1, "built_in": 0.0}
        told = str(FastReport(groups=groups, seconds={1: took}, **rest))
        return float(" ".join(told.split()).split("batch 1: ")[1].split("×")[0])

    assert gain((), model=4.0, fast=8.0, layers=2.0) == 2
    assert gain((16,), model=4.0, fast=8.0, layers=2.0) == gain((), model=4.0, fast=8.0) == 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [2, 5])
def test_a_maximum_of_nan_is_nan_wherever_it_lies(size, dtype):
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.MaxPool2d(size)).to(dtype).eval()
    zeros = torch.zeros(1, 1, size, size, dtype=dtype)
    fast = sc.accelerate(model, zeros, tune="guess", keep="always")
    for at in range(size * size):
        x = zeros.clone()
        x.view(-1)[at] = float("nan")
        with torch.inference_mode():
            assert bool(fast(x).isnan().all()), at
