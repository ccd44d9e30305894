"""Networks whose weights are computed from parameters, drawn at random, and what they are in 600
bits.
"""

import copy
from collections.abc import Callable

import mpmath as mp
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

Row = list[mp.mpf]
BITS = 600


class Scaled(nn.Module):
    """w · |w| / 3."""

    def forward(self, w: torch.Tensor) -> torch.Tensor:
        return w * w.abs() / 3


class Standardised(nn.Module):
    """(w − mean) / (1 + ‖w‖), row by row."""

    def forward(self, w: torch.Tensor) -> torch.Tensor:
        return (w - w.mean(dim=1, keepdim=True)) / (1 + w.norm(dim=1, keepdim=True))


class Bent(nn.Module):
    """tanh(w) · √(w² + 0.1)."""

    def forward(self, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(w) * torch.sqrt(w.square() + 0.1)


KINDS = ("plain", "weight norm", "spectral norm", Scaled, Standardised, Bent)


def draw(seed: int, dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    """A network and one near it: far, near, or nearer than float64 can tell."""
    g = torch.Generator().manual_seed(seed)

    def some(count: int) -> int:
        return int(torch.randint(count, (), generator=g))

    layers: list[nn.Module] = []
    width = 1 + some(3)
    first = width
    for _ in range(1 + some(3)):
        out = 1 + some(4)
        layer = nn.Linear(width, out, bias=bool(some(2)))
        kind = KINDS[some(len(KINDS))]
        if kind == "weight norm":
            layer = weight_norm(layer)
        elif kind == "spectral norm":
            layer = spectral_norm(layer)
        elif kind != "plain":
            parametrize.register_parametrization(layer, "weight", kind())
        layers.append(layer)
        if some(2):
            layers.append(nn.BatchNorm1d(out, affine=bool(some(3))))
        layers.append(nn.ReLU())
        width = out
    layers.append(nn.Linear(width, 1 + some(2)))
    f = nn.Sequential(*layers).to(dtype)
    with torch.no_grad():
        for name, tensor in (*f.named_parameters(), *f.named_buffers()):
            if tensor.is_floating_point() and not name.endswith(("._u", "._v")):
                tensor.copy_(torch.randn(tensor.shape, generator=g, dtype=torch.float64))
                if "running_var" in name:
                    tensor.abs_()
                if "running_mean" in name:
                    tensor.mul_(10.0 ** some(9))
        f[-1].weight.mul_(10.0 ** some(13))
    f.eval()
    f.inputs = first
    other = copy.deepcopy(f)
    by = (0.1, 1e-7, 1e-15)[some(3)]
    with torch.no_grad():
        for p in list(other.parameters())[:-2]:
            if some(2):
                p.mul_(1 + by * torch.randn(p.shape, generator=g, dtype=torch.float64).to(p))
    return f, other


def exact(model: nn.Sequential, x: torch.Tensor) -> Row:
    """The outputs for one input, in 600 bits."""
    with mp.workprec(BITS):
        row = _row(x)
        for layer in model:
            if isinstance(layer, nn.Linear):
                weight = _weight(layer)
                bias = [mp.mpf(0)] * len(weight) if layer.bias is None else _row(layer.bias)
                row = [mp.fdot(w, row) + b for w, b in zip(weight, bias, strict=True)]
            elif isinstance(layer, nn.BatchNorm1d):
                row = _batch_norm(layer, row)
            else:
                row = [max(v, mp.mpf(0)) for v in row]
        return row


def _row(t: torch.Tensor) -> Row:
    return [mp.mpf(v) for v in t.detach().double().flatten().tolist()]


def _rows(t: torch.Tensor) -> list[Row]:
    return [_row(r) for r in t.detach()]


def _batch_norm(layer: nn.BatchNorm1d, row: Row) -> Row:
    mean, var = _row(layer.running_mean), _row(layer.running_var)
    ones, none = [mp.mpf(1)] * len(row), [mp.mpf(0)] * len(row)
    weight = ones if layer.weight is None else _row(layer.weight)
    bias = none if layer.bias is None else _row(layer.bias)
    parts = zip(row, weight, bias, mean, var, strict=True)
    return [w * (v - m) / mp.sqrt(s + mp.mpf(layer.eps)) + b for v, w, b, m, s in parts]


def _weight(layer: nn.Linear) -> list[Row]:
    if not parametrize.is_parametrized(layer, "weight"):
        return _rows(layer.weight)
    held = layer.parametrizations["weight"]
    kind = type(held[0]).__name__
    if kind == "_WeightNorm":
        g, v = _row(held.original0), _rows(held.original1)
        return [[a * s / mp.norm(r, 2) for a in r] for r, s in zip(v, g, strict=True)]
    w = _rows(held.original)
    if kind == "_SpectralNorm":
        u, v = _row(held[0]._u), _row(held[0]._v)
        sigma = mp.fdot(u, [mp.fdot(r, v) for r in w])
        return [[a / sigma for a in r] for r in w]
    return _OWN[kind](w)


def _standardised(w: list[Row]) -> list[Row]:
    return [[(a - mp.fsum(r) / len(r)) / (1 + mp.norm(r, 2)) for a in r] for r in w]


_OWN: dict[str, Callable[[list[Row]], list[Row]]] = {
    "Scaled": lambda w: [[a * abs(a) / 3 for a in r] for r in w],
    "Standardised": _standardised,
    "Bent": lambda w: [[mp.tanh(a) * mp.sqrt(a * a + mp.mpf(0.1)) for a in r] for r in w],
}
