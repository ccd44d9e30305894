"""Zonotopes of two networks on one box, and of their difference, with a symbol for every input that
varies and for every open neuron.

Each value of f, each of g, and each difference d of the two is c + Σ_k g_k ε_k ± e over shared
symbols ε_k in [−1, 1]. Affine maps act on c and on all g_k exactly; a difference becomes W'd + (W −
W')f, so that it stays as small as the networks' differences are, however deep they are. An open
neuron gets its own band in each network, and one for its difference: |relu(z) − relu(z')| is at
most |z − z'|, whatever is unknown of z. The remainder e holds roundings and whatever got no symbol;
it travels through |W|, growing by a factor of 20 or so in each layer of a convolutional network.
Once it threatens to matter, it is given symbols, too.

`AffineForms` limits the symbols to what fits beside many boxes, and its remainder is all that is
left of an ordinary network after a few layers; here one box takes the memory that it needs.
"""

import math
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from secateurs.graph import Activation, Add, Affine, Graph, Input, Opaque, Pool, Structural
from secateurs.proof import hardswish
from secateurs.proof.affine import TooLarge
from secateurs.proof.convolve import Convolution, Rows
from secateurs.proof.forms import (
    FIELDS,
    Bounds,
    ParameterPair,
    gamma,
    lift,
    linear,
    magnitude,
    terms,
)
from secateurs.proof.interval import centre_and_radius
from secateurs.proof.planes import Band, Plane, bands, chosen, runner_up
from secateurs.proof.rounding import Radii
from secateurs.proof.slabs import Slabs
from secateurs.proof.twofold import DEEP, Twofold, mapped, two_sum

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

_AGAIN = 32
"""Values that may be computed for one that is not kept. A skip reads what it passes by twice, and
through ten of them everything would be computed a thousand times.
"""

_HELD = 2**27
"""Numbers of all generators up to which remainders are given symbols beside those of earlier ones:
1 GB. Beyond, they replace them.
"""


