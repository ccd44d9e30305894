"""Joint affine forms (a differential zonotope): f and f − g as centres plus multiples of shared
symbols in [−1, 1].

Forward only: each value is c + Σ_k g_k ε_k ± e. The input's symbols are shared by both networks and
by all branches; each open neuron adds one symbol for f and one for the difference, the widest
neurons first, as long as there is space. The rest goes into the remainder e, which is propagated
like an interval. Exact through affine maps and skip connections; one pass per symbol. Reference:
Singh et al. 2018 (DeepZ); the joint form and the remainder are ours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.graph import Activation, Add, Affine, Input, Opaque, Pool, Structural
from secateurs.proof import hardswish
from secateurs.proof.forms import (
    Bounds,
    Form,
    ParameterPair,
    StreamValues,
    constant,
    gamma,
    gap,
    lift,
    map_form,
    pad_forms,
    reorder_forms,
    signed_sum,
    terms,
)
from secateurs.proof.interval import (
    Interval,
    Intervals,
    TwoStream,
    activate,
    centre_and_radius,
    from_bounds,
)
from secateurs.proof.planes import Band, band_mass, bands, chosen, runner_up


class TooLarge(Exception):
    """The input alone needs more symbols than are allowed, or the time is up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """f and f − g as forms over the same symbols, with the intervals that follow from everything
    known.

    `mass`: the sums of absolute values behind both, from which rounding is bounded.
    """

    z: Form
    d: Form
    mass: StreamValues
    box: Intervals


