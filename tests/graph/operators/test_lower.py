"""What paths do not cover is refused by name, with the module that uses it; nothing returns a
number.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import secateurs as sc
from secateurs.errors import CaptureError, ParameterError, SecateursError, UnsupportedOperation


class Call(nn.Module):
    """A linear layer, a function, a linear layer."""

    def __init__(self, function, width: int = 6) -> None:
        super().__init__()
        self.first, self.function, self.last = (
            nn.Linear(4, width),
            function,
            nn.Linear(width, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


class Act(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), act, nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Image(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), *layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.mha(x, x, x, need_weights=False)[0]


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if x.sum() > 0 else self.b(x)


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.Module]) -> None:
        super().__init__()
        self.cell = cell(4, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x)[0]


class Grid(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), align_corners=False)


def slice_assignment(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = x[:, 1] * x[:, 2]
    return y


VECTOR, IMAGE, SEQUENCE = (2, 4), (2, 3, 8, 8), (2, 5, 4)
UNSUPPORTED = {
    # name: (model, input shape, what the message names)
    "gelu": (Act(nn.GELU()), VECTOR, ["gelu", "net.1"]),
    "silu": (Act(nn.SiLU()), VECTOR, ["silu", "net.1"]),
    "mish": (Act(nn.Mish()), VECTOR, ["mish"]),
    "sigmoid": (Act(nn.Sigmoid()), VECTOR, ["sigmoid"]),
    "tanh": (Act(nn.Tanh()), VECTOR, ["tanh"]),
    "softplus": (Act(nn.Softplus()), VECTOR, ["softplus"]),
    "elu": (Act(nn.ELU()), VECTOR, ["elu"]),
    "selu": (Act(nn.SELU()), VECTOR, ["SELU"]),
    "celu": (Act(nn.CELU()), VECTOR, ["CELU"]),
    "hardswish": (Act(nn.Hardswish()), VECTOR, ["hardswish"]),
    "softsign": (Act(nn.Softsign()), VECTOR, ["Softsign"]),
    "softshrink": (Act(nn.Softshrink()), VECTOR, ["softshrink"]),
    "hardshrink": (Act(nn.Hardshrink()), VECTOR, ["hardshrink"]),
    "tanhshrink": (Act(nn.Tanhshrink()), VECTOR, ["tanh"]),
    "logsigmoid": (Act(nn.LogSigmoid()), VECTOR, ["log_sigmoid"]),
    "threshold": (Act(nn.Threshold(0.5, 0.0)), VECTOR, ["threshold"]),
    "glu": (Call(lambda x: torch.cat([F.glu(x), F.glu(x)], 1)), VECTOR, ["glu"]),
    "softmax": (Act(nn.Softmax(dim=-1)), VECTOR, ["softmax"]),
    "log-softmax": (Act(nn.LogSoftmax(dim=-1)), VECTOR, ["log_softmax"]),
    "layer-norm": (Act(nn.LayerNorm(6)), VECTOR, ["layer_norm", "net.1"]),
    "rms-norm": (Act(nn.RMSNorm(6)), VECTOR, ["RMSNorm"]),
    "group-norm": (Image(nn.GroupNorm(2, 4)), IMAGE, ["group_norm", "net.1"]),
    "instance-norm": (Image(nn.InstanceNorm2d(4)), IMAGE, ["instance_norm", "net.1"]),
    "local-response-norm": (
        Image(nn.LocalResponseNorm(2)),
        IMAGE,
        ["LocalResponseNorm"],
    ),
    "batch-norm-without-statistics": (
        Image(nn.BatchNorm2d(4, track_running_stats=False)),
        IMAGE,
        ["batch_norm"],
    ),
    "lp-pool": (Image(nn.LPPool2d(2, 2)), IMAGE, ["LPPool2d"]),
    "fractional-max-pool": (
        Image(nn.FractionalMaxPool2d(2, output_size=4)),
        IMAGE,
        ["fractional_max_pool2d"],
    ),
    "bicubic-upsampling": (
        Image(nn.Upsample(scale_factor=2, mode="bicubic")),
        IMAGE,
        ["bicubic"],
    ),
    "attention": (Attention(), SEQUENCE, ["mha"]),
    "scaled-dot-product": (
        Call(lambda x: F.scaled_dot_product_attention(x, x, x)),
        SEQUENCE,
        ["scaled_dot_product_attention"],
    ),
    "lstm": (Recurrent(nn.LSTM), SEQUENCE, ["lstm", "cell"]),
    "gru": (Recurrent(nn.GRU), SEQUENCE, ["gru", "cell"]),
    "rnn": (Recurrent(nn.RNN), SEQUENCE, ["rnn", "cell"]),
    "product": (Call(lambda x: x * x), VECTOR, ["mul", "product of two activations"]),
    "matrix-product": (
        Call(lambda x: x @ x.transpose(-1, -2) @ x),
        SEQUENCE,
        ["product of two activations"],
    ),
    "gate": (Call(lambda x: x * torch.sigmoid(x)), VECTOR, ["sigmoid"]),
    "quotient": (Call(lambda x: 1.0 / x), VECTOR, ["reciprocal"]),
    "division-by-activation": (Call(lambda x: x / (x + 1)), VECTOR, ["div"]),
    "power": (Call(lambda x: x**2), VECTOR, ["pow"]),
    "square-root": (Call(lambda x: torch.sqrt(x)), VECTOR, ["sqrt"]),
    "exponential": (Call(torch.exp), VECTOR, ["exp"]),
    "logarithm": (Call(torch.log), VECTOR, ["log"]),
    "absolute": (Call(torch.abs), VECTOR, ["abs"]),
    "sine": (Call(torch.sin), VECTOR, ["sin"]),
    "normalise": (Call(F.normalize), VECTOR, ["norm"]),
    "clamp-to-nothing": (Call(lambda x: x.clamp(1, -1)), VECTOR, ["clamp"]),
    "clamp-by-tensors": (Call(lambda x: x.clamp(max=x.flip(-1))), VECTOR, ["clamp"]),
    "rounding": (Call(torch.round), VECTOR, ["round"]),
    "sign": (Call(torch.sign), VECTOR, ["sign"]),
    "sorting": (Call(lambda x: x.argsort(dim=-1) * 1.0), VECTOR, ["sort"]),
    "top-k": (Call(lambda x: x.topk(6, sorted=False)[0]), VECTOR, ["topk"]),
    "argmax": (Call(lambda x: x + x.argmax(-1, keepdim=True)), VECTOR, ["argmax"]),
    "maximum-position": (
        Call(lambda x: x + x.max(-1, keepdim=True)[1]),
        VECTOR,
        ["max"],
    ),
    "comparison": (Call(lambda x: torch.where(x > 0, x, -x)), VECTOR, ["gt"]),
    "cumulative-product": (Call(lambda x: x.cumprod(-1)), VECTOR, ["cumprod"]),
    "standard-deviation": (
        Call(lambda x: x - x.std(-1, keepdim=True)),
        VECTOR,
        ["std"],
    ),
    "dynamic-convolution": (
        Call(lambda x: F.conv1d(x, x[:1, :, :1])),
        SEQUENCE,
        ["conv1d"],
    ),
    "integer-cast": (Call(lambda x: x.to(torch.int64).to(x.dtype)), VECTOR, ["to"]),
    "complex": (Call(lambda x: torch.fft.fft(x).real), VECTOR, ["fft"]),
    "grid-sample": (
        Image(Grid()),
        IMAGE,
        ["grid"],
    ),
    "error-function": (Call(torch.erf), VECTOR, ["erf"]),
    "bilinear-layer": (
        Call(lambda x: torch.einsum("bi,bj->bij", x, x).sum(1)),
        VECTOR,
        ["einsum"],
    ),
    "in-place-slice": (Call(slice_assignment), VECTOR, []),
    "noise": (
        Call(lambda x: x * torch.bernoulli(torch.sigmoid(x))),
        VECTOR,
        ["sigmoid"],
    ),
    "infinite-padding": (
        Image(nn.ConstantPad2d(1, float("-inf")), nn.MaxPool2d(3)),
        IMAGE,
        ["padding"],
    ),
    "data-dependent-branch": (Branch(), VECTOR, ["control flow"]),
    "data-dependent-shape": (Call(lambda x: x[x > 0].sum() + x), VECTOR, []),
    "data-dependent-number": (Call(lambda x: x * float(x.sum())), VECTOR, []),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_refused_by_name(name):
    model, shape, words = UNSUPPORTED[name]
    model.eval()
    for analysis in (sc.capture, sc.path_norm):
        with pytest.raises(UnsupportedOperation) as caught:
            analysis(model, torch.randn(shape))
        for word in words:
            assert word in str(caught.value), str(caught.value)


def test_there_are_at_least_forty_cases():
    assert len(UNSUPPORTED) >= 40


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(4),
        nn.Dropout(0.5),
        nn.Dropout2d(0.5),
        nn.AlphaDropout(0.5),
        nn.RReLU(),
    ],
    ids=str,
)
def test_training_mode_is_refused(layer):
    with pytest.raises(UnsupportedOperation, match=r"net\.1.*model\.eval\(\)"):
        sc.path_norm(Image(layer).train(), torch.randn(IMAGE))


def test_all_gaps_in_one_error():
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4), nn.Tanh(), nn.LayerNorm(4))
    with pytest.raises(UnsupportedOperation) as caught:
        sc.capture(model, torch.randn(2, 4))
    message = str(caught.value)
    assert message.startswith("Sequential uses 3 operation(s) that paths do not cover: ")
    assert all(
        word in message
        for word in (
            "aten.gelu.default at 1 (GELU)",
            "aten.tanh.default at 3",
            "layer_norm",
        )
    )
    assert message.endswith("Replace them, or register a rule with secateurs.graph.lowers.")


def test_gaps_in_parallel_branches_are_all_listed():
    class Parallel(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.GELU(), nn.Tanh()

        def forward(self, x):
            return self.one(x) + self.two(x)

    with pytest.raises(UnsupportedOperation, match=r"(?s)2 operation.*gelu.*one.*tanh.*two"):
        sc.capture(Parallel(), torch.randn(2, 4))


def _bad_weight(value: float) -> nn.Module:
    model = Act(nn.ReLU())
    model.net[0].weight.data[0, 0] = value
    return model


def _integer_parameter() -> nn.Module:
    model = Act(nn.ReLU())
    model.extra = nn.Parameter(torch.arange(3), requires_grad=False)
    return model


BAD_INPUT = {
    "nan-weight": (
        _bad_weight(float("nan")),
        torch.randn(2, 4),
        ParameterError,
        "net.0.weight",
    ),
    "infinite-weight": (
        _bad_weight(float("inf")),
        torch.randn(2, 4),
        ParameterError,
        "net.0.weight",
    ),
    "complex-parameter": (
        nn.Linear(4, 2, dtype=torch.complex64),
        torch.randn(2, 4),
        ParameterError,
        "complex",
    ),
    "integer-parameter": (
        _integer_parameter(),
        torch.randn(2, 4),
        ParameterError,
        "int64",
    ),
    "lazy": (nn.LazyLinear(3), torch.randn(2, 4), ParameterError, "lazy"),
    "meta": (
        nn.Linear(4, 2, device="meta"),
        torch.randn(2, 4),
        ParameterError,
        "meta",
    ),
    "wrong-width": (
        Act(nn.ReLU()),
        torch.randn(2, 5),
        CaptureError,
        "does not run on an example of shape",
    ),
    "wrong-rank": (Image(nn.ReLU()), torch.randn(2, 3), CaptureError, "shape"),
    "two-for-one": (
        Act(nn.ReLU()),
        (torch.randn(2, 4), torch.randn(2, 4)),
        CaptureError,
        "does not run",
    ),
    "empty-batch": (Act(nn.ReLU()), torch.randn(0, 4), CaptureError, "batch"),
    "scalar": (Act(nn.ReLU()), torch.tensor(1.0), CaptureError, "batch"),
    "integer-example": (
        nn.Embedding(5, 3),
        torch.tensor([[1, 2]]),
        UnsupportedOperation,
        "int64",
    ),
    "not-a-tensor": (Act(nn.ReLU()), ["x"], CaptureError, "str"),
    "complex-example": (
        Act(nn.ReLU()),
        torch.randn(2, 4, dtype=torch.complex64),
        UnsupportedOperation,
        "complex",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input(name):
    model, example, error, words = BAD_INPUT[name]
    for analysis in (sc.path_norm, sc.path_costs):
        with pytest.raises(error, match=words) as caught:
            analysis(model, example)
        assert isinstance(caught.value, SecateursError)


def test_a_refusal_leaves_the_model_as_it_was():
    model = Image(nn.BatchNorm2d(4), nn.GELU()).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    with pytest.raises(UnsupportedOperation):
        sc.capture(model, torch.randn(IMAGE, generator=torch.Generator().manual_seed(0)))
    assert model.training and all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


def test_what_comes_last_can_be_left_out():
    net = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
    with pytest.raises(UnsupportedOperation, match="It comes last: leave it out"):
        sc.capture(net, torch.zeros(1, 4))
    inside = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1), nn.Linear(3, 2))
    with pytest.raises(UnsupportedOperation, match=r"lowers\.$"):
        sc.capture(inside, torch.zeros(1, 4))