@dataclass(frozen=True, slots=True)
class Recomputed:
    """Generators of some values after a linear map, computed a few symbols at a time."""

    function: "Convolution | Callable[..., Tensor]"
    xs: Sequence["Zonotope"]
    shape: tuple[int, ...]
    values: int

    @staticmethod
    def of(
        function: "Convolution | Callable[..., Tensor]",
        xs: Sequence["Zonotope"],
        shape: Sequence[int],
    ) -> "Recomputed":
        """With the number of values that are computed on the way, itself among them."""
        before = sum(x.g.values for x in xs if isinstance(x.g, Recomputed))
        return Recomputed(function, tuple(xs), tuple(shape), 1 + before)

    def kept_in(self, slabs: Slabs, count: int) -> "Tensor | Recomputed":
        """Memory for the generators of so many symbols; itself if they are too large for it."""
        if slabs.fits(shape := (count, *self.shape)):
            return slabs.empty(self.xs[0].c, shape)
        if self.values > _AGAIN:
            raise TooLarge(
                f"{count} symbols for each of {math.prod(self.shape)} values take"
                f" {math.prod(shape) / 2**27:.1f} GB, too much to be kept and too deep to be"
                " computed anew; let fewer inputs vary, or say symbols= to keep all"
            )
        return self

    @property
    def symbols(self) -> Tensor:
        """Those of any of the values, in order."""
        every: Tensor = torch.unique(torch.cat([x.symbols for x in self.xs]))
        return every

    def parts(self, symbols: Tensor) -> Sequence[Tensor]:
        """The symbols, as many at a time as stay in the cache, or have the size of the weights,
        which are arranged anew each time.
        """
        widest = max(math.prod(self.shape), *(x.c.numel() for x in self.xs))
        weights = self.function.weights if isinstance(self.function, Convolution) else ()
        count = max(1, max([_BATCH, *(w.numel() for w in weights)]) // widest)
        return [symbols[k : k + count] for k in range(0, len(symbols), count)]

    def into(self, to: Tensor, symbols: Tensor, mass: Tensor | None = None) -> None:
        """Write the generators of some symbols, and add their absolute values."""
        if isinstance(self.function, Convolution):
            self.function.into(to, mass, [x.unscaled(symbols) for x in self.xs])
            return
        out = self.function(*(x.rows(symbols) for x in self.xs))
        to.copy_(out)
        if mass is not None:
            mass += out.abs().sum(dim=0, keepdim=True)

    def rows(self, symbols: Tensor) -> Tensor:
        """The generators of some symbols."""
        out: Tensor = self.xs[0].c.new_empty(len(symbols), *self.shape)
        done = 0
        for part in self.parts(symbols):
            self.into(out[done : done + len(part)], part)
            done += len(part)
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Zonotope:
    """c + Σ_k scale·g[k]·ε[ids[k]] + Σ_j size[j]·ε[new[j]] at entry at[j] ± e.

    g is (symbols, *shape), or the map that computes it anew each time, where it is too large to be
    kept; all others are (1, *shape). A factor for each entry (a slope, a batch norm)
    is multiplied into `scale`, and a symbol of one entry alone is kept as such: both wait for the
    next map that mixes entries, since each pass over the generators takes as long as the memory.

    Attributes:
        low: What c lacks: the centre is c + low.
        mass: At least Σ_k |g[k]|.
    """

    c: Tensor
    low: Tensor
    ids: Tensor
    g: Tensor | Recomputed
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
    def numbers(self) -> int:
        """Those of all generators."""
        return len(self.ids) * self.c.numel()

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
        found = self.unscaled(symbols)
        if found is None:
            return self.c.new_zeros(len(symbols), *self.c.shape[1:])
        rows, scale = found
        return rows if scale is None else rows * scale

    def unscaled(self, symbols: Tensor) -> Rows | None:
        """The same as they are kept, and the factor that they lack; None where the value has none
        of the symbols.
        """
        first, count = self._place(symbols)
        if count == len(symbols):
            return self._kept(slice(first, first + count)), self.scale
        if not bool(torch.isin(symbols, self.symbols).any()):
            return None
        found = self.c.new_zeros(len(symbols), *self.c.shape[1:])
        if len(self.ids):
            place = torch.searchsorted(self.ids, symbols).clamp(max=len(self.ids) - 1)
            here = self.ids[place] == symbols
            found[here] = self._kept(place[here]) * self.scale
        if len(self.new):
            place = torch.searchsorted(self.new, symbols).clamp(max=len(self.new) - 1)
            here = self.new[place] == symbols
            flat = found.flatten(1)
            flat[here.nonzero().flatten(), self.at[place[here]]] = self.size[place[here]]
        return found, None

    def _kept(self, places: slice | Tensor) -> Tensor:
        """The generators at some places of g."""
        return self.g.rows(self.ids[places]) if isinstance(self.g, Recomputed) else self.g[places]

    def _place(self, symbols: Tensor) -> tuple[int, int]:
        """Where consecutive symbols begin in g, and how many of them there are in a row."""
        if not len(symbols) or not len(self.ids):
            return 0, 0
        first = int(torch.searchsorted(self.ids, symbols[:1]))
        part = self.ids[first : first + len(symbols)]
        return first, len(part) if torch.equal(part, symbols) else 0

    def columns(self, at: Tensor) -> Tensor:
        """The generators of some entries, (symbols, entries)."""
        if isinstance(self.g, Recomputed):
            parts = [self.g.rows(part).flatten(1)[:, at] for part in self.g.parts(self.ids)]
            old = torch.cat(parts)
        else:
            old = self.g.flatten(1)[:, at]
        alone = (self.at.unsqueeze(1) == at) * self.size.unsqueeze(1)
        return torch.cat([old * self.scale.flatten()[at], alone])

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

    def plus_at(
        self, at: Tensor, factor: Tensor, other: "Zonotope", unit: float, slabs: Slabs
    ) -> "Zonotope":
        """The value and factor · other at some entries; the factors may be off by a rounding."""
        made = Recomputed.of(partial(_add_at, at, factor), (self, other), self.c.shape[1:])
        symbols = made.symbols
        part = self.c.new_zeros(len(symbols), len(at))
        part[torch.searchsorted(symbols, self.symbols)] = self.columns(at)
        part.index_add_(0, torch.searchsorted(symbols, other.symbols), factor * other.columns(at))
        g = made.kept_in(slabs, len(symbols))
        if isinstance(g, Tensor):
            many = max(1, _BATCH // self.c.numel())
            for to, of in zip(torch.split(g, many), torch.split(symbols, many), strict=True):
                to.copy_(self.rows(of))
            g.flatten(1)[:, at] = part
        more = Twofold(hi=other.c.flatten()[at], lo=other.low.flatten()[at]).times(factor)
        center = Twofold(hi=self.c.flatten()[at], lo=self.low.flatten()[at])
        center = center.plus(more.hi).plus(more.lo)
        size, flat = factor.abs(), self.spread.flatten()
        lost = 16 * unit * (size * other.reach.flatten()[at] + flat[at])
        mass = flat.index_copy(0, at, part.abs().sum(dim=0)) * (1 + gamma(len(symbols) + 8, unit))
        e = self.e.flatten() + 4 * unit * flat
        e = e.index_add(0, at, (size * other.e.flatten()[at] + lost) * (1 + 8 * unit))
        return replace(
            point(self.c.flatten().index_copy(0, at, center.hi).reshape(self.c.shape)),
            low=self.low.flatten().index_copy(0, at, center.lo).reshape(self.c.shape),
            ids=symbols,
            g=g,
            mass=mass.reshape(self.c.shape),
            e=e.reshape(self.c.shape),
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
        gone = self._kept(old).abs().sum(dim=0, keepdim=True) * self.scale.abs()
        kept = self._kept(~old)
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


def _add_at(at: Tensor, factor: Tensor, rows: Tensor, more: Tensor) -> Tensor:
    """The generators and factor · others at some entries."""
    rows.flatten(1).index_add_(1, at, factor * more.flatten(1)[:, at])
    return rows


def _linear_sum(node: Affine, weights: Sequence[Tensor], *rows: Tensor) -> Tensor:
    """The sum of the maps of some generators."""
    each = zip(rows, weights, strict=True)
    return torch.stack([linear(node, x, weight) for x, weight in each]).sum(dim=0)


_GAP = 2
"""The place of the difference among the values of a pair."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The same value of f and of g, and the difference d = f − g."""

    f: Zonotope
    g: Zonotope
    d: Zonotope

    @property
    def all(self) -> tuple[Zonotope, Zonotope, Zonotope]:
        """In the order of `FIELDS`."""
        return self.f, self.g, self.d

    def ends(self, unit: float) -> list[tuple[Tensor, Tensor]]:
        """Below and above every value; what is known of two of them bounds the third."""
        (l, h), (l2, h2), (low, high) = (x.ends(unit) for x in self.all)

        def down(total: Tensor) -> Tensor:
            return total - 2 * unit * total.abs()

        def up(total: Tensor) -> Tensor:
            return total + 2 * unit * total.abs()

        # Written so that a NaN stays one.
        return [
            (torch.maximum(l, down(l2 + low)), torch.minimum(h, up(h2 + high))),
            (torch.maximum(l2, down(l - high)), torch.minimum(h2, up(h - low))),
            (torch.maximum(low, down(l - h2)), torch.minimum(high, up(h - l2))),
        ]

    def directions(self, toward: Tensor, unit: float) -> Tensor:
        """Ends of ⟨t, f⟩, of ⟨t, g⟩ and of ⟨t, f − g⟩ for each row t, (6, rows), in the order of
        `FIELDS`.
        """
        size, ends = toward.abs(), []
        for x in self.all:
            symbols = x.symbols
            center = toward @ x.c.flatten() + toward @ x.low.flatten()
            share = gamma(len(symbols) + toward.shape[1] + 8, unit)
            r = (x.rows(symbols).flatten(1) @ toward.T).abs().sum(dim=0)
            r = r + size @ x.e.flatten() + 2 * share * (size @ x.reach.flatten())
            ends += [center - r, center + r]
        return torch.stack(ends)

    def difference(self, unit: float) -> Tensor:
        """At least |f − g| of all entries; flat."""
        low, high = self.ends(unit)[_GAP]
        return torch.maximum(high, -low).flatten()


def nodes_alone(graph: Graph) -> frozenset[str]:
    """Activations and pools past which nothing that was computed before them is read; if there are
    none, all of them.
    """
    left = Counter(name for node in graph.nodes for name in node.inputs)
    alive, every, found = set[str](), set[str](), set[str]()
    for node in graph.nodes:
        left.subtract(node.inputs)
        alive = {name for name in alive if left[name]}
        if isinstance(node, Activation | Opaque | Pool):
            every.add(node.name)
            if not alive:
                found.add(node.name)
        alive.add(node.name)
    return frozenset(found or every)


class Zonotopes:
    """The flow; fed with the ends of one box, (lo, hi).

    radii: those of computed weights of f and of g, by the nodes' names; none where they add
    nothing. most: symbols of one value, those of remainders apart. stored: numbers of the
    generators of one value; those of larger ones are computed anew when they are read. held: up to
    so many numbers new remainders get symbols beside those of earlier ones; beyond, they replace
    them. alone: see `nodes_alone`. late: called at every layer; once it returns True the flow gives
    up.
    """

    def __init__(
        self,
        *,
        unit: float,
        radii: tuple[Radii, Radii] = ({}, {}),
        most: int = 2**16,
        stored: float = math.inf,
        held: float = math.inf,
        alone: Container[str] = (),
        late: Callable[[], bool] = lambda: False,
    ) -> None:
        self.unit, self.radii, self.alone, self.late = unit, radii, alone, late
        self.room = most
        self._next = 0
        # The symbols of remainders, of each value of a pair.
        self._rest: list[Tensor] = []
        self._slabs, self._held = Slabs(most=stored), held
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
        self._rest = [self._number(0)] * 3
        x = point(center).with_symbols(self._number(len(at)), at, radius.flatten()[at])
        return Pair(x, x, point(torch.zeros_like(center)))

    def affine(self, node: Affine, x: Pair | None, params: ParameterPair) -> Pair:
        """W on the centre and on every symbol, |W| on the remainder; of the difference W' on itself
        and W − W' on f.
        """
        weights, offsets = params.weights(node), params.offsets(node)
        maps: list[list[tuple[Zonotope, Tensor | None]]] = [[], [], []]
        lost: Tensor | float = 0.0
        if x is not None:
            w, w2 = weights
            maps = [[(x.f, w)], [(x.g, w2)], [(x.d, w2)]]
            if w is not None and w2 is not None and not torch.equal(w, w2):
                # Exact but for weights of very different size.
                change, rounding = two_sum(w, -w2)
                maps[_GAP].append((x.f, change))
                if bool(rounding.any()):
                    lost = linear(node, x.f.reach, magnitude(rounding)) * (1 + 2**-20)
        same = x is not None and torch.equal(*offsets)
        sums = [[offsets[0]], [offsets[1]], [] if same else [offsets[0], -offsets[1]]]
        reaches = [None, None] if x is None else [x.f.reach, x.g.reach]
        out = []
        for which in range(3):
            y = self._affine(node, maps[which], sums[which])
            added = self._added(which, node, reaches)
            out.append(replace(y, e=y.e + added + (lost if which == _GAP else 0.0)))
        return Pair(*out)

    def _affine(
        self, node: Affine, maps: list[tuple[Zonotope, Tensor | None]], offsets: list[Tensor]
    ) -> Zonotope:
        """The sum of some values, each mapped by its weight, and of some offsets."""
        unit = self.unit
        if not maps:
            shape = (1, *node.shape)
            y = point(torch.zeros(shape, dtype=torch.float64, device=offsets[0].device))
        elif len(maps) == 1 and (maps[0][1] is None or _is_entrywise(node, maps[0][0])):
            x, weight = maps[0]
            factor = linear(node, torch.ones_like(x.c), weight)
            y = x.scaled(factor, torch.zeros_like(x.c), unit)
        else:
            y = self._mapped_sum(node, [(x, w) for x, w in maps if w is not None])
        center = Twofold(hi=y.c, lo=y.low)
        far = torch.zeros_like(y.c)
        for offset in offsets:
            center = center.plus(offset)
            far = far + (DEEP if unit else 0.0) * (center.hi.abs() + offset.abs())
        return replace(y, c=center.hi, low=center.lo, e=y.e + far)

    def _mapped_sum(self, node: Affine, maps: list[tuple[Zonotope, Tensor]]) -> Zonotope:
        unit = self.unit
        xs, weights = zip(*maps, strict=True)
        function = Convolution.of(node, weights) or partial(_linear_sum, node, weights)
        symbols, g, mass = self._mapped(function, xs, node.shape)
        center = Twofold(hi=torch.zeros_like(mass), lo=torch.zeros_like(mass))
        e = torch.zeros_like(mass)
        for x, weight in maps:
            # Products and their sum, the factors in `rows`, and the sum over the maps.
            share = gamma(terms(node, x.c, weight) + 8 + len(maps), unit)
            part, far = mapped(node, Twofold(hi=x.c, lo=x.low), weight)
            center = center.plus(part.hi).plus(part.lo) if len(maps) > 1 else part
            far = far + 4 * DEEP * (center.hi.abs() + part.hi.abs())
            if not unit:
                far = torch.zeros_like(far)
            moved = linear(node, x.e + share * x.spread, magnitude(weight))
            e = e + moved * (1 + 2 * share) + far
        return replace(point(center.hi), low=center.lo, ids=symbols, g=g, mass=mass, e=e)

    def _mapped(
        self,
        function: Convolution | Callable[..., Tensor],
        xs: Sequence[Zonotope],
        shape: tuple[int, ...],
    ) -> tuple[Tensor, Tensor | Recomputed, Tensor]:
        """The symbols of some values, their generators after a linear map, or that map if they are
        too large, and at least the sum of absolute values of these.
        """
        made = Recomputed.of(function, xs, shape)
        symbols, mass = made.symbols, xs[0].c.new_zeros(1, *shape)
        g, done = made.kept_in(self._slabs, len(symbols)), 0
        for part in made.parts(symbols):
            to = (
                g[done : done + len(part)]
                if isinstance(g, Tensor)
                else mass.new_empty(len(part), *shape)
            )
            made.into(to, part, mass)
            done += len(part)
        return symbols, g, mass * (1 + gamma(len(symbols) + 2, self.unit))

    def _added(self, which: int, node: Affine, reaches: Sequence[Tensor | None]) -> Tensor | float:
        """What computed weights add: of one network, or of both to their difference."""
        total: Tensor | float = 0.0
        for k in (0, 1) if which == _GAP else (which,):
            around, off = self.radii[k].get(node.name, (None, None))
            total = total + (0.0 if off is None else off)
            if around is not None and (reach := reaches[k]) is not None:
                total = total + linear(node, reach, around) * (1 + 1e-9)
        return total

    def activation(self, node: Activation, x: Pair) -> Pair:
        """A band for a neuron that is open, in each network; for its difference the narrower of
        two: that of both bands, with their symbols, or one of its own.
        """
        if self.late():
            raise TooLarge("the time was up")
        b = Bounds(**dict(zip(FIELDS, chain(*x.ends(self.unit)), strict=True)))
        *lines, gap = bands(b, node.slope, self.unit)
        out = list[Zonotope]()
        held = list[tuple[Tensor, Tensor]]()
        for which, line in enumerate(lines):
            y = self._bent(which, node, x, line)
            y, new, where = self._opened(which, y, line.half)
            held.append((new, where))
            out.append(self._hold(which, node, y))
        (f, g), apart = (line.plane for line in lines), lines[0].half + lines[1].half < gap.half
        both = Plane(p=f.p - g.p, q=g.p, c=f.c - g.c)
        gap = replace(
            gap,
            plane=gap.plane.replaced(both, apart),
            half=torch.where(apart, 0.0, gap.half),
        )
        y = self._bent(_GAP, node, x, gap)
        # The difference of two shifts is rounded.
        y = replace(y, e=y.e + 2 * self.unit * gap.plane.c.abs() * apart)
        for sign, line, (new, where) in zip((1, -1), lines, held, strict=True):
            half = line.half * apart
            here = apart.flatten()[where]
            y = y.with_symbols(new[here], where[here], sign * half.flatten()[where[here]])
            y = replace(y, e=y.e + half.flatten().index_fill(0, where, 0.0).reshape(half.shape))
        y, *_ = self._opened(_GAP, y, gap.half)
        out.append(self._hold(_GAP, node, y))
        return Pair(*out)

    def _bent(self, which: int, node: Activation, x: Pair, band: Band) -> Zonotope:
        """The plane of a band."""
        z, own = x.all[which], band.plane.q if which == _GAP else band.plane.p
        y = self._along(which, x, band.plane)
        if node.slope:
            # The slope itself is a rounded sum; that of a difference may be those of both.
            reach = z.reach if which != _GAP else z.reach + x.f.reach + x.g.reach
            lost = 4 * self.unit * (abs(node.slope) + abs(1 - node.slope))
            y = replace(y, e=y.e + lost * reach)
        # To multiply by 0 or 1 rounds nothing.
        exact = (band.half == 0) & (band.plane.c == 0) & ((own == 0) | (own == 1))
        if which == _GAP:
            exact &= band.plane.p == 0
        return replace(y, e=torch.where(exact, own * z.e, y.e))

    def _along(self, which: int, x: Pair, plane: Plane) -> Zonotope:
        """The plane: of the value itself, and for a difference of the value of f as well."""
        of_f, own = (plane.p, plane.q)[:: 1 if which == _GAP else -1]
        y = x.all[which].scaled(own, plane.c, self.unit)
        at = of_f.flatten().nonzero().flatten()
        return y.plus_at(at, of_f.flatten()[at], x.f, self.unit, self._slabs) if len(at) else y

    def opaque(self, node: Opaque, xs: Sequence[Pair]) -> Pair:
        """The bands of a hardswish, each with symbols of its own."""
        hardswish.check(node)
        if self.late():
            raise TooLarge("the time was up")
        (x,), out = xs, list[Zonotope]()
        b = Bounds(**dict(zip(FIELDS, chain(*x.ends(self.unit)), strict=True)))
        lost = hardswish.slack(b, self.unit)
        for which, band in enumerate(hardswish.bands(b, 0.0)):
            y = self._along(which, x, band.plane)
            y, *_ = self._opened(which, replace(y, e=y.e + lost[which]), band.half)
            out.append(self._hold(which, node, y))
        return Pair(*out)

    def _opened(self, which: int, y: Zonotope, half: Tensor) -> tuple[Zonotope, Tensor, Tensor]:
        """± half with a symbol for each entry, widest first, while there is room; the others in
        the remainder. Also the new symbols and their entries.
        """
        at = half.flatten().nonzero().flatten()
        # Those of a remainder are counted apart.
        rest = int(torch.isin(y.symbols, self._rest_of(which)).sum())
        room = max(0, self.room + rest - len(y.symbols))
        if len(at) > room:
            widest = half.flatten()[at].topk(room).indices.sort().values
            self.dropped += len(at) - room
            at = at[widest]
            left = half.flatten().index_fill(0, at, 0.0)
            y = replace(y, e=y.e + left.reshape(half.shape))
        new = self._number(len(at))
        return y.with_symbols(new, at, half.flatten()[at]), new, at

    def _hold(self, which: int, node: Activation | Opaque | Pool, y: Zonotope) -> Zonotope:
        """The value, its remainder made of symbols where that is needed and affordable."""
        # Beside a skip that keeps its remainder nothing would be gained.
        if node.name not in self.alone or isinstance(y.g, Recomputed):
            return y
        largest, radius = float(y.e.max()), float(y.spread.max())
        numbers = int((y.e != 0).sum()) * y.c.numel()
        near = largest > _THREATENS * radius * (1 if numbers <= _CHEAP else 100)
        if not near or numbers > _AFFORDABLE or not math.isfinite(largest):
            return y
        # Earlier ones keep theirs where there is room for both.
        rest = self._rest_of(which)
        if len(rest) and y.numbers + numbers > self._held:
            held = y.without(rest, self.unit)
            # While what has symbols is the larger part, making it a remainder loses more.
            if float((held.e - y.e).max()) > largest:
                return y
            y = held
        at = y.e.flatten().nonzero().flatten()
        new = self._number(len(at))
        self._rest[which] = torch.cat([self._rest[which], new])
        y = y.with_symbols(new, at, y.e.flatten()[at])
        return replace(y, e=torch.zeros_like(y.e))

    def _rest_of(self, which: int) -> Tensor:
        """The symbols of remainders: a difference has its own, and those that came with f."""
        own = self._rest[which]
        return torch.cat([self._rest[0], own]) if which == _GAP else own

    def pool(self, node: Pool, x: Pair) -> Pair:
        """In each window the entry with the largest lower end (of f and g together), and what
        others may add to it; the range of the window where that is narrower, or for a k-th largest.
        The difference of two windows' values is between the ends of their entries' differences.
        """
        ends = x.ends(self.unit)
        lead = ends[0][0] + ends[1][0]

        def pick(rows: Tensor) -> Tensor:
            return chosen(node, lead.expand(rows.shape).contiguous(), rows)

        windows = []
        for l, h in ends[:2]:
            more = (runner_up(node, lead, h) - chosen(node, lead, l)).relu()
            low, high = lift(node.apply, l), lift(node.apply, h)
            windows.append(_Window.of(node, low, high, torch.zeros_like(more), more))
        (f, g), (l, h) = windows, ends[_GAP]
        low, high = -lift(node.maximum, -l), lift(node.maximum, h)
        below = torch.maximum(-g.more, low - pick(h)) if node.rank == 1 else low
        above = torch.minimum(f.more, high - pick(l)) if node.rank == 1 else high
        gap = _Window.of(node, low, high, below, above)
        windows.append(replace(gap, keeps=gap.keeps & f.keeps & g.keeps))
        out = [
            self._pooled(which, node, z, window, pick)
            for which, (z, window) in enumerate(zip(x.all, windows, strict=True))
        ]
        return Pair(*out)

    def _pooled(
        self,
        which: int,
        node: Pool,
        z: Zonotope,
        window: "_Window",
        pick: Callable[[Tensor], Tensor],
    ) -> Zonotope:
        keeps = window.keeps
        symbols, g, mass = self._mapped(lambda rows: pick(rows) * keeps, [z], node.shape)
        kept = Twofold(hi=pick(z.c), lo=pick(z.low)).plus((window.less + window.more) / 2)
        c = torch.where(keeps, kept.hi, (window.low + window.high) / 2)
        width = torch.where(keeps, window.more - window.less, window.high - window.low)
        e = torch.where(keeps, pick(z.e) + 16 * self.unit * (pick(z.reach) + width), 0.0)
        # The ends of a window are differences of ends.
        size = window.low.abs() + window.high.abs()
        e = e + 8 * self.unit * (size + width) + (DEEP if self.unit else 0.0) * c.abs()
        y = replace(point(c), ids=symbols, g=g, mass=mass, e=e)
        y = replace(y, low=torch.where(keeps, kept.lo, 0.0))
        y, *_ = self._opened(which, y, width / 2 * (1 + 4 * self.unit))
        return self._hold(which, node, y)

    def structural(self, node: Structural, xs: Sequence[Pair]) -> Pair:
        """The same reordering of every symbol."""

        def move(*parts: Tensor) -> Tensor:
            return lift(node.function, *parts)

        return self._combined(move, xs, node.shape, 0)

    def add(self, node: Add, xs: Sequence[Pair]) -> Pair:
        """Signed sums; shared symbols cancel."""

        def total(*parts: Tensor) -> Tensor:
            first, *rest = (p if s > 0 else -p for s, p in zip(node.signs, parts, strict=True))
            return sum(rest, first)

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
        for which in range(3):
            zs = [x.all[which] for x in xs]
            symbols, g, mass = self._mapped(function, zs, shape)
            share, deep = gamma(count + 2, self.unit), count * (DEEP if self.unit else 0.0)
            lost = [z.e + share * z.spread + deep * z.c.abs() for z in zs]
            e = self._sizes(function, lost, shape, count)
            center = self._center(function, zs, shape, count)
            out.append(replace(point(center.hi), low=center.lo, ids=symbols, g=g, mass=mass, e=e))
        return Pair(*out)

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
class _Window:
    """The values of windows: within low and high, or, where it `keeps` the entry that leads, that
    entry's and between less and more.
    """

    keeps: Tensor
    low: Tensor
    high: Tensor
    less: Tensor
    more: Tensor

    @staticmethod
    def of(node: Pool, low: Tensor, high: Tensor, less: Tensor, more: Tensor) -> "_Window":
        """The narrower of the two; of a k-th largest the range."""
        keeps = (more - less < high - low) & torch.tensor(node.rank == 1)
        return _Window(keeps=keeps, low=low, high=high, less=less, more=more)


def _is_entrywise(node: Affine, x: Zonotope) -> bool:
    axes = node.operation.axes
    return axes is not None and axes.diagonal and x.c.shape[1:] == torch.Size(node.shape)
