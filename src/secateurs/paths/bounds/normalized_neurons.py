"""Neurons of two normalised networks side by side: what each adds to Theorem E.1."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalized:
    """Per neuron v, in the shape of the node.

    Attributes:
        f, g: λ_v of Algorithm 1 in each network, which is ‖Φ^{→v}‖₁.
        raw: |b_v − b'_v| + Σ_u |θ^{u→v}λ_u − θ'^{u→v}λ'_u|, what v adds as an output.
        own: The same with v normalised too, what v adds as a hidden neuron.
        before: The largest sum of `own` along a path up to an antecedent of v.
    """

    f: Tensor
    g: Tensor
    raw: Tensor
    own: Tensor
    before: Tensor

    @property
    def along(self) -> Tensor:
        """The largest sum of `own` along a path that ends in v."""
        return self.before + self.own


def neuron_of(
    edges: Sequence[tuple[Tensor, Tensor]], *, before: Tensor
) -> Normalized:
    """A neuron whose edges θλ_u, θ'λ'_u (its bias among them) are known one by one."""
    f, g = (torch.stack([pair[k].abs() for pair in edges]).sum(0) for k in (0, 1))
    raw = torch.stack([(a - b).abs() for a, b in edges]).sum(0)
    # Shares, not sizes: a neuron that is scaled as a whole adds nothing as a hidden
    # one.
    own = torch.stack([(_over(a, f) - _over(b, g)).abs() for a, b in edges]).sum(0)
    return Normalized(f=f, g=g, raw=raw, own=own, before=before)


def neurons_of(
    w: Tensor, v: Tensor, x: Normalized, biases: tuple[Tensor, Tensor], before: Tensor
) -> Normalized:
    """All edges of a matrix at once: the last dimension runs over antecedents."""
    (b, c), a, d = biases, w * x.f.unsqueeze(-2), v * x.g.unsqueeze(-2)
    f, g = a.abs().sum(-1) + b.abs(), d.abs().sum(-1) + c.abs()
    raw = (a - d).abs().sum(-1) + (b - c).abs()
    shares = _over(a, f.unsqueeze(-1)) - _over(d, g.unsqueeze(-1))
    own = shares.abs().sum(-1) + (_over(b, f) - _over(c, g)).abs()
    return Normalized(f=f, g=g, raw=raw, own=own, before=before)


def own_bound(raw: Tensor, f: Tensor, g: Tensor) -> Tensor:
    """‖N(θ)(v) − N(θ')(v)‖₁ ≤ (raw + |λ − λ'|)/max(λ, λ'); norms ≤ 1 differ by ≤ 2."""
    return _over(raw + (f - g).abs(), torch.maximum(f, g)).clamp_max(2.0)


def _over(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 for a neuron that carries nothing."""
    # The inner `where` divides by 1 instead of 0, so that no NaN is ever made.
    return torch.where(b > 0, a / torch.where(b > 0, b, 1.0), 0.0)


def rows_of(weight: Tensor, out: int) -> Tensor:
    """The weight with one row per output."""
    return weight if out == 0 else weight.T
