"""Operator norms of convolutions: exact where the Fourier transform diagonalises them, bracketed elsewhere.

Lemma 7 (Qian & Klabjan 2021; Sedghi, Gupta & Long 2019, Theorem 6): a circular convolution with kernel K on p×p maps
has the singular values of the matrices P^(u,v) = Σ_ij K_:,:,i,j e^{2πi(ui+vj)/p}, so ‖W‖₂ = max_uv ‖P^(u,v)‖₂.
K is real: P^(−u,−v) is the conjugate of P^(u,v), and half of the frequencies suffice.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from secateurs.errors import ArgumentError
from secateurs.theory.spectral import lanczos, spectral_norms

Padding = Literal["circular", "zeros"] | int
_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorNorm:
    """lower ≤ ‖W‖₂ ≤ upper, both proven up to rounding; `value` is the best estimate, equal to both when `exact`."""

    value: float
    lower: float
    upper: float
    exact: bool
    method: str

    def __float__(self) -> float:
        return self.value


def conv_operator_norm(
    weight: Tensor,
    input_size: int | Sequence[int],
    *,
    padding: Padding = "circular",
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    certify: bool = False,
) -> OperatorNorm:
    """The largest singular value of x ↦ conv(x, weight) on maps of `input_size`, for 1-, 2- and 3-D kernels.

    `input_size` is one number for square maps, or a size per axis.

    * `padding="circular"`, stride dividing the map: exact, by the singular values of the p² small matrices (with
      stride s, of s² aliased ones side by side). When a side has more than 128 channels the matrices go through Gram
      matrices and Lanczos: `value` is then a converged lower bound, `upper` a bound by the unfolded kernel;
      `certify=True` proves the value within 1e-5 by Cholesky factorisations.
    * zero padding ("zeros" is "same"; or a number of rows), or a stride that does not divide the map: `value` and
      `lower` are the Lanczos value of the map itself; `upper` is the circular norm on the padded map, of which the
      convolution is a part.

    Dilated and even kernels are exact in the circular case; "zeros" needs an odd kernel.

    >>> delta = torch.zeros(1, 1, 3, 3); delta[0, 0, 1, 1] = 2.0
    >>> norm = conv_operator_norm(delta, (8, 8))
    >>> round(norm.value, 12), norm.exact, conv_operator_norm(delta, (8, 8), padding="zeros").exact
    (2.0, True, False)
    """
    input_size = _sides(weight, input_size)
    weight = _checked(weight, input_size, stride=stride, dilation=dilation, groups=groups)
    kernel = _dilate(weight.detach(), dilation)
    if padding == "circular":
        _fits(kernel, input_size, 0)
        if all(size % stride == 0 for size in input_size):
            return _circular(kernel, tuple(input_size), stride, groups, certify)
    pad = _rows(padding, kernel)
    return _bracket(kernel, tuple(input_size), pad, stride, groups, certify, circular=padding == "circular")


def lemma_7(weight: Tensor, input_size: int | Sequence[int]) -> Tensor:
    """Lemma 7: all singular values of the circular convolution, descending: those of the p² matrices P^(u,v).

    >>> lemma_7(torch.ones(1, 1, 1, 1), (2, 2)).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    input_size = _sides(weight, input_size)
    weight = _checked(weight, input_size, stride=1, dilation=1, groups=1)
    _fits(weight, input_size, 0)
    values: Tensor = torch.linalg.svdvals(_spectrum(weight, tuple(input_size)))
    return values.flatten().sort(descending=True).values


def _sides(weight: Tensor, size: int | Sequence[int]) -> tuple[int, ...]:
    return (size,) * (weight.ndim - 2) if isinstance(size, int) else tuple(size)


def _circular(kernel: Tensor, size: tuple[int, ...], stride: int, groups: int, certify: bool) -> OperatorNorm:
    """A grouped convolution is a direct sum: its norm is the largest of its groups'."""
    found = [_circular_group(part, size, stride, certify) for part in kernel.chunk(groups)]
    return found[0] if len(found) == 1 else _largest(found)


