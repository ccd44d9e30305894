"""Norms of circular convolutions, which the Fourier transform makes block diagonal.

Lemma 7 (Qian & Klabjan 2021; Sedghi, Gupta & Long 2019, Theorem 6): a circular convolution with
kernel K on p×p maps has the singular values of the matrices P^(u,v) = Σ_ij K_:,:,i,j
e^{2πi(ui+vj)/p}, so ‖W‖₂ = max_uv ‖P^(u,v)‖₂. K is real: P^(−u,−v) is the conjugate of P^(u,v), and
half of the frequencies suffice.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from secateurs.theory.operator_norms.bracket import OperatorNorm, largest_of
from secateurs.theory.operator_norms.gram_search import by_gram
from secateurs.theory.operator_norms.kernels import fold, polyphase, without_repeats
from secateurs.theory.operator_norms.maps import ConvMap
from secateurs.theory.operator_norms.shapes import checked, fits, sides


def lemma_7(weight: Tensor, input_size: int | Sequence[int]) -> Tensor:
    """Lemma 7: all singular values of the circular convolution, descending: those of the p²
    matrices P^(u,v).

    >>> lemma_7(torch.ones(1, 1, 1, 1), (2, 2)).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    input_size = sides(weight, input_size)
    weight = checked(weight, input_size, groups=1)
    fits(weight, input_size, ((0, 0),) * len(input_size))
    values: Tensor = torch.linalg.svdvals(_spectrum(weight, tuple(input_size)))
    return values.flatten().sort(descending=True).values


def circular_norm(
    conv: ConvMap, size: tuple[int, ...], certify: bool
) -> OperatorNorm:
    """The circular convolution on maps of `size`, which the stride divides.

    A grouped convolution is a direct sum: its norm is the largest of its groups'.
    """
    size = tuple(n // s for n, s in zip(size, conv.stride, strict=True))
    # Groups touch different channels, so the map is a direct sum.
    parts = conv.kernel.chunk(conv.groups)
    found = [
        _circular_group(polyphase(part, conv.stride), size, certify) for part in parts
    ]
    return found[0] if len(found) == 1 else largest_of(found)


def _circular_group(
    kernel: Tensor, size: tuple[int, ...], certify: bool
) -> OperatorNorm:
    kernel, size = without_repeats(fold(kernel, size), size)
    if not is_dense(kernel):
        return by_gram(kernel, size, certify)
    # K is real, so P(−ω) is the conjugate of P(ω) and has the same singular values.
    matrices = _half(_spectrum(kernel, size))
    value = max(_top(part) for part in torch.split(matrices, _SPLIT))
    return OperatorNorm(
        value=value,
        lower=value,
        upper=value,
        exact=True,
        method="singular values of every frequency",
    )


def _top(matrices: Tensor) -> float:
    """The largest singular value, off the smaller Gram matrix: twice as fast, and the largest loses
    no digit.
    """
    gram = (
        matrices @ matrices.mH
        if matrices.shape[-2] <= matrices.shape[-1]
        else matrices.mH @ matrices
    )
    return math.sqrt(max(0.0, float(torch.linalg.eigvalsh(gram)[..., -1].max())))


_DENSE_SIDE = 128
_SPLIT = 256


def is_dense(kernel: Tensor) -> bool:
    """Few enough channels, on one side, to take every singular value of every frequency."""
    return min(kernel.shape[:2]) <= _DENSE_SIDE


def _spectrum(kernel: Tensor, size: tuple[int, ...]) -> Tensor:
    """P as (p, …, p, out, in): the transform of the kernel, in double precision."""
    spatial = tuple(range(-len(size), 0))
    # Zero-padded to the map by `s`; in double, for the result is called exact.
    spectrum: Tensor = torch.fft.fftn(kernel.double(), s=size, dim=spatial)
    return spectrum.movedim((0, 1), (-2, -1))


def _half(matrices: Tensor) -> Tensor:
    """Flatten the frequencies, keeping half of the last axis: the rest are conjugates."""
    # Of n frequencies along an axis, 0 … n/2 are enough: the others mirror them.
    kept = matrices.shape[-3] // 2 + 1
    return matrices.narrow(-3, 0, kept).reshape(-1, *matrices.shape[-2:])
