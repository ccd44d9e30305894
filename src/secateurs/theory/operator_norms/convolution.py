"""Operator norms of convolutions: exact where the Fourier transform diagonalises them, bracketed
elsewhere.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from secateurs.theory.operator_norms.bracket import OperatorNorm
from secateurs.theory.operator_norms.circular import circular_norm, is_dense
from secateurs.theory.operator_norms.gram_search import unfolded_bound
from secateurs.theory.operator_norms.kernels import polyphase
from secateurs.theory.operator_norms.maps import ConvMap, conv_map
from secateurs.theory.operator_norms.padded import map_norm
from secateurs.theory.operator_norms.repeats import repeats
from secateurs.theory.operator_norms.shapes import Padding, PaddingMode


def conv_operator_norm(
    weight: Tensor,
    input_size: int | Sequence[int],
    *,
    padding: Padding = "circular",
    padding_mode: PaddingMode = "zeros",
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    certify: bool = False,
) -> OperatorNorm:
    """The largest singular value of x ↦ conv(x, weight) on maps of `input_size`, for 1-, 2- and 3-D
    kernels.

    `input_size`, `stride` and `dilation` are one number for all axes, or one for each.

    * `padding="circular"`, stride dividing the map: exact, by the singular values of the p² small
      matrices (a stride s makes s² channels of one, on a map smaller by s). When both sides have
      more than 128 channels a search by Lanczos takes their place: `value` is a converged lower
      bound, `failure` how probable it is that the search missed a larger one, `upper` a bound by
      the unfolded kernel; `certify=True` proves the value within 1e-5 by Cholesky factorisations.
    * zero padding ("zeros" is "same"; a number of rows; or for each axis a number or a pair
      (before, after)), or a stride that does not divide the map: `value` and `lower` are the
      Lanczos value of the map itself; `upper` is the circular norm on the padded map, of which the
      convolution is a part (above 128 channels, without `certify`: a bound by the unfolded kernel).
    * `padding_mode` says what the rows hold, as in torch. `upper` for "reflect" and "replicate":
      the norm of the padding (the root of how often it repeats an entry) times the circular norm on
      the padded map. For "circular" with other rows than the kernel's reach: the root of how often
      the outputs run through the map, rounded up, times the circular norm.

    Dilated and even kernels are exact in the circular case; "zeros" needs odd ones.

    >>> import torch
    >>> delta = torch.zeros(1, 1, 3, 3); delta[0, 0, 1, 1] = 2.0
    >>> norm = conv_operator_norm(delta, (8, 8))
    >>> round(norm.value, 12), norm.exact, conv_operator_norm(delta, (8, 8), padding="zeros").exact
    (2.0, True, False)
    """
    conv = conv_map(
        weight,
        input_size,
        padding=padding,
        padding_mode=padding_mode,
        stride=stride,
        dilation=dilation,
        groups=groups,
    )
    scale = _scale(conv.kernel)
    # Squares of the entries must stay inside the floating-point range; a power of two changes no
    # digit.
    unit = replace(conv, kernel=(conv.kernel.double() / scale).to(conv.kernel.dtype))
    return _norm(unit, certify).times(scale)


def _scale(kernel: Tensor) -> float:
    """A power of two near the largest entry."""
    exponent = math.frexp(float(kernel.abs().max()))[1]
    # Within what float64 can divide by: a kernel of zeros has exponent 0.
    return math.ldexp(1.0, min(max(exponent, -1022), 1023))


def _norm(conv: ConvMap, certify: bool) -> OperatorNorm:
    # Whole turns only: with a part of one, some outputs come more often than others,
    # and the norm is no longer a multiple.
    turns = [math.ceil(turn) for turn in conv.turns]
    if conv.mode == "circular" and turns == list(conv.turns) and _divides(conv):
        # Every output of the circular convolution comes equally often.
        return circular_norm(conv, conv.size, certify).times(
            math.sqrt(math.prod(turns))
        )
    return _bracket(conv, certify)


def _divides(conv: ConvMap) -> bool:
    """Does the stride come back to where it began after every turn?"""
    return all(n % s == 0 for n, s in zip(conv.size, conv.stride, strict=True))


def _bracket(conv: ConvMap, certify: bool) -> OperatorNorm:
    # A Rayleigh quotient of the map itself: never above its norm.
    lower, residual = map_norm(conv)
    times, around, size = _around(conv)
    upper, why = _upper(around, size, certify)
    why = why if times == 1 else f"√{times} times the {why}"
    return OperatorNorm(
        value=lower,
        lower=lower,
        # Rounding could order two equal bounds the wrong way.
        upper=max(lower, math.sqrt(times) * upper),
        exact=False,
        method=f"Lanczos on the map (residual {residual:.1e}); upper: {why}",
    )


def _around(conv: ConvMap) -> tuple[int, ConvMap, tuple[int, ...]]:
    """How often, at most, this convolution repeats a part of a circular one; that one, on a map its
    stride divides.
    """
    if conv.mode == "circular":
        times = math.prod(math.ceil(turn) for turn in conv.turns)
        return (
            times,
            conv if _divides(conv) else replace(conv, stride=(1,) * len(conv.size)),
            conv.size,
        )
    # Rows that make the stride divide the map add inputs and outputs, never take any away.
    size = tuple(
        -(-n // s) * s for n, s in zip(conv.padded, conv.stride, strict=True)
    )
    return repeats(conv), conv, size


def _upper(conv: ConvMap, size: tuple[int, ...], certify: bool) -> tuple[float, str]:
    """Without a certificate a search for the loudest frequency would prove nothing above the
    unfolded kernel.
    """
    where = f"circular norm on {'×'.join(map(str, size))}"
    parts = [polyphase(part, conv.stride) for part in conv.kernel.chunk(conv.groups)]
    if not certify and not all(map(is_dense, parts)):
        return max(
            unfolded_bound(part) for part in parts
        ), "norm of the unfolded kernel, times √taps"
    return circular_norm(conv, size, certify).upper, where
