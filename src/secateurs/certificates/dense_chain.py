"""Bounds of f − g for two chains of dense layers and ReLUs, on many small boxes at a time.

Splitting asks for bounds on thousands of boxes, each half of one that was bounded before. Where
both networks are chains, all of it is products of matrices: a backward pass from the neurons that
are still open, for a whole batch of boxes, in the arithmetic of `linear` without a tape.

The pair (a, d) travels: a pre-activation of f, and its difference to g's. Behind the ReLU stand
p = relu(a) and y = relu(a + d) − relu(a). Each lies between two planes:

* p between a chord, or p itself, and 0·a or 1·a;
* y by the better of two at the middle of its box: min(d, 0) ≤ y ≤ max(d, 0) with chords in d, or a
  plane above relu(a + d) less one below relu(a), and the reverse.

Rounding: every offset is taken at the ends of its interval and moved outwards, and what the
products may lose is at most γ times the sums of absolute values behind them, which
bound every pre-activation (`_Sizes`); each pass adds that to its result.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from secateurs.certificates.forms import gamma
from secateurs.certificates.patches import keeps_order
from secateurs.certificates.problem import NetworkPair
from secateurs.graph.primitives import Activation, Affine, Input

_WIDEST = 2**22
"""Entries of the largest matrix that a convolution is written out as: 32 MB in float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseLayer:
    """a = weight·p + bias of f; the weight `other` of g, and what g has more; then a ReLU or
    nothing.
    """

    weight: Tensor
    bias: Tensor
    other: Tensor
    change: Tensor
    bias_change: Tensor
    relu: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Of one layer: a between `la` and `ua`, d between `ld` and `ud`, (boxes, neurons) each."""

    la: Tensor
    ua: Tensor
    ld: Tensor
    ud: Tensor

    def __getitem__(self, index: Tensor | slice) -> "Ranges":
        """Of these boxes."""
        return Ranges(la=self.la[index], ua=self.ua[index], ld=self.ld[index], ud=self.ud[index])

    def meet(self, other: "Ranges", index: Tensor) -> "Ranges":
        """What follows from both, where the other speaks of the neurons at `index` alone."""

        def narrowed(mine: Tensor, theirs: Tensor, pick: object) -> Tensor:
            old = mine.gather(1, index)
            new = torch.maximum(theirs, old) if pick == "low" else torch.minimum(theirs, old)
            return mine.scatter(1, index, new)

        return Ranges(
            la=narrowed(self.la, other.la, "low"),
            ua=narrowed(self.ua, other.ua, "high"),
            ld=narrowed(self.ld, other.ld, "low"),
            ud=narrowed(self.ud, other.ud, "high"),
        )

    @property
    def settled(self) -> Tensor:
        """The neurons that are linear in both networks: nothing about them can be improved."""
        on = (self.la >= 0) & (self.la + self.ld >= 0)
        off = (self.ua <= 0) & (self.ua + self.ud <= 0)
        return on | off


Known = tuple[Ranges, ...]
"""What is known of the hidden layers of some boxes; the halves of a box inherit it."""


def join_known(parts: Sequence[Known]) -> Known:
    """Of the boxes of all parts, one after the other."""
    return tuple(
        Ranges(**{n: torch.cat([getattr(r, n) for r in rows]) for n in ("la", "ua", "ld", "ud")})
        for rows in zip(*parts, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainBounds:
    """Of each box: |f − g| per output, what is known of its hidden layers, how much each input
    matters to the open neurons, and the corner where the bound is reached.
    """

    per_output: Tensor
    known: Known
    influence: Tensor
    corner: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planes:
    """The planes of one layer's neurons, (boxes, neurons) each: p ≤ s·a + c, p ≥ t·a;
    y ≤ ud·d + ua·a + uc, y ≥ ld·d + la·a + lc.
    """

    s: Tensor
    c: Tensor
    t: Tensor
    ud: Tensor
    ua: Tensor
    uc: Tensor
    ld: Tensor
    la: Tensor
    lc: Tensor


class DenseChain:
    """Two chains of layers over the same units."""

    def __init__(self, layers: Sequence[DenseLayer], *, unit: float) -> None:
        self.layers = tuple(layers)
        widest = max(max(layer.weight.shape) for layer in layers)
        self._unit = unit
        # Two products and some fifty further operations a layer.
        self._gamma = gamma(len(layers) * (2 * widest + 64), unit) if unit else 0.0
        # One product moves both directions: [Ca | Cd] · [[W, 0], [ΔW, W + ΔW]].
        self._moves = [
            torch.cat(
                [
                    torch.cat([one.weight, torch.zeros_like(one.weight)], 1),
                    torch.cat([one.change, one.other], 1),
                ]
            )
            for one in self.layers
        ]

    def bounds(self, lo: Tensor, hi: Tensor, known: Known | None) -> ChainBounds:
        """Bounds on boxes lo ≤ x ≤ hi, (boxes, inputs).

        known: of boxes that hold these; then only what is still open is bounded again.
        """
        box = _Box.of(lo, hi, self._unit)
        planes: list[_Planes] = []
        found: list[Ranges] = []
        sizes = [(box.size, torch.zeros_like(box.size))]
        influence = torch.zeros_like(lo)
        masses: list[tuple[Tensor, Tensor]] = []
        *hidden, last = self.layers
        for k, layer in enumerate(hidden):
            masses.append(_mass(layer, *sizes[-1]))
            index = None if known is None else _open(known[k])
            if known is not None and index is not None and not index.shape[1]:
                found.append(known[k])
            else:
                ua, la, slope = self._value(box, planes, masses, k, index)
                ud, ld, _ = self._difference(box, planes, masses, k, index)
                new = Ranges(la=la, ua=ua, ld=ld, ud=ud)
                found.append(new if index is None or known is None else known[k].meet(new, index))
                if layer.relu:
                    influence += _influence(slope, found[-1], index) * box.radius * 2
            planes.append(_planes_of(found[-1], self._unit) if layer.relu else _straight(found[-1]))
            sizes.append(_sizes(found[-1], layer.relu))
        masses.append(_mass(last, *sizes[-1]))
        up, low, slope = self._difference(box, planes, masses, len(hidden), None)
        # Whatever is no number proves nothing.
        ends = torch.stack([up, -low]).nan_to_num(nan=math.inf, posinf=math.inf)
        # The slope of the end that is furthest out, and the corner it points to.
        furthest = ends.transpose(0, 1).flatten(1).argmax(dim=1)
        steepest = slope[torch.arange(len(lo)), furthest]
        return ChainBounds(
            per_output=ends.amax(dim=0),
            known=tuple(found),
            influence=influence,
            corner=torch.where(steepest > 0, hi, lo),
        )

    def _value(
        self,
        box: "_Box",
        planes: Sequence[_Planes],
        masses: Sequence[tuple[Tensor, Tensor]],
        k: int,
        index: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Upper and lower bounds of a of layer k, for the neurons of `index` (None: all), and the
        slopes behind them.
        """
        layer = self.layers[k]
        weight, bias = (_rows(part, index, len(box)) for part in (layer.weight, layer.bias))
        mass = masses[k][0] if index is None else masses[k][0].gather(1, index)
        return self._bounded(box, planes, masses, k, weight, None, bias, mass)

    def _difference(
        self,
        box: "_Box",
        planes: Sequence[_Planes],
        masses: Sequence[tuple[Tensor, Tensor]],
        k: int,
        index: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same of d."""
        layer = self.layers[k]
        change, other, bias = (
            _rows(part, index, len(box)) for part in (layer.change, layer.other, layer.bias_change)
        )
        mass = masses[k][1] if index is None else masses[k][1].gather(1, index)
        return self._bounded(box, planes, masses, k, change, other, bias, mass)

    def _bounded(
        self,
        box: "_Box",
        planes: Sequence[_Planes],
        masses: Sequence[tuple[Tensor, Tensor]],
        k: int,
        weight: Tensor,
        other: Tensor | None,
        bias: Tensor,
        mass: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Both ends of weight·p + other·y + bias behind layer k − 1, by one pass down to the input.

        Without `other` nothing depends on g, which spares two thirds of the products.
        """
        # An upper bound of −v is minus a lower bound of v.
        toward_p, constant = _both_signs(weight), _both_signs(bias)
        toward_y = None if other is None else _both_signs(other)
        lost = torch.cat([mass, mass], 1)
        for j in range(k - 1, -1, -1):
            p, own, (a_size, d_size) = planes[j], self.layers[j], masses[j]
            high, low = toward_p.clamp(min=0), toward_p.clamp(max=0)
            constant = constant + _dot(high, p.c)
            lost = lost + _dot(high - low, 2 * a_size)
            toward_a = high * p.s.unsqueeze(1) + low * p.t.unsqueeze(1)
            if toward_y is None:
                constant = constant + toward_a @ own.bias
                toward_p = toward_a @ own.weight
                continue
            above, below = toward_y.clamp(min=0), toward_y.clamp(max=0)
            constant = constant + _dot(above, p.uc) + _dot(below, p.lc)
            lost = lost + _dot(above - below, 2 * (a_size + d_size))
            toward_a = toward_a + above * p.ua.unsqueeze(1) + below * p.la.unsqueeze(1)
            toward_d = above * p.ud.unsqueeze(1) + below * p.ld.unsqueeze(1)
            constant = constant + toward_a @ own.bias + toward_d @ own.bias_change
            moved = torch.cat([toward_a, toward_d], -1) @ self._moves[j]
            toward_p, toward_y = moved.chunk(2, dim=-1)
        # Nor can a value exceed the sum of absolute values behind it: that also keeps the offsets
        # of its planes below the sums from which `lost` is counted.
        most = torch.cat([mass, mass], 1) * (1 + 4 * self._gamma)
        ends = torch.minimum(self._concrete(box, toward_p, constant, lost), most)
        top, bottom = ends.chunk(2, dim=1)
        return top, -bottom, toward_p

    def _concrete(self, box: "_Box", slope: Tensor, constant: Tensor, lost: Tensor) -> Tensor:
        """The largest value over the box, with all that rounding may have taken."""
        reach = slope.abs()
        lost = lost + _dot(reach, 2 * box.size)
        return _dot(slope, box.middle) + _dot(reach, box.radius) + constant + self._gamma * lost


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    """Boxes by middle and radius, rounded outwards, with the largest |x| of each input."""

    middle: Tensor
    radius: Tensor
    size: Tensor

    @classmethod
    def of(cls, lo: Tensor, hi: Tensor, unit: float) -> "_Box":
        middle = (lo + hi) / 2
        radius = torch.maximum(hi - middle, middle - lo) * (1 + 4 * unit)
        return cls(middle=middle, radius=radius, size=torch.maximum(lo.abs(), hi.abs()))

    def __len__(self) -> int:
        return len(self.middle)


def _rows(part: Tensor, index: Tensor | None, boxes: int) -> Tensor:
    """The rows of these neurons for each box; all for all where the index is None."""
    return part.expand(boxes, *part.shape) if index is None else part[index]


def _both_signs(rows: Tensor) -> Tensor:
    return torch.cat([rows, -rows], 1)


def _dot(rows: Tensor, vector: Tensor) -> Tensor:
    """(boxes, rows, n) times (boxes, n)."""
    return (rows @ vector.unsqueeze(-1)).squeeze(-1)


def _mass(layer: DenseLayer, p: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of absolute values behind a and d, where |p| and |y| are at most these."""
    of_a = p @ layer.weight.abs().T + layer.bias.abs()
    of_d = p @ layer.change.abs().T + y @ layer.other.abs().T + layer.bias_change.abs()
    return of_a, of_d


def _sizes(ranges: Ranges, relu: bool) -> tuple[Tensor, Tensor]:
    """The largest |p| and |y| of each neuron."""
    high = ranges.ua.clamp(min=0) if relu else torch.maximum(ranges.ua.abs(), ranges.la.abs())
    return high, torch.maximum(ranges.ld.abs(), ranges.ud.abs())


def _open(ranges: Ranges) -> Tensor:
    """Which neurons of each box are worth a pass, padded with settled ones to one number."""
    open_ = ~ranges.settled
    most = int(open_.sum(dim=1).max())
    # Stable, so that a repeated proof takes the same ones.
    return open_.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]


def _influence(slope: Tensor, ranges: Ranges, index: Tensor | None) -> Tensor:
    """How much each input moves the neurons that are open in f, by what their chords lose."""
    la, ua = ranges.la, ranges.ua
    width = (ua - la).clamp(min=torch.finfo(la.dtype).tiny)
    loss = torch.minimum(ua, -la).clamp(min=0) / width
    if index is not None:
        loss = loss.gather(1, index)
    up, low = slope.abs().chunk(2, dim=1)
    return _dot((up + low).transpose(1, 2), loss)


def _straight(ranges: Ranges) -> _Planes:
    """Planes of a layer without a ReLU: p = a, y = d."""
    one, zero = torch.ones_like(ranges.la), torch.zeros_like(ranges.la)
    return _Planes(s=one, c=zero, t=one, ud=one, ua=zero, uc=zero, ld=one, la=zero, lc=zero)


def _planes_of(r: Ranges, unit: float) -> _Planes:
    """Planes around relu(a) and relu(a + d) − relu(a) on these ranges."""
    out, zero = 1 + 8 * unit, torch.zeros_like(r.la)
    tiny = torch.finfo(r.la.dtype).tiny
    s, c, t = _relu_planes(r.la, r.ua, out)
    # b = a + d of g, rounded outwards.
    lb = r.la + r.ld - 4 * unit * (r.la.abs() + r.ld.abs())
    ub = r.ua + r.ud + 4 * unit * (r.ua.abs() + r.ud.abs())
    sb, cb, tb = _relu_planes(lb, ub, out)
    both, none = (r.la >= 0) & (lb >= 0), (r.ua <= 0) & (ub <= 0)
    bent = ~(both | none)
    # In d alone: y ≤ max(d, 0) by its chord, y ≥ min(d, 0) by its chord.
    width = (r.ud - r.ld).clamp(min=tiny)
    up = torch.where(r.ld >= 0, 1.0, torch.where(r.ud <= 0, 0.0, r.ud / width)).clamp(0, 1)
    down = torch.where(r.ud <= 0, 1.0, torch.where(r.ld >= 0, 0.0, -r.ld / width)).clamp(0, 1)
    up_c = torch.maximum(-up * r.ld, (1 - up) * r.ud).clamp(min=0) * out
    down_c = torch.minimum((1 - down) * r.ld, -down * r.ud).clamp(max=0) * out
    # In both: a plane above relu(b) less one below relu(a), and the reverse.
    a, d = (r.la + r.ua) / 2, (r.ld + r.ud) / 2
    high = bent & (sb * (a + d) + cb - t * a < up * d + up_c)
    low = bent & (tb * (a + d) - s * a - c > down * d + down_c)

    def chosen(other: Tensor, where: Tensor, plain: Tensor, linear: float) -> Tensor:
        found = torch.where(where, other, plain)
        return torch.where(both, linear, torch.where(none, 0.0, found))

    return _Planes(
        s=s,
        c=c,
        t=t,
        ud=chosen(sb, high, up, 1.0),
        ua=chosen(sb - t, high, zero, 0.0),
        uc=chosen(cb, high, up_c, 0.0),
        ld=chosen(tb, low, down, 1.0),
        la=chosen(tb - s, low, zero, 0.0),
        lc=chosen(-c, low, down_c, 0.0),
    )


def _relu_planes(low: Tensor, high: Tensor, out: float) -> tuple[Tensor, Tensor, Tensor]:
    """relu(v) ≤ s·v + c and relu(v) ≥ t·v for low ≤ v ≤ high."""
    width = (high - low).clamp(min=torch.finfo(low.dtype).tiny)
    s = torch.where(low >= 0, 1.0, torch.where(high <= 0, 0.0, high / width)).clamp(0, 1)
    # At both ends, whatever the slope was rounded to: relu is convex.
    bent = (low < 0) & (high > 0)
    c = torch.where(bent, torch.maximum(-s * low, (1 - s) * high), 0.0).clamp(min=0) * out
    t = torch.where(bent, (high > -low).to(low.dtype), s)
    return s, c, t


def chain_of(problem: NetworkPair) -> DenseChain | None:
    """Both networks as chains of matrices; None where they are anything else, or too wide."""
    layers: list[DenseLayer] = []
    before: str | None = None
    for node in problem.graph.nodes:
        if isinstance(node, Input):
            if before is not None:
                return None
        elif node.inputs != (before,):
            return None
        elif isinstance(node, Affine):
            layer = _matrices(problem, node)
            if layer is None:
                return None
            layers.append(layer)
        elif isinstance(node, Activation):
            if node.slope or not layers or layers[-1].relu:
                return None
            layers[-1] = replace(layers[-1], relu=True)
        elif not keeps_order(node, problem.graph.by_name[node.inputs[0]].shape):
            return None
        before = node.name
    if before != problem.graph.output or not layers or layers[-1].relu:
        return None
    return DenseChain(layers, unit=problem.unit)


def _matrices(problem: NetworkPair, node: Affine) -> DenseLayer | None:
    """What the node multiplies flat inputs by, and adds to them, in both networks."""
    shape = problem.graph.by_name[node.inputs[0]].shape
    ins, outs = math.prod(shape), math.prod(node.shape)
    if shape[:1] != (1,) or ins * outs > _WIDEST:
        return None
    device = next((value.device for value in problem.pair.f.values()), torch.device("cpu"))
    # Ones and zeros: each product and each sum is exact, so these are the weights themselves.
    units = torch.eye(ins, dtype=torch.float64, device=device).reshape(ins, *shape[1:])
    weights = [
        node.linear(units, weight).reshape(ins, outs).T for weight in problem.pair.weights(node)
    ]
    biases = [bias.to(device).expand(node.shape).reshape(-1) for bias in problem.pair.offsets(node)]
    return DenseLayer(
        weight=weights[0],
        bias=biases[0],
        other=weights[1],
        change=weights[1] - weights[0],
        bias_change=biases[1] - biases[0],
        relu=False,
    )
