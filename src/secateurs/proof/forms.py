"""What the flows of certificates share: the parameters of two networks, batches of boxes, affine
forms (a centre, multiples of shared symbols in [−1, 1], a remainder), ends of a pair's values and
their sizes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from secateurs.base.interrupts import Uninterrupted
from secateurs.graph import Affine, Structural
from secateurs.graph.primitives import Add, State

V = TypeVar("V", bound=Any)

# Two parameter vectors of one graph, and batches of boxes through node functions for a batch of
# one.


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPair:
    """The effective weights and biases of f and g at each affine node, in float64."""

    f: State
    g: State

    def weights(self, node: Affine) -> tuple[Tensor | None, Tensor | None]:
        """W of f and W' of g; None if the node only adds."""
        return (None, None) if node.weight is None else (node.weight(self.f), node.weight(self.g))

    def offsets(self, node: Affine) -> tuple[Tensor, Tensor]:
        """The biases, or zeros if the node has none."""
        return self.biases(node) or (torch.zeros((), dtype=torch.float64),) * 2

    def biases(self, node: Affine) -> tuple[Tensor, Tensor] | None:
        """b of f and b' of g in a shape that broadcasts over the node's value."""
        return (
            None
            if node.bias is None
            else (node.spread(node.bias(self.f)), node.spread(node.bias(self.g)))
        )


def lift(function: Callable[..., Tensor], *xs: Tensor) -> Tensor:
    """Apply a function of one sample to every box: values are (boxes, *shape of the node)."""
    boxes = max(map(len, xs))
    # Constants are given as one box. Nodes know the shape of one sample; vmap adds the boxes
    # without a copy of any weight.
    with Uninterrupted():
        return torch.func.vmap(function)(*(x.expand(boxes, *x.shape[1:]) for x in xs))


def reorder(node: Structural, xs: Sequence[V]) -> V:
    """The same reordering of every field of values that are made of tensors alone."""
    names = [field.name for field in fields(xs[0])]
    moved: V = type(xs[0])(**{k: lift(node.function, *(getattr(x, k) for x in xs)) for k in names})
    return moved


def linear(node: Affine, x: Tensor, weight: Tensor | None) -> Tensor:
    """The linear part of an affine node, for every box."""
    return lift(lambda sample: node.linear(sample, weight), x)


def terms(node: Affine, x: Tensor, weight: Tensor | None) -> int:
    """The largest number of products in one output entry: the map applied to ones with all weights
    one.
    """
    if weight is None:
        return 1
    with torch.no_grad():
        # The largest entry: at a padded border an output has fewer terms.
        return int(node.linear(torch.ones_like(x[0]), torch.ones_like(weight)).amax())


def terms_back(node: Affine, x: Tensor, weight: Tensor | None) -> int:
    """The same for the transposed map: how many outputs read one input."""
    if weight is None:
        return 1
    with torch.enable_grad():
        ones = torch.ones_like(x[0]).requires_grad_()
        total = node.linear(ones, torch.ones_like(weight)).sum()
    return int(torch.autograd.grad(total, ones)[0].amax())


def gamma(count: int, unit: float) -> float:
    """γ_k = k·u/(1 − k·u): the relative error of a sum of k rounded products, in any order (Higham
    2002, §3.1).
    """
    return (
        0.0
        if unit == 0
        # Beyond 1/u terms the formula says nothing, so the result is infinite.
        else (count * unit / (1 - count * unit) if count * unit < 1 else float("inf"))
    )


def gap(one: Tensor | None, two: Tensor | None) -> Tensor | None:
    """W − W'; None where the node has no weight, and so no difference."""
    return None if one is None or two is None else one - two


def magnitude(weight: Tensor | None) -> Tensor | None:
    """|W|."""
    return None if weight is None else weight.abs()


def signed_sum(node: Add, xs: list[Tensor]) -> Tensor:
    """Σ sign · x."""
    total = torch.zeros_like(xs[0])
    for sign, x in zip(node.signs, xs, strict=True):
        total = total + x if sign > 0 else total - x
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """c + Σ_k g[:, k]·ε_k ± e; c and e are (boxes, *shape), g is (boxes, symbols, *shape).

    Symbols are shared by all values of a box and may cancel; `e` belongs to each value alone and
    only grows. Boxes share nothing: ε_k of one is not ε_k of another.
    """

    c: Tensor
    g: Tensor
    e: Tensor

    @property
    def radius(self) -> Tensor:
        """How far the form reaches from its centre."""
        # Every symbol may be +1 or −1 independently, so absolute values add.
        return self.g.abs().sum(dim=1) + self.e

    def plus(self, other: "Form", sign: int = 1) -> "Form":
        """The sum, symbol by symbol; the shorter form lacks the newest symbols."""
        one, two = pad_forms([self, other])
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
    """A known value, without symbols."""
    empty = center.new_zeros(len(center), 0, *center.shape[1:])
    return Form(c=center, g=empty, e=torch.zeros_like(center))


