"""Every family of operators: the graph agrees with the model for two batch sizes, and the norm
bounds the output.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import secateurs as sc
from secateurs.graph import LOWERINGS, Builder, evaluate, lowers


class Call(nn.Module):
    """A function of the input and two parameters."""

    def __init__(self, function, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(torch.randn(shape) for shape in shapes)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.weights)


class NoGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = F.relu(self.stem(x), inplace=True)
            x += 1
        return self.head(x)


class NoAutocast(nn.Module):
    """As rotary embeddings do: whatever is set outside, not here."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        with torch.autocast("cpu", enabled=False):
            x = x + self.stem(x)
        return self.head(x)


class Regions(nn.Module):
    """Regions inside regions, that read and give several values: capture runs without gradients,
    so that those which turn gradients on become graphs of their own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner, self.head = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.stem(x))
        with torch.enable_grad():
            z = self.inner(y) - 0.5 * x
            with torch.no_grad():
                u = F.relu(z - y, inplace=True)
            z.mul_(2)
        with torch.set_grad_enabled(True):
            return self.head(z + u).chunk(2, dim=1)[1] - y[:, :3]


def in_place(x: Tensor, w: Tensor) -> Tensor:
    y = F.linear(x, w)
    z = y.view(-1, 3, 2)
    z.mul_(2.0)  # changes y through a view
    y.relu_()
    return y + z.flatten(1)


def in_place_skip(x: Tensor, w: Tensor) -> Tensor:
    y = F.linear(x, w)
    skip = y
    y = y.clone()
    y += x
    y.neg_()
    return torch.relu_(y) - skip


V, S, I, D = (6,), (4, 6), (4, 8, 9), (2, 5, 6, 4)
CASES = {
    "linear": (Call(F.linear, (3, 6), (3,)), V),
    "linear-on-sequences": (Call(F.linear, (3, 6), (3,)), S),
    "matmul": (Call(lambda x, w: x @ w, (6, 3)), S),
    "matmul-left": (Call(lambda x, w: w @ x, (3, 4)), S),
    "matrix-vector": (Call(lambda x, w: x @ w, (6,)), S),
    "addmm": (
        Call(lambda x, w, b: torch.addmm(b, x, w, beta=0.5, alpha=2), (6, 3), (3,)),
        V,
    ),
    "bmm": (
        Call(lambda x, w: torch.bmm(x, w.expand(x.shape[0], 6, 3)), (1, 6, 3)),
        S,
    ),
    "einsum": (Call(lambda x, w: torch.einsum("bti,oi->bto", x, w), (3, 6)), S),
    "einsum-weight-first": (
        Call(lambda x, w: torch.einsum("oi,bti->bto", w, x), (3, 6)),
        S,
    ),
    "conv1d": (nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2), S),
    "conv2d": (
        nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2),
        I,
    ),
    "conv2d-same": (nn.Conv2d(4, 3, 4, padding="same"), I),
    "conv2d-reflect": (nn.Conv2d(4, 3, 3, padding=1, padding_mode="reflect"), I),
    "conv2d-circular": (nn.Conv2d(4, 3, 3, padding=2, padding_mode="circular"), I),
    "conv2d-replicate": (
        nn.Conv2d(4, 3, 3, padding=1, padding_mode="replicate", bias=False),
        I,
    ),
    "conv3d": (nn.Conv3d(2, 3, 2, padding=1), D),
    "transposed-1d": (
        nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        S,
    ),
    "transposed-2d": (
        nn.ConvTranspose2d(4, 6, 3, stride=3, padding=1, output_padding=2, groups=2, dilation=2),
        I,
    ),
    "transposed-3d": (nn.ConvTranspose3d(2, 3, 2, stride=2), D),
    "batch-norm-1d": (nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)), V),
    "batch-norm-no-affine": (nn.BatchNorm2d(4, affine=False), I),
    "batch-norm-3d": (nn.BatchNorm3d(2), D),
    "batch-norm-functional": (
        Call(lambda x, m, v, w: F.batch_norm(x, m, v.exp(), w), (4,), (4,), (4,)),
        I,
    ),
    "instance-norm-statistics": (
        nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        I,
    ),
    "weight-norm": (torch.nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), V),
    "spectral-norm": (
        torch.nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)),
        V,
    ),
    "max-pool-1d": (nn.MaxPool1d(3, 2, 1), S),
    "max-pool-2d-ceil": (nn.MaxPool2d(3, 2, 1, ceil_mode=True), I),
    "max-pool-2d-dilated": (nn.MaxPool2d(2, 2, 1, dilation=3, ceil_mode=True), I),
    "max-pool-3d": (nn.MaxPool3d(2, 1), D),
    "max-pool-indices": (
        Call(lambda x: F.max_pool2d(x, 2, return_indices=True)[0]),
        I,
    ),
    "avg-pool-1d": (nn.AvgPool1d(3, 2, 1, ceil_mode=True), S),
    "avg-pool-2d": (nn.AvgPool2d(3, 2, 1, ceil_mode=True), I),
    "avg-pool-2d-no-pad": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), I),
    "avg-pool-2d-divisor": (nn.AvgPool2d(2, divisor_override=3), I),
    "avg-pool-3d": (nn.AvgPool3d(2, 2, 1), D),
    "adaptive-avg-uneven": (nn.AdaptiveAvgPool2d((3, 5)), I),
    "adaptive-avg-1d": (nn.AdaptiveAvgPool1d(4), S),
    "adaptive-avg-3d": (nn.AdaptiveAvgPool3d((2, 4, 3)), D),
    "adaptive-max-uneven": (nn.AdaptiveMaxPool2d((3, 4)), I),
    "adaptive-max-1d": (nn.AdaptiveMaxPool1d(4), S),
    "mean": (Call(lambda x: x.mean((2, 3), keepdim=True)), I),
    "mean-negative-dim": (Call(lambda x: x.mean(-1)), S),
    "sum": (Call(lambda x: x.sum(1) + x.sum((1,))), S),
    "amax": (Call(lambda x: x.amax((2, 3))), I),
    "max-dim": (
        Call(lambda x: x.max(dim=1)[0] + x.max(1, keepdim=True).values.squeeze(1)),
        S,
    ),
    "maximum": (Call(lambda x, w: torch.maximum(F.linear(x, w), x), (6, 6)), V),
    "maximum-with-zero": (Call(lambda x: torch.maximum(x, torch.zeros(1))), V),
    "maximum-with-constant": (
        Call(lambda x: torch.maximum(x, torch.full((1,), 0.3))),
        V,
    ),
    "minimum": (Call(lambda x: torch.minimum(x, -2 * x)), V),
    "leaky": (nn.LeakyReLU(0.2), V),
    "rrelu": (nn.RReLU(), V),
    "clamps": (Call(lambda x: x.clamp(min=0) - x.clamp(max=0) + x.clamp_min(0)), V),
    "threshold": (nn.Threshold(0.0, 0.0), V),
    "identities": (
        nn.Sequential(nn.Dropout(), nn.Identity(), nn.Dropout1d(), nn.AlphaDropout()),
        S,
    ),
    "arithmetic": (
        Call(lambda x: 1 - (2 * x - 3) / 4 + x.neg() - torch.add(x, x, alpha=0.5) + (5 - x)),
        V,
    ),
    "layer-scale": (Call(lambda x, w, b: x * w / (b.exp() + 1) + b, (6,), (6,)), S),
    "position-embedding": (Call(lambda x, p: x + p, (1, 4, 6)), S),
    "broadcast-sum": (Call(lambda x: x + x.mean(1, keepdim=True)), S),
    "scalar-buffer": (Call(lambda x: x * torch.tensor(2.0) + torch.arange(6)), V),
    "token": (
        Call(lambda x, t: torch.cat([t.expand(x.shape[0], -1, -1), x], 1), (1, 1, 6)),
        S,
    ),
    "cat-zeros": (Call(lambda x: torch.cat([x, torch.zeros_like(x)], 1)), S),
    "pads": (
        Call(lambda x: F.pad(x, (1, 2), value=0.5) + F.pad(x, (2, 1)) + F.pad(x, (-1, 4))),
        S,
    ),
    "splits": (
        Call(lambda x: torch.cat([x.split([1, 5], 2)[1], x.chunk(2, 1)[0].repeat(1, 2, 1)], 2)),
        S,
    ),
    "unbind-stack": (Call(lambda x: torch.stack(x.unbind(1)[::-1], -1)), S),
    "indexing": (
        Call(lambda x: x[:, 1:, ::2] + x[:, [0, 2, 1], 1:4] + x[:, -1:, :3]),
        S,
    ),
    "index-select": (Call(lambda x: x.index_select(2, torch.tensor([5, 0, 0]))), S),
    "shapes": (
        Call(
            lambda x: (
                x.permute(0, 2, 1)
                .reshape(x.shape[0], 3, 8)
                .flatten(1)
                .unflatten(1, (2, 12))
                .roll(3, 2)
            )
        ),
        S,
    ),
    "transposes": (
        Call(lambda x: x.transpose(1, 2).unsqueeze(1).squeeze(1).mT.flip(1).movedim(1, 2)),
        S,
    ),
    "shuffle": (
        nn.Sequential(nn.ChannelShuffle(2), nn.PixelShuffle(2), nn.PixelUnshuffle(2)),
        I,
    ),
    "nearest": (
        Call(lambda x: F.interpolate(x, scale_factor=2) + F.interpolate(x, size=(16, 18))),
        I,
    ),
    "nearest-exact": (
        Call(lambda x: F.interpolate(x, size=(5, 7), mode="nearest-exact")),
        I,
    ),
    "nearest-1d": (nn.Upsample(scale_factor=1.5), S),
    "nearest-3d": (nn.Upsample(scale_factor=2), D),
    "bilinear": (nn.Upsample(scale_factor=2, mode="bilinear"), I),
    "bilinear-aligned": (
        Call(lambda x: F.interpolate(x, (5, 13), mode="bilinear", align_corners=True)),
        I,
    ),
    "trilinear": (nn.Upsample(scale_factor=2, mode="trilinear"), D),
    "casts": (
        Call(lambda x: x.to(torch.float64).type_as(x).contiguous().clone().detach()),
        V,
    ),
    "in-place-view": (Call(in_place, (6, 6)), V),
    "in-place-skip": (Call(in_place_skip, (6, 6)), V),
    "lerp": (Call(lambda x, w: torch.lerp(x, F.linear(x, w), 0.3), (6, 6)), V),
    "no-grad-region": (NoGrad(), V),
    "regions": (Regions(), V),
    "autocast-off": (NoAutocast(), V),
    "unused-input-part": (Call(lambda x: F.relu(x)[:, :2] * 0.0 + 1.0), V),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_model(name):
    model, shape = CASES[name]
    model = model.double().eval()
    for module in model.modules():
        if getattr(module, "running_mean", None) is not None:
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    graph = sc.capture(model, torch.randn(1, *shape))
    for batch in (1, 3):
        x = torch.randn(batch, *shape, dtype=torch.float64)
        with torch.no_grad():
            theirs, ours = model(x), evaluate(graph, [x], graph.state(model))
        assert ours.shape == theirs.shape
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-12)
        bound = sc.path_norm(model, graph, per_output=True) * max(1.0, float(x.abs().max()))
        assert bool((theirs.abs() <= bound * (1 + 1e-12)).all())


def test_autocast_that_is_on_is_read_with_its_roundings():
    class Rounds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.stem(x).float()

    model = Rounds()
    graph = sc.capture(model, torch.zeros(1, 6))
    assert torch.bfloat16 in {cast.target for cast in graph.casts}
    x = torch.randn(3, 6)
    ours = evaluate(graph, [x.double()], graph.state(model))
    assert torch.allclose(ours.float(), model(x), rtol=0.02, atol=0.02)
    # A bound speaks of real numbers and says so, or is refused.
    cert = sc.certify(model, model, around=x[:1], radius=0.1)
    assert "bfloat16" in " ".join(cert.assumptions)
    with pytest.raises(sc.errors.ArgumentError, match="bfloat16"):
        sc.certify(model, model, around=x[:1], radius=0.1, rounding=True)


def test_a_user_registers_a_rule():
    @torch.library.custom_op("secateurs_test::double", mutates_args=())
    def double(x: Tensor) -> Tensor:
        return 2 * x

    @double.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    model = Call(lambda x, w: F.linear(torch.ops.secateurs_test.double(x), w), (3, 6))
    with pytest.raises(sc.errors.UnsupportedOperation, match="secateurs_test.double"):
        sc.capture(model, torch.zeros(1, 6))

    @lowers(torch.ops.secateurs_test.double.default)
    def rule(build: Builder, x):
        return build.scale(x, 2.0)

    try:
        expected = 2 * float(model.weights[0].double().abs().sum())
        assert float(sc.path_norm(model, torch.zeros(1, 6))) == pytest.approx(expected)
    finally:
        LOWERINGS._rules.pop(torch.ops.secateurs_test.double.default)


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 4)

    def forward(self, x: Tensor):
        return {
            "features": (self.b(x), torch.sigmoid(x)),
            "logits": self.a(x),
            "note": "text",
        }


def test_outputs_are_chosen_by_name():
    model, x = Several(), torch.zeros(1, 3)
    assert sc.capture(model, x).output_name == "logits"
    graph = sc.capture(model, x, output="features.0")
    assert graph.output_name == "features.0" and set(graph.parameters) == {
        "b.weight",
        "b.bias",
    }
    with pytest.raises(sc.errors.CaptureError, match="returns features.0, features.1, logits"):
        sc.capture(model, x, output="missing")
    with pytest.raises(sc.errors.UnsupportedOperation, match="sigmoid"):
        sc.capture(model, x, output="features.1")


def test_keyword_inputs_and_float32_examples():
    class Two(nn.Module):
        def forward(self, *, left: Tensor, right: Tensor) -> Tensor:
            return torch.relu(left) - right

    assert (
        float(sc.path_norm(Two(), {"left": torch.zeros(2, 3), "right": torch.zeros(2, 3)})) == 6.0
    )
    assert sc.path_norm(nn.Linear(3, 2).double(), torch.zeros(4, 3, dtype=torch.float16)) > 0