def _circular_group(kernel: Tensor, size: tuple[int, ...], stride: int, certify: bool) -> OperatorNorm:
    if min(kernel.shape[:2]) > _DENSE_SIDE and stride == 1:
        return _by_gram(kernel, size, certify)
    matrices = _alias(_spectrum(kernel, size), stride) if stride > 1 else _half(_spectrum(kernel, size))
    value = max(float(torch.linalg.svdvals(part).max()) for part in torch.split(matrices, _SPLIT))
    return OperatorNorm(value=value, lower=value, upper=value, exact=True, method="singular values of every frequency")


_DENSE_SIDE = 128
_SPLIT = 256


def _spectrum(kernel: Tensor, size: tuple[int, ...]) -> Tensor:
    """P as (p, …, p, out, in): the transform of the kernel, in double precision."""
    spatial = tuple(range(-len(size), 0))
    spectrum: Tensor = torch.fft.fftn(kernel.double(), s=size, dim=spatial)
    return spectrum.movedim((0, 1), (-2, -1))


def _half(matrices: Tensor) -> Tensor:
    """Flatten the frequencies, keeping half of the last axis: the rest are conjugates."""
    kept = matrices.shape[-3] // 2 + 1
    return matrices.narrow(-3, 0, kept).reshape(-1, *matrices.shape[-2:])


def _alias(matrices: Tensor, stride: int) -> Tensor:
    """Stride s folds s^n frequencies onto one: the block row [P^(u + a p/s)]_a / s^{n/2}."""
    dims = matrices.ndim - 2
    for axis in range(dims):
        size = matrices.shape
        matrices = matrices.reshape(*size[: 2 * axis], stride, -1, *size[2 * axis + 1 :])
    folds = tuple(range(0, 2 * dims, 2))
    rest = tuple(range(1, 2 * dims, 2))
    matrices = matrices.permute(*rest, 2 * dims, *folds, 2 * dims + 1)
    rows = matrices.shape[dims]
    return matrices.reshape(-1, rows, stride**dims * matrices.shape[-1]).div(stride ** (dims / 2))


def _by_gram(kernel: Tensor, size: tuple[int, ...], certify: bool) -> OperatorNorm:
    """Three passes, each over fewer frequencies: a few Lanczos steps, converged ones, double precision."""
    kernel = kernel if kernel.shape[1] <= kernel.shape[0] else kernel.transpose(0, 1)
    scale = float(kernel.abs().max()) or 1.0
    small = kernel / scale
    grams = _Grams.of(small, size)
    chosen = torch.arange(len(grams.waves))
    for steps in (_ROUGH_STEPS, _FINE_STEPS):
        found = torch.tensor([_top(gram, steps) for gram in grams.at(chosen)], dtype=torch.float64)
        # The residual is of first order in the error of the vector, the value of second: θ + residual is generous.
        chosen = chosen[found[:, 0] + found[:, 1] >= found[:, 0].max() * (1 - 1e-5)]
    best = max(_exact_at(kernel.double() / scale, size, chosen))
    value = best * scale
    proven = certify and all(_below(gram, (best * (1 + _CERTIFIED)) ** 2) for gram in grams.at(None))
    upper = value * (1 + _CERTIFIED) if proven else max(value, scale * _unfolded_bound(small))
    method = "Gram matrices and Lanczos at every frequency" + (", certified by Cholesky" if proven else "")
    return OperatorNorm(value=value, lower=value, upper=upper, exact=proven, method=method)


_CERTIFIED = 1e-5
_ROUGH_STEPS = 12
_FINE_STEPS = 60
_Gram = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grams:
    """P*P at the frequencies of the half spectrum, as real and imaginary parts, a few at a time.

    P is a trigonometric polynomial with few coefficients, so P*P is one too: its coefficients cost one matrix product
    of the kernel with itself, instead of one for each frequency (512 channels, 3×3, 32×32: 22 GFLOP, not 584).
    """

    table: Tensor
    waves: Tensor
    side: int

    @classmethod
    def of(cls, kernel: Tensor, size: tuple[int, ...]) -> "_Grams":
        lags = _autocorrelation(kernel)
        waves = _waves(kernel, size, list(lags))
        return cls(table=torch.stack(list(lags.values())).flatten(1), waves=waves, side=kernel.shape[1])

    def at(self, chosen: Tensor | None) -> Iterator[_Gram]:
        for part in torch.split(self.waves if chosen is None else self.waves[chosen], 4):
            both = torch.cat((part.real, part.imag)).to(self.table) @ self.table
            yield from zip(*both.view(2, len(part), self.side, self.side), strict=True)