def map_form(node: Affine, form: Form, weight: Tensor | None) -> Form:
    """W on the centre and on every symbol, |W| on the remainder."""
    if weight is None:
        return form
    boxes, symbols = form.g.shape[:2]
    g = linear(node, form.g.flatten(0, 1), weight) if symbols else form.g.new_zeros(0, *node.shape)
    # Most networks fit without a remainder, and a pass over zeros would cost as much as any.
    rest = bool(form.e.any())
    return Form(
        c=linear(node, form.c, weight),
        g=g.reshape(boxes, symbols, *g.shape[1:]),
        e=linear(node, form.e, magnitude(weight)) if rest else form.e.new_zeros(boxes, *node.shape),
    )


def reorder_forms(node: Structural, forms: Sequence[Form]) -> Form:
    """The same reordering of centres, symbols and remainders."""
    parts = pad_forms(forms)
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


def pad_forms(forms: Sequence[Form]) -> list[Form]:
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


FIELDS = ("l", "h", "gl", "gh", "dl", "dh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What is known about a pair of pre-activations: l ≤ z ≤ h, gl ≤ z' ≤ gh, dl ≤ z − z' ≤ dh."""

    l: Tensor
    h: Tensor
    gl: Tensor
    gh: Tensor
    dl: Tensor
    dh: Tensor

    def exchanged(self) -> "Bounds":
        """The same knowledge with the two networks exchanged."""
        return Bounds(l=self.gl, h=self.gh, gl=self.l, gh=self.h, dl=-self.dh, dh=-self.dl)

    def meet(self, other: "Bounds") -> "Bounds":
        """The intersection of both, made consistent: two of z, z' and δ also bound the third."""
        lower = [torch.maximum(getattr(self, k), getattr(other, k)) for k in ("l", "gl", "dl")]
        upper = [torch.minimum(getattr(self, k), getattr(other, k)) for k in ("h", "gh", "dh")]
        return Bounds(
            l=lower[0], h=upper[0], gl=lower[1], gh=upper[1], dl=lower[2], dh=upper[2]
        ).consistent()

    def consistent(self) -> "Bounds":
        """δ = z − z' used in all three directions."""
        # All three right sides use the old ends: each line is sound on its own, and so is their
        # intersection.
        l, h = (
            torch.maximum(self.l, self.gl + self.dl),
            torch.minimum(self.h, self.gh + self.dh),
        )
        gl, gh = (
            torch.maximum(self.gl, self.l - self.dh),
            torch.minimum(self.gh, self.h - self.dl),
        )
        dl, dh = (
            torch.maximum(self.dl, self.l - self.gh),
            torch.minimum(self.dh, self.h - self.gl),
        )
        return Bounds(l=l, h=h, gl=gl, gh=gh, dl=dl, dh=dh)

    def each(self, function: Callable[[Tensor], Tensor]) -> "Bounds":
        """One function applied to each end: to reshape them, or to keep some neurons only."""
        return Bounds(**{k: function(getattr(self, k)) for k in FIELDS})

    def at(self, box: Tensor, neuron: Tensor) -> "Bounds":
        """The bounds of some neurons of some boxes; for flat bounds."""
        return self.each(lambda end: end[box, neuron])

    def replaced(self, box: Tensor, neuron: Tensor, new: "Bounds") -> "Bounds":
        """The bounds with those of some neurons of some boxes replaced; for flat bounds."""
        return Bounds(
            **{k: getattr(self, k).index_put((box, neuron), getattr(new, k)) for k in FIELDS}
        )

    @property
    def sizes(self) -> tuple[Tensor, Tensor, Tensor]:
        """The largest |z|, |z'| and |δ|."""
        return (
            torch.maximum(self.l.abs(), self.h.abs()),
            torch.maximum(self.gl.abs(), self.gh.abs()),
            torch.maximum(self.dl.abs(), self.dh.abs()),
        )

    @property
    def settled(self) -> Tensor:
        """The neurons that keep their sign in both networks, where nothing is lost."""
        return ((self.l >= 0) | (self.h <= 0)) & ((self.gl >= 0) | (self.gh <= 0))

    @property
    def largest(self) -> Tensor:
        """The largest |δ|."""
        return torch.maximum(self.dh, -self.dl)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamValues:
    """m bounds the value in f, d the difference between f and g; both (boxes, *shape)."""

    m: Tensor
    d: Tensor


class Widened(torch.autograd.Function):
    """A value that is off by at most `slack`: whatever slope a pass has here, times this, is added
    to its constant.
    """

    @staticmethod
    def forward(context: Any, value: Tensor, one: Tensor, slack: Tensor) -> Tensor:
        context.save_for_backward(slack)
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, *cotangents: Tensor) -> tuple[Tensor, Tensor, None]:
        (slack,) = context.saved_tensors
        (slope,) = cotangents
        return slope, (slope.abs() * slack).sum(dim=list(range(1, slack.ndim))), None
