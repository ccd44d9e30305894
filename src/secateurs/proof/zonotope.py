"""Zonotopes of two networks on one box, with a symbol for every input that varies and for every
open neuron of either network.

Each value of f, and each of g, is c + Σ_k g_k ε_k ± e over shared symbols ε_k in [−1, 1]: affine
maps act on c and on all g_k exactly, so what the networks share cancels in the difference of the
last ones, however deep they are. The remainder e holds roundings and whatever got no symbol; it
travels through |W|, growing by a factor of 20 or so in each layer of a convolutional network.
Once it threatens to matter, it is given symbols, too.

`AffineForms` limits the symbols to what fits beside many boxes, and its remainder is all that is
left of an ordinary network after a few layers; here one box takes the memory that it needs.
"""

import math
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from secateurs.graph import Activation, Add, Affine, Graph, Input, Pool, Structural
from secateurs.proof.affine import TooLarge
from secateurs.proof.forms import ParameterPair, gamma, lift, linear, magnitude, terms
from secateurs.proof.interval import centre_and_radius
from secateurs.proof.planes import chosen, runner_up
from secateurs.proof.rounding import NodeErrors
from secateurs.proof.twofold import DEEP, Twofold, mapped

_BATCH = 2**18
"""Numbers of generators that are mapped at once: 2 MB in float64, which stay in the cache; with 16
MB a map takes twice as long.
"""

_THREATENS = 1e-5
"""A remainder above this share of the largest radius is given symbols: a residual block multiplies
remainders by 20 or more, and radii by 2.
"""

