"""Splitting: a box on which the bound is too large is cut in two, and its halves again, until every
part is proven, a point above the target is found, or the time is up.

Most cuts are in the middle of one input's range. Halves share that face, and their ends are the
ends of the whole, to the bit: together they are the box, however the cut was rounded. What is known
about a box holds for its halves, so a bound never grows on the way down.

If there are many inputs, a cut is at the sign of one neuron, of f or of g: one half is where z is
at most 0, the other where it is at least 0. Every input lies in one of them, or in both, so
together they are the whole again; the halves have its ends, and the known range of that neuron
ends, or begins, at 0. A half in which some neuron has no possible value contains no input.

The parts of a box are kept as a tree (`Parts`), from which the same proof can be made again.
"""

import base64
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from secateurs.proof.dense_chain import DenseChain, chain_of
from secateurs.proof.domain import Domain
from secateurs.proof.methods import run_methods
from secateurs.proof.problem import NetworkPair, Pace, TimeLimit
from secateurs.proof.top_class import TopClass, check_classes, pair_ends

_ENTRIES = 2**21
"""Numbers of one batch of boxes: 16 MB in float64, which two caches hold."""

_TOGETHER = 1024
"""Boxes of a batch at most. More would only be bounded in a worse order."""

_LOOKED = 32
"""Boxes of a batch that are looked at for a witness, those with the largest bounds: evaluating
both networks on all of them takes longer than bounding them.
"""

_MOST_OPEN = 20_000
"""If more boxes wait than this, those nearest to their target come first, since all that wait are
in memory.
"""

_FEW = 12
"""Up to this many inputs of some width, inputs are cut: n of them, each cut once, make 2ⁿ parts. If
there are more, neurons are cut as long as any is open.
"""

_PRESSED = 4
"""Outputs of a part, the worst ones, whose bounds use the signs of its neurons."""

_STEPS = 10
"""Steps that choose how much of each sign is used."""

_AT_ONCE = 128
"""Parts whose signs are used together."""

