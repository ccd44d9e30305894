"""Moments of a layer's entries, and their distances from the laws that the theorems assume."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats
from torch import Tensor

from secateurs.diagnosis.entries import Entries
from secateurs.diagnosis.layers import Fit, Moments
from secateurs.errors import ParameterError


def moments_of(
    scaled: "np.ndarray[Any, Any]", size: float, shape: Sequence[int], varied: bool
) -> Moments:
    """Of entries `size` times as large as the scaled ones."""
    mean, variance, square = float(scaled.mean()), float(scaled.var()), size * size
    second = float((scaled**2).mean()) * square
    fourth = float((scaled**4).mean()) * square * square
    wide, channels = max(shape[0], math.prod(shape[1:])), max(shape[:2])
    return Moments(
        mean=mean * size,
        variance=variance * square,
        kurtosis=float(((scaled - mean) ** 4).mean()) / variance**2
        if varied
        else 0.0,
        k=math.sqrt(3 * variance * wide) * size,
        k1=second * wide,
        k2=fourth * wide**2,
        c1=channels * second,
        c2=channels**2 * fourth,
    )


def fit_of_entries(entries: Entries) -> Fit:
    """What a diagnosis tells of these figures."""
    return Fit(
        mean_z=entries.mean_ratio * math.sqrt(entries.count),
        bias_ratio=entries.mean_ratio,
        ks_normal=entries.ks_normal,
        ks_uniform=entries.ks_uniform,
        carried=entries.carried,
    )


def alive(name: str, weight: Tensor) -> tuple["np.ndarray[Any, Any]", float]:
    """The entries that speak for the law (zeros left out when there are many), and the share of
    zeros.
    """
    values = weight.double().cpu().numpy().ravel()
    if not np.isfinite(values).all():
        raise ParameterError(
            f"{name!r} holds NaN or infinite weights; train it anew or leave it out with where=."
        )
    pruned = float((values == 0).mean())
    # A few exact zeros are chance or initialisation; many are a mask, and no law of
    # weights.
    return (values[values != 0] if left_out(pruned) else values), pruned


def left_out(pruned: float) -> tuple[str, ...]:
    """The note on zeros that are left out; empty where they are few, or all there is."""
    return (
        (f"{100 * pruned:.1f} % of the entries are zero and left out",)
        if 0.001 < pruned < 1
        else ()
    )


def entries_of(scaled: "np.ndarray[Any, Any]") -> Entries:
    """Figures without a scale, of entries whose largest is 1."""
    mean, deviation, powers = float(scaled.mean()), float(scaled.std()), scaled**4
    varied = bool((scaled != scaled[0]).any())
    # A uniform law on ±h has the deviation h/√3.
    half = math.sqrt(3) * deviation
    return Entries(
        count=len(scaled),
        varied=varied,
        mean_ratio=abs(mean) / deviation if varied else 0.0,
        heavy=float(powers.mean()) / float((scaled**2).mean()) ** 2
        if varied
        else 0.0,
        carried=float(powers.max() / powers.sum()) if varied else 0.0,
        ks_normal=_distance(scaled, stats.norm(mean, deviation)) if varied else 1.0,
        ks_uniform=_distance(scaled, stats.uniform(mean - half, 2 * half))
        if varied
        else 1.0,
    )


def _distance(values: "np.ndarray[Any, Any]", law: Any) -> float:
    """sup|F_n − F|, without the p-value (whose exact form costs far more than the distance)."""
    ordered = np.sort(values)
    below = law.cdf(ordered)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    # Both one-sided distances: F_n jumps at each entry, so the supremum lies just
    # before or at a jump.
    return float(max((steps[1:] - below).max(), (below - steps[:-1]).max()))