def _top(gram: _Gram, steps: int) -> tuple[float, float]:
    """θ and its absolute residual. Real and imaginary parts side by side: no complex copy of the matrices."""
    real, imaginary = gram
    n = len(real)
    start = torch.randn(2 * n, generator=torch.Generator().manual_seed(0)).to(real)[None]

    def apply(x: Tensor) -> Tensor:
        pair = x.view(2, n).T
        straight, crossed = real @ pair, imaginary @ pair
        return torch.stack((straight[:, 0] - crossed[:, 1], straight[:, 1] + crossed[:, 0])).view(1, -1)

    top, residual, _ = lanczos(apply, start, tolerance=1e-4 if steps > _ROUGH_STEPS else 0.0, max_steps=steps)
    return float(top), float(residual * top)


def _below(gram: _Gram, limit: float) -> bool:
    """Is limit·I − P*P positive definite? A Cholesky factorisation is the proof."""
    real, imaginary = gram
    shifted = limit * torch.eye(len(real), dtype=real.dtype, device=real.device) - real
    return int(torch.linalg.cholesky_ex(torch.complex(shifted, -imaginary)).info) == 0


def _exact_at(kernel: Tensor, size: tuple[int, ...], chosen: Tensor) -> Iterator[float]:
    """σ_max in double precision at the chosen frequencies."""
    taps = kernel.flatten(2).movedim(2, 0)
    for wave in _waves(kernel, size, _offsets(kernel.shape[2:]))[chosen]:
        matrix = torch.tensordot(wave, taps.to(wave.dtype), dims=1)
        yield float(spectral_norms(matrix, tolerance=1e-5).values)


def _autocorrelation(kernel: Tensor) -> dict[tuple[int, ...], Tensor]:
    """The coefficients of P*P by lag: Σ over pairs of taps that far apart of K_aᵀ K_b."""
    taps = kernel.flatten(2).movedim(2, 0)
    offsets = _offsets(kernel.shape[2:])
    lags: dict[tuple[int, ...], Tensor] = {}
    for a, x in enumerate(offsets):
        products = taps[a].T @ taps
        for b, y in enumerate(offsets):
            lag = tuple(j - i for i, j in zip(x, y, strict=True))
            lags[lag] = lags[lag] + products[b] if lag in lags else products[b]
    return lags


