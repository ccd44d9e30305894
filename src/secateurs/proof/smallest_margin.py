"""The smallest margin: how far the dense network has to lead on a box for the changed one to answer
the same class for certain.

It is the largest lead of f at an input where g answers another class. Inputs that are found bound
it from below. From above it is bounded on parts of the box: each has a smallest margin that its
bounds prove (`TopClass.needs`). The part with the largest is cut first, and a part is done once
its own is at most a lead that was found. Chains of dense layers are cut at the signs of neurons,
too (`SignPrograms`): few inputs make few parts, and with more of them few neurons do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import monotonic

import torch
from torch import Tensor, nn

from secateurs.base.progress import Progress, show_progress
from secateurs.base.random import uniform
from secateurs.errors import ArgumentError
from secateurs.proof.dense_chain import chain_of
from secateurs.proof.domain import BoxEnds, Domain, box_domain
from secateurs.proof.methods import automatic
from secateurs.proof.problem import NetworkPair, Pace, TimeLimit, read_problem
from secateurs.proof.sign_programs import SignPrograms
from secateurs.proof.splitting import bounder_of, volume_shares
from secateurs.proof.top_class import TopClass, check_classes

_LEVEL = 0.02
"""Parts whose margins differ by less, relatively, are cut in any order."""

_KNOWN = 2**30
"""Bytes for what is known about the neurons of waiting parts; parts beyond it are bounded from
scratch, which gives the same bounds, later.
"""

_LOOKED = 32
"""Parts of a batch whose middles and corners are looked at, those with the largest margins."""

_CLIMBERS, _STEPS = 512, 50
"""Points of one round of the search, and its steps."""

_ROUNDS = 6
"""Rounds from random points before anything is cut."""

_NEAR = (0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01)
"""Steps of rounds around the witness, as shares of the box. On a network of nine inputs they took
the lead that was found from 4.5 to 5.1 in half a second; random starts gained nothing in 40.
"""

_AHEAD = 8
"""How much longer programs are worked on than parts once they are ahead."""

_BOXES = 16
"""More boxes than these are cut at inputs alone: each has programs of its own."""

_AGAIN = 8
"""Batches between two rounds of the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBoxes:
    """Parts that were left, the one with the largest margin first.

    Attributes:
        lo, hi: Their ends, (parts, *shape of one input).
        margins: The smallest that was proven on each.
        shares: Of the volume of the domain.
    """

    lo: Tensor = field(repr=False)
    hi: Tensor = field(repr=False)
    margins: Tensor
    shares: Tensor

    def __len__(self) -> int:
        return len(self.margins)

    def table(self, rows: int = 10) -> str:
        """Of the first ones: the margin, the share of the volume, and the range of each input."""
        lines = []
        for lo, hi, margin, share in zip(
            *(t[:rows].tolist() for t in (self.lo.flatten(1), self.hi.flatten(1))),
            *(t[:rows].tolist() for t in (self.margins, self.shares)),
            strict=True,
        ):
            ends = " × ".join(f"[{a:.4g}, {b:.4g}]" for a, b in zip(lo, hi, strict=True))
            lines.append(f"{margin:.4g}  {share:.2g}  {ends}")
        return "\n".join(["margin  share of the volume  box", *lines])


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestMargin:
    """What is known about the smallest margin.

    Attributes:
        proven: Wherever f leads by more than this, g answers the same class; infinite if nothing is
            proven.
        refuted: No smaller margin holds, since f leads by this at the witness (0 without one).
        witness: An input of the models, (1, *shape), at which g answers another class; None if none
            was found.
        open: The parts on which more than `refuted` is needed as far as is known.
        parts: How many parts were bounded.
        assumptions: What the proof assumes.
    """

    proven: float
    refuted: float
    witness: Tensor | None = field(repr=False)
    open: OpenBoxes = field(repr=False)
    parts: int
    assumptions: tuple[str, ...]

    def __str__(self) -> str:
        found = "no input found at which they differ"
        if self.witness is not None:
            found = f"at an input where the first leads by {self.refuted:.4g} they differ"
        left = f"{self.parts} parts bounded, {len(self.open)} open"
        if len(self.open):
            left += f" on {float(self.open.shares.sum()):.2g} of the volume"
        return f"one class wherever the first leads by more than {self.proven:.4g}; {found}; {left}"


