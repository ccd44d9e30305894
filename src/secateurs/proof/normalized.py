"""Neurons of two normalised networks side by side: Theorem E.1."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.graph import Activation, Add, Affine, Input, Pool, Structural
from secateurs.proof.forms import ParameterPair

# Neurons of two normalised networks side by side: what each adds to Theorem E.1.


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


def neuron_of(edges: Sequence[tuple[Tensor, Tensor]], *, before: Tensor) -> Normalized:
    """A neuron whose edges θλ_u, θ'λ'_u (its bias among them) are known one by one."""
    f, g = (torch.stack([pair[k].abs() for pair in edges]).sum(0) for k in (0, 1))
    raw = torch.stack([(a - b).abs() for a, b in edges]).sum(0)
    # Shares, not sizes: a hidden neuron that is scaled as a whole adds nothing.
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


# Theorem E.1 as a flow: both networks normalised neuron by neuron, on any graph.


class TheoremE1:
    """Carries what equation (22) sums over neurons and paths.

    Normalised weights are θ^{u→v}λ_u/λ_v, and b_v/λ_v. Where a neuron's edges are at hand
    (matrices,
    batch norms, skip connections) `own` is exact; for convolutions and pools it is bounded by
    (raw + |λ_v − λ'_v|)/max(λ_v, λ'_v), the triangle inequality, and `raw` by
    Σ|θ − θ'|λ_u + |θ'||λ_u − λ'_u| + |b − b'|. The largest path up to a matrix or window is taken
    over
    all values of the node before: the same for fully connected maps, larger for convolutions.
    """

    def input(self, node: Input, value: Tensor) -> Normalized:
        """λ = 1 at an input, which has no weights."""
        zero, one = torch.zeros_like(value), torch.ones_like(value)
        return Normalized(f=one, g=one, raw=zero, own=zero, before=zero)

    def affine(self, node: Affine, x: Normalized | None, params: ParameterPair) -> Normalized:
        """Edge by edge where that is possible."""
        b, c = params.offsets(node)
        b, c = b.expand(node.shape), c.expand(node.shape)
        if x is None:
            zero = torch.zeros(node.shape, dtype=torch.float64)
            return neuron_of([(b, c)], before=zero)
        w, v = params.weights(node)
        if w is None or v is None:
            return neuron_of([(x.f, x.g), (b, c)], before=x.along.expand(node.shape))
        axes = node.operation.axes
        if axes is not None and axes.diagonal:
            edges = (node.linear(x.f, w), node.linear(x.g, v))
            return neuron_of([edges, (b, c)], before=x.along.expand(node.shape))
        before = x.along.amax().expand(node.shape)
        # A matrix on the last dimension has its edges at hand, so `own` is exact.
        if axes is not None and w.ndim == 2 and axes.x in (-1, x.f.ndim - 1):
            return neurons_of(
                rows_of(w, axes.weight_out),
                rows_of(v, axes.weight_out),
                x,
                (b, c),
                before,
            )
        return self._window(node, x, (w, v), (b, c), before)

    def activation(self, node: Activation, x: Normalized) -> Normalized:
        """A leaky relu is one more edge of weight max(1, |slope|) in both networks."""
        stretch = max(1.0, abs(node.slope))
        return Normalized(
            f=x.f * stretch,
            g=x.g * stretch,
            raw=x.raw * stretch,
            # Normalised, the one edge has weight 1 in both networks: it adds nothing to
            # `own`.
            own=x.own,
            before=x.before,
        )

    def pool(self, node: Pool, x: Normalized) -> Normalized:
        """A window with weights 1."""
        raw = node.total((x.f - x.g).abs())
        f, g = node.total(x.f), node.total(x.g)
        before = x.along.amax().expand(f.shape)
        return Normalized(f=f, g=g, raw=raw, own=own_bound(raw, f, g), before=before)

    def structural(self, node: Structural, xs: Sequence[Normalized]) -> Normalized:
        """The same reordering of all five."""
        names = ("f", "g", "raw", "own", "before")
        moved = {n: node.function(*(getattr(x, n) for x in xs)) for n in names}
        return Normalized(**moved)

    def add(self, node: Add, xs: Sequence[Normalized]) -> Normalized:
        """An identity neuron with an edge from each branch."""
        before = torch.stack([x.along for x in xs]).amax(0)
        signed = zip(node.signs, xs, strict=True)
        return neuron_of([(sign * x.f, sign * x.g) for sign, x in signed], before=before)

    def _window(
        self,
        node: Affine,
        x: Normalized,
        weights: tuple[Tensor, Tensor],
        biases: tuple[Tensor, Tensor],
        before: Tensor,
    ) -> Normalized:
        (w, v), (b, c) = weights, biases
        moved = node.linear(x.f, (w - v).abs()) + node.linear((x.f - x.g).abs(), v.abs())
        raw = moved.expand(node.shape) + (b - c).abs()
        f = node.linear(x.f, w.abs()).expand(node.shape) + b.abs()
        g = node.linear(x.g, v.abs()).expand(node.shape) + c.abs()
        return Normalized(f=f, g=g, raw=raw, own=own_bound(raw, f, g), before=before)


def theorem_e1(final: Normalized) -> Tensor:
    """Σ_out raw + min(‖Φ(θ)‖₁, ‖Φ(θ')‖₁) · max_p Σ_{l<length(p)} own."""
    # The proof may exchange θ and θ', so the smaller of the two norms holds.
    least = torch.minimum(final.f.sum(), final.g.sum())
    return final.raw.sum() + least * final.before.amax()