class AffineForms:
    """The flow of joint affine forms; fed with a pair (lo, hi).

    symbols: the maximal number in one form, per box. late: called at every layer; once it returns
    True the flow gives up, since a form that stops halfway bounds nothing.
    """

    def __init__(
        self,
        *,
        symbols: int = 2**16,
        unit: float = 0.0,
        late: Callable[[], bool] = lambda: False,
    ) -> None:
        self.symbols, self.unit, self.late = symbols, unit, late
        self._interval, self._mass = Interval(unit=unit), TwoStream(unit=unit)
        self._used = torch.zeros(1, dtype=torch.long)
        # The number of roundings behind a value, counted along the way, with some to spare for the
        # input and for the ends taken in `bounds`.
        self._steps = 32

    def input(self, node: Input, value: tuple[Tensor, Tensor]) -> Forms:
        """One symbol per coordinate of the input."""
        center, radius = centre_and_radius(*value)
        self._used = torch.zeros(len(center), dtype=torch.long, device=center.device)
        needed = int((radius != 0).flatten(1).sum(dim=1).max())
        if needed > self.symbols:
            raise TooLarge(
                f"{needed} open inputs need a symbol each, {self.symbols} are allowed; say"
                " symbols= to allow more"
            )
        z = self._fresh(center, radius)
        # Both networks see the same input, so the difference is 0 in every symbol.
        d = Form(c=torch.zeros_like(center), g=torch.zeros_like(z.g), e=z.e)
        mass = self._mass.input(node, torch.maximum(value[0].abs(), value[1].abs()))
        return Forms(z=z, d=d, mass=mass, box=self._interval.input(node, value))

    def affine(self, node: Affine, x: Forms | None, params: ParameterPair) -> Forms:
        """Exact: W on every symbol, biases on the centre."""
        b, c = params.offsets(node)
        box = self._interval.affine(node, None if x is None else x.box, params)
        mass = self._mass.affine(node, None if x is None else x.mass, params)
        if x is None:
            zero = torch.zeros(1, *node.shape, dtype=b.dtype, device=b.device)
            z, d = constant(zero + b), constant(zero + b - c)
            return Forms(z=z, d=d, mass=mass, box=box)
        w, v = params.weights(node)
        # Twice the products: the difference is a sum of two maps.
        self._steps += 2 * terms(node, x.z.c, w) + 2
        z, d = map_form(node, x.z, w), map_form(node, x.d, v)
        if w is not None:
            # W z − W' z' = W' (z − z') + (W − W') z: what the networks share cancels before
            # anything is bounded, whereas W z and W' z' separately would each keep their own width.
            d = d.plus(map_form(node, x.z, gap(w, v)))
        return Forms(z=z.shifted(b), d=d.shifted(b - c), mass=mass, box=box)

    def activation(self, node: Activation, x: Forms, known: Bounds | None = None) -> Forms:
        """Parallel bands around relu, and around the difference of relus."""
        if self.late():
            raise TooLarge("the time was up")
        bounds = self.bounds(x) if known is None else known
        z, _, d = bands(bounds, node.slope, self.unit)
        self._steps += 16
        return Forms(
            z=self._banded(x, z),
            d=self._banded(x, d),
            mass=StreamValues(m=band_mass(z, x.mass), d=band_mass(d, x.mass)),
            box=from_bounds(activate(bounds, node.slope, self.unit), self.unit),
        )

    def opaque(self, node: Opaque, xs: Sequence[Forms], known: Bounds | None = None) -> Forms:
        """Bands around a hardswish."""
        if self.late():
            raise TooLarge("the time was up")
        hardswish.check(node)
        (x,) = xs
        bounds = self.bounds(x) if known is None else known
        z, _, d = hardswish.bands(bounds, self.unit)
        self._steps += 16
        return Forms(
            z=self._banded(x, z),
            d=self._banded(x, d),
            mass=StreamValues(m=band_mass(z, x.mass), d=band_mass(d, x.mass)),
            box=from_bounds(hardswish.ranges(bounds, self.unit), self.unit),
        )

    def pool(self, node: Pool, x: Forms, known: Bounds | None = None) -> Forms:
        """In each window the entry with the largest lower end, and what others may add to it; or
        the interval, if that is narrower.
        """
        b = self.bounds(x) if known is None else known
        box = self._interval.pool(node, from_bounds(b, self.unit))
        ends = box.bounds
        # max z = z_i + ρ for any entry i, with 0 ≤ ρ ≤ (largest other end) − l_i; the same for g.
        more_f = (runner_up(node, b.l, b.h) - chosen(node, b.l, b.l)).relu()
        more_g = (runner_up(node, b.l, b.gh) - chosen(node, b.l, b.gl)).relu()
        self._steps += 16
        zero = torch.zeros_like(more_f)
        # Both maxima are taken at the entry that leads in f, so that their symbols can cancel.
        z, mass_z = self._pooled(node, b.l, (x.z, x.mass.m), (zero, more_f), (ends.l, ends.h))
        d, mass_d = self._pooled(node, b.l, (x.d, x.mass.d), (-more_g, more_f), (ends.dl, ends.dh))
        return Forms(z=z, d=d, mass=StreamValues(m=mass_z, d=mass_d), box=box)

    def structural(self, node: Structural, xs: Sequence[Forms]) -> Forms:
        """The same reordering of every symbol."""
        forms = {k: reorder_forms(node, [getattr(x, k) for x in xs]) for k in ("z", "d")}
        mass = self._mass.structural(node, [x.mass for x in xs])
        return Forms(
            **forms,
            mass=mass,
            box=self._interval.structural(node, [x.box for x in xs]),
        )

    def add(self, node: Add, xs: Sequence[Forms]) -> Forms:
        """Signed sums; shared symbols cancel, remainders do not."""
        forms = {}
        for k in ("z", "d"):
            parts = pad_forms([getattr(x, k) for x in xs])
            forms[k] = Form(
                c=signed_sum(node, [p.c for p in parts]),
                g=signed_sum(node, [p.g for p in parts]),
                e=sum((p.e for p in parts[1:]), parts[0].e),
            )
        self._steps += len(xs)
        mass = self._mass.add(node, [x.mass for x in xs])
        return Forms(**forms, mass=mass, box=self._interval.add(node, [x.box for x in xs]))

    def bounds(self, x: Forms) -> Bounds:
        """What the forms and the intervals say together."""
        z, d, zg = x.z, x.d, x.z.plus(x.d, sign=-1)
        count = self._steps + int(self._used.max())
        # 8 times what theory requires: the masses are themselves rounded, and γ is so small that
        # the margin costs nothing.
        share = 8 * gamma(count, self.unit)
        rz, rd = z.radius + share * x.mass.m, d.radius + share * x.mass.d
        rg = zg.radius + share * (x.mass.m + x.mass.d)
        found = Bounds(
            l=z.c - rz,
            h=z.c + rz,
            gl=zg.c - rg,
            gh=zg.c + rg,
            dl=d.c - rd,
            dh=d.c + rd,
        )
        return x.box.bounds.meet(found)

    def _banded(self, x: Forms, band: Band) -> Form:
        form = x.z.scaled(band.plane.p, band.plane.c).plus(
            x.d.scaled(band.plane.q, torch.zeros_like(band.plane.c))
        )
        return self._with_band(form, band.half)

    def _pooled(
        self,
        node: Pool,
        point: Tensor,
        x: tuple[Form, Tensor],
        more: tuple[Tensor, Tensor],
        ends: tuple[Tensor, Tensor],
    ) -> tuple[Form, Tensor]:
        """The chosen entry plus [more], or [ends] if that is narrower; with its mass."""
        (form, mass), (lo, hi), (low, high) = x, more, ends
        # Only a maximum stays within reach of one entry; a k-th largest may be any of
        # them.
        keeps = ((hi - lo) < (high - low)) & torch.tensor(node.rank == 1)
        c, e = (chosen(node, point, value) for value in (form.c, form.e))
        boxes, symbols = form.g.shape[:2]
        if symbols:
            points = point.expand(boxes, *point.shape[1:]).repeat_interleave(symbols, 0)
            g = chosen(node, points, form.g.flatten(0, 1))
        else:
            g = c.new_zeros(0, *c.shape[1:])
        g = g.reshape(boxes, symbols, *c.shape[1:])
        kept = Form(
            c=torch.where(keeps, c + (lo + hi) / 2, (low + high) / 2),
            g=g * keeps.unsqueeze(1),
            e=e * keeps,
        )
        half = torch.where(keeps, (hi - lo) / 2, (high - low) / 2)
        size = torch.where(keeps, hi.abs() + lo.abs(), high.abs() + low.abs())
        return self._with_band(kept, half), lift(node.maximum, mass) + size

    def _with_band(self, form: Form, half: Tensor) -> Form:
        return form.plus(self._fresh(torch.zeros_like(form.c), half))

    def _fresh(self, center: Tensor, radius: Tensor) -> Form:
        """centre ± radius with new symbols for the widest entries, a remainder for the others.

        Every box chooses separately and counts its own symbols, so that its result does not depend
        on the other boxes.
        """
        # Rounding may leave a radius just below 0.
        flat = radius.relu().flatten(1).expand(len(center), -1)
        if len(self._used) < len(flat):  # a constant branch is given as one box
            self._used = self._used.expand(len(flat)).clone()
        room = self.symbols - self._used
        count = torch.minimum((flat != 0).sum(dim=1), room)
        # The widest entries get symbols, since a symbol may cancel later while the remainder only
        # grows.
        value, index = flat.topk(int(count.max()), dim=1)
        number = torch.arange(value.shape[1], device=flat.device)
        mine = number < count.unsqueeze(1)
        total = int((self._used + count).max())
        g = flat.new_zeros(len(flat), total, flat.shape[1])
        rest = flat.clone()
        box, slot = mine.nonzero().unbind(dim=1)
        entry = index[box, slot]
        g[box, self._used[box] + slot, entry] = value[box, slot]
        rest[box, entry] = 0
        self._used = self._used + count
        return Form(
            c=center,
            g=g.reshape(len(flat), total, *radius.shape[1:]),
            e=rest.reshape(len(flat), *radius.shape[1:]),
        )
