"""The distribution of trained weights, layer by layer, against what the theorems of Qian & Klabjan (2021) assume."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats
from torch import Tensor, nn

from secateurs.errors import EmptySelectionError, ParameterError
from secateurs.parameters import Where, prunable

BINS = 61
CLOSE = 0.02
"""A Kolmogorov–Smirnov distance up to this counts as "close". (With 10^6 weights every exact test rejects: the
distance says how far, the p-value only how sure.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDiagnosis:
    """One layer: moments, fits and which assumptions hold.

    * `k`: K of the fitted uniform ±K/√max(fans), from the variance; `k1`, `k2`: E w² · max and E w⁴ · max².
    * `ks_normal`, `ks_uniform`: Kolmogorov–Smirnov distances to the fitted laws.
    * `mean_z`: the mean in standard errors; `bias_ratio`: |mean| over the standard deviation.
    * `edges`, `counts`: the histogram of the entries.
    """

    name: str
    shape: tuple[int, ...]
    pruned_share: float
    mean: float
    variance: float
    kurtosis: float
    mean_z: float
    bias_ratio: float
    k: float
    k1: float
    k2: float
    ks_normal: float
    ks_uniform: float
    magnitude: bool
    random: bool
    notes: tuple[str, ...]
    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All layers; `str(diagnosis)` is a table, `rows()` plain data for JSON."""

    layers: tuple[LayerDiagnosis, ...]

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per layer."""
        return [asdict(layer) for layer in self.layers]

    def __str__(self) -> str:
        head = f"{'layer':24} {'mean':>9} {'variance':>9} {'kurt.':>6} {'KS norm':>8} {'KS unif':>8}  assumptions"
        return "\n".join([head, *(_line(layer) for layer in self.layers)])


def diagnose(model: "nn.Module | Mapping[str, Tensor]", *, where: Where = None) -> Diagnosis:
    """Per layer: moments, kurtosis, distance to fitted normal and uniform, histogram, and which theorem may be asked.

    Takes a model, or weights by name (a checkpoint). Entries that are exactly zero (pruned) are left out when they
    make up more than a thousandth, and their share is reported. Theorem 1 needs iid uniform entries; Theorem 2
    independent mean-zero ones (the bound on the second and fourth moment then holds with the `k1`, `k2` printed).
    Independence cannot be seen in one matrix and is assumed. All verdicts are about fit, never proofs.

    >>> from torch import nn
    >>> report = diagnose(nn.Linear(64, 64))  # the default initialisation is uniform
    >>> report.layers[0].magnitude, report.layers[0].ks_normal > report.layers[0].ks_uniform
    (True, True)
    """
    weights = prunable(model, where) if isinstance(model, nn.Module) else _matrices(model)
    return Diagnosis(layers=tuple(_layer(name, weight.detach()) for name, weight in weights.items()))


def _matrices(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a checkpoint a theorem could speak of: floating point, at least two dimensions."""
    kept = {name: w for name, w in weights.items() if w.ndim >= 2 and w.is_floating_point() and min(w.shape) > 0}
    if not kept:
        raise EmptySelectionError(f"none of the {len(weights)} tensors is a floating-point weight with two dimensions.")
    return kept


def _layer(name: str, weight: Tensor) -> LayerDiagnosis:
    values = weight.double().cpu().numpy().ravel()
    if not np.isfinite(values).all():
        raise ParameterError(f"{name!r} holds NaN or infinite weights; train it anew or leave it out with where=.")
    pruned = float((values == 0).mean())
    values = values[values != 0] if 0.001 < pruned < 1 else values
    size = float(np.abs(values).max()) or 1.0
    scaled = values / size  # fourth moments of 1e-30 or 1e30 stay inside the floating-point range
    mean, variance = float(scaled.mean()), float(scaled.var())
    deviation = math.sqrt(variance)
    wide = max(weight.shape[0], math.prod(weight.shape[1:]))
    half = math.sqrt(3 * variance)
    normal = _distance(scaled, stats.norm(mean, deviation)) if variance else 1.0
    uniform = _distance(scaled, stats.uniform(mean - half, 2 * half)) if variance else 1.0
    ratio = abs(mean) / deviation if variance else 0.0
    counts, edges = np.histogram(values, bins=BINS)
    return LayerDiagnosis(
        name=name,
        shape=tuple(weight.shape),
        pruned_share=pruned,
        mean=mean * size,
        variance=variance * size**2,
        kurtosis=float((((scaled - mean) / deviation) ** 4).mean()) if variance else 0.0,
        mean_z=ratio * math.sqrt(len(values)),
        bias_ratio=ratio,
        k=half * size * math.sqrt(wide),
        k1=float((scaled**2).mean()) * size**2 * wide,
        k2=float((scaled**4).mean()) * (size**2 * wide) ** 2,
        ks_normal=normal,
        ks_uniform=uniform,
        magnitude=uniform <= _critical(len(values)) and ratio <= _small(len(values)),
        random=variance > 0 and ratio <= _small(len(values)),
        notes=_notes(normal, uniform, ratio, len(values), pruned, variance),
        edges=tuple(map(float, edges)),
        counts=tuple(map(int, counts)),
    )


def _distance(values: "np.ndarray[Any, Any]", law: Any) -> float:
    """sup|F_n − F|, without the p-value (whose exact form costs far more than the distance)."""
    ordered = np.sort(values)
    below = law.cdf(ordered)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return float(max((steps[1:] - below).max(), (below - steps[:-1]).max()))


def _critical(count: int) -> float:
    """Close, or not distinguishable at the 0.1 % level (1.95/√n)."""
    return max(CLOSE, 1.95 / math.sqrt(count))


def _small(count: int) -> float:
    """A mean of at most a twentieth of the deviation, or within four standard errors of zero."""
    return max(0.05, 4 / math.sqrt(count))


def _notes(normal: float, uniform: float, ratio: float, count: int, pruned: float, variance: float) -> tuple[str, ...]:
    if not variance:
        return ("all entries are equal: no theorem applies",)
    nearer = "normal" if normal < uniform else "uniform"
    notes = [f"nearer to {nearer} (KS {min(normal, uniform):.3f} against {max(normal, uniform):.3f})"]
    if uniform > _critical(count):
        notes.append(f"Theorem 1 does not apply: KS to uniform {uniform:.3f} > {_critical(count):.3f}")
    if ratio > _small(count):
        notes.append(f"mean is {ratio:.2f} deviations from zero, Theorems 1-3 assume zero")
    if pruned > 0.001:
        notes.append(f"{100 * pruned:.1f} % of the entries are zero and left out")
    return tuple(notes)


def _line(layer: LayerDiagnosis) -> str:
    holds = [name for name, good in (("magnitude (Thm 1)", layer.magnitude), ("random (Thm 2)", layer.random)) if good]
    return (
        f"{layer.name[:24]:24} {layer.mean:9.2e} {layer.variance:9.2e} {layer.kurtosis:6.2f} "
        f"{layer.ks_normal:8.3f} {layer.ks_uniform:8.3f}  {', '.join(holds) or 'none'}; {'; '.join(layer.notes)}"
    )
