"""The distribution of trained weights, layer by layer, against what the theorems of Qian & Klabjan
(2021) assume.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy import stats
from torch import Tensor, nn

from secateurs.base.parameters import check_model
from secateurs.base.prunable import Where, owned_parameters, prunable
from secateurs.errors import EmptySelectionError, ParameterError
from secateurs.theory.convolutions import has_explicit_bound
from secateurs.theory.laws import CLOSE, distance_to

HEAVY = 144.0
"""K2/K1² from which K2^¼ > 2√(3 K1) in c2 = C(2√(3 K1) + K2^¼) of Theorem 2: the tails decide the
bound.
"""

CARRIED = 0.25
"""The largest entry's share of Σ w⁴ from which the estimate of E w⁴ is that entry's. (Of 200
samples of 8,192 entries it finds 95 % for Student's t with 2.1 degrees of freedom, where E w⁴ is
infinite, and none for normal ones.)
"""

MANY, FEW = 1_000, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """The scale-free figures that the assumptions are about. `heavy` = E w⁴/(E w²)²."""

    count: int
    varied: bool
    mean_ratio: float
    heavy: float
    carried: float
    ks_normal: float
    ks_uniform: float

    @property
    def uniform(self) -> bool:
        """Close, or not distinguishable at the 0.1 % level (1.95/√n)."""
        return self.ks_uniform <= self.critical

    @property
    def critical(self) -> float:
        # With few entries chance alone makes a distance of 1.95/√n once in a thousand.
        return max(CLOSE, 1.95 / math.sqrt(self.count))

    @property
    def centred(self) -> bool:
        """A mean of at most a twentieth of the deviation, or within four standard errors of
        zero.
        """
        return self.mean_ratio <= self.mean_limit

    @property
    def mean_limit(self) -> float:
        # Four standard errors: a mean that chance explains is no reason to refuse.
        return max(0.05, 4 / math.sqrt(self.count))

    @property
    def tame(self) -> bool:
        """A fourth moment that is there, and not so large that it decides the bound."""
        # With few entries, one always makes up much of Σ w⁴: its share then proves nothing.
        return self.heavy <= HEAVY and (self.count < MANY or self.carried <= CARRIED)


# How the theorems see a weight: a linear layer, a 2-D convolution, or not a layer of a chain.

Kind = Literal["linear", "convolution", "other"]

CIRCULAR = "circular padding that keeps the map, stride 1, one group"


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a weight is in its network, and which statements that rules out.

    Attributes:
        misfits: What keeps a convolution out of Theorem 3 as stated.
        unseen: What a checkpoint does not tell.

    `explicit`: does its explicit form cover it?
    """

    kind: Kind
    what: str = ""
    misfits: tuple[str, ...] = ()
    explicit: bool = True
    unseen: str = ""


def module_roles(model: nn.Module) -> dict[str, Role]:
    """The roles by parameter name, from the modules that hold the parameters."""
    inside = {
        id(parameter): type(module).__name__
        for module in model.modules()
        # Their matrices look like those of linear layers but are not: they are used once per step,
        # or in parts.
        if isinstance(module, nn.RNNBase | nn.RNNCellBase | nn.MultiheadAttention)
        for parameter in module.parameters()
    }
    return {
        name: _module_role(inside.get(id(p)), owner) for name, p, owner in owned_parameters(model)
    }


def _module_role(inside: str | None, owner: nn.Module) -> Role:
    if inside is None and isinstance(owner, nn.Linear):
        return Role(kind="linear")
    if inside is None and isinstance(owner, nn.Conv2d):
        return Role(
            kind="convolution",
            misfits=tuple(_conv_misfits(owner)),
            explicit=has_explicit_bound(owner),
        )
    return Role(kind="other", what=inside or type(owner).__name__)


def _conv_misfits(conv: nn.Conv2d) -> Iterator[str]:
    """Against q×q circular convolutions of d channels onto d, on maps that keep their size."""
    if conv.padding_mode != "circular":
        yield f"its padding holds {conv.padding_mode}, not the map again (circular)"
    elif not _keeps_the_map(conv):
        yield f"its padding {conv.padding} does not keep the map"
    for name in ("stride", "dilation"):
        if set(getattr(conv, name)) != {1}:
            yield f"{name} = {getattr(conv, name)}"
    if conv.groups > 1:
        yield f"groups = {conv.groups}"
    yield from _shape_misfits(conv.out_channels, conv.in_channels, conv.kernel_size)


