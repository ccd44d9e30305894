"""Programs of which the tracer kept Python: regions, transformations, sizes that values decide."""

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import SecateursError, UnsupportedOperation
from secateurs.ship.c_source import c_source


class Net(nn.Module):
    """Three layers, and something between the first two."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(width, 6), nn.Linear(6, 3)
        self.register_buffer("flags", torch.tensor([1, 0, 1, 1, 0, 1]).bool())
        self.register_buffer("times", torch.tensor([1, 1, 2, 0, 1, 1]))

    def between(self, h):
        return h

    def forward(self, x):
        return self.c(self.b(self.between(self.a(x).relu())).relu())


class Flags(Net):
    def __init__(self):
        super().__init__(4)

    def between(self, h):
        return h[:, self.flags]


class Places(Net):
    def __init__(self):
        super().__init__(4)

    def between(self, h):
        return h[:, self.flags.nonzero().flatten()]


class Repeated(Net):
    def between(self, h):
        return h.repeat_interleave(self.times, 1)


class RepeatedTwice(Net):
    def __init__(self):
        super().__init__(12)

    def between(self, h):
        return h.repeat_interleave(torch.tensor(2), 1)


class Viewed(Net):
    """A size that values decide goes into a shape."""

    def __init__(self):
        super().__init__(4)

    def between(self, h):
        picked = h[:, self.flags]
        return picked.reshape(len(h), picked.shape[1] // 2, 2).flatten(1)


class Floor(Net):
    def between(self, h):
        return torch.maximum(h, torch.tensor(0.3))


class Ceiling(Net):
    def between(self, h):
        return torch.minimum(h, torch.tensor(0.3))


class Mapped(Net):
    def between(self, h):
        return torch.vmap(lambda row: 2 * row + 1)(h)


class MappedLayer(Net):
    def between(self, h):
        return torch.vmap(self.b)(h)


class NoAutocast(Net):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return super().forward(x)


class Autocast(Net):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x).float()


ALL = (
    *(Flags, Places, Repeated, RepeatedTwice, Viewed, Floor, Ceiling),
    *(Mapped, MappedLayer, NoAutocast, Autocast),
)


def made(kind):
    torch.manual_seed(0)
    model = kind().eval()
    model.a.weight.data[1] = 0
    return model, torch.randn(5, 4)


@pytest.mark.parametrize("kind", ALL)
def test_channels_are_counted_and_cut(kind):
    model, x = made(kind)
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    uses = 2 if kind is MappedLayer else 1
    wanted = sum(m.weight.numel() * (uses if m is model.b else 1) for m in layers)
    assert sc.macs(model, x).dense == wanted
    before = model(x)
    # Under autocast the code meets float64 with a conversion to float32.
    if kind is not Autocast:
        torch.testing.assert_close(sc.compact(model, x)(x), before)
    sc.prune_channels_(model, x, channels=0.5)
    assert sc.sparsity_report(model).sparsity > 0.1


@pytest.mark.parametrize("kind", ALL)
def test_the_fast_path_answers_at_every_batch(kind):
    model, x = made(kind)
    fast = sc.accelerate(model, x, tune="guess", keep="always")
    with torch.inference_mode():
        for batch in (1, 2, 5):
            close = {"atol": 1e-2, "rtol": 1e-2} if kind is Autocast else {}
            torch.testing.assert_close(fast(x[:batch]), model(x[:batch]), **close)


@pytest.mark.parametrize("kind", ALL)
def test_paths_and_c_answer_or_refuse(kind):
    model, x = made(kind)
    for ask in (sc.path_norm, c_source):
        try:
            ask(model, x)
        except SecateursError as error:
            assert type(model).__name__ in str(error)


def test_flags_that_pick_are_an_index_for_paths():
    model, x = made(Flags)
    plain = Net(4).eval()
    plain.load_state_dict(model.state_dict())
    plain.between = lambda h: h[:, [0, 2, 3, 5]]
    assert float(sc.path_norm(model, x)) == pytest.approx(float(sc.path_norm(plain, x)))


def test_other_flags_are_another_network():
    one, x = made(Flags)
    two, _ = made(Flags)
    assert sc.certify(one, two, around=x, radius=0.1).bound < 1e-9
    two.flags = two.flags.roll(1)
    with pytest.raises(SecateursError, match="two models differ"):
        sc.certify(one, two, around=x, radius=0.1)


class ByInput(Net):
    def between(self, h):
        return h[:, h[0] > -100]


def a_program(model, x):
    """Without `keep` the model comes back as it is, and the reason is in the log."""
    return sc.accelerate(model, x, keep="always")


@pytest.mark.parametrize("ask", [sc.macs, sc.path_norm, sc.compact, a_program, c_source])
def test_sizes_that_the_input_decides_are_refused(ask):
    model, x = made(ByInput)
    with pytest.raises(UnsupportedOperation, match="depends? on the data"):
        ask(model, x)


class Slope(Net):
    """`torch.func` inside: what the tracer leaves behind has no storage."""

    def between(self, h):
        return h + torch.func.grad(lambda v: (v**2).sum())(h)


@pytest.mark.parametrize("ask", [sc.macs, sc.path_norm, sc.compact, a_program, c_source])
def test_gradients_inside_are_refused_in_words(ask):
    model, x = made(Slope)
    with pytest.raises(SecateursError, match="Slope"):
        ask(model, x)