@torch.inference_mode(False)  # the search takes gradients
def smallest_margin(
    dense: nn.Module,
    sparse: nn.Module,
    *,
    box: BoxEnds,
    seconds: float = 60.0,
    tolerance: float = 0.01,
    example: Tensor | None = None,
    output: str | int | None = None,
    progress: Progress | None = None,
    generator: torch.Generator | None = None,
) -> SmallestMargin:
    """The smallest margin such that, on the whole box, the changed network answers as the dense one
    wherever that leads by more: proven from above, refuted from below.

    f leads by its largest output minus the next one. The box is cut into parts until both ends
    agree within `tolerance` or the time is up; with n inputs, halving all widths makes 2ⁿ parts.

    Args:
        dense, sparse: two models of one structure, in eval mode, with 2 to 64 outputs.
        box: (lo, hi), tensors with the batch dimension of the input, or numbers together with
            `example`; several boxes are one domain.
        seconds: the total time.
        tolerance: ends when `proven` is at most `refuted` times one plus this.
        example: one input, if the box is given by numbers.
        output: which output, if the models return several; see `capture`.
        progress: called with a line of text; without it, the line is shown where standard error is
            a terminal.
        generator: source of the search's random starts.

    The proof is about networks of real numbers with the weights given; its own rounding is covered.
    The witness is a number of the models' precision, and what rounding can do to it is covered.

    >>> dense = nn.Linear(1, 2, bias=False)
    >>> dense.weight.data = torch.tensor([[1.0], [-1.0]])
    >>> sparse = nn.Linear(1, 2, bias=False)
    >>> sparse.weight.data = torch.tensor([[-0.5], [0.0]])
    >>> found = smallest_margin(dense, sparse, box=(torch.tensor([[-1.0]]), torch.tensor([[2.0]])))
    >>> round(found.proven, 2), round(found.refuted, 2), found.witness.tolist()
    (4.0, 4.0, [[2.0]])
    """
    _check(seconds, tolerance)
    domain = box_domain(box, example=example)
    with show_progress(progress, "smallest_margin") as say:
        clock = TimeLimit(seconds=float(seconds), tell=say)
        problem = read_problem(dense, sparse, domain.example, output=output, clock=clock)
        check_classes(problem)
        slack = torch.stack([error.amax(dim=0) for error in problem.weight_errors(domain)])
        run = _Cutting(problem, domain, TopClass(margin=0.0, slack=slack), generator)
        with torch.no_grad():
            run.cut_until(tolerance)
        return run.outcome()