def _keeps_the_map(conv: nn.Conv2d) -> bool:
    reach = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
    if isinstance(conv.padding, str):
        # "valid" pads nothing, which keeps the map only for kernels of one tap.
        return conv.padding == "same" or not any(reach)
    return [2 * p for p in conv.padding] == reach


def _shape_misfits(out: int, inside: int, kernel: tuple[int, ...]) -> Iterator[str]:
    if out != inside:
        yield f"{inside} channels onto {out}, not as many (only the first layer, never pruned, may)"
    if len(set(kernel)) > 1:
        yield f"a kernel of {'×'.join(map(str, kernel))}, not square"


_NOT_A_LAYER = re.compile(
    r"(^|\.)(weight_(ih|hh)(_l\d+)?(_reverse)?|in_proj_weight|[qkv]_proj_weight)$"
)
"""How torch names the matrices of recurrent and attention modules."""


def checkpoint_roles(weights: Mapping[str, Tensor]) -> dict[str, Role]:
    """The roles from name and shape alone: matrices count as linear layers unless torch's names say
    otherwise.
    """
    return {name: _named_role(name, weight, weights) for name, weight in weights.items()}


def _named_role(name: str, weight: Tensor, weights: Mapping[str, Tensor]) -> Role:
    if (
        _NOT_A_LAYER.search(name)
        or f"{name.removesuffix('out_proj.weight')}in_proj_weight" in weights
    ):
        return Role(kind="other", what="recurrent or attention module, by its name")
    if weight.ndim == 2:
        return Role(kind="linear")
    if weight.ndim == 4:
        misfits = tuple(_shape_misfits(weight.shape[0], weight.shape[1], tuple(weight.shape[2:])))
        return Role(kind="convolution", misfits=misfits, unseen=CIRCULAR)
    return Role(kind="other", what=f"tensor of {weight.ndim} dimensions")


# Which assumptions of Theorems 1 to 3 a layer's entries meet, and the numbers of those that fail.


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Which of Theorems 1, 2 and 3 apply to this layer; what fails, in words."""

    magnitude: bool
    random: bool
    filters: bool
    notes: tuple[str, ...]


def judge(entries: Entries, role: Role, scales: tuple[float, float]) -> Verdict:
    """`scales`: d E w² and d² E w⁴, the C1/p² and C2/p⁴ of Theorem 3."""
    if not entries.varied:
        return Verdict(
            magnitude=False,
            random=False,
            filters=False,
            notes=("all entries are equal: no theorem applies",),
        )
    moments = entries.centred and entries.tame
    notes = [_nearer(entries)]
    if role.kind == "other":
        notes.append(f"of a {role.what}: no layer of a chain, no theorem applies")
    else:
        notes += [
            *_failures(entries, role),
            *(_filters(role, scales) if role.kind == "convolution" else ()),
        ]
    return Verdict(
        # Theorem 1 speaks of uniform entries, which have all moments; the others need
        # them.
        magnitude=role.kind == "linear" and entries.uniform and entries.centred,
        random=role.kind == "linear" and moments,
        filters=role.kind == "convolution" and moments and not role.misfits,
        notes=tuple(notes),
    )


def _nearer(entries: Entries) -> str:
    near, far = sorted((entries.ks_normal, entries.ks_uniform))
    nearer = "normal" if entries.ks_normal < entries.ks_uniform else "uniform"
    return f"nearer to {nearer} (KS {near:.3f} against {far:.3f})"


def _failures(entries: Entries, role: Role) -> list[str]:
    theorem = "Theorem 2" if role.kind == "linear" else "Theorem 3"
    notes = []
    if role.kind == "linear" and not entries.uniform:
        notes.append(
            f"Theorem 1 does not apply: KS to uniform {entries.ks_uniform:.3f} >"
            f" {entries.critical:.3f}"
        )
    if not entries.centred:
        notes.append(
            f"mean is {entries.mean_ratio:.2f} deviations from zero (more than"
            f" {entries.mean_limit:.2f}), Theorems 1-3 assume zero"
        )
    if not entries.tame:
        notes.append(
            f"{theorem} does not apply: no fourth moment to rely on, E w^4 = {entries.heavy:.3g} (E"
            f" w^2)^2 (at most {HEAVY:g}), {100 * entries.carried:.0f} % of it one entry's"
        )
    if entries.count < FEW:
        notes.append(f"only {entries.count} entries: they would pass for almost any law")
    return notes


def _filters(role: Role, scales: tuple[float, float]) -> list[str]:
    notes = [f"Theorem 3's C1 = {scales[0]:.3g} p^2, C2 = {scales[1]:.3g} p^4 on maps of p x p"]
    if role.misfits:
        explicit = (
            " (its explicit form does: plan(scheme='filters', law='bounded'))"
            if role.explicit
            else ""
        )
        notes.append(f"Theorem 3 as stated does not apply: {', '.join(role.misfits)}{explicit}")
    elif role.unseen:
        notes.append(f"if it has {role.unseen}, which a checkpoint does not tell")
    return notes


# What a diagnosis of weights says of each layer, and all of it as a table.


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
      (recurrent, attention, bilinear) are not layers of a chain.
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


# Moments of a layer's entries, and their distances from the laws that the theorems assume.


def moments_of(
    scaled: "np.ndarray[Any, Any]", size: float, shape: Sequence[int], varied: bool
) -> Moments:
    """The moments of a layer's entries, which are `size` times as large as the scaled ones."""
    mean, variance, square = float(scaled.mean()), float(scaled.var()), size * size
    second = float((scaled**2).mean()) * square
    fourth = float((scaled**4).mean()) * square * square
    wide, channels = max(shape[0], math.prod(shape[1:])), max(shape[:2])
    return Moments(
        mean=mean * size,
        variance=variance * square,
        kurtosis=float(((scaled - mean) ** 4).mean()) / variance**2 if varied else 0.0,
        k=math.sqrt(3 * variance * wide) * size,
        k1=second * wide,
        k2=fourth * wide**2,
        c1=channels * second,
        c2=channels**2 * fourth,
    )


