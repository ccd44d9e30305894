"""Compiled layers inside a user's modules: the same class, the same outputs, never slower."""

import copy
import pickle
from functools import partial

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import ArgumentError, CaptureError, ShipError, UnsupportedOperation
from secateurs.ship.fast import compiled, layers
from ship.fast.fast_cases import close

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="no C++ compiler")


class Tagger(nn.Module):
    """Tokens, a recurrence, and layers with zeros around them."""

    def __init__(self, density: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.gru = nn.Embedding(30, 64), nn.GRU(72, 16, batch_first=True)
        self.wide, self.narrow = nn.Linear(64, 72), nn.Linear(72, 72, bias=False)
        self.last = nn.Linear(16, 3)
        with torch.no_grad():
            for layer in (self.wide, self.narrow):
                layer.weight *= torch.rand_like(layer.weight) < density

    def forward(self, tokens):
        x = self.narrow(torch.relu(self.wide(self.table(tokens))))
        return self.last(self.gru(x)[0])


class Pictures(nn.Module):
    """A convolution whose strength is looked up by a label."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(5, 24)
        self.conv = nn.Conv2d(20, 24, 3, padding=1, stride=2)
        with torch.no_grad():
            self.conv.weight *= torch.rand_like(self.conv.weight) < 0.1

    def forward(self, x, label):
        return self.conv(x) * self.table(label)[:, :, None, None]


def fast(model: nn.Module, example) -> nn.Module:
    return sc.accelerate(model.eval(), example, tune="guess", keep="always")


TOKENS = torch.arange(12).reshape(2, 6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_that_no_program_takes(dtype):
    model = Tagger().to(dtype).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = fast(model, TOKENS)
    assert type(made) is Tagger and made is not model
    assert isinstance(made.wide, nn.Linear) and type(made.wide) is not nn.Linear
    assert type(model.wide) is nn.Linear and type(made.last) is nn.Linear
    assert [layer.place for layer in made.report.layers] == ["wide (Linear)", "narrow (Linear)"]
    assert "everything else of Tagger" in str(made.report)
    with torch.inference_mode():
        for shape in ((1, 1), (1, 2), (3, 1), (1, 17), (2, 50), (3, 100), (5, 77)):
            tokens = torch.randint(0, 30, shape)
            assert close(made(tokens), model(tokens), 1e-5 if dtype == torch.float32 else 1e-12)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert made.state_dict().keys() == before.keys()


def test_training_the_model_leaves_the_copy_as_it_was():
    model = Tagger().eval()
    made = fast(model, TOKENS)
    with torch.inference_mode():
        wanted = made(TOKENS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    with torch.inference_mode():
        assert torch.equal(made(TOKENS), wanted)


def test_layers_count_their_rows_and_leave_to_torch_what_gains_nothing():
    made = fast(Tagger(), TOKENS)
    calls = []

    def call(x):
        calls.append(len(x))

    vars(made.wide).update(_call=call, _rows=((1, False), (4, True), (16, False)))
    with torch.inference_mode():
        for rows in (0, 1, 3, 4, 15, 16, 99):
            assert made.wide(torch.ones(rows, 64)).shape == (rows, 72)
    assert calls == [4, 15]


def test_other_sizes_and_gradients_are_computed_by_the_class_itself():
    model = Tagger().eval()
    made = fast(model, TOKENS)
    x = torch.randn(2, 5, 64, requires_grad=True)
    (ours,), (theirs,) = (torch.autograd.grad(m.wide(x).square().sum(), x) for m in (made, model))
    assert torch.equal(ours, theirs)
    with torch.no_grad():
        assert close(made.wide(x[0, 0]), model.wide(x[0, 0]), 1e-6)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        made.wide(torch.ones(2, 65))
    wide = torch.randn(5, 128)[:, ::2]  # with gaps
    with torch.inference_mode():
        assert close(made.wide(wide), model.wide(wide), 1e-5)


def test_convolutions_too_at_their_own_size():
    model = Pictures().eval()
    example = (torch.zeros(1, 20, 9, 8), torch.zeros(1, dtype=torch.int64))
    made = fast(model, example)
    assert [layer.place for layer in made.report.layers] == ["conv (Conv2d)"]
    with torch.inference_mode():
        for shape in ((1, 20, 9, 8), (11, 20, 9, 8), (2, 20, 5, 7)):
            call = torch.randn(shape), torch.arange(shape[0]) % 5
            assert close(made(*call), model(*call), 1e-5)


def test_what_would_change_the_copy_behind_its_kernels_is_refused():
    made = fast(Tagger(), TOKENS)
    with pytest.raises(ArgumentError, match="cannot be given other weights"):
        made.load_state_dict(Tagger().state_dict())
    with pytest.raises(ArgumentError, match="cannot be moved to torch.float16"):
        made.half()
    with pytest.raises(ArgumentError, match="cannot be trained"):
        made.train()
    with pytest.raises(ShipError, match="belongs to its process"):
        pickle.dumps(made)
    twin = copy.deepcopy(made.eval().float())
    with torch.inference_mode():
        assert torch.equal(twin(TOKENS), made(TOKENS))


def test_where_no_layer_gains_the_model_comes_back_unharmed(monkeypatch, caplog):
    model = Tagger().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    attributes = set(vars(model))
    slower = {1: (1.0, 2.0), 16: (1.0, 1.0)}
    monkeypatch.setattr(layers, "_time", lambda *_: slower)
    assert sc.accelerate(model, TOKENS) is model
    assert "no gain for Tagger" in caplog.text and "it stays as it is" in caplog.text
    assert "wide: no gain (0.50× for 1, 1.00× for 16)" in caplog.text
    assert "embedding" in caplog.text  # why the whole has no program
    # It is fed tokens; it was said to differ by batch size.
    assert "is called with torch.int64" in caplog.text
    assert set(vars(model)) == attributes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    dense = Tagger(density=1.0).eval()
    assert sc.accelerate(dense, TOKENS) is dense
    assert (
        "no linear layer or 2-d convolution of 4,096 weights or more has 40% zeros" in caplog.text
    )


def test_a_program_that_was_asked_for_is_refused_with_the_layers_reason_first():
    dense = Tagger(density=1.0).eval()
    with pytest.raises(
        UnsupportedOperation,
        match=r"^Tagger: no layer gains \(no linear layer .* has 40% zeros\), and the whole has no"
        r" program \(Tagger is called with torch.int64, and a program is called with torch.float32"
        r" alone: accelerate a part of the model that is, such as what follows an embedding\)\.$",
    ):
        fast(dense, TOKENS)


def test_where_no_layer_gains_a_faster_rival_comes_back(monkeypatch, caplog):
    model, rival = Tagger(density=1.0).eval(), Tagger(density=1.0).eval()
    times = {n: {"model": 1.0, "other": 0.5} for n in (1, 2)}
    monkeypatch.setattr("secateurs.ship.fast.accelerated._time_forms", lambda *_: times)
    assert sc.accelerate(model, TOKENS, rivals={"other": rival}) is rival
    assert "it runs as other" in caplog.text


def test_a_model_that_refuses_other_numbers_of_samples_is_timed_on_the_example():
    class OnlyTwo(Tagger):
        def forward(self, tokens):
            if len(tokens) != 2:
                raise TypeError("two, and no other number")
            return super().forward(tokens)

    model, rival = OnlyTwo(density=1.0).eval(), OnlyTwo(density=1.0).eval()
    example = TOKENS[:1].expand(2, -1).contiguous()
    assert sc.accelerate(model, example, rivals={"other": rival}) in (model, rival)


def test_a_state_that_has_its_samples_second_is_timed_as_it_stands(monkeypatch):
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.wide = nn.GRU(6, 64, batch_first=True), nn.Linear(64, 72)
            with torch.no_grad():
                self.wide.weight *= torch.rand_like(self.wide.weight) < 0.1

        def forward(self, x, state):
            return self.wide(self.gru(x, state)[0])

    monkeypatch.setattr(layers, "_time", lambda *_: {1: (1.0, 1.0), 16: (2.0, 1.0)})
    for samples in (1, 2):  # 1: a call of many samples fails; 2: a call of one fails, too
        model, example = Stateful().eval(), (torch.ones(samples, 3, 6), torch.ones(1, samples, 64))
        made = sc.accelerate(model, example)
        with torch.inference_mode():
            assert close(made(*example), model(*example), 1e-5)
        if made is not model:
            assert list(made.report.seconds) == [samples]


@pytest.mark.parametrize(
    ("model", "example", "error"),
    [
        (lambda: Tagger(1.0).train(), TOKENS, ArgumentError),
        (lambda: Tagger(1.0).eval(), torch.zeros(0, 3), CaptureError),
        (lambda: Tagger(1.0).eval(), TOKENS.to("meta"), ArgumentError),
        (lambda: Tagger(1.0).eval(), torch.full((1, 3), 99), IndexError),
    ],
)
def test_mistakes_are_still_refused(model, example, error):
    with pytest.raises(error):
        sc.accelerate(model(), example)


def test_the_fastest_comes_back(monkeypatch):
    monkeypatch.setattr(layers, "_time", lambda *_: {1: (1.0, 1.0), 16: (2.0, 1.0)})
    model = Tagger().eval()
    for ours, wanted in ((0.5, "layers"), (2.0, "model")):
        times = {n: {"model": 1.0, "layers": ours} for n in (1, 2)}
        monkeypatch.setattr("secateurs.ship.fast.accelerated._time_forms", lambda *_, t=times: t)
        made = sc.accelerate(model, TOKENS)
        assert (made is model) == (wanted == "model")
    assert made is model


def test_features_of_any_number_of_samples():
    """A group of fewer samples than planned for is run as far as it goes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(37, 50), nn.ReLU(), nn.Linear(50, 5)).double().eval()
    with torch.no_grad():
        model[0].weight *= torch.rand_like(model[0].weight) < 0.2
    made = fast(model, torch.zeros(1, 37).double())
    with torch.inference_mode():
        for n in (1, 2, 3, 7, 15, 16, 17, 19, 33, 64, 127, 128, 129, 147, 300):
            x = torch.randn(n, 37).double()
            assert close(made(x), model(x), 1e-12)