_CHEAP, _AFFORDABLE = 2**24, 2**26
"""Numbers of all generators that a remainder may take, in each network: 128 MB, or 512 MB where it
has come a hundred times as near.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Zonotope:
    """c + Σ_k scale·g[k]·ε[ids[k]] + Σ_j size[j]·ε[new[j]] at entry at[j] ± e.

    g is (symbols, *shape), all others (1, *shape). A factor for each entry (a slope, a batch norm)
    is multiplied into `scale`, and a symbol of one entry alone is kept as such: both wait for the
    next map that mixes entries, since each pass over the generators takes as long as the memory.

    Attributes:
        low: What c lacks: the centre is c + low.
        mass: At least Σ_k |g[k]|.
    """

    c: Tensor
    low: Tensor
    ids: Tensor
    g: Tensor
    scale: Tensor
    mass: Tensor
    e: Tensor
    new: Tensor
    at: Tensor
    size: Tensor

    @property
    def spread(self) -> Tensor:
        """At least how far the symbols reach, but for the last digits of this sum itself."""
        alone = torch.zeros_like(self.c).flatten().index_add(0, self.at, self.size.abs())
        return self.scale.abs() * self.mass + alone.reshape(self.c.shape)

    @property
    def reach(self) -> Tensor:
        """The largest absolute value, up to the same digits."""
        return self.c.abs() + self.low.abs() + self.spread + self.e

    @property
    def symbols(self) -> Tensor:
        """All symbols of the value, in order; those of single entries are always the newest."""
        return torch.cat([self.ids, self.new])

    def ends(self, unit: float) -> tuple[Tensor, Tensor]:
        """Below and above every value."""
        r = (self.spread + self.e) * (1 + 16 * unit) + self.low.abs() + 4 * unit * self.c.abs()
        return self.c - r, self.c + r

    def rows(self, symbols: Tensor) -> Tensor:
        """The generators of some symbols, sorted; zeros where the value does not have one."""
        first, count = self._place(symbols)
        if count == len(symbols):
            return self.g[first : first + count] * self.scale
        found = self.g.new_zeros(len(symbols), *self.g.shape[1:])
        if len(self.ids):
            place = torch.searchsorted(self.ids, symbols).clamp(max=len(self.ids) - 1)
            here = self.ids[place] == symbols
            found[here] = self.g[place[here]] * self.scale
        if len(self.new):
            place = torch.searchsorted(self.new, symbols).clamp(max=len(self.new) - 1)
            here = self.new[place] == symbols
            flat = found.flatten(1)
            flat[here.nonzero().flatten(), self.at[place[here]]] = self.size[place[here]]
        return found

    def _place(self, symbols: Tensor) -> tuple[int, int]:
        """Where consecutive symbols begin in g, and how many of them there are in a row."""
        if not len(symbols) or not len(self.ids):
            return 0, 0
        first = int(torch.searchsorted(self.ids, symbols[:1]))
        part = self.ids[first : first + len(symbols)]
        return first, len(part) if torch.equal(part, symbols) else 0

    def columns(self, at: Tensor) -> Tensor:
        """The generators of some entries, (symbols, entries)."""
        old = self.g.flatten(1)[:, at] * self.scale.flatten()[at]
        alone = (self.at.unsqueeze(1) == at) * self.size.unsqueeze(1)
        return torch.cat([old, alone])

    def scaled(self, factor: Tensor, shift: Tensor, unit: float) -> "Zonotope":
        """factor · value + shift, entry by entry, with the roundings of this."""
        center = Twofold(hi=self.c, lo=self.low).times(factor).plus(shift)
        size = factor.abs() * self.c.abs() + shift.abs()
        lost = 4 * unit * factor.abs() * self.spread + (DEEP if unit else 0.0) * size
        return replace(
            self,
            c=center.hi,
            low=center.lo,
            scale=factor * self.scale,
            size=factor.flatten()[self.at] * self.size,
            e=(factor.abs() * self.e + lost) * (1 + 8 * unit),
        )

    def with_symbols(self, new: Tensor, at: Tensor, size: Tensor) -> "Zonotope":
        """The value with further symbols, each of one entry."""
        return replace(
            self,
            new=torch.cat([self.new, new]),
            at=torch.cat([self.at, at]),
            size=torch.cat([self.size, size]),
        )

    def without(self, symbols: Tensor, unit: float) -> "Zonotope":
        """The value with these symbols in its remainder."""
        old, alone = torch.isin(self.ids, symbols), torch.isin(self.new, symbols)
        gone = self.g[old].abs().sum(dim=0, keepdim=True) * self.scale.abs()
        kept = self.g[~old]
        single = torch.zeros_like(gone).flatten()
        single = single.index_add(0, self.at[alone], self.size[alone].abs()).reshape(gone.shape)
        share = 1 + gamma(len(old) + len(alone) + 8, unit)
        return replace(
            self,
            ids=self.ids[~old],
            g=kept,
            mass=kept.abs().sum(dim=0, keepdim=True) * (1 + gamma(len(kept) + 2, unit)),
            e=self.e + (gone + single) * share,
            new=self.new[~alone],
            at=self.at[~alone],
            size=self.size[~alone],
        )


def point(center: Tensor) -> Zonotope:
    """A known value."""
    none = center.new_zeros(0)
    zero = torch.zeros_like(center)
    return Zonotope(
        c=center,
        low=zero,
        ids=none.long(),
        g=center.new_zeros(0, *center.shape[1:]),
        scale=torch.ones_like(center),
        mass=zero,
        e=zero,
        new=none.long(),
        at=none.long(),
        size=none,
    )


Where = tuple[slice, slice]
"""A window of a map."""

_NOWHERE: Where = (slice(0), slice(0))


def _mapped(
    function: Callable[..., Tensor | tuple[Tensor, Where]],
    xs: Sequence[Zonotope],
    shape: tuple[int, ...],
    unit: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The symbols of some values, their generators after a linear map, and at least the sum of
    absolute values of these.
    """
    symbols = torch.unique(torch.cat([x.symbols for x in xs]))
    # Zeros that are not written take neither time nor memory.
    g = xs[0].c.new_zeros(len(symbols), *shape)
    mass = xs[0].c.new_zeros(1, *shape)
    widest = max(torch.Size(shape).numel(), *(x.c.numel() for x in xs))
    done = 0
    for part in torch.split(symbols, max(1, _BATCH // widest)) if len(symbols) else ():
        found = function(*(x.rows(part) for x in xs))
        out, where = found if isinstance(found, tuple) else (found, ())
        g[done : done + len(part)][(..., *where)] = out
        mass[(..., *where)] += out.abs().sum(dim=0, keepdim=True)
        done += len(part)
    return symbols, g, mass * (1 + gamma(len(symbols) + 2, unit))


def _convolved(node: Affine, weight: Tensor, rows: Tensor) -> Tensor | tuple[Tensor, Where]:
    """The map of some generators; of a convolution only the window of the result that is not zero:
    symbols of neighbouring inputs reach few pixels in the first layers.
    """
    how = node.operation.sliding
    if how is None or how.groups is None or rows.ndim != 5:
        return linear(node, rows, weight)
    full = rows.flatten(0, 1)
    parts, where, missing = [], [], []
    for axis in (0, 1):
        kernel, stride, pad, step = (
            getattr(how, name)[axis] for name in ("kernel", "stride", "padding", "dilation")
        )
        length, out = full.shape[2 + axis], node.shape[2 + axis]
        used = (full != 0).any(dim=3 - axis).flatten(0, 1).any(dim=0).nonzero().flatten()
        if not len(used):
            return full.new_zeros(()), _NOWHERE
        span = (kernel - 1) * step
        # Output o reads the inputs o·stride − pad + t·step.
        first = max(0, -((span - pad - int(used[0])) // stride))
        last = min(out - 1, (int(used[-1]) + pad) // stride)
        start, stop = first * stride - pad, last * stride - pad + span + 1
        parts.append(slice(max(0, start), min(length, stop)))
        missing.append((max(0, -start), max(0, stop - length)))
        where.append(slice(first, max(first, last + 1)))
    if any(place.stop <= place.start for place in where):
        return full.new_zeros(()), _NOWHERE
    cut = F.pad(full[:, :, parts[0], parts[1]], (*missing[1], *missing[0]))
    y = F.conv2d(cut, weight, stride=how.stride, dilation=how.dilation, groups=how.groups)
    return y.reshape(*rows.shape[:2], *y.shape[1:]), (where[0], where[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The same value of f and of g."""

    f: Zonotope
    g: Zonotope

    @property
    def both(self) -> tuple[Zonotope, Zonotope]:
        """f's and g's."""
        return self.f, self.g

    def directions(self, toward: Tensor, unit: float) -> Tensor:
        """Ends of ⟨t, f⟩, of ⟨t, g⟩ and of ⟨t, f − g⟩ for each row t, (6, rows), in the order of
        `FIELDS`.
        """
        symbols, size = torch.unique(torch.cat([x.symbols for x in self.both])), toward.abs()
        c, g, e, reach = [], [], [], []
        for x in self.both:
            rows = x.rows(symbols).flatten(1)
            c.append(toward @ x.c.flatten() + toward @ x.low.flatten())
            g.append(rows @ toward.T)
            e.append(size @ x.e.flatten())
            reach.append(size @ x.reach.flatten())
        for parts, sign in ((c, -1), (g, -1), (e, 1), (reach, 1)):
            parts.append(parts[0] + sign * parts[1])
        ends = []
        share = gamma(len(symbols) + toward.shape[1] + 8, unit)
        for center, rows, rest, largest in zip(c, g, e, reach, strict=True):
            r = rows.abs().sum(dim=0) + rest + 2 * share * largest
            ends += [center - r, center + r]
        return torch.stack(ends)

    def difference(self, unit: float) -> Tensor:
        """At least |f − g| of all entries; flat."""
        center, radius = self.gap(torch.arange(self.f.c.numel(), device=self.f.c.device), unit)
        return center.abs() + radius

    def gap(self, at: Tensor, unit: float) -> tuple[Tensor, Tensor]:
        """A number for each of some entries, and how far f − g can be from it; flat."""
        symbols = torch.unique(torch.cat([x.symbols for x in self.both]))
        gap = self.f.c.new_zeros(len(symbols), len(at))
        size = gap.new_zeros(len(at))
        for x, sign in ((self.f, 1), (self.g, -1)):
            columns = x.columns(at)
            gap.index_add_(0, torch.searchsorted(symbols, x.symbols), sign * columns)
            size += columns.abs().sum(dim=0) + x.c.flatten()[at].abs()
        center = ((self.f.c - self.g.c) + (self.f.low - self.g.low)).flatten()[at]
        far = gap.abs().sum(dim=0) + (self.f.e + self.g.e).flatten()[at]
        # Two roundings of each generator, and those of the sum and of the centre.
        return center, far * (1 + gamma(len(symbols) + 8, unit)) + 8 * unit * size


def nodes_alone(graph: Graph) -> frozenset[str]:
    """Activations and pools past which nothing that was computed before them is read; if there are
    none, all of them.
    """
    left = Counter(name for node in graph.nodes for name in node.inputs)
    alive, every, found = set[str](), set[str](), set[str]()
    for node in graph.nodes:
        left.subtract(node.inputs)
        alive = {name for name in alive if left[name]}
        if isinstance(node, Activation | Pool):
            every.add(node.name)
            if not alive:
                found.add(node.name)
        alive.add(node.name)
    return frozenset(found or every)


class Zonotopes:
    """The flow; fed with the ends of one box, (lo, hi).

    errors: for f and g, what the numbers of each node add to those of real numbers (radii of
    computed weights, or evaluation in the models' own precision); None where nothing is added.
    most: symbols of one value, those of remainders apart. alone: see `nodes_alone`. late:
    called at every layer; once it returns True the flow gives up.
    """

    def __init__(
        self,
        *,
        unit: float,
        errors: tuple[NodeErrors, NodeErrors] | None = None,
        most: int = 2**16,
        alone: Container[str] = (),
        late: Callable[[], bool] = lambda: False,
    ) -> None:
        self.unit, self.errors, self.alone, self.late = unit, errors, alone, late
        self.room = most
        self._next = 0
        # The symbols of remainders, of each network.
        self._rest: list[Tensor] = []
        self.dropped = 0

    def input(self, node: Input, value: tuple[Tensor, Tensor]) -> Pair:
        """A symbol for each entry that varies."""
        center, radius = centre_and_radius(*value)
        at = radius.flatten().nonzero().flatten()
        if len(at) > self.room:
            raise TooLarge(
                f"{len(at)} open inputs need a symbol each, {self.room} are allowed; say symbols="
                " to allow more"
            )
        self._device = center.device
        self._rest = [self._number(0)] * 2
        x = point(center).with_symbols(self._number(len(at)), at, radius.flatten()[at])
        if self.errors is None:
            return Pair(f=x, g=x)
        f, g = (replace(x, e=errors.of_sum(0, x.reach)) for errors in self.errors)
        return Pair(f=f, g=g)

    def affine(self, node: Affine, x: Pair | None, params: ParameterPair) -> Pair:
        """W on the centre and on every symbol, |W| on the remainder."""
        weights, biases = params.weights(node), params.offsets(node)
        f, g = (
            self._affine(which, node, None if x is None else x.both[which], w, b)
            for which, (w, b) in enumerate(zip(weights, biases, strict=True))
        )
        return Pair(f=f, g=g)

    def _affine(
        self, which: int, node: Affine, x: Zonotope | None, weight: Tensor | None, bias: Tensor
    ) -> Zonotope:
        unit = self.unit
        errors = None if self.errors is None else self.errors[which]
        if x is None:
            y = point(torch.zeros(1, *node.shape, dtype=bias.dtype, device=bias.device) + bias)
            return (
                y
                if errors is None
                else replace(y, e=errors.of_map(node, None, weight) + torch.zeros_like(y.c))
            )
        added = 0.0 if errors is None else errors.of_map(node, x.reach, weight)
        if weight is None or _is_entrywise(node, x):
            factor = linear(node, torch.ones_like(x.c), weight)
            y = x.scaled(factor, bias + torch.zeros_like(x.c), unit)
        else:
            # Products and their sum, and the factors in `rows`.
            share = gamma(terms(node, x.c, weight) + 8, unit)
            apply = partial(_convolved, node, weight)
            symbols, g, mass = _mapped(apply, [x], node.shape, unit)
            center, far = mapped(node, Twofold(hi=x.c, lo=x.low), weight)
            center = center.plus(bias)
            far = far + DEEP * (center.hi.abs() + bias.abs()) if unit else torch.zeros_like(far)
            e = linear(node, x.e + share * x.spread, magnitude(weight)) * (1 + 2 * share) + far
            y = replace(point(center.hi), low=center.lo, ids=symbols, g=g, mass=mass, e=e)
        return replace(y, e=y.e + added)

    def activation(self, node: Activation, x: Pair) -> Pair:
        """λz + H/2 ± H/2 for a neuron that is open: between the line through the origin and the
        chord. With one λ for both networks their errors share a symbol where z and z' nearly agree:
        the slopes of h(z) = relu(z) − λz are −λ and 1 − λ, so that h(z) − h(z') is known from the
        range of z − z'.
        """
        if self.late():
            raise TooLarge("the time was up")
        ends = [z.ends(self.unit) for z in x.both]
        # Written so that a NaN, of values that overflow, counts as open and stays one.
        is_open = [~((l >= 0) | (h <= 0)) for l, h in ends]
        lines = [_Line.around(l, h, self.unit) for l, h in ends]
        at = (is_open[0] & is_open[1]).flatten().nonzero().flatten()
        joint, top, bottom = self._agreeing(x, at, ends, lines)
        middle, moved = (top + bottom) / 2, (top - bottom) / 2 * (1 + 8 * self.unit)
        shared = self._number(len(joint))
        out = []
        for which, (z, line) in enumerate(zip(x.both, lines, strict=True)):
            settled, on = ~is_open[which], ends[which][0] >= 0
            slope = node.slope + (1 - node.slope) * line.slope
            known = torch.where(on, torch.ones_like(slope), node.slope)
            slope = torch.where(settled, known, slope)
            height = torch.where(settled, 0.0, line.height)
            shift, half = height * ((1 - node.slope) / 2), height * (abs(1 - node.slope) / 2)
            if which:
                shift = shift.flatten().index_add(0, joint, (node.slope - 1) * middle)
                shift = shift.reshape(half.shape)
            y = z.scaled(slope, shift, self.unit)
            if node.slope:
                # The slope itself is a rounded sum.
                lost = 4 * self.unit * (abs(node.slope) + abs(1 - node.slope))
                y = replace(y, e=y.e + lost * z.reach)
            # To multiply by 0 or 1 rounds nothing.
            exact = settled & ((slope == 0) | (slope == 1))
            y = replace(y, e=torch.where(exact, slope * z.e, y.e))
            if self.errors is not None:
                y = replace(y, e=y.e + self.errors[which].of_slope(node.slope, z.reach))
            y = y.with_symbols(shared, joint, half.flatten()[joint])
            if which:
                apart = moved * abs(1 - node.slope)
                y = y.with_symbols(self._number(len(joint)), joint, apart)
            half = half.flatten().index_fill(0, joint, 0.0).reshape(half.shape)
            out.append(self._hold(which, node, self._opened(which, y, half)))
        return Pair(f=out[0], g=out[1])

    def _agreeing(
        self, x: Pair, at: Tensor, ends: list[tuple[Tensor, Tensor]], lines: list["_Line"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Which of the neurons that are open in both networks share a symbol, and the ends of h(z)
        − h(z') for each; their lines become one.
        """
        low, high = torch.minimum(ends[0][0], ends[1][0]), torch.maximum(ends[0][1], ends[1][1])
        both = _Line.around(low, high, self.unit)
        slope, height = both.slope.flatten()[at], both.height.flatten()[at]
        center, radius = x.gap(at, self.unit) if len(at) else (slope, slope)
        # The ends themselves are rounded.
        radius = radius + 8 * self.unit * (center.abs() + radius)
        low, high = center - radius, center + radius
        top = torch.maximum((1 - slope) * high, -slope * low).minimum(height)
        bottom = torch.minimum((1 - slope) * low, -slope * high).maximum(-height)
        apart = (lines[0].height + lines[1].height).flatten()[at] / 2
        gain = apart - (top - bottom) / 2
        # Two symbols each, while there is room.
        room = max(0, self.room - max(len(z.symbols) for z in x.both)) // 2
        best = gain.topk(min(room, len(gain))).indices.sort().values
        best = best[gain[best] > 0]
        lines[:] = [line.replaced(both, at[best]) for line in lines]
        return at[best], top[best], bottom[best]

    def _opened(self, which: int, y: Zonotope, half: Tensor) -> Zonotope:
        """± half with a symbol for each entry, widest first, while there is room; the others in
        the remainder.
        """
        at = half.flatten().nonzero().flatten()
        # Those of a remainder are counted apart.
        rest = int(torch.isin(y.symbols, self._rest[which]).sum())
        room = max(0, self.room + rest - len(y.symbols))
        if len(at) > room:
            widest = half.flatten()[at].topk(room).indices.sort().values
            self.dropped += len(at) - room
            at = at[widest]
            left = half.flatten().index_fill(0, at, 0.0)
            y = replace(y, e=y.e + left.reshape(half.shape))
        return y.with_symbols(self._number(len(at)), at, half.flatten()[at])

    def _hold(self, which: int, node: Activation | Pool, y: Zonotope) -> Zonotope:
        """The value, its remainder made of symbols where that is needed and affordable."""
        # Beside a skip that keeps its remainder nothing would be gained.
        if node.name not in self.alone:
            return y
        largest, radius = float(y.e.max()), float(y.spread.max())
        numbers = int((y.e != 0).sum()) * y.c.numel()
        near = largest > _THREATENS * radius * (1 if numbers <= _CHEAP else 100)
        if not near or numbers > _AFFORDABLE or not math.isfinite(largest):
            return y
        if len(self._rest[which]):
            held = y.without(self._rest[which], self.unit)
            # While what has symbols is the larger part, making it a remainder loses more.
            if float((held.e - y.e).max()) > largest:
                return y
            y = held
        at = y.e.flatten().nonzero().flatten()
        new = self._number(len(at))
        self._rest[which] = torch.cat([self._rest[which], new])
        y = y.with_symbols(new, at, y.e.flatten()[at])
        return replace(y, e=torch.zeros_like(y.e))

    def pool(self, node: Pool, x: Pair) -> Pair:
        """In each window the entry with the largest lower end (of f and g together), and what
        others may add to it; the range of the window where that is narrower, or for a k-th largest.
        """
        ends = [z.ends(self.unit) for z in x.both]
        point_ = ends[0][0] + ends[1][0]
        out = []
        for which, (z, (l, h)) in enumerate(zip(x.both, ends, strict=True)):
            low, high = lift(node.apply, l), lift(node.apply, h)
            more = (runner_up(node, point_, h) - chosen(node, point_, l)).relu()
            keeps = (more < high - low) & torch.tensor(node.rank == 1)
            more = torch.where(keeps, more, 0.0)

            def pick(rows: Tensor, keeps: Tensor = keeps) -> Tensor:
                return chosen(node, point_.expand(rows.shape).contiguous(), rows) * keeps

            symbols, g, mass = _mapped(pick, [z], node.shape, self.unit)
            kept = Twofold(hi=pick(z.c), lo=pick(z.low)).plus(more / 2)
            c = torch.where(keeps, kept.hi, (low + high) / 2)
            below = torch.where(keeps, kept.lo, 0.0)
            half = torch.where(keeps, more / 2, (high - low) / 2)
            e = pick(z.e) + 16 * self.unit * (pick(z.spread) + more + half)
            e = e + torch.where(keeps, DEEP if self.unit else 0.0, 4 * self.unit) * c.abs()
            y = replace(point(c), low=below, ids=symbols, g=g, mass=mass, e=e)
            out.append(self._hold(which, node, self._opened(which, y, half)))
        return Pair(f=out[0], g=out[1])

    def structural(self, node: Structural, xs: Sequence[Pair]) -> Pair:
        """The same reordering of every symbol."""

        def move(*parts: Tensor) -> Tensor:
            return lift(node.function, *parts)

        return self._combined(move, xs, node.shape, 0)

    def add(self, node: Add, xs: Sequence[Pair]) -> Pair:
        """Signed sums; shared symbols cancel."""

        def total(*parts: Tensor) -> Tensor:
            signed = (p if sign > 0 else -p for sign, p in zip(node.signs, parts, strict=True))
            return sum(signed, torch.zeros((), dtype=parts[0].dtype))

        return self._combined(total, xs, node.shape, len(xs))

    def _combined(
        self,
        function: Callable[..., Tensor],
        xs: Sequence[Pair],
        shape: tuple[int, ...],
        count: int,
    ) -> Pair:
        """A map of several values that copies entries, or adds `count` of them."""
        out = []
        for which in (0, 1):
            zs = [x.both[which] for x in xs]
            symbols, g, mass = _mapped(function, zs, shape, self.unit)
            share, deep = gamma(count + 2, self.unit), count * (DEEP if self.unit else 0.0)
            lost = [z.e + share * z.spread + deep * z.c.abs() for z in zs]
            e = self._sizes(function, lost, shape, count)
            if self.errors is not None and count:
                sizes = self._sizes(function, [z.reach for z in zs], shape, count)
                e = e + self.errors[which].of_sum(count, sizes)
            center = self._center(function, zs, shape, count)
            out.append(replace(point(center.hi), low=center.lo, ids=symbols, g=g, mass=mass, e=e))
        return Pair(f=out[0], g=out[1])

    def _center(
        self, function: Callable[..., Tensor], zs: list[Zonotope], shape: tuple[int, ...], add: int
    ) -> Twofold:
        """The same map of centres."""
        if not add:
            return Twofold(hi=function(*(z.c for z in zs)), lo=function(*(z.low for z in zs)))
        none = [torch.zeros_like(z.c) for z in zs]
        total = Twofold(hi=torch.zeros(1, *shape), lo=torch.zeros(1, *shape))
        for k, z in enumerate(zs):
            # One at a time, with the sign that the sum gives it.
            for part in (z.c, z.low):
                total = total.plus(function(*none[:k], part, *none[k + 1 :]))
        return total

    def _sizes(
        self, function: Callable[..., Tensor], sizes: list[Tensor], shape: tuple[int, ...], add: int
    ) -> Tensor:
        """The same map of numbers that are not negative, without signs."""
        if not add:
            return function(*sizes)
        return sum(sizes[1:], sizes[0]) * (1 + gamma(add + 2, self.unit))

    def _number(self, count: int) -> Tensor:
        """New symbols."""
        self._next += count
        return torch.arange(self._next - count, self._next, device=self._device)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """relu(z) lies between slope·z and slope·z + height."""

    slope: Tensor
    height: Tensor

    @staticmethod
    def around(l: Tensor, h: Tensor, unit: float) -> "_Line":
        """Parallel to the chord of an open neuron."""
        slope = (h / (h - l).clamp(min=torch.finfo(h.dtype).tiny)).clamp(0, 1)
        # At both ends, since the slope is rounded; settled neurons do not use it.
        height = torch.maximum(-slope * l, (1 - slope) * h).relu() * (1 + 8 * unit)
        return _Line(slope=slope, height=height)

    def replaced(self, other: "_Line", at: Tensor) -> "_Line":
        """The other line for some neurons."""
        slope, height = self.slope.clone(), self.height.clone()
        slope.view(-1)[at] = other.slope.flatten()[at]
        height.view(-1)[at] = other.height.flatten()[at]
        return _Line(slope=slope, height=height)


def _is_entrywise(node: Affine, x: Zonotope) -> bool:
    axes = node.operation.axes
    return axes is not None and axes.diagonal and x.c.shape[1:] == torch.Size(node.shape)
