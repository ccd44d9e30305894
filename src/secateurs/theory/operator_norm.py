"""Operator norms of convolutions: exact where the Fourier transform diagonalises them, bracketed elsewhere.

Lemma 7 (Qian & Klabjan 2021; Sedghi, Gupta & Long 2019, Theorem 6): a circular convolution with kernel K on p×p maps
has the singular values of the matrices P^(u,v) = Σ_ij K_:,:,i,j e^{2πi(ui+vj)/p}, so ‖W‖₂ = max_uv ‖P^(u,v)‖₂.
K is real: P^(−u,−v) is the conjugate of P^(u,v), and half of the frequencies suffice.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from secateurs.theory.conv_shapes import Padding, checked, dilate, fits, rows, sides, without_repeats, wrap
from secateurs.theory.frequencies import Grams
from secateurs.theory.loudest import FAILURE, all_below, loudest
from secateurs.theory.spectral import lanczos, spectral_norms

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorNorm:
    """lower ≤ ‖W‖₂ ≤ upper, both proven up to rounding; `value` is the best estimate.

    `exact`: proven within 1e-5, by the method named. `failure`: where a random start was used and nothing else proves
    the value, the probability among all starts that a norm above value·(1 + 1e-6) was missed; None if not known.
    """

    value: float
    lower: float
    upper: float
    exact: bool
    method: str
    failure: float | None = None

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
      stride s, of s² aliased ones side by side). When both sides have more than 128 channels a search by Lanczos
      takes their place: `value` is a converged lower bound, `failure` how probable it is that the search missed a
      larger one, `upper` a bound by the unfolded kernel; `certify=True` proves the value within 1e-5 by Cholesky
      factorisations.
    * zero padding ("zeros" is "same"; or a number of rows), or a stride that does not divide the map: `value` and
      `lower` are the Lanczos value of the map itself; `upper` is the circular norm on the padded map, of which the
      convolution is a part.

    Dilated and even kernels are exact in the circular case; "zeros" needs an odd kernel.

    >>> delta = torch.zeros(1, 1, 3, 3); delta[0, 0, 1, 1] = 2.0
    >>> norm = conv_operator_norm(delta, (8, 8))
    >>> round(norm.value, 12), norm.exact, conv_operator_norm(delta, (8, 8), padding="zeros").exact
    (2.0, True, False)
    """
    input_size = sides(weight, input_size)
    weight = checked(weight, input_size, stride=stride, dilation=dilation, groups=groups)
    kernel = dilate(weight.detach(), dilation)
    if padding == "circular":
        fits(kernel, input_size, 0)
        if all(size % stride == 0 for size in input_size):
            return _circular(kernel, tuple(input_size), stride, groups, certify)
    pad = rows(padding, kernel)
    return _bracket(kernel, tuple(input_size), pad, stride, groups, certify, circular=padding == "circular")


def lemma_7(weight: Tensor, input_size: int | Sequence[int]) -> Tensor:
    """Lemma 7: all singular values of the circular convolution, descending: those of the p² matrices P^(u,v).

    >>> lemma_7(torch.ones(1, 1, 1, 1), (2, 2)).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    input_size = sides(weight, input_size)
    weight = checked(weight, input_size, stride=1, dilation=1, groups=1)
    fits(weight, input_size, 0)
    values: Tensor = torch.linalg.svdvals(_spectrum(weight, tuple(input_size)))
    return values.flatten().sort(descending=True).values


def _circular(kernel: Tensor, size: tuple[int, ...], stride: int, groups: int, certify: bool) -> OperatorNorm:
    """A grouped convolution is a direct sum: its norm is the largest of its groups'."""
    found = [_circular_group(part, size, stride, certify) for part in kernel.chunk(groups)]
    return found[0] if len(found) == 1 else _largest(found)


def _circular_group(kernel: Tensor, size: tuple[int, ...], stride: int, certify: bool) -> OperatorNorm:
    if stride == 1:
        kernel, size = without_repeats(kernel, size)
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
    """Gram matrices on the smaller side, scaled to a largest entry of 1."""
    scale = float(kernel.abs().max())
    if scale == 0:
        return OperatorNorm(value=0.0, lower=0.0, upper=0.0, exact=True, method="zero kernel")
    kernel = (kernel if kernel.shape[1] <= kernel.shape[0] else kernel.transpose(0, 1)).double() / scale
    grams = Grams.of(kernel.float(), size)
    best = loudest(kernel, grams).value
    method = "Gram matrices and Lanczos at every frequency"
    if certify and all_below(grams, best * (1 + _CERTIFIED)):
        upper, method = best * (1 + _CERTIFIED), f"{method}, certified by Cholesky"
        return OperatorNorm(value=best * scale, lower=best * scale, upper=upper * scale, exact=True, method=method)
    upper = max(best, _unfolded_bound(kernel.float()))
    return OperatorNorm(
        value=best * scale, lower=best * scale, upper=upper * scale, exact=False, method=method, failure=FAILURE
    )


_CERTIFIED = 1e-5


def _unfolded_bound(kernel: Tensor) -> float:
    """√(taps) · ‖unfolded kernel‖₂: a convolution is a patch extraction of norm ≤ √taps, then one matrix."""
    taps = kernel[0, 0].numel()
    flat = [kernel.flatten(1), kernel.transpose(0, 1).flatten(1)]
    grams = [spectral_norms(matrix @ matrix.T, tolerance=1e-5) for matrix in flat]
    return math.sqrt(taps * min(float(found.values) * (1 + 1e-4) for found in grams))


def _bracket(
    kernel: Tensor, size: tuple[int, ...], pad: int, stride: int, groups: int, certify: bool, *, circular: bool
) -> OperatorNorm:
    fits(kernel, size, pad)
    shape = (1, kernel.shape[1] * groups, *size)
    weight = kernel.double() if math.prod(shape) <= 2**16 else kernel

    def forward(x: Tensor) -> Tensor:
        x = F.pad(x, wrap(kernel), mode="circular") if circular else x
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
    failure = sum(norm.failure or 0.0 for norm in found) or None
    return OperatorNorm(
        value=best.value, lower=best.value, upper=upper, exact=exact, method=best.method, failure=failure
    )