def fit_of_entries(entries: Entries) -> Fit:
    """The part of a diagnosis that these figures give."""
    return Fit(
        mean_z=entries.mean_ratio * math.sqrt(entries.count),
        bias_ratio=entries.mean_ratio,
        ks_normal=entries.ks_normal,
        ks_uniform=entries.ks_uniform,
        carried=entries.carried,
    )


def alive(name: str, weight: Tensor) -> tuple["np.ndarray[Any, Any]", float]:
    """The entries that the law is fitted to (without zeros where these are many), and the share of
    zeros.
    """
    values = weight.double().cpu().numpy().ravel()
    if not np.isfinite(values).all():
        raise ParameterError(
            f"{name!r} holds NaN or infinite weights; retrain it or leave it out with where=."
        )
    pruned = float((values == 0).mean())
    # A few exact zeros are chance or initialisation; many are a mask, and no law of
    # weights.
    return (values[values != 0] if note_on_zeros(pruned) else values), pruned


def note_on_zeros(pruned: float) -> tuple[str, ...]:
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
        heavy=float(powers.mean()) / float((scaled**2).mean()) ** 2 if varied else 0.0,
        carried=float(powers.max() / powers.sum()) if varied else 0.0,
        ks_normal=distance_to(scaled, stats.norm(mean, deviation).cdf) if varied else 1.0,
        ks_uniform=distance_to(scaled, stats.uniform(mean - half, 2 * half).cdf) if varied else 1.0,
    )


# The diagnosis itself.

BINS = 61


def diagnose(model: "nn.Module | Mapping[str, Tensor]", *, where: Where = None) -> Diagnosis:
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
    weights = prunable(model, where) if isinstance(model, nn.Module) else _matrices(model)
    roles = module_roles(model) if isinstance(model, nn.Module) else checkpoint_roles(weights)
    return Diagnosis(
        layers=tuple(_layer(name, weight.detach(), roles[name]) for name, weight in weights.items())
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
    values, pruned = alive(name, weight)
    # A layer of zeros is divided by 1.
    size = float(np.abs(values).max()) or 1.0
    # Fourth moments of 1e-30 or 1e200 stay inside the floating-point range.
    scaled = values / size
    entries = entries_of(scaled)
    counts, edges = np.histogram(scaled, bins=BINS)
    moments = moments_of(scaled, size, weight.shape, entries.varied)
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
        **asdict(fit_of_entries(entries)),
        **asdict(verdict) | {"notes": (*verdict.notes, *note_on_zeros(pruned))},
    )