def _check(seconds: float, tolerance: float) -> None:
    for name, value, above in (("seconds", seconds, True), ("tolerance", tolerance, False)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not (value > 0 if above else value >= 0):
            raise ArgumentError(
                f"{name}={value!r}: give a number {'above' if above else 'of at least'} 0."
            )


@dataclass(slots=True, kw_only=True)
class _Chunk:
    """Waiting parts, flat: their ends, the margin proven on each, the box each is a part of, how
    much cutting each input promises, and what is known about its classes and neurons.
    """

    lo: Tensor
    hi: Tensor
    margin: Tensor
    root: Tensor
    promise: Tensor
    needs: Tensor | None
    known: Tensor | None

    def __len__(self) -> int:
        return len(self.lo)

    def __getitem__(self, index: Tensor | slice) -> "_Chunk":
        return _Chunk(
            **{name: getattr(self, name)[index] for name in _COLUMNS},
            needs=None if self.needs is None else self.needs[index],
            known=None if self.known is None else self.known[index],
        )

    @classmethod
    def join(cls, chunks: Sequence["_Chunk"]) -> "_Chunk":
        """All of them; what is not known of one is known of none."""
        needs = [chunk.needs for chunk in chunks if chunk.needs is not None]
        known = [chunk.known for chunk in chunks if chunk.known is not None]
        return cls(
            **{name: torch.cat([getattr(chunk, name) for chunk in chunks]) for name in _COLUMNS},
            needs=torch.cat(needs) if len(needs) == len(chunks) else None,
            known=torch.cat(known) if len(known) == len(chunks) else None,
        )


_COLUMNS = ("lo", "hi", "margin", "root", "promise")


class _Cutting:
    """One run of `smallest_margin`."""

    def __init__(
        self,
        problem: NetworkPair,
        domain: Domain,
        claim: TopClass,
        generator: torch.Generator | None,
    ) -> None:
        self.problem, self.domain, self.claim = problem, domain, claim
        self.generator = generator
        self.shape = domain.lo.shape[1:]
        self.lo, self.hi = domain.lo.flatten(1), domain.hi.flatten(1)
        self.bounder = bounder_of(problem, automatic(), self.shape, claim)
        self.refuted = 0.0
        self.witness: Tensor | None = None
        self.bounded = 0
        self.waiting = self.kept = 0  # all parts that wait; those of which the neurons are known
        # Parts by the logarithm of their margins and whether their neurons are known; and those too
        # thin to be cut.
        self.levels: dict[tuple[int, bool], list[_Chunk]] = {}
        self.thin: list[_Chunk] = []
        self.programs: list[SignPrograms] = []

    def cut_until(self, tolerance: float) -> None:
        """Cut the parts with the largest margins until both ends agree, or the time is up."""
        roots = torch.arange(len(self.lo), device=self.lo.device)
        for start in range(0, len(roots), self.bounder.batch):
            some = slice(start, start + self.bounder.batch)
            self._bound(self.lo[some], self.hi[some], roots[some], None, roots[: len(roots[some])])
        self.programs = self._programs()
        early = self.problem.clock.within(0.1)
        for step in (*[0.0] * _ROUNDS, *_NEAR * 3):
            self._climb(*(self._around(step) if step else self._starts()), step or _NEAR[0])
            self.problem.clock.report(self._state())
            if early.late():
                break
        pace, rounds = Pace(clock=self.problem.clock), 0
        while self.proven > self.refuted * (1 + tolerance) and pace.allows(1):
            begin, batch = monotonic(), self._next()
            if not len(batch):
                if not self.levels:
                    break
                continue
            halves = self._halve(batch)
            rounds += 1
            if rounds % _AGAIN == 0 and halves is not None:
                step = _NEAR[rounds // _AGAIN % len(_NEAR)]
                self._climb((halves.lo + halves.hi) / 2, halves.root, step)
                self._climb(*self._around(step), step)
            self._solve(monotonic() - begin, self.refuted * (1 + tolerance))
            pace.done(self._state())
        # There may be time for programs where a batch of parts would take too long.
        left, enough = self.problem.clock.left(), self.refuted * (1 + tolerance)
        if left > 0 and self.proven > enough:
            self._solve(left, enough)

    def _programs(self) -> list[SignPrograms]:
        """Programs over the signs of neurons, for each box; none for other networks, and on a
        device, where there is no solver.
        """
        chain = chain_of(self.problem)
        if chain is None or len(self.lo) > _BOXES or self.lo.device.type != "cpu":
            return []
        if not SignPrograms.fit(pairs := chain.of_pairs()):
            return []
        boxes = zip(self.lo, self.hi, strict=True)
        return [SignPrograms(pairs, self.claim, lo, hi) for lo, hi in boxes]

    def _solve(self, seconds: float, enough: float) -> None:
        """Work on the programs of the box with the largest lead for these seconds, or longer if
        they are ahead of the parts.
        """
        if self.programs:
            worst = max(self.programs, key=lambda one: one.most)
            before, ahead = worst.solved, worst.most < self._top
            left = max(0.0, self.problem.clock.left())
            own = min(seconds * (_AHEAD if ahead else 1), left)
            x = worst.work(own, enough, left)
            self.bounded += worst.solved - before
            if len(x):
                self._look(x)

    @property
    def proven(self) -> float:
        """The largest margin that some part still needs, or the refuted one."""
        return max(self.refuted, min(self._top, self.most))

    @property
    def _top(self) -> float:
        """The largest of the parts that wait; 0 if none does."""
        tops = [0.0, *(float(chunk.margin.max()) for chunk in self.thin)]
        top = max(self.levels, default=(0, False))[0]
        for known in (True, False):
            tops += [float(chunk.margin.max()) for chunk in self.levels.get((top, known), [])]
        return max(tops)

    @property
    def most(self) -> float:
        """The largest lead that programs leave possible."""
        return max((one.most for one in self.programs), default=math.inf)

    def outcome(self) -> SmallestMargin:
        """The result."""
        left = [chunk for level in self.levels.values() for chunk in level] + self.thin
        rest = _Chunk.join([self._empty(), *left])
        rest.margin = rest.margin.clamp(max=self.most)
        rest = rest[rest.margin > self.refuted]
        rest = rest[rest.margin.argsort(descending=True, stable=True)]
        alone = [
            f"{how}" for how in dict.fromkeys(own.graph.alone for own in self.problem.own) if how
        ]
        return SmallestMargin(
            proven=self.proven,
            refuted=self.refuted,
            witness=None if self.witness is None else self.witness.unsqueeze(0),
            open=OpenBoxes(
                lo=rest.lo.reshape(-1, *self.shape),
                hi=rest.hi.reshape(-1, *self.shape),
                margins=rest.margin,
                shares=self._shares(rest),
            ),
            parts=self.bounded,
            assumptions=(
                "checked: one graph for both networks, evaluation mode, finite parameters",
                "networks of real numbers",
                *alone,
            ),
        )

    def _state(self) -> str:
        return (
            f"{self.bounded} parts bounded, the margin lies between {self.refuted:.4g} and"
            f" {self.proven:.4g}"
        )

    def _shares(self, parts: _Chunk) -> Tensor:
        """Of the volume of the domain. By logarithms: those of many inputs leave the floats."""
        whole = (self.hi - self.lo)[parts.root]
        ratio = torch.where(whole > 0, (parts.hi - parts.lo) / whole, 1.0).log().sum(dim=1)
        return (ratio + volume_shares(self.lo, self.hi).log()[parts.root]).exp()

    # Cutting.

    def _next(self) -> _Chunk:
        """The parts that are cut next: those with the largest margins."""
        batch = self.bounder.batch
        # Few at first, since their order matters more than the cost of a step.
        room = max(1, batch // 2, min(4 * batch, self.waiting // 8))
        taken = [self._empty()]
        if not self.levels:
            return taken[0]
        # Halves are bounded together, all from scratch or none.
        known = max(self.levels)[1]
        for level in sorted((one for one in self.levels if one[1] == known), reverse=True):
            while room and self.levels[level]:
                chunk = self.levels[level].pop()
                self.waiting -= len(chunk)
                self.kept -= len(chunk) * known
                chunk = chunk[chunk.margin > self.refuted]
                taken.append(chunk[:room])
                self._keep(chunk[room:])
                room -= len(taken[-1])
            if not self.levels[level]:
                del self.levels[level]
        return _Chunk.join(taken[1:])

    def _empty(self) -> _Chunk:
        lo, hi = self.lo[:0], self.hi[:0]
        root = torch.zeros(0, dtype=torch.long, device=lo.device)
        return _Chunk(
            lo=lo, hi=hi, margin=lo.sum(dim=1), root=root, promise=lo, needs=None, known=None
        )

    def _halve(self, whole: _Chunk) -> "_Chunk | None":
        """Cut each part in the middle of the input that promises most; the halves wait."""
        middle = (whole.lo + whole.hi) / 2
        # If a part is thin enough, there is no number between its ends.
        between = (middle > whole.lo) & (middle < whole.hi)
        thin = ~between.any(dim=1)
        if bool(thin.any()):
            self.thin.append(whole[thin])
            whole, middle, between = whole[~thin], middle[~thin], between[~thin]
        if not len(whole):
            return None
        along = torch.where(between, whole.promise, -1.0).argmax(dim=1)
        rows = torch.arange(len(whole), device=along.device)
        below, above = whole.hi.clone(), whole.lo.clone()
        below[rows, along] = above[rows, along] = middle[rows, along]
        lo, hi = torch.cat([whole.lo, above]), torch.cat([below, whole.hi])
        return self._bound(lo, hi, whole.root.repeat(2), whole, rows.repeat(2))

    def _bound(
        self, lo: Tensor, hi: Tensor, root: Tensor, whole: _Chunk | None, row: Tensor
    ) -> _Chunk:
        """Bound parts of these wholes, look for witnesses in the worst, and let them wait."""
        known = wanted = None
        if whole is not None and whole.needs is not None:
            known, open_ = whole.known, whole.needs > self.refuted
            # The order of `TopClass.needs`: either class may be the one with which f leads.
            classes = self.problem.outputs
            one, two = torch.triu_indices(classes, classes, offset=1, device=open_.device)
            wanted = (open_ | open_.transpose(1, 2))[:, one, two][row]
        found = self.bounder.bound(lo, hi, known, row, wanted)
        self.bounded += len(lo)
        needs, margin = found.needs, found.size
        if needs is None or margin is None:
            raise ArgumentError("the bounder was made without a claim.")
        if whole is not None:
            if whole.needs is not None:
                needs = torch.minimum(needs, whole.needs[row])
            margin = torch.minimum(needs.amax(dim=(1, 2)), whole.margin[row])
        parts = _Chunk(
            lo=lo,
            hi=hi,
            margin=margin,
            root=root,
            promise=found.promise,
            needs=needs,
            known=found.known,
        )
        worst = margin.topk(min(_LOOKED, len(margin))).indices
        self._look(torch.cat([(lo + hi)[worst] / 2, found.corner[worst]]))
        self._keep(parts)
        return parts[worst]

    def _keep(self, parts: _Chunk) -> None:
        """Let parts wait that need more than what is refuted."""
        parts = parts[parts.margin > self.refuted]
        if not len(parts):
            return
        # Infinity gets a level, too.
        level = (parts.margin.log() / _LEVEL).floor().clamp(max=2**40).long()
        for one in sorted(set(level.tolist())):
            some = parts[level == one]
            kept = [t for t in (some.needs, some.known) if t is not None]
            if self.kept * sum(t[0].nbytes for t in kept) > _KNOWN:
                some.needs = some.known = None
            known = some.needs is not None
            self.waiting += len(some)
            self.kept += len(some) * known
            self.levels.setdefault((one, known), []).append(some)

    # Witnesses.

    def _starts(self) -> tuple[Tensor, Tensor]:
        """Points inside the boxes, on their faces and on their corners, and the box of each."""
        root = torch.arange(_CLIMBERS, device=self.lo.device) % len(self.lo)
        low, high = self.lo[root], self.hi[root]
        share, face, corner = (
            uniform(low, generator=self.generator, dtype=low.dtype) for _ in range(3)
        )
        # The share of inputs at an end differs from point to point.
        share = torch.where(face < corner[:, :1], share.round(), share)
        return low + (high - low) * share, root

    def _around(self, step: float) -> tuple[Tensor, Tensor]:
        """The witness with half of its inputs moved, and its box; random points without one."""
        x, root = self._starts()
        if self.witness is None:
            return x, root
        here = self.witness.flatten()
        inside = (here >= self.lo) & (here <= self.hi)
        root = torch.full_like(root, int(inside.all(dim=1).nonzero()[0, 0]))
        low, high = self.lo[root], self.hi[root]
        move, moved = (uniform(low, generator=self.generator, dtype=low.dtype) for _ in range(2))
        return here + torch.where(moved < 0.5, 4 * step * (move - 0.5) * (high - low), 0.0), root

    def _climb(self, x: Tensor, root: Tensor, size: float) -> None:
        """Climb by steps of this share of the box at first, to inputs that refute more: where f
        leads by more than is refuted they lead to another class of g, elsewhere to where f leads.
        """
        low, high = self.lo[root], self.hi[root]
        x = x.clamp(low, high)
        for step in range(_STEPS):
            x = x.detach().requires_grad_()
            goal = replace(self.claim, margin=self.refuted * (1 + 1e-4))
            with torch.enable_grad():
                f, g = self._outputs(x)
                height = goal.violation(f, g).sum()
            self._look(x, f, g)
            if not height.requires_grad or self.problem.clock.late():
                return
            (slope,) = torch.autograd.grad(height, x)
            x = (x + size * 0.92**step * (high - low) * slope.sign()).clamp(low, high)

    def _outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        f, g = self.problem.own
        shaped = x.reshape(-1, *self.shape)
        return f(shaped), g(shaped)

    def _look(self, x: Tensor, f: Tensor | None = None, g: Tensor | None = None) -> None:
        """Keep the best of these inputs that refutes more than is refuted, for certain and at a
        number of the models' precision.
        """
        x = x.detach()
        if f is None or g is None:
            f, g = self._outputs(x)
        best = f.detach().topk(2, dim=1).values
        lead = best[:, 0] - best[:, 1]
        better = (lead > self.refuted) & (f.argmax(dim=1) != g.argmax(dim=1))
        if not bool(better.any()):
            return
        # What rounding may have done costs more to bound, so only where it decides.
        some = x[better][lead[better].argsort(descending=True)[:_LOOKED]]
        some = some.to(self.problem.dtype).double().reshape(-1, *self.shape)
        some = some[self.domain.contains(some)]
        if not len(some):
            return
        lead, wrong = self.claim.for_certain(self.problem, some)
        # Where g certainly answers another class, no smaller margin than f's lead holds.
        sure = torch.where(wrong > 0, lead, -math.inf)
        index = int(sure.nan_to_num(nan=-math.inf).argmax())
        if float(sure[index]) > self.refuted:
            self.refuted, self.witness = float(sure[index]), some[index].clone()
