"""The distance ‖Φ(θ) − Φ(θ')‖₁ between the paths of two networks, as flows: edge by edge, and path
by path where there are few.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from secateurs.graph import Graph, propagate
from secateurs.graph.primitives import Activation, Add, Affine, Input, Pool, Structural
from secateurs.proof.forms import ParameterPair, gamma, lift, linear, reorder, terms


@dataclass(frozen=True, slots=True, kw_only=True)
class PathMasses:
    """Of the paths to a value: m = ‖Φ(θ)‖₁, g = ‖Φ(θ')‖₁ and d ≥ ‖Φ(θ) − Φ(θ')‖₁; all (boxes,
    *shape).
    """

    m: Tensor
    g: Tensor
    d: Tensor


class PathStreams:
    """Masses of paths and their distance, side by side; a pool sums its window, as in G̃.

    With c = min(|w|, |w'|) of an edge whose weights agree in sign, else 0: d ← c·d + (|w| − c)·m +
    (|w'| − c)·g, as `paths.path_metric` has it. That is the distance itself where |θ'| ≤ |θ| with
    the signs of θ, or where one layer changed (equation (5) taken inside the pass), and never above
    |w'|·d + |w − w'|·m, for g ≤ m + d.
    """

    def __init__(self, *, biases: bool = True, unit: float = 0.0) -> None:
        self.biases, self.unit = biases, unit

    def input(self, node: Input, value: Tensor) -> PathMasses:
        """u ≥ |x| in both, and no difference."""
        return PathMasses(m=value, g=value, d=torch.zeros_like(value))

    def affine(self, node: Affine, x: PathMasses | None, params: ParameterPair) -> PathMasses:
        """The triangle inequality along every edge, then the bias."""
        both = params.biases(node) if self.biases else None
        zero = torch.zeros((), dtype=torch.float64)
        b, c = (zero, zero) if both is None else both
        if x is None:
            ends = (part.abs().expand(1, *node.shape) for part in (b, c, b - c))
            return PathMasses(**dict(zip(("m", "g", "d"), ends, strict=True)))
        w, v = params.weights(node)
        if w is None or v is None:
            parts = x.m, x.g, x.d
            swell = 1.0
        else:
            # Signs first: the product of two tiny weights underflows.
            common = torch.where(w * v.sign() > 0, torch.minimum(w.abs(), v.abs()), 0.0)
            d = linear(node, x.d, common) + linear(node, x.m, w.abs() - common)
            grown = v.abs() - common
            # A pruned network grows nowhere, which spares a pass.
            more = bool(grown.any())
            if more:
                d = d + linear(node, x.g, grown)
            parts = linear(node, x.m, w.abs()), linear(node, x.g, v.abs()), d
            # Two or three maps and a bias behind d; all terms are ≥ 0, so nothing cancels.
            count = (2 + more) * terms(node, x.m, w) + 8 + 2 * more
            swell = 1 + gamma(count, self.unit) if self.unit else 1.0
        m, g, d = parts
        return PathMasses(
            m=(m + b.abs()) * swell, g=(g + c.abs()) * swell, d=(d + (b - c).abs()) * swell
        )

    def activation(self, node: Activation, x: PathMasses) -> PathMasses:
        """Nothing for a ReLU; a leaky one with |slope| > 1 stretches."""
        stretch = max(1.0, abs(node.slope))
        return PathMasses(m=x.m * stretch, g=x.g * stretch, d=x.d * stretch)

    def pool(self, node: Pool, x: PathMasses) -> PathMasses:
        """Pools become sums in G̃."""
        swell = 1 + gamma(int(lift(node.total, torch.ones_like(x.m[:1])).amax()), self.unit)
        m, g, d = (lift(node.total, part) * swell for part in (x.m, x.g, x.d))
        return PathMasses(m=m, g=g, d=d)

    def structural(self, node: Structural, xs: Sequence[PathMasses]) -> PathMasses:
        """The same reordering."""
        return reorder(node, xs)

    def add(self, node: Add, xs: Sequence[PathMasses]) -> PathMasses:
        """Masses add, whatever the signs."""
        swell = 1 + gamma(len(xs), self.unit)
        m, g, d = (sum((getattr(x, k) for x in xs[1:]), getattr(xs[0], k)) for k in ("m", "g", "d"))
        return PathMasses(m=m * swell, g=g * swell, d=d * swell)


# The distance itself, path by path, where there are few enough.


class TooManyPaths(Exception):
    """The paths of this network cannot be held."""


MOST = 2**21
"""Paths into one layer, and entries of one map written out: 16 MB each in float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPairs:
    """The paths to the neurons of a layer, by what the two networks make of them.

    same: Σ|Φ| of those that no change has met yet, (1, *shape): both have one and the same value.
    first, second: Σ of those that only f has left, and only g.
    place: Of each path apart: the flat neuron that it leads to; a, b: its values in f and in g,
        and gap their difference, carried for its digits; size ≥ |gap|, by which it is rounded.
        Whatever was the same before its first change counts as one.
    """

    same: Tensor
    first: Tensor
    second: Tensor
    place: Tensor
    a: Tensor
    b: Tensor
    gap: Tensor
    size: Tensor


class ExactPaths:
    """‖Φ(θ) − Φ(θ')‖₁ by dynamic programming over paths: those that are alike so far, and those
    that one network has lost, are a mass each; only paths changed and alive in both are told apart.

    A value of `PathPairs` is made of products, one for each layer, and of sums of positive terms;
    `steps` counts both for whoever rounds outwards.
    """

    def __init__(self, *, biases: bool = True) -> None:
        self.biases, self.layers, self.steps = biases, 0, 0

    def input(self, node: Input, value: Tensor) -> PathPairs:
        """Both networks read the same input."""
        none = torch.zeros_like(value)
        return PathPairs(same=value, first=none, second=none, **_no_paths(value))

    def affine(self, node: Affine, x: PathPairs | None, params: ParameterPair) -> PathPairs:
        """Each edge once; a bias begins a path."""
        if x is not None:
            w, v = params.weights(node)
            f, g = (_as_matrix(x, node.shape, partial(_apply_weight, node, m)) for m in (w, v))
            x = self._follow_edges(x, f, g, node.shape)
        both = params.biases(node) if self.biases else None
        if both is None:
            return _begin_paths(node, torch.zeros(()), torch.zeros(())) if x is None else x
        begun = _begin_paths(node, *both)
        return begun if x is None else self._join_branches([x, begun])

    def activation(self, node: Activation, x: PathPairs) -> PathPairs:
        """Nothing for a ReLU; a leaky one with |slope| > 1 stretches."""
        stretch = max(1.0, abs(node.slope))
        self.layers += 1
        values = {name: getattr(x, name) * stretch for name in (*_MASSES, *_APART)}
        return x if stretch == 1 else PathPairs(place=x.place, **values)

    def pool(self, node: Pool, x: PathPairs) -> PathPairs:
        """Pools become sums in G̃."""
        total = _as_matrix(x, node.shape, partial(lift, node.total))
        return self._follow_edges(x, total, total, node.shape)

    def structural(self, node: Structural, xs: Sequence[PathPairs]) -> PathPairs:
        """The same reordering."""
        moved = []
        for number, x in enumerate(xs):
            others = [torch.zeros_like(other.same) for other in xs]

            def copied(t: Tensor, number: int = number, others: list[Tensor] = others) -> Tensor:
                return lift(node.function, *(t if k == number else o for k, o in enumerate(others)))

            map_ = _as_matrix(x, node.shape, copied)
            moved.append(self._follow_edges(x, map_, map_, node.shape))
        return self._join_branches(moved)

    def add(self, node: Add, xs: Sequence[PathPairs]) -> PathPairs:
        """Paths of two branches are different paths, whatever the signs."""
        if any(x.same.shape[1:] != torch.Size(node.shape) for x in xs):
            raise TooManyPaths("branches of different shapes meet")
        return self._join_branches(xs)

    def distance(self, x: PathPairs, unit: float) -> Tensor:
        """The distance per neuron, flat, rounded outwards."""
        far = x.gap.abs()
        if unit:
            # Four operations a layer, each relative to `size`.
            far = far + gamma(4 * self.layers + 8, unit) * x.size
        apart = torch.zeros_like(x.same.flatten()).index_add(0, x.place, far)
        found: Tensor = apart + x.first.flatten() + x.second.flatten()
        # Sums of terms that are not negative err by a factor.
        return found * (1 + gamma(self.steps + len(x.a) + 8, unit)) if unit else found

    def _follow_edges(
        self, x: PathPairs, f: Tensor, g: Tensor, shape: tuple[int, ...]
    ) -> PathPairs:
        """Along the edges of two maps, (inputs, outputs)."""
        ins, outs = f.shape
        if len(x.place) * outs > MOST:
            raise TooManyPaths(f"{len(x.place)} paths meet {outs} neurons")
        self.layers, self.steps = self.layers + 1, self.steps + ins + len(x.place)
        alike, lost, gained = f == g, g == 0, f == 0
        size_f, size_g = f.abs(), g.abs()
        same, first, second = (part.flatten() for part in (x.same, x.first, x.second))
        # Paths apart, along every edge: (paths, outputs).
        change = f - g
        a, b = x.a[:, None] * f[x.place], x.b[:, None] * g[x.place]
        gap = x.gap[:, None] * g[x.place] + x.a[:, None] * change[x.place]
        size = x.size[:, None] * size_g[x.place] + x.a.abs()[:, None] * change.abs()[x.place]
        # By the edges, not by the products, which may underflow.
        path_lost, path_gained = lost[x.place], gained[x.place]
        first = first @ size_f + same @ torch.where(~alike & lost, size_f, 0.0)
        first = first + torch.where(path_lost, a.abs(), 0.0).sum(dim=0)
        second = second @ size_g + same @ torch.where(~alike & gained, size_g, 0.0)
        second = second + torch.where(path_gained, b.abs(), 0.0).sum(dim=0)
        path, at = (~path_lost & ~path_gained).nonzero(as_tuple=True)
        # What was the same up to an edge that changed goes on as one path.
        begins = ~alike & ~lost & ~gained & (same != 0)[:, None]
        i, j = begins.nonzero(as_tuple=True)
        return PathPairs(
            same=(same @ torch.where(alike, size_f, 0.0)).reshape(1, *shape),
            first=first.reshape(1, *shape),
            second=second.reshape(1, *shape),
            place=torch.cat([at, j]),
            a=torch.cat([a[path, at], same[i] * f[i, j]]),
            b=torch.cat([b[path, at], same[i] * g[i, j]]),
            gap=torch.cat([gap[path, at], same[i] * change[i, j]]),
            size=torch.cat([size[path, at], same[i] * change[i, j].abs()]),
        )

    def _join_branches(self, xs: Sequence[PathPairs]) -> PathPairs:
        self.layers, self.steps = self.layers + 1, self.steps + len(xs)
        sums = {k: sum((getattr(x, k) for x in xs[1:]), getattr(xs[0], k)) for k in _MASSES}
        joined = {k: torch.cat([getattr(x, k) for x in xs]) for k in ("place", *_APART)}
        return PathPairs(**sums, **joined)


def _apply_weight(node: Affine, weight: Tensor | None, x: Tensor) -> Tensor:
    return linear(node, x, weight)


def _as_matrix(x: PathPairs, shape: tuple[int, ...], map_: Callable[[Tensor], Tensor]) -> Tensor:
    """A linear map of one sample as a matrix, (inputs, outputs)."""
    before = x.same.shape[1:]
    ins, outs = before.numel(), torch.Size(shape).numel()
    if ins * max(ins, outs) > MOST:
        raise TooManyPaths(f"{ins} values go to {outs}")
    units = torch.eye(ins, dtype=x.same.dtype, device=x.same.device).reshape(ins, *before)
    # Each entry is one product with 1 and sums of zeros: nothing is rounded.
    return map_(units).expand(ins, *shape).flatten(1)


def _begin_paths(node: Affine, f: Tensor, g: Tensor) -> PathPairs:
    """Paths that begin at a bias, f's and g's."""
    f, g = (bias.double().expand(1, *node.shape) for bias in (f, g))
    alike = f == g
    place = (~alike & (f != 0) & (g != 0)).flatten().nonzero().flatten()
    return PathPairs(
        same=torch.where(alike, f.abs(), 0.0),
        first=torch.where(g == 0, f.abs(), 0.0),
        second=torch.where(f == 0, g.abs(), 0.0),
        place=place,
        a=f.flatten()[place],
        b=g.flatten()[place],
        gap=(f - g).flatten()[place],
        size=(f - g).abs().flatten()[place],
    )


def _no_paths(like: Tensor) -> dict[str, Tensor]:
    none = like.new_zeros(0)
    return {"place": none.long()} | dict.fromkeys(_APART, none)


_MASSES = ("same", "first", "second")
_APART = ("a", "b", "gap", "size")


def exact_distance(
    graph: Graph, fed: Sequence[Tensor], pair: ParameterPair, *, biases: bool, unit: float
) -> Tensor | None:
    """‖Φ(θ) − Φ(θ')‖₁ per output, flat, input paths weighted by what is fed, (1, *shape); None
    where the paths are too many, or their values too large or too small for floats.
    """
    flow = ExactPaths(biases=biases)
    try:
        found = flow.distance(propagate(graph, flow, list(fed), pair), unit)
    except TooManyPaths:
        return None
    largest = float(found.amax())
    return found if largest == 0 or 1e-150 < largest < 1e150 else None