def test_a_language_model_generates_the_same_tokens():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=64,
        n_layer=2,
        n_head=2,
        vocab_size=50,
        n_positions=32,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("c_fc.weight"):  # of a Conv1D: transposed
                weight *= torch.rand_like(weight) < 0.1
    made = fast(model, {"input_ids": torch.tensor([[3, 4, 5]])})
    assert len(made.report.layers) == 2
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    tokens = torch.tensor([[7, 8, 9, 10]])
    assert torch.equal(made.generate(tokens, **options), model.generate(tokens, **options))


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """All but the device and torch's format: weights stay as they are."""
    packed = []
    monkeypatch.setattr("secateurs.ship.fast.accelerated.on_gpu", lambda _: True)
    monkeypatch.setattr(layers, "pack_2_4", lambda weight: packed.append(weight) or weight)
    return packed


def halves(**asked):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).eval()
    sc.prune_(model, "magnitude", **(asked or {"pattern": "2:4"}))
    return model.bfloat16()


def test_on_a_gpu_layers_of_two_in_four_run_by_torchs_own_kernels(as_on_a_gpu, monkeypatch):
    model, x = halves(), torch.randn(5, 64).bfloat16()
    monkeypatch.setattr(layers, "_time", lambda *_: {1: (1.0, 2.0), 16: (2.0, 1.0)})
    times = {n: {"model": 1.0, "layers": 0.5} for n in (1, 2)}
    monkeypatch.setattr("secateurs.ship.fast.accelerated._time_forms", lambda *_: times)
    made = sc.accelerate(model, x)
    assert made is not model and len(as_on_a_gpu) == 2
    assert [layer.ways for layer in made.report.layers] == [("2:4; 0.50× for 1, 2.00× for 16",)] * 2
    calls = []

    def counted(x, call):
        found = call(x)
        calls.extend([] if found is None else [len(x)])
        return found

    for layer in (made[0], made[2]):
        vars(layer)["_call"] = partial(counted, call=layer._call)
    with torch.inference_mode():
        for rows in (3, 16, 20):
            call = torch.randn(rows, 64).bfloat16()
            assert torch.equal(made(call), model(call))
    # Gradients are not for these kernels.
    assert made(torch.randn(20, 64).bfloat16().requires_grad_()).requires_grad
    assert calls == [16, 16, 20, 20]  # torch was faster below


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lambda: halves().float(), "half precision, not torch.float32"),
        (lambda: halves(sparsity=0.5), "not 2:4"),
        (lambda: halves(pattern="4:8"), "not 2:4"),
    ],
)
def test_on_a_gpu_other_zeros_stay_as_they_are(model, why, as_on_a_gpu, caplog):
    model = model()
    x = torch.randn(5, 64, dtype=model[0].weight.dtype)
    assert sc.accelerate(model, x) is model
    assert why in caplog.text and "programs run on the processor" in caplog.text
    assert not as_on_a_gpu


def test_a_kernel_that_torch_lacks_is_said(monkeypatch, caplog):
    monkeypatch.setattr("secateurs.ship.fast.accelerated.on_gpu", lambda _: True)
    model, x = halves(), torch.randn(5, 64).bfloat16()
    assert sc.accelerate(model, x) is model  # torch packs nothing on a processor
    assert "torch has no 2:4 kernel for it" in caplog.text
    with pytest.raises(UnsupportedOperation, match="programs run on the processor"):
        sc.accelerate(model, x, keep="always")
    with pytest.raises(ArgumentError, match="not torch.bfloat16"):
        sc.accelerate(model, x, values="int8")
    with pytest.raises(ArgumentError, match="runs on the processor"):
        sc.accelerate(model.float(), x.float(), values="int8")
