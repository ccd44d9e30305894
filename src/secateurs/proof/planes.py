"""Planes above and below a ReLU and above and below the difference of two ReLUs, given bounds of
what enters them.

With z the pre-activation in f, z' the one in g and δ = z − z', write F(z, δ) = relu(z) − relu(z −
δ), the difference of the two outputs. Several planes p·z + q·δ + c lie above F; each is sound
alone, so the choice among them is free. Planes below come from the ones above by exchanging the two
networks: F(z, δ) = −F(z', −δ).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from secateurs.base.interrupts import Uninterrupted
from secateurs.graph.primitives import Pool
from secateurs.proof.forms import FIELDS, Bounds, StreamValues, lift

# A plane over a pre-activation and its difference, and the planes around one ReLU.


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """The function p·z + q·δ + c, per neuron."""

    p: Tensor
    q: Tensor
    c: Tensor

    def at(self, z: Tensor, d: Tensor) -> Tensor:
        """Its value."""
        return self.p * z + self.q * d + self.c

    def replaced(self, other: "Plane", where: Tensor) -> "Plane":
        """The other plane for some neurons."""
        return Plane(
            p=torch.where(where, other.p, self.p),
            q=torch.where(where, other.q, self.q),
            c=torch.where(where, other.c, self.c),
        )

    def leaky(self, slope: float, *, difference: bool) -> "Plane":
        """The plane for slope·z + (1 − slope)·relu(z), or for the difference of two of these; needs
        slope ≤ 1.
        """
        rest = 1 - slope

        def own(of: Tensor) -> Tensor:
            # A neuron that is on passes everything on, without a rounding.
            return torch.where(of == 1, 1.0, slope + rest * of)

        if difference:
            return Plane(p=rest * self.p, q=own(self.q), c=rest * self.c)
        return Plane(p=own(self.p), q=rest * self.q, c=rest * self.c)


def relu_above(l: Tensor, h: Tensor) -> Plane:
    """The chord: relu(z) ≤ h(z − l)/(h − l) on an unstable neuron; exact on a stable one."""
    zero = torch.zeros_like(l)
    slope = torch.where(l >= 0, torch.ones_like(l), torch.where(h <= 0, zero, share(h, h - l)))
    return Plane(p=slope, q=zero, c=torch.where((l < 0) & (h > 0), -slope * l, zero))


_TIE = 1e-9
"""Planes that differ by so much of the widths, or less, count as equally good, and bands whose
widths do. Where two are, as on a range that lies evenly around 0, the last digit would choose: then
the compiled passes and those of torch, a machine that sums in another order, or another batch would
take planes that differ by far more elsewhere.
"""


def relu_below(l: Tensor, h: Tensor) -> Plane:
    """relu(z) ≥ z or ≥ 0, whichever loses less area; exact on a stable neuron."""
    zero = torch.zeros_like(l)
    # The area lost is l²/2 above z and h²/2 above 0; a tie takes 0. A neuron that is on has no
    # choice.
    takes = (h + l > _TIE * (h - l)) | (l >= 0)
    return Plane(p=(takes & (h > 0)).to(l.dtype), q=zero, c=zero)


def share(part: Tensor, whole: Tensor) -> Tensor:
    """part/whole where whole > 0, else 0."""
    return torch.where(
        whole > 0,
        # `where` computes both sides; the clamp keeps a division by 0 out of the tape.
        part / whole.clamp(min=torch.finfo(whole.dtype).tiny),
        torch.zeros_like(part),
    )


# Planes above the difference of two ReLUs; each is sound alone. They go through points where F is
# as large as it can be on the ranges, cut by z = 0 and by z' = 0, and leave some 1 % of the width
# between them and the least concave function above F.


def _one_lipschitz(b: Bounds) -> Plane:
    """F ≤ max(0, δ), whose chord over [dl, dh] is a plane."""
    chord = relu_above(b.dl, b.dh)
    # The chord is one in δ: its slope belongs to q.
    return Plane(p=chord.q, q=chord.p, c=chord.c)


def _chord_minus_zero(b: Bounds) -> Plane:
    """relu(z) ≤ chord and relu(z') ≥ 0."""
    return relu_above(b.l, b.h)


def _chord_minus_identity(b: Bounds) -> Plane:
    """relu(z) ≤ chord and relu(z') ≥ z' = z − δ."""
    chord = relu_above(b.l, b.h)
    return Plane(p=chord.p - 1, q=torch.ones_like(b.l), c=chord.c)


def _clamped(b: Bounds) -> Plane:
    """For 0 < dh: F ≤ clamp(z, 0, dh), which lies under the line from (l, 0) to (dh, dh)."""
    slope = share(b.dh, b.dh - b.l)
    return _where(
        (b.dh > 0) & (b.l < 0),
        Plane(p=slope, q=torch.zeros_like(slope), c=-slope * b.l),
    )


def _clamped_in_g(b: Bounds) -> Plane:
    """For 0 < dh < −gl: F ≤ clamp(z' + dh, 0, dh), which lies under the line from (gl, 0) to (0,
    dh) in z'.
    """
    slope = share(b.dh, -b.gl)
    return _where((b.dh > 0) & (b.gl + b.dh < 0), Plane(p=slope, q=-slope, c=-slope * b.gl))


def _tilted(b: Bounds) -> Plane:
    """For 0 < dl: F is 0 at (z, δ) = (l, dl) and δ where z = δ; the plane through these grows with
    z by dl/(dl − l), as F does at dl, and with both together by 1.
    """
    p = share(b.dl, b.dl - b.l)
    q = 1 - p
    return _where((b.dl > 0) & (b.l < 0), Plane(p=p, q=q, c=-p * b.l - q * b.dl))


def _negative(b: Bounds) -> Plane:
    """For dh < 0: F ≤ −clamp(z', 0, −dh), which lies under the line from (0, 0) to (gh, −e), e =
    min(−dh, gh).
    """
    slope = share(torch.minimum(-b.dh, b.gh), b.gh)
    return _where((b.dh < 0) & (b.gh > 0), Plane(p=-slope, q=slope, c=torch.zeros_like(slope)))


def _negative_in_f(b: Bounds) -> Plane:
    """For dh < 0: F ≤ z'·dh/(h − dh), which is 0 at z' = 0 and dh at (z, δ) = (h, dh)."""
    slope = share(-b.dh, b.h - b.dh)
    return _where((b.dh < 0) & (b.h > 0), Plane(p=-slope, q=slope, c=torch.zeros_like(slope)))


def _sunk(b: Bounds) -> Plane:
    """For dl < 0: F is 0 at z = δ = dl and δ at z = h, and at most δ + (z − h)·dl/(h − dl)."""
    p = -share(-b.dl, b.h - b.dl)
    return _where((b.dl < 0) & (b.h > 0), Plane(p=p, q=torch.ones_like(p), c=-p * b.h))


def _sunk_in_g(b: Bounds) -> Plane:
    """For dl < 0: F is 0 at (z', δ) = (0, dl), −min(gh, −dl) at (gh, dl), and at (gh, dh) it is dh
    or −gh, whichever is larger; these three lie on the plane.
    """
    down = torch.minimum(b.gh, -b.dl)
    slope, rise = share(down, b.gh), share(torch.maximum(b.dh, -b.gh) + down, b.dh - b.dl)
    return _where((b.dl < 0) & (b.gh > 0), Plane(p=-slope, q=rise + slope, c=-rise * b.dl))


Rules = tuple[Callable[[Bounds], Plane], ...]

# `_one_lipschitz` is first because it applies everywhere: the choice starts from a
# plane that is finite.
ABOVE: Rules = (
    _one_lipschitz,
    _chord_minus_zero,
    _chord_minus_identity,
    _clamped,
    _clamped_in_g,
    _negative,
)
"""Those among which `linear` chooses. Among all its bounds would be 0.3 % lower in the mean, but
some higher, so that certificates that were kept could not be proved again.
"""

EVERY: Rules = (*ABOVE, _tilted, _negative_in_f, _sunk, _sunk_in_g)
"""Those that bands, and passes on the ranges of zonotopes, choose among."""


def _where(applies: Tensor, plane: Plane) -> Plane:
    zero = torch.zeros_like(plane.c)
    return Plane(
        p=torch.where(applies, plane.p, zero),
        q=torch.where(applies, plane.q, zero),
        # At +∞ a plane loses every comparison.
        c=torch.where(applies, plane.c, torch.full_like(zero, torch.inf)),
    )


def difference_above(b: Bounds, rules: Rules = ABOVE) -> Plane:
    """The plane above F that is lowest in the middle of the bounds."""
    # Any choice is sound. The middle is cheap to compare at and is where the mean of a
    # plane over the box lies.
    z, d = (b.l + b.h) / 2, (b.dl + b.dh) / 2
    close = _TIE * (b.h - b.l + b.dh - b.dl)
    best: Plane | None = None
    for plane in planes_above(b, rules):
        best = plane if best is None else _lower(best, plane, z, d, close)
    return best if best is not None else relu_above(b.l, b.h)


def difference_below(b: Bounds, rules: Rules = ABOVE) -> Plane:
    """The plane below F that is highest in the middle of the bounds."""
    return _exchange(difference_above(b.exchanged(), rules))


def height_above(b: Bounds, s: Tensor, t: Tensor, unit: float) -> Tensor:
    """The least c for which relu(z) − relu(z') ≤ s·z − t·z' + c on the ranges, and what rounds in
    it or in either slope's difference from 1.
    """
    z, d = _corners(b)
    g = z - d
    rest = z.relu() - g.relu() - s * z + t * g
    size, size_g, _ = b.sizes
    return rest.amax(dim=0) + 8 * unit * ((2 + s.abs()) * size + (2 + t.abs()) * size_g)


def relu_range(b: Bounds) -> Bounds:
    """The exact ranges of relu(z), relu(z') and their difference: the case split of ReluDiff."""
    return Bounds(
        l=b.l.relu(),
        h=b.h.relu(),
        gl=b.gl.relu(),
        gh=b.gh.relu(),
        dl=-_largest_difference(b.exchanged()),
        dh=_largest_difference(b),
    )


def _largest_difference(b: Bounds) -> Tensor:
    """max F: F grows with z and with δ, so a corner decides; 0 where both neurons are inactive.

    relu(h) − relu(max(gl, h − dh)) for dh ≥ 0, relu(gl + dh) − relu(gl) else; written without a
    sum of two large numbers, so that a tiny difference of large values keeps its digits.
    """
    growing = torch.minimum(b.h.relu() - b.gl.relu(), b.dh)
    falling = torch.maximum(b.dh, -b.gl.relu())
    return torch.where(b.dh >= 0, growing, falling)


def planes_above(b: Bounds, rules: Rules = EVERY) -> Iterator[Plane]:
    """Planes above F. Where a rule does not apply to a neuron, its plane is +∞ there."""
    for rule in rules:
        yield rule(b)


def costliest(flat: Bounds, open_: Tensor, count: int) -> Tensor:
    """The open neurons of each box that lose most, (boxes, neurons)."""
    losses = torch.where(open_, loss(flat), -1.0)
    return losses.topk(min(count, losses.shape[1]), dim=1).indices


def loss(b: Bounds) -> Tensor:
    """What the planes of a neuron lose in the difference, and of what they lose in f the share
    that the change of weights can turn into a difference.
    """
    lost = difference_above(b).at(_mid(b.l, b.h), _mid(b.dl, b.dh))
    lost = lost - difference_below(b).at(_mid(b.l, b.h), _mid(b.dl, b.dh))
    # A box of no width has no spread to share: the clamp keeps 0/0 away.
    share = (b.dh - b.dl).sum(dim=1) / (b.h - b.l).sum(dim=1).clamp(min=1e-300)
    in_f = torch.minimum(b.h, -b.l).relu()
    # NaN comes from bounds that overflowed: nothing can be worse, so they are tried
    # first.
    total: Tensor = lost + share.clamp(max=1).unsqueeze(1) * in_f
    return total.nan_to_num(nan=torch.inf)


def _mid(low: Tensor, high: Tensor) -> Tensor:
    return (low + high) / 2


def _lower(one: Plane, two: Plane, z: Tensor, d: Tensor, close: Tensor) -> Plane:
    """Per neuron the plane that is lower at (z, δ); what is this close is a tie, which keeps the
    first.
    """
    return one.replaced(two, two.at(z, d) < one.at(z, d) - close)


def _exchange(plane: Plane) -> Plane:
    """From a plane above −F in terms of (z', −δ) to the plane below F in terms of (z, δ)."""
    return Plane(p=-plane.p, q=plane.p + plane.q, c=-plane.c)


# Which entry of a pool's window can be the largest, and what that says of the maximum.
#
# The windows are known only by two functions, their maxima and their sums; derivatives of these
# tell which entry leads and which windows share an entry. Windows that overlap are asked in groups
# that do not. What cannot be told (a tie) is answered on the safe side.


def pick(node: Pool, point: Tensor, x: Tensor) -> Tensor:
    """In each window the entry of x where `point` is largest: the derivative of the maximum, taken
    at `point`. For tapes: the derivative is right, the value is not; see `chosen`.
    """
    # x − x.detach() is 0 with the derivative 1: the maximum chooses at `point`, the
    # tape goes to x.
    return lift(node.maximum, point.detach() + (x - x.detach()))


def chosen(node: Pool, point: Tensor, x: Tensor) -> Tensor:
    """The values of `pick`: in each window the entry of x where `point` is largest; of several, a
    mean.
    """

    def maximum(entries: Tensor) -> Tensor:
        return lift(node.maximum, entries)

    with Uninterrupted():
        value: Tensor = torch.func.jvp(maximum, (point.detach(),), (x.detach(),))[1]
    return value


def runner_up(node: Pool, point: Tensor, high: Tensor) -> Tensor:
    """The largest `high` of each window without the entry where `point` is largest.

    An entry that is not alone there is not left out.
    """
    with torch.enable_grad():
        leaf = point.detach().clone().requires_grad_()
        top = lift(node.maximum, leaf)
    total, entries = _total(node, point)
    found = top.detach()
    for own in _apart(node, point):
        share = own.to(top.dtype).expand(top.shape)
        # Gradient 1 means alone at the top of a window of the group; a tie shares it. In more than
        # one window an entry may lead one and not the other, so it stays.
        leads = torch.autograd.grad(top, leaf, share, retain_graph=True)[0] == 1
        out = leads & (_back(total, entries, share) == 1)
        found = torch.where(own, lift(node.maximum, high.masked_fill(out, -torch.inf)), found)
    return found


def can_lead(node: Pool, low: Tensor, high: Tensor) -> Tensor:
    """Entries that may be the largest of a window, given their bounds."""
    total, leaf = _total(node, low)
    threshold = lift(node.maximum, low)
    may = torch.zeros_like(low, dtype=torch.bool)
    for own in _apart(node, low):
        share = own.to(total.dtype).expand(total.shape)
        cover = _back(total, leaf, share)
        # Each entry sees the threshold of its own window: the transposed window sum copies it back.
        least = _back(total, leaf, torch.where(own, threshold, 0.0))
        # Without outward rounding a lower end may lie above its upper one by a last digit; the
        # leader must be among the candidates even then.
        may |= ((torch.maximum(high, low) >= least) & (cover == 1)) | (cover > 1)
    return may


_GROUPS = 27
"""Groups into which windows that overlap may be parted: kernels of 5 × 5 need 25."""


def _apart(node: Pool, like: Tensor) -> list[Tensor]:
    """Windows in groups, (1, *shape) each, so that no entry lies in two of a group; all of them in
    one if no grid of the last axes parts them.
    """
    total, entries = _total(node, like[:1])
    whole = torch.ones_like(total, dtype=torch.bool)
    grids = [(0, 1), *product(range(1, min(4, total.ndim)), range(2, _GROUPS + 1))]
    for axes, step in sorted(grids, key=lambda grid: grid[1] ** grid[0]):
        if step**axes > _GROUPS:
            break
        groups = []
        for starts in product(range(step), repeat=axes):
            own = whole.clone()
            for axis, start in enumerate(starts, own.ndim - axes):
                place = torch.arange(own.shape[axis], device=own.device) % step == start
                own &= place.view(-1, *[1] * (own.ndim - axis - 1))
            if float(_back(total, entries, own.to(total.dtype)).amax()) > 1:
                break
            groups.append(own)
        else:
            return groups
    return [whole]


def _total(node: Pool, like: Tensor) -> tuple[Tensor, Tensor]:
    """The window sums of a variable, and the variable."""
    with torch.enable_grad():
        leaf = torch.zeros_like(like).requires_grad_()
        return lift(node.total, leaf), leaf


def _back(total: Tensor, leaf: Tensor, values: Tensor) -> Tensor:
    """The transposed window sum; of ones, in how many windows each entry lies."""
    copied: Tensor = torch.autograd.grad(total, leaf, values, retain_graph=True)[0]
    return copied


# Planes above the maximum of a window, and above the difference of two maxima.
#
# Above max z: the chord of max(z_i, r), where i has the largest upper end and r is the largest
# upper end of the others. Above max z − max z': the same chord on δ over the entries that can lead
# in f (if i leads in f, the difference is at most δ_i), or the plane above max z less one entry of
# z'; per window the one that is lower in the middle of the bounds.

Constant = Callable[[Tensor], Tensor]
"""Numbers to tape: multiples of the extra input that stands for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Above:
    """A tape that lies above something: its value in the middle of the bounds, the size of its
    constants, and where it is made of z and not of δ alone.
    """

    tape: Tensor
    middle: Tensor
    size: Tensor
    joint: Tensor


def maximum_above(
    node: Pool,
    low: Tensor,
    high: Tensor,
    x: Tensor,
    constant: Constant,
    *,
    leads: Tensor | None = None,
) -> Above:
    """A plane above max x over the entries of `leads`; the entry itself where no other can be
    larger.
    """
    point = high if leads is None else high.masked_fill(~leads, -torch.inf)
    rest = runner_up(node, point, point)
    bottom, top = chosen(node, point, low), chosen(node, point, high)
    # Without a rival the runner-up is −∞: the entry is the maximum, and −∞ must not meet a 0.
    sure = bottom >= rest
    rest = torch.where(sure, bottom, rest)
    rise = (top - rest) / (top - bottom).clamp(min=torch.finfo(low.dtype).tiny)
    # Rounding may leave a slope just outside of [0, 1], where the chord would not hold.
    slope = torch.where(sure, 1.0, rise.clamp(0, 1))
    shift = torch.where(sure, 0.0, rest - slope * bottom)
    return Above(
        tape=slope * pick(node, point, x) + constant(shift),
        middle=slope * chosen(node, point, (low + high) / 2) + shift,
        size=torch.where(sure, 0.0, rest.abs() + bottom.abs()),
        joint=torch.ones_like(sure),
    )


def pooled_difference_above(
    node: Pool, b: Bounds, z: Tensor, d: Tensor, constant: Constant
) -> Above:
    """A plane above max z − max (z − d)."""
    # If entry i leads in f, then max z − max z' ≤ z_i − z'_i.
    leads = can_lead(node, b.l, b.h)
    alone = maximum_above(node, b.dl, b.dh, d, constant, leads=leads)
    top = maximum_above(node, b.l, b.h, z, constant)
    middle_g = (b.l + b.h) / 2 - (b.dl + b.dh) / 2
    joint_middle = top.middle - chosen(node, b.gl, middle_g)
    joint_tape = top.tape - pick(node, b.gl, z) + pick(node, b.gl, d)
    # A tie keeps the plane in δ alone, whose rounding is relative to the difference.
    joint = joint_middle < alone.middle
    return Above(
        tape=torch.where(joint, joint_tape, alone.tape),
        middle=torch.where(joint, joint_middle, alone.middle),
        size=torch.where(joint, top.size, alone.size),
        joint=joint,
    )


# Parallel bands around a ReLU and around the difference of two: a plane, and how far to each side.
#
# Affine forms have one centre, so what lies above a plane and what lies below it must be equally
# far.


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Within `half` of the plane."""

    plane: Plane
    half: Tensor
    difference: bool

    @property
    def sides(self) -> tuple[Plane, Plane]:
        """Above and below."""
        up, down = self.plane.c + self.half, self.plane.c - self.half
        return replace(self.plane, c=up), replace(self.plane, c=down)

    def leaky_band(self, slope: float) -> "Band":
        """The band for slope·z + (1 − slope)·relu(z), or its difference."""
        plane = self.plane.leaky(slope, difference=self.difference)
        return Band(plane=plane, half=abs(1 - slope) * self.half, difference=self.difference)


def bands(b: Bounds, slope: float, unit: float) -> list[Band]:
    """Around slope·z + (1 − slope)·relu(z) in f, in g, and around the difference of both."""
    found = (_around(b.l, b.h, unit), _around(b.gl, b.gh, unit), _around_difference(b, unit))
    return [band.leaky_band(slope) for band in found]


def _around(l: Tensor, h: Tensor, unit: float) -> Band:
    """Parallel to the chord where the neuron is open."""
    plane = relu_above(l, h)
    # At both ends, since the slope is rounded. A NaN, of values that overflow, is open and stays.
    height = torch.maximum(-plane.p * l, (1 - plane.p) * h).relu() * (1 + 8 * unit)
    half = torch.where((l >= 0) | (h <= 0), 0.0, height / 2)
    return Band(plane=replace(plane, c=half), half=half, difference=False)


_NEURONS = 512
"""Open neurons whose bands are computed at once: their values at all points for all slopes are 3
MB.
"""

_STEPS = (0.5, 0.25, 0.1)
"""How far a round goes from the narrowest band so far towards the slopes of each plane."""

_ROUNDS = 2
"""Rounds: on ResNets the bands are then within 1.3 % of the narrowest that there are in the last
layers, and without any within 16 %.
"""


def _around_difference(b: Bounds, unit: float) -> Band:
    """The narrowest band that the slopes of planes above and below F lead to."""
    band = _settled(b)
    at = band.half.flatten().nonzero().flatten()
    if not len(at):
        return band
    columns = [torch.split(getattr(b, field).flatten()[at], _NEURONS) for field in FIELDS]
    parts = (Bounds(**dict(zip(FIELDS, part, strict=True))) for part in zip(*columns, strict=True))
    found = [_narrowest(part, unit) for part in parts]
    ends = (band.plane.p, band.plane.q, band.plane.c, band.half)
    p, q, c, half = (
        end.flatten().index_copy(0, at, torch.cat(new)).reshape(end.shape)
        for end, new in zip(ends, zip(*found, strict=True), strict=True)
    )
    return Band(plane=Plane(p=p, q=q, c=c), half=half, difference=True)


def _settled(b: Bounds) -> Band:
    """Where both neurons keep their signs the difference is one plane, without any band: δ, z, −z'
    or 0, which it also is where they are equal. Taken from these formulas, not from values, it
    loses no digit to rounding.
    """
    on, off, on_g, off_g = b.l >= 0, b.h <= 0, b.gl >= 0, b.gh <= 0
    one, zero = torch.ones_like(b.l), torch.zeros_like(b.l)
    p = torch.where(on & off_g, one, torch.where(off & on_g, -one, zero))
    # A dead neuron of g (z' = 0 throughout) is on and off at once: there the difference is z.
    q = torch.where(on_g & ~(on & off_g), one, zero)
    straight = ((on | off) & (on_g | off_g)) | ((b.dl == 0) & (b.dh == 0))
    half = torch.where(straight, zero, torch.full_like(zero, torch.inf))
    return Band(plane=Plane(p=p, q=q, c=zero), half=half, difference=True)


def _narrowest(b: Bounds, unit: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """p, q, c and half of the band; b has one axis.

    Its width is a convex function of the slopes, and straight between those of planes that touch F
    in three points: the least width lies at one of them or where two of their edges cross.
    """
    z, d = _corners(b)
    value = z.relu() - (z - d).relu()
    planes = [*planes_above(b), *map(_exchange, planes_above(b.exchanged()))]
    p, q = torch.stack([plane.p for plane in planes]), torch.stack([plane.q for plane in planes])
    best = _least(p, q, z, d, value)
    for _ in range(_ROUNDS):
        nearer = [
            torch.cat([old + step * (every - old) for step in _STEPS])
            for every, old in ((p, best[0]), (q, best[1]))
        ]
        new = _least(nearer[0], nearer[1], z, d, value)
        less = new[3] * (1 + _TIE) < best[3]
        best = tuple(torch.where(less, one, old) for one, old in zip(new, best, strict=True))
    p, q, c, half = best
    # z − d and the sums above round relative to z and d, not to their difference.
    size, _, size_d = b.sizes
    return p, q, c, half + 8 * unit * ((2 + p.abs()) * size + (2 + q.abs()) * size_d)


def _least(p: Tensor, q: Tensor, z: Tensor, d: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Of these slopes, (slopes, neurons), those of the narrowest band around values at points."""
    rest = value - p.unsqueeze(1) * z - q.unsqueeze(1) * d
    high, low = rest.amax(dim=1), rest.amin(dim=1)
    width = high - low
    least, rounding = width.amin(dim=0), 8 * torch.finfo(z.dtype).eps * z.abs().amax(dim=0)
    best = (width <= least * (1 + _TIE) + rounding).int().argmax(dim=0, keepdim=True)
    p, q, high, low = (of.gather(0, best)[0] for of in (p, q, high, low))
    return p, q, (high + low) / 2, (high - low) / 2


def _corners(b: Bounds) -> tuple[Tensor, Tensor]:
    """Points (z, δ) among which F, less any plane, is extreme on the ranges: both ends of each of
    the lines that bound them or are a kink. (Where the kinks meet it is a saddle.)

    A kink beyond the ranges is moved to their edge, which only adds points of them.
    """
    z, g = (torch.zeros_like(b.l).clamp(low, high) for low, high in ((b.l, b.h), (b.gl, b.gh)))

    def along(line: Tensor) -> tuple[Tensor, Tensor]:
        return torch.maximum(b.dl, line - b.gh), torch.minimum(b.dh, line - b.gl)

    points = [(line, end) for line in (b.l, b.h, z) for end in along(line)]
    for line in (b.dl, b.dh):
        ends = torch.maximum(b.l, b.gl + line), torch.minimum(b.h, b.gh + line)
        points += [(end, line) for end in ends]
    ends = torch.maximum(b.dl, b.l - g), torch.minimum(b.dh, b.h - g)
    points += [(end + g, end) for end in ends]
    zs, ds = zip(*points, strict=True)
    return torch.stack(zs), torch.stack(ds)


def band_mass(band: Band, mass: StreamValues) -> Tensor:
    """The absolute values behind the plane and the width of a band."""
    return (
        band.plane.p.abs() * mass.m + band.plane.q.abs() * mass.d + band.plane.c.abs() + band.half
    )
