"""Whole networks: masked = fast, in float64 to 1e-9 and in float32 to 1e-5, at two resolutions."""

import pytest
import torch
from torch import nn

import architectures
import secateurs as sc
from secateurs.ship import FastModule
from secateurs.ship.fast import compiled
from ship.fast.fast_cases import close, zeroed
from ship.fast.fast_nets import KINDS, build

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="no C++ compiler")

QUICK = ("mlp", "tied", "siamese", "unet-transposed", "unet-nearest", "shufflenet")
SLOW = tuple(name for name in architectures.ZOO if name not in QUICK)


def leaves(outputs) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor)]


def check(model: nn.Module, inputs: list[torch.Tensor]) -> FastModule:
    """Float64 against float64, then float32 against float64."""
    fast = sc.accelerate(model, inputs, tune="guess", keep="always")
    with torch.inference_mode():
        wanted = leaves(model(*inputs))
        for a, b in zip(leaves(fast(*inputs)), wanted, strict=True):
            assert close(a, b, 1e-9)
    single = sc.accelerate(model.float(), [x.float() for x in inputs], tune="guess", keep="always")
    with torch.inference_mode():
        for a, b in zip(leaves(single(*[x.float() for x in inputs])), wanted, strict=True):
            assert close(a, b, 1e-5)
    model.double()
    return fast


def named(name: str) -> tuple[nn.Module, list[torch.Tensor]]:
    model, inputs = architectures.build(name)
    return zeroed(model, 0.3), [torch.cat([x, x.flip(0), x])[:5] for x in inputs]


@pytest.mark.parametrize("name", QUICK)
def test_named_architectures(name):
    check(*named(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_large_named_architectures(name):
    check(*named(name))


@pytest.mark.parametrize("kind", KINDS)
def test_random_networks(kind):
    model = build(kind, 1)
    check(model, [torch.randn(3, 3, 13, 16, dtype=torch.float64)])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(54))
@pytest.mark.parametrize("kind", KINDS)
def test_many_random_networks(kind, seed):
    model = build(kind, seed + 2)
    size = [(13, 16), (9, 9), (17, 12), (8, 8)][seed % 4]
    check(model, [torch.randn(3, 3, *size, dtype=torch.float64)])


def test_another_resolution_is_another_program():
    model = build("residual", 3)
    for size in ((12, 12), (15, 11)):
        check(model, [torch.randn(2, 3, *size, dtype=torch.float64)])


def test_what_has_no_kernel_is_named():
    fast = check(*named("unet-transposed"))
    assert len(fast.report.outside) == 2
    assert all("conv_transpose2d" in line and "no kernel" in line for line in fast.report.outside)


class Odd(nn.Module):
    """Sigmoids, products, several outputs, keyword inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.fc = nn.Linear(4, 3)

    def forward(self, image, other):
        x = torch.relu(self.conv(image))
        x = x * torch.sigmoid(self.gate(x)) + other
        return {"features": x, "logits": (self.fc(x.mean((2, 3))), x.shape[0])}


def test_outputs_keep_their_structure_and_inputs_their_names():
    model = Odd().eval()
    example = {"image": torch.zeros(1, 2, 6, 7), "other": torch.zeros(1, 4, 6, 7)}
    fast = sc.accelerate(model, example, tune="guess", keep="always")
    given = {"image": torch.randn(5, 2, 6, 7), "other": torch.randn(5, 4, 6, 7)}
    with torch.inference_mode():
        wanted, found = model(**given), fast(**given)
    assert close(found["features"], wanted["features"], 1e-5)
    assert close(found["logits"][0], wanted["logits"][0], 1e-5)
    assert {line.split(" at ")[0] for line in fast.report.outside} >= {"aten.sigmoid.default"}


class Moves(nn.Module):
    """Views, slices, shuffles and padding of every kind."""

    def forward(self, x):
        y = F_pad(x[:, 1:], (1, 0, 2, -1))
        z = x.reshape(x.shape[0], 2, 2, *x.shape[2:]).transpose(1, 2).flatten(1, 2)
        w = torch.nn.functional.pad(x, (1, 1, 1, 1), mode="reflect").flip(2)
        return (
            y * 2.0,
            z + 1.0,
            w.flatten(1),
            x.permute(0, 2, 3, 1).contiguous(),
            x.flatten(1)[:, 3:9],
        )


def F_pad(x, sizes):
    return torch.nn.functional.pad(x, sizes)


def test_what_only_moves_numbers():
    check(Moves().eval(), [torch.randn(3, 4, 5, 6, dtype=torch.float64)])


def test_a_slice_of_the_input_is_not_the_input():
    class Head(nn.Module):
        def forward(self, x):
            return torch.relu(x.flatten(1)[:, :5])

    check(Head().eval(), [torch.randn(3, 2, 3, 4, dtype=torch.float64)])
