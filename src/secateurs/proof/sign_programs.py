"""How far f can lead where g answers another class, for two chains of dense layers with few
neurons: linear programs over the signs of neurons.

With the sign of every neuron known both networks are linear, and the largest lead is a linear
program. Of a neuron whose sign is not known a program has the triangle around its ReLU, and a plane
above and one below the difference from its twin, without which both networks could be wrong at
once. While the solution lies inside a triangle, the neuron is cut that costs the bound most by its
multipliers: one half where z ≤ 0, one where z ≥ 0. Between two classes a network of nine inputs and
64 neurons takes hundreds of programs at most, where cutting inputs makes millions of parts and ends
far above.

Nothing of a solver is believed but the multipliers of the constraints, any of which prove a bound
(Neumaier & Shcherbina 2004): what they leave of each variable is taken at the worse end of its
range, and the rounding of these sums is added. No program is without solution, so that all have
multipliers: every constraint may be broken by a variable that costs much.
"""

import heapq
import math
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, vstack
from torch import Tensor

from secateurs.proof.dense_chain import DenseChain
from secateurs.proof.forms import FIELDS, Bounds, gamma
from secateurs.proof.planes import EVERY, difference_above, height_above
from secateurs.proof.problem import OWN_UNIT
from secateurs.proof.top_class import TopClass

_COST = 1e4
"""What breaking a constraint by 1 takes off the lead."""

_POLISHED, _SURE = 8, 2.0**-20
"""One solution of so many is polished, to an input where another class leads in g by this share of
the largest output that is possible: roundings of inputs are smaller.
"""

