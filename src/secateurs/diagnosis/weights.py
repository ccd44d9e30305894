"""The distribution of trained weights, layer by layer, against what the theorems of Qian & Klabjan
(2021) assume.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace

import numpy as np
from torch import Tensor, nn

from secateurs.diagnosis.layers import Diagnosis, LayerDiagnosis
from secateurs.diagnosis.moments import (
    alive,
    entries_of,
    fit_of_entries,
    left_out,
    moments_of,
)
from secateurs.diagnosis.roles import Role, checkpoint_roles, module_roles
from secateurs.diagnosis.verdicts import judge
from secateurs.errors import EmptySelectionError
from secateurs.parameters import Where, check_model, prunable

BINS = 61


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
        **asdict(verdict) | {"notes": (*verdict.notes, *left_out(pruned))},
    )
