"""Lemma E.1 as a flow: how far path-liftings lie apart, from norms of incoming weights."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.graph import Activation, Add, Affine, Input, Pool, Structural
from secateurs.paths.certificates.flows.pair import Pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifted:
    """Per neuron v: `gap` ≥ ‖Φ^{→v}(θ) − Φ^{→v}(θ')‖_q and `norm` = ‖Φ^{→v}(θ')‖_q; shapes of the
    node.
    """

    gap: Tensor
    norm: Tensor


class LemmaE1:
    """gap_v = (|Δb|^q + ‖Δθ^{→v}‖_q^q · max_u norm_u^q)^{1/q} + ‖θ^{→v}‖_q · max_u gap_u.

    For q = 1 this is equation (21), its maximum over paths taken neuron by neuron. For q > 1 the
    printed inequality is false (docs/errata.md); this one follows from Minkowski's inequality. The
    maximum over the antecedents u is taken over all values of the preceding node: the same for
    fully connected maps, larger for convolutions.
    """

    def __init__(self, q: float = 1.0) -> None:
        self.q = q

    def input(self, node: Input, value: Tensor) -> Lifted:
        """Φ^{→u} = 1 at an input."""
        return Lifted(gap=torch.zeros_like(value), norm=torch.ones_like(value))

    def affine(self, node: Affine, x: Lifted | None, params: Pair) -> Lifted:
        """The step of the induction."""
        q = self.q
        b, c = params.biases(node) or (torch.zeros((), dtype=torch.float64),) * 2
        if x is None:
            return Lifted(
                gap=(b - c).abs().expand(node.shape), norm=c.abs().expand(node.shape)
            )
        w, v = params.weights(node)
        if w is None or v is None:
            return Lifted(
                gap=(x.gap**q + (b - c).abs() ** q) ** (1 / q),
                norm=(x.norm**q + c.abs() ** q) ** (1 / q),
            )
        # A map entry by entry has one antecedent per neuron, which is known: no maximum
        # needed.
        diagonal = node.operation.axes is not None and node.operation.axes.diagonal
        top_norm, top_gap = (
            t if diagonal else t.amax().expand_as(t) for t in (x.norm, x.gap)
        )
        own = ((b - c).abs() ** q + node.linear(top_norm**q, (w - v).abs() ** q)) ** (
            1 / q
        )
        carried = node.linear(top_gap**q, w.abs() ** q) ** (1 / q)
        return Lifted(
            gap=own + carried,
            norm=(node.linear(x.norm**q, v.abs() ** q) + c.abs() ** q) ** (1 / q),
        )

    def activation(self, node: Activation, x: Lifted) -> Lifted:
        """A relu neuron has the paths of what enters it."""
        # A slope below 1 shrinks only the negative side, so the factor is never below
        # 1.
        stretch = max(1.0, abs(node.slope))
        return Lifted(gap=x.gap * stretch, norm=x.norm * stretch)

    def pool(self, node: Pool, x: Lifted) -> Lifted:
        """All paths of the window, with weights 1."""
        return Lifted(gap=self._sum(node, x.gap), norm=self._sum(node, x.norm))

    def structural(self, node: Structural, xs: Sequence[Lifted]) -> Lifted:
        """The same reordering."""
        return Lifted(
            gap=node.function(*(x.gap for x in xs)),
            norm=node.function(*(x.norm for x in xs)),
        )

    def add(self, node: Add, xs: Sequence[Lifted]) -> Lifted:
        """Paths of all branches."""
        gaps, norms = (
            torch.stack([getattr(x, k) ** self.q for x in xs]).sum(0)
            for k in ("gap", "norm")
        )
        return Lifted(gap=gaps ** (1 / self.q), norm=norms ** (1 / self.q))

    def _sum(self, node: Pool, value: Tensor) -> Tensor:
        return node.total(value**self.q) ** (1 / self.q)
