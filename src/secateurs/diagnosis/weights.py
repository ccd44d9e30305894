"""The distribution of trained weights, layer by layer, against what the theorems of Qian & Klabjan
(2021) assume.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy import stats
from torch import Tensor, nn

from secateurs.diagnosis.roles import Kind, Role, checkpoint_roles, module_roles
from secateurs.diagnosis.verdicts import Entries, Verdict, judge
from secateurs.errors import EmptySelectionError, ParameterError
from secateurs.parameters import Where, check_model, prunable

BINS = 61


@dataclass(frozen=True, kw_only=True)
class Moments:
    """The moments of a layer's entries, and the scales that the theorems ask for.

    * `k`: K of the fitted uniform ±K/√max(fans), from the variance.
    * `k1`, `k2`: E w² · max and E w⁴ · max².
    * `c1`, `c2`, of convolutions: d·E w² and d²·E w⁴, so that C1 = c1·p², C2 = c2·p⁴ on p×p maps.
    """

    mean: float
    variance: float
    kurtosis: float
    k: float
    k1: float
    k2: float
    c1: float | None
    c2: float | None


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How far the entries are from what the theorems assume, free of scale.

    * `mean_z`: the mean in standard errors; `bias_ratio`: |mean| over the standard deviation.
    * `ks_normal`, `ks_uniform`: Kolmogorov–Smirnov distances to the fitted laws.
    * `carried`: the share of the largest entry in the sum of fourth powers.
    """

    mean_z: float
    bias_ratio: float
    ks_normal: float
    ks_uniform: float
    carried: float


@dataclass(frozen=True, kw_only=True)
class LayerDiagnosis(Moments, Fit, Verdict):
    """One layer: its moments, its fit and the verdict on Theorems 1, 2 and 3.

    * `kind`: linear layers may ask Theorems 1 and 2, convolutions the third; "other" weights
      (recurrent, attention, bilinear) are no layers of a chain.
    * `edges`, `counts`: the histogram of the entries.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    pruned_share: float
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
        head = (
            f"{'layer':24} {'mean':>9} {'variance':>9} {'kurt.':>6} {'KS norm':>8} {'KS unif':>8} "
            " assumptions"
        )
        return "\n".join([head, *(_line(layer) for layer in self.layers)])


def diagnose(
    model: "nn.Module | Mapping[str, Tensor]", *, where: Where = None
) -> Diagnosis:
    """Per layer: moments, kurtosis, distance to fitted normal and uniform, histogram, and which
    theorem may be asked.

    Takes a model, or weights by name (a checkpoint). Entries that are exactly zero (pruned) are
    left out when they make up more than a thousandth, and their share is reported. Assumed of the
    entries of a layer:

    * Theorem 1 (magnitude): independent and uniform around zero.
    * Theorem 2 (random entries): independent, of mean zero, with a fourth moment (`k1`, `k2` are
      what it asks).
    * Theorem 3 (random filters): as Theorem 2, of a circular convolution of d channels onto d with
      stride 1.
    * The explicit forms (`plan`, law="bounded") of 2 and 3: independent, of mean zero, bounded.

    Independence cannot be seen in one matrix and is assumed. All verdicts are about fit, never
    proofs; biases, activations and the order of layers belong to the chain, which `plan` reads.
    Moments beyond the range of float64 are infinite or zero, and no verdict depends on them.

    >>> from torch import nn
    >>> report = diagnose(nn.Linear(64, 64))  # the default initialisation is uniform
    >>> report.layers[0].magnitude, report.layers[0].ks_normal > report.layers[0].ks_uniform
    (True, True)
    """
    if not isinstance(model, nn.Module | Mapping):
        check_model(model)
    weights = (
        prunable(model, where) if isinstance(model, nn.Module) else _matrices(model)
    )
    roles = (
        module_roles(model)
        if isinstance(model, nn.Module)
        else checkpoint_roles(weights)
    )
    return Diagnosis(
        layers=tuple(
            _layer(name, weight.detach(), roles[name])
            for name, weight in weights.items()
        )
    )


def _matrices(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a checkpoint a theorem could speak of: floating point, at least two
    dimensions.
    """
    kept = {
        name: w
        for name, w in weights.items()
        if w.ndim >= 2 and w.is_floating_point() and min(w.shape) > 0
    }
    if not kept:
        raise EmptySelectionError(
            f"none of the {len(weights)} tensors is a floating-point weight with two dimensions."
        )
    return kept


def _layer(name: str, weight: Tensor, role: Role) -> LayerDiagnosis:
    values, pruned = _alive(name, weight)
    # A layer of zeros is divided by 1.
    size = float(np.abs(values).max()) or 1.0
    # Fourth moments of 1e-30 or 1e200 stay inside the floating-point range.
    scaled = values / size
    entries = _entries(scaled)
    counts, edges = np.histogram(scaled, bins=BINS)
    moments = _moments(scaled, size, weight.shape, entries.varied)
    verdict = judge(entries, role, (moments.c1 or 0.0, moments.c2 or 0.0))
    # C1 and C2 belong to Theorem 3, which speaks of convolutions only.
    if role.kind != "convolution":
        moments = replace(moments, c1=None, c2=None)
    return LayerDiagnosis(
        name=name,
        shape=tuple(weight.shape),
        kind=role.kind,
        pruned_share=pruned,
        edges=tuple(float(edge) * size for edge in edges),
        counts=tuple(map(int, counts)),
        **asdict(moments),
        **asdict(_fit(entries)),
        **asdict(verdict) | {"notes": (*verdict.notes, *_left_out(pruned))},
    )


def _moments(
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


def _fit(entries: Entries) -> Fit:
    return Fit(
        mean_z=entries.mean_ratio * math.sqrt(entries.count),
        bias_ratio=entries.mean_ratio,
        ks_normal=entries.ks_normal,
        ks_uniform=entries.ks_uniform,
        carried=entries.carried,
    )


def _alive(name: str, weight: Tensor) -> tuple["np.ndarray[Any, Any]", float]:
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
    return (values[values != 0] if _left_out(pruned) else values), pruned


def _left_out(pruned: float) -> tuple[str, ...]:
    return (
        (f"{100 * pruned:.1f} % of the entries are zero and left out",)
        if 0.001 < pruned < 1
        else ()
    )


def _entries(scaled: "np.ndarray[Any, Any]") -> Entries:
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


def _line(layer: LayerDiagnosis) -> str:
    verdicts = (
        ("magnitude (Thm 1)", layer.magnitude),
        ("random (Thm 2)", layer.random),
        ("filters (Thm 3)", layer.filters),
    )
    holds = ", ".join(name for name, good in verdicts if good)
    return (
        f"{layer.name[:24]:24} {layer.mean:9.2e} {layer.variance:9.2e} {layer.kurtosis:6.2f}"
        f" {layer.ks_normal:8.3f} {layer.ks_uniform:8.3f}  {holds or 'none'};"
        f" {'; '.join(layer.notes)}"
    )
