"""One affine form per value: a centre, multiples of shared symbols in [−1, 1], and a remainder."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.graph import Affine, Structural
from secateurs.paths.certificates.flows.pair import lift, linear, magnitude


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """c + Σ_k g[:, k]·ε_k ± e; c and e are (boxes, *shape), g is (boxes, symbols, *shape).

    Symbols are shared by all values of a box and may cancel; what `e` holds is each value's own
    and only grows. Boxes share nothing: ε_k of one is not ε_k of another.
    """

    c: Tensor
    g: Tensor
    e: Tensor

    @property
    def radius(self) -> Tensor:
        """How far the form reaches from its centre."""
        # Every symbol may stand at +1 or −1 independently, so absolute values add.
        return self.g.abs().sum(dim=1) + self.e

    def plus(self, other: "Form", sign: int = 1) -> "Form":
        """The sum, symbol by symbol; the shorter form lacks the youngest symbols."""
        one, two = padded([self, other])
        return Form(c=one.c + sign * two.c, g=one.g + sign * two.g, e=one.e + two.e)

    def scaled(self, factor: Tensor, shift: Tensor) -> "Form":
        """factor · form + shift, entry by entry."""
        return Form(
            c=factor * self.c + shift,
            g=factor.unsqueeze(1) * self.g,
            # The remainder has no sign, hence |factor|.
            e=factor.abs() * self.e,
        )

    def shifted(self, shift: Tensor) -> "Form":
        """form + shift."""
        return Form(c=self.c + shift, g=self.g, e=self.e)


def constant(center: Tensor) -> Form:
    """A value that is known, without symbols."""
    empty = center.new_zeros(len(center), 0, *center.shape[1:])
    return Form(c=center, g=empty, e=torch.zeros_like(center))


def mapped(node: Affine, form: Form, weight: Tensor | None) -> Form:
    """W on the centre and on every symbol, |W| on the remainder."""
    if weight is None:
        return form
    boxes, symbols = form.g.shape[:2]
    g = (
        linear(node, form.g.flatten(0, 1), weight)
        if symbols
        else form.g.new_zeros(0, *node.shape)
    )
    # Most networks fit without a remainder, and a pass over zeros would cost as much as any.
    rest = bool(form.e.any())
    return Form(
        c=linear(node, form.c, weight),
        g=g.reshape(boxes, symbols, *g.shape[1:]),
        e=linear(node, form.e, magnitude(weight))
        if rest
        else form.e.new_zeros(boxes, *node.shape),
    )


def reordered(node: Structural, forms: Sequence[Form]) -> Form:
    """The same reordering of centres, symbols and remainders."""
    parts = padded(forms)
    boxes, symbols = max(len(p.c) for p in parts), parts[0].g.shape[1]
    # Constants come as one box: they are repeated before symbols and boxes are merged.
    gs = [p.g.expand(boxes, *p.g.shape[1:]).flatten(0, 1) for p in parts]
    c = lift(node.function, *(p.c for p in parts))
    g = lift(node.function, *gs) if symbols else c.new_zeros(0, *c.shape[1:])
    return Form(
        c=c,
        g=g.reshape(boxes, symbols, *c.shape[1:]),
        e=lift(node.function, *(p.e for p in parts)),
    )


def padded(forms: Sequence[Form]) -> list[Form]:
    """The forms over all symbols of the longest."""
    most = max(form.g.shape[1] for form in forms)
    return [
        form
        if form.g.shape[1] == most
        else Form(
            c=form.c,
            g=torch.cat([form.g, _none(form, most - form.g.shape[1])], dim=1),
            e=form.e,
        )
        for form in forms
    ]


def _none(form: Form, count: int) -> Tensor:
    return form.g.new_zeros(len(form.g), count, *form.g.shape[2:])