def _waves(kernel: Tensor, size: tuple[int, ...], offsets: list[tuple[int, ...]]) -> Tensor:
    """e^{−2πi⟨u/p, offset⟩} for the half spectrum: (frequencies, offsets)."""
    halves = [*size[:-1], size[-1] // 2 + 1]
    points = torch.cartesian_prod(
        *(torch.arange(n, dtype=torch.float64) / p for n, p in zip(halves, size, strict=True))
    )
    angles = points.reshape(-1, len(size)) @ torch.tensor(offsets, dtype=torch.float64).T
    return torch.polar(torch.ones_like(angles), -2 * math.pi * angles).to(kernel.device)


def _offsets(spatial: Sequence[int]) -> list[tuple[int, ...]]:
    return list(product(*(range(n) for n in spatial)))


def _unfolded_bound(kernel: Tensor) -> float:
    """√(taps) · ‖unfolded kernel‖₂: a convolution is a patch extraction of norm ≤ √taps, then one matrix."""
    taps = kernel[0, 0].numel()
    flat = [kernel.flatten(1), kernel.transpose(0, 1).flatten(1)]
    grams = [spectral_norms(matrix @ matrix.T, tolerance=1e-5) for matrix in flat]
    return math.sqrt(taps * min(float(found.values) * (1 + 1e-4) for found in grams))


def _bracket(
    kernel: Tensor, size: tuple[int, ...], pad: int, stride: int, groups: int, certify: bool, *, circular: bool
) -> OperatorNorm:
    _fits(kernel, size, pad)
    shape = (1, kernel.shape[1] * groups, *size)
    weight = kernel.double() if math.prod(shape) <= 2**16 else kernel

    def forward(x: Tensor) -> Tensor:
        x = F.pad(x, _wrap(kernel), mode="circular") if circular else x
        y: Tensor = _CONV[len(size)](x, weight, stride=stride, padding=0 if circular else pad, groups=groups)
        return y

    lower, residual = _map_norm(forward, shape, weight)
    padded = tuple(n if circular else n + 2 * pad for n in size)
    around = _circular(kernel, padded, 1, groups, certify)
    return OperatorNorm(
        value=lower,
        lower=lower,
        upper=max(lower, around.upper),
        exact=False,
        method=f"Lanczos on the map (residual {residual:.1e}); upper: circular norm on {'×'.join(map(str, padded))}",
    )


def _map_norm(forward: Callable[[Tensor], Tensor], shape: tuple[int, ...], weight: Tensor) -> tuple[float, float]:
    """The Lanczos value of a linear map given as a function; its adjoint is its vector-Jacobian product."""
    scale = float(weight.abs().max()) or 1.0
    start = torch.randn(math.prod(shape), generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def apply(x: Tensor) -> Tensor:
        y, back = torch.func.vjp(forward, x.reshape(shape))[:2]
        image: Tensor = back(y / scale**2)[0]
        return image.reshape(1, -1)

    steps = max(8, min(300, 2**27 // start.numel()))
    top, residual, _ = lanczos(apply, start.to(weight)[None], tolerance=1e-7, max_steps=steps)
    return scale * math.sqrt(max(0.0, float(top))), float(residual) / 2


def _largest(found: list[OperatorNorm]) -> OperatorNorm:
    best = max(found, key=lambda norm: norm.value)
    upper = max(norm.upper for norm in found)
    exact = all(norm.exact for norm in found)
    return OperatorNorm(value=best.value, lower=best.value, upper=upper, exact=exact, method=best.method)


def _dilate(weight: Tensor, dilation: int) -> Tensor:
    if dilation == 1:
        return weight
    spread = weight.new_zeros(*weight.shape[:2], *(dilation * (n - 1) + 1 for n in weight.shape[2:]))
    view = spread
    for axis in range(2, weight.ndim):
        view = view[(slice(None),) * axis + (slice(None, None, dilation),)]
    view.copy_(weight)
    return spread


def _rows(padding: Padding, kernel: Tensor) -> int:
    """Zero rows on each side."""
    if isinstance(padding, int) and padding >= 0:
        return padding
    if padding == "circular":
        return 0
    if padding != "zeros":
        raise ArgumentError(f"padding = {padding!r}: give 'circular', 'zeros' (same size) or a number of rows >= 0.")
    spatial = set(kernel.shape[2:])
    if len(spatial) > 1 or max(spatial) % 2 == 0:
        raise ArgumentError(
            f"padding='zeros' keeps the size, which needs one odd kernel size; this one is {tuple(kernel.shape[2:])}. "
            "Give the number of zero rows instead."
        )
    return int(max(spatial) // 2)


def _wrap(kernel: Tensor) -> list[int]:
    """Circular padding that makes a valid convolution the circular one, in the order F.pad wants."""
    return [side for n in reversed(kernel.shape[2:]) for side in (0, n - 1)]


def _checked(weight: Tensor, size: Sequence[int], *, stride: int, dilation: int, groups: int) -> Tensor:
    if weight.ndim not in (3, 4, 5) or weight.ndim - 2 != len(size):
        raise ArgumentError(
            f"weight has shape {tuple(weight.shape)} and input_size is {tuple(size)}: "
            "give (out, in, *kernel) and one size for each kernel axis."
        )
    if min(stride, dilation, groups) < 1 or weight.shape[0] % groups:
        raise ArgumentError(f"stride = {stride}, dilation = {dilation}, groups = {groups} do not fit the kernel.")
    if not weight.is_floating_point() or not bool(torch.isfinite(weight).all()) or weight.numel() == 0:
        raise ArgumentError("weight must hold finite real floating-point values.")
    return weight if weight.dtype in (torch.float32, torch.float64) else weight.float()


def _fits(kernel: Tensor, size: Sequence[int], pad: int) -> None:
    wide = [k for k, n in zip(kernel.shape[2:], size, strict=True) if k > n + 2 * pad]
    if wide:
        raise ArgumentError(
            f"the kernel reaches over {tuple(kernel.shape[2:])} (dilation included), more than the map "
            f"{tuple(size)} with {pad} rows of padding on each side."
        )