_VARIABLES, _WEIGHTS = 2_000, 50_000
"""Of a program at most, with the weights of f: one of so many takes seconds."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solved:
    """Of a program: a bound of the lead, the input where its solution lies, and the neuron to cut:
    f's k, or k after all of f's for g's; None if the solution lies in no triangle.
    """

    bound: float
    x: Numbers
    neuron: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Twins:
    """Neurons of which either network's is open, and constraints of their differences: first of
    relu(z) − relu(z') ≤ s·z − t·z' + height, then with both networks exchanged.
    """

    neurons: npt.NDArray[np.int64]
    s: Numbers
    t: Numbers
    height: Numbers
    rows: csr_matrix


@dataclass(order=True, slots=True)
class _SignPart:
    """Some signs: f leads with class `one`, g puts `two` as high. The largest bound comes first."""

    key: tuple[float, int]
    one: int = field(compare=False)
    two: int = field(compare=False)
    known: Tensor = field(compare=False)
    neuron: int | None = field(compare=False, default=None)
    solved: bool = field(compare=False, default=False)

    @property
    def bound(self) -> float:
        return -self.key[0]


class SignPrograms:
    """A bound of the lead on one box, `most`, that sinks as long as it is worked on.

    chain: with pairs of outputs as outputs, see `DenseChain.of_pairs`; lo, hi: one box, flat.
    """

    def __init__(self, chain: DenseChain, claim: TopClass, lo: Tensor, hi: Tensor) -> None:
        self.chain, self.claim, self.lo, self.hi = chain, claim, lo[None], hi[None]
        self.solved, self._parts, self._number = 0, list[_SignPart](), count()
        self._leaf = 0.0
        found = chain.bounds(self.lo, self.hi)
        self._whole = found.known[0]
        self._frame = _Frame(chain, claim, lo, hi, self._whole)
        for one, row in enumerate(claim.needs(found.ends)[0].tolist()):
            for two, need in enumerate(row):
                if one != two:
                    self._wait(one, two, found.known[0], need)

    @staticmethod
    def fit(chain: DenseChain) -> bool:
        """Whether their programs are small enough."""
        weights = sum(layer.weight.numel() for layer in chain.layers)
        return 4 * chain.neurons <= _VARIABLES and weights <= _WEIGHTS

    @property
    def most(self) -> float:
        """The largest lead that is still possible; at least 0."""
        return max([self._leaf, *(part.bound for part in self._parts[:1])])

    def work(self, seconds: float, enough: float, limit: float = math.inf) -> Tensor:
        """Solve programs for so long, or until `most` is enough; returns the inputs that their
        solutions lie at, (programs, inputs): f's largest lead is near one of them. limit: the
        seconds that one of them may take.
        """
        end, xs = monotonic() + seconds, list[Numbers]()
        while self._open and self.most > enough and (not xs or monotonic() < end):
            part = heapq.heappop(self._parts)
            if not part.solved:
                found = self._frame.solve(part.one, part.two, part.known.numpy(), limit)
                self.solved += 1
                xs.append(found.x)
                if self.solved % _POLISHED == 0 or found.neuron is None:
                    xs.append(self._polished(part, found.x, limit))
                # A program never proves less than is known of the whole.
                bound = min(part.bound, found.bound)
                self._wait(part.one, part.two, part.known, bound, found.neuron, solved=True)
            elif part.neuron is None:
                self._leaf = max(self._leaf, part.bound)
            else:
                self._halve(part, part.neuron)
        return torch.tensor(np.array(xs)).reshape(-1, self.lo.shape[1])

    @property
    def _open(self) -> bool:
        """Whether more work could make `most` sink."""
        return bool(self._parts) and self._parts[0].bound > self._leaf

    def _polished(self, part: _SignPart, x: Numbers, limit: float) -> Numbers:
        """Where f leads by most while every neuron has the sign that it has at x, and g answers
        another class for certain.
        """
        known, place, point = self._whole.clone(), 0, torch.from_numpy(x)
        p, q = point, point
        for layer in self.chain.layers[:-1]:
            z, g = layer.weight @ p + layer.bias, layer.other @ q + layer.other_bias
            if layer.relu:
                for low, value in ((0, z), (2, g)):
                    l, h = known[low : low + 2, place : place + len(z)]
                    l[value > 0] = l[value > 0].clamp(min=0)
                    h[value <= 0] = h[value <= 0].clamp(max=0)
            p, q = (z.relu(), g.relu()) if layer.relu else (z, g)
            place += len(z)
        return self._frame.solve(part.one, part.two, known.numpy(), limit, self._frame.sure).x

    def _wait(
        self,
        one: int,
        two: int,
        known: Tensor,
        bound: float,
        neuron: int | None = None,
        *,
        solved: bool = False,
    ) -> None:
        key = -bound, next(self._number)
        heapq.heappush(self._parts, _SignPart(key, one, two, known, neuron, solved))

    def _halve(self, part: _SignPart, neuron: int) -> None:
        """Cut a part at a neuron; each half lets the others be known better."""
        which, place = divmod(neuron, self.chain.neurons)
        both = part.known.repeat(2, 1, 1)
        # l and h of f, then of g: see `FIELDS`.
        low, high = 2 * which, 2 * which + 1
        both[0, high, place] = both[0, high, place].clamp(max=0)
        both[1, low, place] = both[1, low, place].clamp(min=0)
        lo, hi = (end.repeat(2, 1) for end in (self.lo, self.hi))
        found = self.chain.bounds(lo, hi, both, torch.arange(2))
        needs = self.claim.needs(found.ends)[:, part.one, part.two].tolist()
        empty = self.chain.empty(found.known).tolist()
        for known, need, none in zip(found.known, needs, empty, strict=True):
            if not none:
                self._wait(part.one, part.two, known, min(part.bound, need))


class _Frame:
    """What all programs on a box share.

    Variables: inputs; of f and then of g the sums z of each layer and what is behind their ReLUs,
    where that is neither z nor 0 on the whole box; the lead; how far constraints are broken.
    """

    def __init__(
        self, chain: DenseChain, claim: TopClass, lo: Tensor, hi: Tensor, known: Tensor
    ) -> None:
        self.neurons, self.classes = chain.neurons, len(chain.layers[-2].bias)
        slack = torch.zeros(2, self.classes) if claim.slack is None else claim.slack
        self.slack = slack.double().numpy()
        self.inputs, low, high = len(lo), lo.tolist(), hi.tolist()
        rows: list[dict[int, float]] = []
        self.equal: list[float] = []
        bent: list[tuple[int, int, int, int]] = []
        self.outputs: list[list[int]] = []
        # Of f and of g: where each neuron's sum stands, and what is behind it (−1 for nothing).
        self.sums, self.values = (np.full((2, chain.neurons), -1) for _ in range(2))
        for which in range(2):
            before, place = {k: k for k in range(self.inputs)}, 0
            for layer in chain.layers[:-1]:
                weight, bias = (
                    (layer.weight, layer.bias) if which == 0 else (layer.other, layer.other_bias)
                )
                ends = known[2 * which : 2 * which + 2, place : place + len(bias)].tolist()
                sums = range(len(low), len(low) + len(bias))
                low += ends[0]
                high += ends[1]
                for z, own, shift in zip(sums, weight.tolist(), bias.tolist(), strict=True):
                    terms = {before[k]: -w for k, w in enumerate(own) if w and k in before}
                    rows.append({**terms, z: 1.0})
                    self.equal.append(shift)
                after = dict(enumerate(sums))
                for k, (l, h) in enumerate(zip(*ends, strict=True)) if layer.relu else ():
                    if h <= 0:
                        del after[k]
                    elif l < 0:
                        after[k] = len(low)
                        bent.append((which, place + k, sums[k], len(low)))
                        low.append(0.0)
                        high.append(h)
                at = slice(place, place + len(bias))
                self.sums[which, at] = sums
                self.values[which, at] = [after.get(k, -1) for k in range(len(bias))]
                before, place = after, place + len(bias)
            self.outputs.append(list(sums))
        of_g = known[2:4, chain.neurons - self.classes :]
        self.sure = _SURE * float(of_g.abs().max())
        far = max(1.0, *map(abs, low), *map(abs, high))
        self.lead, self.broken = len(low), len(low) + 1
        self.low = np.array([*low, 0.0, 0.0])
        self.high = np.array([*high, 2 * far, 4 * far])
        self.finite = bool(np.isfinite(self.high - self.low).all())
        self.cost = np.zeros(len(self.low))
        self.cost[self.lead], self.cost[self.broken] = 1.0, -_COST
        self.same = _matrix(rows, len(self.low))
        self.which, self.place, self.sum, self.value = (
            np.array(bent, dtype=np.int64).reshape(-1, 4).T
        )
        # Above z; under a line, whose slope is that of the part: the second of three numbers.
        above = [{z: 1.0, a: -1.0, self.broken: -1.0} for *_, z, a in bent]
        under = [{a: 1.0, z: -1.0, self.broken: -1.0} for *_, z, a in bent]
        self.bends = _matrix([*above, *under], len(self.low))
        self.relu = np.concatenate(
            [np.full(len(layer.bias), layer.relu) for layer in chain.layers[:-1]]
        )
        self.claims: dict[tuple[int, int], tuple[csr_matrix, Numbers]] = {}

    def claim(self, one: int, two: int) -> tuple[csr_matrix, Numbers]:
        """f leads with class `one`, and g puts `two` as high."""
        if (one, two) not in self.claims:
            f, g = self.outputs
            others = [k for k in range(self.classes) if k != one]
            rows = [{self.lead: 1.0, f[one]: -1.0, f[k]: 1.0, self.broken: -1.0} for k in others]
            rows.append({g[one]: 1.0, g[two]: -1.0, self.broken: -1.0})
            most = [self.slack[0, one] + self.slack[0, k] for k in others]
            most.append(self.slack[1, one] + self.slack[1, two])
            limits = np.array(most) * (1 + 4 * OWN_UNIT)
            self.claims[one, two] = _matrix(rows, len(self.low)), limits
        return self.claims[one, two]

    def solve(
        self, one: int, two: int, known: Numbers, limit: float = math.inf, ahead: float = 0.0
    ) -> _Solved:
        """The program of a part, which may take so many seconds; of values that overflow nothing is
        known. ahead: by how much g puts `two` ahead.
        """
        middle = (self.low + self.high)[: self.inputs] / 2
        if not self.finite:
            return _Solved(bound=math.inf, x=middle, neuron=None)
        l, h = (known[2 * self.which + end, self.place] for end in range(2))
        slope, shift = _chord(l, h)
        claims, limits = self.claim(one, two)
        limits = limits - np.append(np.zeros(len(limits) - 1), ahead)
        bends = self.bends.copy()
        bends.data[3 * len(l) + 1 :: 3] = -slope
        twins = self._twins(known)
        matrix = vstack([bends, twins.rows, claims], format="csr")
        sides = np.concatenate([np.zeros(len(l)), shift, twins.height, limits])
        found: Any = linprog(
            -self.cost,
            A_ub=matrix,
            b_ub=sides,
            A_eq=self.same,
            b_eq=self.equal,
            bounds=np.stack([self.low, self.high], axis=1),
            method="highs-ds",
            options={"time_limit": max(0.0, limit)},
        )
        if found.status != 0:
            # Nothing was proved; the highest triangle is cut.
            return _Solved(bound=math.inf, x=middle, neuron=self._largest(shift))
        return _Solved(
            bound=self._proved(matrix, sides, found),
            x=np.clip(found.x, self.low, self.high)[: self.inputs],
            neuron=self._costliest(found, (l < 0) & (h > 0), twins),
        )

    def _twins(self, known: Numbers) -> _Twins:
        """Planes above and below the difference of each neuron that is open in either network."""
        l, h, gl, gh = known[:4]
        open_ = self.relu & (((l < 0) & (h > 0)) | ((gl < 0) & (gh > 0)))
        neurons = np.flatnonzero(open_)
        ends = torch.from_numpy(known[:, neurons]).unbind()
        b = Bounds(**dict(zip(FIELDS, ends, strict=True)))
        other = b.exchanged()
        b = Bounds(**{k: torch.cat([getattr(b, k), getattr(other, k)]) for k in FIELDS})
        plane = difference_above(b, EVERY)
        # In z and z', where a plane is one in z and z − z'.
        s, t = plane.p + plane.q, plane.q
        height = height_above(b, s, t, OWN_UNIT)
        one, two = np.repeat([0, 1], len(neurons)), np.repeat([1, 0], len(neurons))
        twice, ones = np.tile(neurons, 2), np.ones(2 * len(neurons))
        columns = np.concatenate(
            [
                *(self.values[one, twice], self.values[two, twice]),
                *(self.sums[one, twice], self.sums[two, twice]),
                np.full(len(ones), self.broken),
            ]
        )
        values = np.concatenate([ones, -ones, -s.numpy(), t.numpy(), -ones])
        rows = np.tile(np.arange(len(ones)), 5)
        there = columns >= 0  # behind a neuron that is off there is nothing
        matrix = csr_matrix(
            (values[there], (rows[there], columns[there])), shape=(len(ones), len(self.low))
        )
        return _Twins(neurons=neurons, s=s.numpy(), t=t.numpy(), height=height.numpy(), rows=matrix)

    def _costliest(self, found: Any, open_: npt.NDArray[np.bool_], twins: _Twins) -> int | None:
        """Of the open neurons the one for whose line and planes the solution pays most: how far it
        lies from the ReLU, times the multiplier.
        """
        z, a = found.x[self.sum], found.x[self.value]
        deep = np.where(open_, a - np.maximum(z, 0), 0.0)
        if not len(deep) or deep.max() <= 1e-9 * max([1.0, *np.abs(z)]):
            return None
        count, neurons = len(deep), twins.neurons
        paid = np.maximum(-found.ineqlin.marginals, 0.0)
        z, g = found.x[self.sums[:, neurons]]
        one, two = np.concatenate([z, g]), np.concatenate([g, z])
        change = np.maximum(one, 0) - np.maximum(two, 0)
        room = twins.s * one - twins.t * two + twins.height - change
        by_planes = (paid[2 * count : 2 * count + len(room)] * room.clip(min=0)).reshape(2, -1)
        shared = np.zeros(self.neurons)
        shared[neurons] = by_planes.sum(axis=0)
        cost = paid[count : 2 * count] * deep + shared[self.place]
        chosen = self._largest(np.where(open_, cost, 0.0))
        return self._largest(deep) if chosen is None else chosen

    def _largest(self, numbers: Numbers) -> int | None:
        """The neuron with the largest of these numbers, if it is above 0."""
        if not len(numbers) or not numbers.max() > 0:
            return None
        worst = numbers.argmax()
        return int(self.which[worst] * self.neurons + self.place[worst])

    def _proved(self, matrix: csr_matrix, sides: Numbers, found: Any) -> float:
        """The bound that the multipliers of a solution prove, rounding included."""
        y = np.maximum(-found.ineqlin.marginals, 0.0)
        w = -np.asarray(found.eqlin.marginals)
        equal = np.array(self.equal)
        rest = self.cost - matrix.T @ y - self.same.T @ w
        share = gamma(matrix.shape[0] + len(equal) + len(rest) + 8, OWN_UNIT)
        mass = np.abs(self.cost) + abs(matrix).T @ y + abs(self.same).T @ np.abs(w)
        far = np.maximum(np.abs(self.low), np.abs(self.high))
        worst = np.maximum(rest * self.low, rest * self.high)
        off = 2 * share * mass
        total = y @ sides + w @ equal + worst.sum() + off @ far
        size = y @ np.abs(sides) + np.abs(w) @ np.abs(equal) + (np.abs(rest) + off) @ far
        bound = float(total + 2 * share * size)
        return bound if math.isfinite(bound) else math.inf


def _chord(l: Numbers, h: Numbers) -> tuple[Numbers, Numbers]:
    """Slope and shift of a line above a ReLU on each range: z where it is on, 0 where it is off."""
    on, off = l >= 0, h <= 0
    with np.errstate(invalid="ignore", divide="ignore"):
        slope = np.where(on, 1.0, np.where(off, 0.0, np.clip(h / (h - l), 0.0, 1.0)))
        # At both ends, since the slope is rounded.
        shift = np.maximum(-slope * l, (1 - slope) * h) * (1 + 16 * OWN_UNIT)
    return slope, np.where(on | off, 0.0, shift)


def _matrix(rows: list[dict[int, float]], columns: int) -> csr_matrix:
    """A sparse matrix of these rows."""
    starts = np.cumsum([0, *map(len, rows)])
    at = np.array([k for row in rows for k in row], dtype=np.int64)
    values = np.array([v for row in rows for v in row.values()])
    return csr_matrix((values, at, starts), shape=(len(rows), columns))
