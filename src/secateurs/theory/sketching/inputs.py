"""What the sketching statements are asked with, checked and read as float64; every error names the
argument.
"""

from numbers import Real

import torch
from torch import Tensor

from secateurs.errors import ArgumentError


def whole(name: str, value: float) -> int:
    """A number of draws or examples: 1, 2, 3, …"""
    if (
        isinstance(value, bool)
        or not isinstance(value, Real)
        or not value >= 1
        or value % 1 != 0
    ):
        raise ArgumentError(
            f"{name} = {value!r} is not a whole number of at least 1."
        )
    return int(value)


def check_share(uniform: float) -> None:
    """The uniform mass to mix in, between 0 and 1."""
    if not 0 <= uniform <= 1:
        raise ArgumentError(f"uniform = {uniform:g} is not a share in [0, 1].")


def matrix(X: Tensor) -> Tensor:
    """X, one row per coordinate of w."""
    if X.ndim != 2:
        raise ArgumentError(
            f"X has shape {tuple(X.shape)}: give a matrix, one row per coordinate of w."
        )
    return finite("X", X)


def vector(name: str, w: Tensor, X: Tensor) -> Tensor:
    """One entry of w per row of X."""
    if w.ndim != 1 or w.numel() != X.shape[0]:
        raise ArgumentError(
            f"{name} has shape {tuple(w.shape)}; give a vector of {X.shape[0]} entries, one per row"
            " of X."
        )
    return finite(name, w)


def finite(name: str, values: Tensor) -> Tensor:
    """Real, finite values, at least one."""
    if values.is_complex() or not values.numel():
        what = (
            f"{values.dtype} values"
            if values.numel()
            else f"no entries (shape {tuple(values.shape)})"
        )
        raise ArgumentError(f"{name} has {what}: give real numbers.")
    bad = (~values.isfinite()).nonzero()
    if len(bad):
        raise ArgumentError(
            f"{name} has {len(bad)} NaN or infinite entries of {values.numel()} (first:"
            f" {bad[0].tolist()}). Repair them first, for instance with torch.nan_to_num."
        )
    return values.double()


def check_probabilities(p: Tensor) -> Tensor:
    """p as float64 and summing to 1 there, if it is finite, non-negative and sums to 1 as well as
    its dtype can.
    """
    if p.ndim != 1 or p.numel() == 0:
        raise ArgumentError(
            f"p has shape {tuple(p.shape)}: give one probability per coordinate, in one dimension."
        )
    values = finite("p", p)
    if float(values.min()) < 0:
        raise ArgumentError(
            f"p holds values that are no probabilities; the smallest is {float(values.min()):g}."
        )
    total = float(values.sum())
    # Divided once more in float64 below, so that later sums are 1 to the last digit.
    if abs(total - 1) > _slack(p):
        raise ArgumentError(f"p sums to {total:.8g}, not to 1. Divide it by its sum.")
    return values / total


def _slack(p: Tensor) -> float:
    """Half precision leaves p/Σp a relative ε (its own and the sum's rounding) and every tiny entry
    half a quantum.
    """
    if not p.is_floating_point():
        return 1e-6
    kind = torch.finfo(p.dtype)
    return max(1e-6, 2 * kind.eps + p.numel() * kind.smallest_normal * kind.eps)