_LEAF = 0
LONGEST = 2**22
"""The most nodes of a kept tree, and of a proof: otherwise a hostile text of a few kilobytes could
ask for days of work.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """How a box was cut, in preorder: 0 for a part that was not cut, i + 1 for a cut of input i,
    whose lower half follows first. After the n inputs come f's hidden neurons in their order, then
    g's: for these the half where z ≤ 0 follows first.
    """

    cuts: tuple[int, ...]

    def __len__(self) -> int:
        return sum(cut == _LEAF for cut in self.cuts)

    def pack(self) -> str:
        """As short text."""
        raw = np.asarray(self.cuts, dtype="<u4").tobytes()
        return base64.b64encode(zlib.compress(raw, 9)).decode()

    def boxes(self, lo: Tensor, hi: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The ends of every part, in the order of the tree, flat; a half cut at a neuron has those
        of its whole.
        """
        waiting = [(lo, hi)]
        for cut in self.cuts:
            low, high = waiting.pop()
            if cut == _LEAF:
                yield low, high
                continue
            if cut > len(lo):
                waiting += [(low, high)] * 2
                continue
            middle = (low[cut - 1] + high[cut - 1]) / 2
            below, above = high.clone(), low.clone()
            below[cut - 1] = above[cut - 1] = middle
            waiting += [(above, high), (low, below)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitProof:
    """The result of splitting.

    Attributes:
        per_output: Upper bounds of |f − g|, (boxes, outputs).
        balls: In the norm, per box: the largest over its parts.
        parts: Those of each box.
        share: The share of the volume of all boxes for which the target is proven.
        complete: Whether it is proven for every part.
        witness: An input at which the difference is above the target, or None.
    """

    per_output: Tensor
    balls: Tensor
    parts: tuple[Parts, ...]
    share: float
    complete: bool
    witness: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """For some boxes: bounds per output, how far each is from a proof of another claim, how much
    cutting each input promises, and what the halves inherit; a corner worth evaluating. needs: of
    a claim, see `TopClass.needs`.
    """

    per_output: Tensor | None
    size: Tensor | None
    needs: Tensor | None
    promise: Tensor
    known: Tensor | None
    corner: Tensor


class Bounder(Protocol):
    """Bounds boxes given by flat ends, and chooses the neuron of each that is best cut: f's k, or k
    after all hidden ones for g's; −1 for none. wanted: the y_i − y_j, i < j, that matter to a claim
    in each box.
    """

    batch: int

    def bound(
        self,
        lo: Tensor,
        hi: Tensor,
        known: Tensor | None,
        row: Tensor,
        wanted: Tensor | None = None,
    ) -> Bounded: ...

    def neurons(self, boxes: "_Waiting") -> Tensor: ...

    def bound_cut_outputs(self, boxes: "_Waiting", target: Tensor, *, again: bool) -> Tensor:
        """Bounds per output that use the signs of the neurons that were cut; with `again`, in more
        steps than the first time.
        """
        ...


class _ByChain:
    """Two chains of dense layers, of which only open neurons are bounded again."""

    def __init__(self, chain: DenseChain, claim: TopClass | None) -> None:
        self.chain, self.claim = chain if claim is None else chain.of_pairs(), claim
        chain = self.chain
        self.batch = max(1, min(_TOGETHER, _ENTRIES // chain.numbers_of_a_box))

    def bound(
        self,
        lo: Tensor,
        hi: Tensor,
        known: Tensor | None,
        row: Tensor,
        wanted: Tensor | None = None,
    ) -> Bounded:
        found = self.chain.bounds(lo, hi, known, row, wanted)
        empty = self.chain.empty(found.known)
        # If nothing is open, the widest input is as good as any.
        promise = found.influence + 1e-12 * (hi - lo)
        if self.claim is None:
            # Outputs cannot differ where there is no input.
            per_output = found.per_output.masked_fill(empty[:, None], 0.0)
            size = needs = None
        else:
            needs = self.claim.needs(found.ends).masked_fill(empty[:, None, None], -math.inf)
            per_output, size = None, needs.amax(dim=(1, 2)) - self.claim.margin
        return Bounded(
            per_output=per_output,
            size=size,
            needs=needs,
            promise=promise,
            known=found.known,
            corner=found.corner,
        )

    def neurons(self, boxes: "_Waiting") -> Tensor:
        # A claim is also about values, which `bound_cut_outputs` does not bound.
        if boxes.known is None or self.claim is not None:
            return torch.full_like(boxes.row, -1)
        return self.chain.costliest(boxes.known[boxes.row], boxes.per_output.argmax(dim=1))

    def bound_cut_outputs(self, boxes: "_Waiting", target: Tensor, *, again: bool) -> Tensor:
        if boxes.known is None or self.claim is not None:
            return boxes.per_output
        low, high = boxes.known[boxes.row][:, :4:2], boxes.known[boxes.row][:, 1:4:2]
        signed = ((low == 0) & (high > 0)) | ((high == 0) & (low < 0))
        cut = signed.flatten(1).any(dim=1)
        found = boxes.per_output.clone()
        if bool(cut.any()):
            found[cut] = self._tighten_outputs(boxes[cut], target[cut], again=again)
        return found

    def _tighten_outputs(self, boxes: "_Waiting", target: Tensor, *, again: bool) -> Tensor:
        if boxes.known is None:
            return boxes.per_output
        found = boxes.per_output
        index = found.topk(min(_PRESSED, found.shape[1]), dim=1).indices
        now = found.gather(1, index)
        goal = torch.where(target > 0, 0.95 * target, 0.8 * now.amax(dim=1))
        known, steps = boxes.known[boxes.row], (3 if again else 1) * _STEPS
        parts = []
        for start in range(0, len(boxes), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            parts.append(
                self.chain.bound_cut_outputs(
                    boxes.lo[some], boxes.hi[some], known[some], index[some], goal[some], steps
                )
            )
        # Steps follow kinks, and another machine may take the other side of one: the first proof
        # states slightly less than it found, and the next one takes more steps.
        most = torch.cat(parts) * (1.0 if again else 1 + 1e-6)
        return found.scatter(1, index, torch.minimum(now, most))


def cuttable(problem: NetworkPair, inputs: int) -> int:
    """How many inputs and neurons a box can be cut at."""
    chain = chain_of(problem)
    return inputs if chain is None else inputs + 2 * chain.neurons


class _ByMethods:
    """Any two networks, by the methods of `certify`."""

    def __init__(
        self,
        problem: NetworkPair,
        methods: Sequence[str],
        shape: torch.Size,
        claim: TopClass | None,
    ) -> None:
        self.problem, self.methods, self.shape = problem, tuple(methods), shape
        self.claim = claim
        self.batch = problem.boxes_at_a_time

    def bound(
        self,
        lo: Tensor,
        hi: Tensor,
        known: Tensor | None,
        row: Tensor,
        wanted: Tensor | None = None,
    ) -> Bounded:
        ends = [end.reshape(-1, *self.shape) for end in (lo, hi, (lo + hi) / 2)]
        domain = Domain(lo=ends[0], hi=ends[1], center=ends[2], radius=None, description="")
        # The clock belongs to the whole proof; a method that has started may finish.
        quiet = replace(self.problem, clock=TimeLimit())
        per_output = size = needs = None
        if self.claim is not None:
            known, complete = pair_ends(quiet, domain)
            needs = self.claim.needs(known, complete=complete)
            size = needs.amax(dim=(1, 2)) - self.claim.margin
        else:
            proven, _ = run_methods(quiet, domain, self.methods)
            rows = [reach.per_output for reach in proven.values()]
            per_output = torch.stack(rows).amin(dim=0) if rows else None
        slope = self._slope(domain.center)
        return Bounded(
            per_output=per_output,
            size=size,
            needs=needs,
            promise=(slope.abs() + 1e-12) * (hi - lo),
            known=None,
            corner=torch.where(slope > 0, hi, lo),
        )

    def neurons(self, boxes: "_Waiting") -> Tensor:
        return torch.full_like(boxes.row, -1)

    def bound_cut_outputs(self, boxes: "_Waiting", target: Tensor, *, again: bool) -> Tensor:
        return boxes.per_output

    def _slope(self, x: Tensor) -> Tensor:
        """The gradient of the largest difference at these inputs."""
        leaf = x.detach().clone().requires_grad_()
        with torch.enable_grad():
            gaps = self.problem.difference(leaf).abs().amax(dim=1).sum()
        if not gaps.requires_grad:
            return torch.zeros_like(x).flatten(1)
        (slope,) = torch.autograd.grad(gaps, leaf)
        return slope.flatten(1)


def bounder_of(
    problem: NetworkPair, methods: Sequence[str], shape: torch.Size, claim: TopClass | None
) -> Bounder:
    """What bounds the parts of boxes; shape: that of one input."""
    chain = chain_of(problem)
    if chain is None:
        return _ByMethods(problem, methods, shape, claim)
    return _ByChain(chain, claim)


@dataclass(slots=True, kw_only=True)
class _Tree:
    """Nodes of one box, numbered as they are made: the cut of each, the indices of its halves, and
    which have their target proven.
    """

    cuts: list[int] = field(default_factory=lambda: [_LEAF])
    halves: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    done: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, parts: Parts) -> "_Tree":
        """The tree of an earlier proof."""
        tree = cls(cuts=list(parts.cuts), halves=[(0, 0)] * len(parts.cuts))
        # From the end, so that the halves of a node are complete before it: the lower one is the
        # next node, the upper one comes after the whole subtree of the lower.
        end = [number + 1 for number in range(len(parts.cuts))]
        for number in reversed(range(len(parts.cuts))):
            if parts.cuts[number] != _LEAF:
                tree.halves[number] = number + 1, end[number + 1]
                end[number] = end[end[number + 1]]
        return tree

    def cut(self, node: int, along: int) -> None:
        """Cut a leaf."""
        self.cuts[node], self.halves[node] = along + 1, (len(self.cuts), len(self.cuts) + 1)
        self.cuts += [_LEAF, _LEAF]
        self.halves += [(0, 0), (0, 0)]

    def share(self, inputs: int) -> float:
        """A lower bound of the share of the box on which the target is proven."""
        shares = [0.0] * len(self.cuts)
        # Halves have larger numbers than their whole.
        for node in reversed(range(len(self.cuts))):
            if self.cuts[node] == _LEAF:
                shares[node] = float(node in self.done)
                continue
            one, two = (shares[half] for half in self.halves[node])
            # The sizes of halves cut at a neuron are unknown, so only what is proven for both signs
            # counts.
            mean = (one + two) / 2
            shares[node] = mean if self.cuts[node] <= inputs else max(0.0, one + two - 1)
        return shares[0]

    def parts(self) -> Parts:
        """In preorder."""
        found, waiting = [], [0]
        while waiting:
            node = waiting.pop()
            found.append(self.cuts[node])
            if self.cuts[node] != _LEAF:
                lower, upper = self.halves[node]
                waiting += [upper, lower]
        return Parts(cuts=tuple(found))


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """Waiting boxes: their ends, what is proven about them, and their nodes in the trees.

    known: What is known about boxes that contain these; `row` says which of them contains each.
    """

    lo: Tensor
    hi: Tensor
    per_output: Tensor
    size: Tensor
    root: Tensor
    node: Tensor
    row: Tensor
    known: Tensor | None

    def __len__(self) -> int:
        return len(self.lo)

    def __getitem__(self, index: Tensor | slice) -> "_Waiting":
        """Some of the boxes."""
        return _Waiting(**{n: getattr(self, n)[index] for n in _COLUMNS}, known=self.known)


_COLUMNS = ("lo", "hi", "per_output", "size", "root", "node", "row")


def _join(parts: Sequence[_Waiting]) -> _Waiting:
    joined = _Waiting(
        **{name: torch.cat([getattr(part, name) for part in parts]) for name in _COLUMNS},
        # Nothing is known about roots, so everything is bounded from scratch.
        known=None,
    )
    known = [part.known for part in parts if part.known is not None]
    if len(known) == len(parts):
        before, rows = 0, []
        for part, own in zip(parts, known, strict=True):
            rows.append(part.row + before)
            before += len(own)
        joined.known, joined.row = torch.cat(known), torch.cat(rows)
    return joined


def split(
    problem: NetworkPair,
    domain: Domain,
    per_box: Tensor,
    *,
    target: Tensor,
    refuting: float,
    norm: float,
    methods: Sequence[str],
    plan: Sequence[Parts] | None = None,
    claim: TopClass | None = None,
) -> SplitProof:
    """Cut boxes until the norm of the bound is at most the target on every part.

    Args:
        per_box: bounds that are already proven, (boxes, outputs).
        target: one per box.
        refuting: a larger difference than this is a witness against the target, and ends the
            search; infinite if the best bound within the time is wanted.
        methods: bound the parts if the networks are not chains of dense layers.
        plan: the parts of an earlier proof, repeated without choosing; nothing else is cut.
        claim: proven instead of a bound; then the target is 0, and so is `refuting`.
    """
    run = _Splitting(problem, domain, target, refuting, norm, methods, plan, claim)
    with torch.no_grad():
        run.bound_all(per_box.expand(len(domain), -1))
    return run.outcome()


class _Splitting:
    """One run of `split`."""

    def __init__(
        self,
        problem: NetworkPair,
        domain: Domain,
        target: Tensor,
        refuting: float,
        norm: float,
        methods: Sequence[str],
        plan: Sequence[Parts] | None,
        claim: TopClass | None = None,
    ) -> None:
        self.problem, self.target, self.norm = problem, target, norm
        self.refuting, self.claim = refuting, claim
        if claim is not None:
            check_classes(problem)
        self.bounder = bounder_of(problem, methods, domain.lo.shape[1:], claim)
        self.planned = plan is not None
        self.lo, self.hi = domain.lo.flatten(1), domain.hi.flatten(1)
        self.shape = domain.lo.shape[1:]
        self.trees = [_Tree() for _ in self.lo] if plan is None else [_Tree.of(one) for one in plan]
        self.closed = self.lo.new_zeros(len(self.lo), problem.outputs)
        self.balls = self.lo.new_zeros(len(self.lo))
        self.boxes, self.left = 0, 0
        self.proven = self.lo.new_zeros(len(self.lo))
        self.volume = volume_shares(self.lo, self.hi)
        self.witness: Tensor | None = None
        self.chunks: list[_Waiting] = []

    def bound_all(self, per_box: Tensor) -> None:
        """Bound boxes until none wait, a witness is found, or the time is up."""
        roots = torch.arange(len(self.lo), device=self.lo.device)
        self._put(
            _Waiting(
                lo=self.lo,
                hi=self.hi,
                per_output=per_box,
                size=self._sizes(per_box) if self.claim is None else per_box[:, 0] + math.inf,
                root=roots,
                node=torch.zeros_like(roots),
                row=roots,
                known=None,
            )
        )
        pace = Pace(clock=self.problem.clock)
        while self.chunks and self.witness is None and self._has_room() and pace.allows(1):
            batch = self._next()
            found = self.bounder.bound(batch.lo, batch.hi, batch.known, batch.row)
            self.boxes += len(batch)
            if found.per_output is not None:
                batch.per_output = torch.minimum(batch.per_output, found.per_output)
            own = self._sizes(batch.per_output) if found.size is None else found.size
            batch.size = torch.minimum(batch.size, own)
            batch.known, batch.row = found.known, torch.arange(len(batch), device=batch.row.device)
            # Of the part alone, so that another proof does the same to it. That one looks longer,
            # and may find a whole within the target whose halves were bounded more tightly before.
            far = (batch.size > self.target[batch.root]) & _many(batch)
            if self.planned:
                far = _many(batch)
            if self.claim is None and bool(far.any()):
                rest = batch[far]
                target = self.target[rest.root]
                batch.per_output[far] = self.bounder.bound_cut_outputs(
                    rest, target, again=self.planned
                )
                batch.size = torch.minimum(batch.size, self._sizes(batch.per_output))
            self._sort(batch, found)
            pace.done(
                f"split: {self.boxes} boxes bounded, the target is proven on"
                f" {self._share():.1%} of the volume"
            )
        # Waiting boxes keep the bounds of their whole.
        for chunk in self.chunks:
            self._close(chunk)

    def _has_room(self) -> bool:
        """Whether every tree can still be kept after one more batch of cuts."""
        room = LONGEST - 2 * self.bounder.batch
        return self.planned or max(len(tree.cuts) for tree in self.trees) <= room

    def outcome(self) -> SplitProof:
        """The result."""
        return SplitProof(
            per_output=self.closed,
            balls=self.balls,
            parts=tuple(tree.parts() for tree in self.trees),
            share=self._share(),
            complete=self.left == 0,
            witness=self.witness,
        )

    def _share(self) -> float:
        inputs = self.lo.shape[1]
        shares = self.proven.tolist()
        if any(max(tree.cuts) > inputs for tree in self.trees):
            shares = [tree.share(inputs) for tree in self.trees]
        return math.fsum(s * v for s, v in zip(shares, self.volume.tolist(), strict=True))

    def _put(self, waiting: _Waiting) -> None:
        if len(waiting):
            self.chunks.append(waiting)

    def _next(self) -> _Waiting:
        """The next boxes to bound: the worst ones, or the best ones if too many wait."""
        many = sum(map(len, self.chunks)) > _MOST_OPEN
        self.chunks.sort(key=lambda chunk: float(chunk.size.max()), reverse=many)
        taken: list[_Waiting] = []
        room = self.bounder.batch
        while self.chunks and room:
            chunk = self.chunks.pop()
            if len(chunk) > room:
                self.chunks.append(chunk[room:])
                chunk = chunk[:room]
            # Roots are bounded from scratch, halves with what they inherit, so never together.
            if taken and (chunk.known is None) != (taken[0].known is None):
                self.chunks.append(chunk)
                break
            taken.append(chunk)
            room -= len(chunk)
        return _join(taken)

    def _sort(self, batch: _Waiting, found: Bounded) -> None:
        """Close proven boxes, search the others for a witness, and cut them."""
        if self.planned:
            cuts = [self.trees[r].cuts[n] for r, n in _pairs(batch)]
            whole = torch.tensor([cut == _LEAF for cut in cuts], device=self.lo.device)
            self._close(batch[whole])
            chosen = [cut - 1 for cut in cuts if cut != _LEAF]
            along = torch.tensor(chosen, dtype=torch.long, device=self.lo.device)
            self._halve(batch[~whole], along)
            return
        whole = batch.size <= self.target[batch.root]
        self._close(batch[whole])
        rest = batch[~whole]
        if not len(rest):
            return
        if math.isfinite(self.refuting):
            worst = rest.size.topk(min(_LOOKED, len(rest))).indices
            middles = (rest.lo[worst] + rest.hi[worst]) / 2
            self._keep_witness(torch.cat([middles, found.corner[~whole][worst]]))
        if self.witness is not None:
            # Nothing is left to prove, so open boxes stay as they are.
            self._close(rest)
            return
        middle = (rest.lo + rest.hi) / 2
        # If a box is thin enough, there is no number between its ends.
        between = (middle > rest.lo) & (middle < rest.hi)
        promise = torch.where(between, found.promise[~whole], -1.0)
        along = promise.argmax(dim=1)
        many = _many(rest)
        if bool(many.any()):
            neuron = self.bounder.neurons(rest)
            at_neuron = many & (neuron >= 0)
            along = torch.where(at_neuron, self.lo.shape[1] + neuron, along)
            between |= at_neuron.unsqueeze(1)
        thin = ~between.any(dim=1)
        self._close(rest[thin])
        along, rest = along[~thin], rest[~thin]
        for (root, node), cut in zip(_pairs(rest), along.tolist(), strict=True):
            self.trees[root].cut(node, cut)
        self._halve(rest, along)

    def _halve(self, whole: _Waiting, along: Tensor) -> None:
        """Cut each of these boxes; both halves wait from now on."""
        if not len(whole):
            return
        inputs = self.lo.shape[1]
        (rows,) = (along < inputs).nonzero(as_tuple=True)
        cut = along[rows]
        middle = (whole.lo[rows, cut] + whole.hi[rows, cut]) / 2
        halves = [self.trees[root].halves[node] for root, node in _pairs(whole)]
        below, above = whole.hi.clone(), whole.lo.clone()
        below[rows, cut] = above[rows, cut] = middle
        known, row = None, torch.arange(len(whole), device=self.lo.device)
        if whole.known is not None:
            known = whole.known[whole.row]
        # Both halves inherit one row, unless one of them is cut at a neuron.
        row = row.repeat(2)
        if known is not None and len(rows) < len(whole):
            known, row = _halve_by_sign(known, along - inputs), torch.arange(2 * len(whole))
            row = row.to(self.lo.device)
        self._put(
            _Waiting(
                lo=torch.cat([whole.lo, above]),
                hi=torch.cat([below, whole.hi]),
                per_output=whole.per_output.repeat(2, 1),
                size=whole.size.repeat(2),
                root=whole.root.repeat(2),
                node=torch.tensor(
                    [pair[side] for side in (0, 1) for pair in halves], device=whole.node.device
                ),
                row=row,
                known=known,
            )
        )

    def _close(self, done: _Waiting) -> None:
        """Leave these boxes as they are."""
        index = done.root.unsqueeze(1).expand_as(done.per_output)
        self.closed.scatter_reduce_(0, index, done.per_output, "amax")
        self.balls.scatter_reduce_(0, done.root, done.size, "amax")
        there = done.size <= self.target[done.root]
        # An input of zero width does not contribute to the volume.
        wide = (self.hi - self.lo)[done.root]
        share = torch.where(wide > 0, (done.hi - done.lo) / wide, 1.0).prod(dim=1)
        self.proven.index_add_(0, done.root[there], share[there])
        for root, node in _pairs(done[there]):
            self.trees[root].done.add(node)
        self.left += int((~there).sum())

    def _keep_witness(self, x: Tensor) -> None:
        """Keep the input with the largest difference, if that refutes the target."""
        x = x.reshape(-1, *self.shape)
        # What rounding may have done costs more to bound, so only where it decides.
        if self.claim is None:
            seen = self._sizes(self.problem.difference(x))
        else:
            seen = self.claim.violation(*(network(x) for network in self.problem.own))
        x = x[seen > self.refuting]
        if self.witness is not None or not len(x):
            return
        if self.claim is None:
            gap = self._sizes(self.problem.differences(x).least)
        else:
            gap = self.claim.violation_at(self.problem, x)
        if bool((gap > self.refuting).any()):
            self.witness = x[int(gap.argmax())].reshape(self.shape).clone()

    def _sizes(self, per_output: Tensor) -> Tensor:
        size: Tensor = torch.linalg.vector_norm(per_output, ord=self.norm, dim=1)
        return size


def volume_shares(lo: Tensor, hi: Tensor) -> Tensor:
    """Of each box, its share of the volume of all: by logarithms, since a volume of many inputs
    leaves the range of floats. An input of zero width counts where every box has it, as any factor
    that all have; a box that is flat where another is not has no volume.
    """
    wide = (hi - lo).flatten(1)
    common = (wide > 0).any(dim=0)
    logs = torch.where(common, wide, 1.0).log().sum(dim=1)
    if not bool(torch.isfinite(logs).any()):
        # All are flat, each in its own way: none is larger than another.
        return torch.full_like(logs, 1 / len(logs))
    return torch.softmax(logs, dim=0)


def _many(boxes: _Waiting) -> Tensor:
    """Which of these boxes have so many inputs that neurons are cut instead."""
    return (boxes.hi > boxes.lo).sum(dim=1) > _FEW


def _halve_by_sign(known: Tensor, neuron: Tensor) -> Tensor:
    """What is known about both halves of boxes, those where z ≤ 0 of the neuron first; a negative
    index stands for no neuron.
    """
    hidden = known.shape[2]
    (rows,) = (neuron >= 0).nonzero(as_tuple=True)
    which = neuron[rows]
    place, low = which % hidden, 2 * (which // hidden)  # l and h of f, then of g: see `FIELDS`
    below, above = known.clone(), known.clone()
    below[rows, low + 1, place] = below[rows, low + 1, place].clamp(max=0)
    above[rows, low, place] = above[rows, low, place].clamp(min=0)
    return torch.cat([below, above])


def _pairs(batch: _Waiting) -> list[tuple[int, int]]:
    """Tree and node of each box."""
    return list(zip(batch.root.tolist(), batch.node.tolist(), strict=True))
