"""The result of `certify`: an upper bound, a lower bound, and all assumptions."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from rich.table import Table
from torch import Tensor

from secateurs.errors import ArgumentError, TheoryError
from secateurs.proof.domain import Domain
from secateurs.proof.margins import Region, certified
from secateurs.proof.methods import TOO_LOOSE
from secateurs.proof.problem import Differences, NetworkPair
from secateurs.proof.record import (
    CertificateRecord,
    ClaimRecord,
    KeptCount,
    Request,
    StateRecord,
    Versions,
    Worth,
    as_json,
    boxes_of,
    domain_record,
    fits,
    is_alone,
    networks_of,
    worth,
    write_whole,
)
from secateurs.proof.splitting import Parts
from secateurs.proof.top_class import ClassAnswer

COVERED = "float64 arithmetic of the certificate and both networks' own evaluation"
"""What `rounding=True` covers."""
_ARITHMETIC = {True: COVERED, "auto": "float64 arithmetic of the certificate", False: "not covered"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the methods prove over the boxes of a domain.

    Attributes:
        inner: Upper bounds in front of the map at the end, (boxes, outputs), with the errors that
            `rounding` adds; `per_box` where there is none.
        per_box: Those of |f − g|.
        balls: In the norm, per box.
        method: The one that gives the largest of them.
        bounds: Every method's own, in the norm.
        skipped: The methods that did not apply, and why.
        assumptions: What was assumed and what was checked.
    """

    problem: NetworkPair
    domain: Domain
    request: Request
    inner: Tensor
    per_box: Tensor
    balls: Tensor
    method: str
    bounds: dict[str, float]
    skipped: dict[str, str]
    assumptions: tuple[str, ...]

    @property
    def bound(self) -> float:
        """Over all boxes, in the norm."""
        return float(self.balls.max())


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What is proved after boxes were cut into parts for a target.

    Attributes:
        per_box, balls: As in `Proof`, at most as large.
        bound: What the parts prove by themselves.
        parts: Those of each box.
        share: The share of the domain's volume on which the target is proven.
        witness: An input with a difference above the target, None if none was found.
    """

    target: float
    per_box: Tensor
    balls: Tensor
    bound: float
    parts: tuple[Parts, ...]
    share: float
    witness: Differences | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitClaim:
    """The answer to a claim, and the parts of each box for which it was proved."""

    answer: ClassAnswer
    parts: tuple[Parts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """‖f(x) − g(x)‖ ≤ `bound` for every x of the domain, and ≥ `lower_bound` at one that a search
    found.

    Attributes:
        bound: Over all boxes, in `norm` over the outputs.
        per_output: The same per output, in the shape of one output tensor.
        balls, lower_balls: Both per box.
        method: The one that gives the bound.
        bounds: Every method's own.
        skipped: The methods that did not apply, and why.
        request: The arguments of the call.
        states: Hashes of all weights of both networks when this was proved.
        assumptions: What was assumed and what was checked.
        share: The share of the domain's volume on which the target was proven; None without one.
        claim: The result of `claim="top-1"`; None if nothing was claimed.
        inner: `per_box` of what enters a softmax, sigmoid or tanh at the end; None without one.
        found: The largest difference that a search found, as float64 evaluates it. `lower_bound` is
            what is left of it after all that rounding can have done: nothing in a deep network,
            where no such bound is small.
    """

    bound: float
    per_output: Tensor = field(repr=False)
    lower_bound: float
    lower_per_output: Tensor = field(repr=False)
    worst_input: Tensor = field(repr=False)
    balls: Tensor = field(repr=False)
    lower_balls: Tensor = field(repr=False)
    norm: float
    method: str
    bounds: dict[str, float]
    skipped: dict[str, str]
    assumptions: tuple[str, ...]
    domain: str
    rounding: str
    problem: NetworkPair = field(repr=False, compare=False)
    region: Domain = field(repr=False, compare=False)
    per_box: Tensor = field(repr=False)
    inner: Tensor | None = field(default=None, repr=False, compare=False)
    request: Request = field(repr=False)
    states: Mapping[str, str] = field(default_factory=dict, repr=False)
    share: float | None = field(default=None, repr=False)
    claim: ClassAnswer | None = field(default=None, repr=False)
    found: float = field(default=0.0, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        proof: Proof,
        found: Differences,
        *,
        split: Split | None = None,
        claim: SplitClaim | None = None,
        states: Mapping[str, str] | None = None,
    ) -> "Certificate":
        """What was proved, with the differences found at one input of each box.

        Raises TheoryError if a difference exceeds the bound, for then the proof is at fault.
        """
        norm, domain = proof.request.norm, proof.domain
        lower = consistent(norm_of(found.least, norm), proof.balls)
        seen = norm_of(found.seen, norm)
        worst = found.x[int((lower if bool(lower.any()) else seen).argmax())]
        least = torch.minimum(found.least, proof.per_box).amax(dim=0)
        proven = proof if split is None else split
        request, bounds, assumptions = proof.request, proof.bounds, proof.assumptions
        method = proof.method
        if split is not None:
            parts = sum(map(len, split.parts))
            text = f"split: the bound is the largest of {parts} parts of the domain"
            assumptions = (*assumptions, text) if parts > len(domain) else assumptions
            bounds = {**bounds, "split": split.bound}
            method = "split" if split.bound < proof.bound else method
            request = replace(request, target=split.target, parts=_packed(split.parts))
        if split is not None and split.witness is not None:
            size = norm_of(split.witness.least, norm)
            x = split.witness.x
            inside = ((domain.lo <= x) & (x <= domain.hi)).flatten(1).all(dim=1)
            worst = x[0] if float(size) > float(lower.max()) else worst
            lower = torch.where(inside, torch.maximum(lower, size), lower)
            least = torch.maximum(least, split.witness.least[0])
        if claim is not None:
            request = replace(
                request, claim="top-1", margin=claim.answer.margin, parts=_packed(claim.parts)
            )
        lower, shape = consistent(lower, proven.balls), proof.problem.output_shape
        per_output = proven.per_box.amax(dim=0)
        return cls(
            bound=float(proven.balls.max()),
            per_output=per_output.reshape(shape),
            per_box=proven.per_box,
            inner=None if proof.problem.ending is None else proof.inner,
            balls=proven.balls,
            lower_bound=float(lower.max()),
            lower_per_output=torch.minimum(least, per_output).reshape(shape),
            lower_balls=lower,
            worst_input=worst,
            norm=norm,
            method=method,
            bounds=bounds,
            skipped=proof.skipped,
            assumptions=assumptions,
            domain=domain.description,
            rounding=_ARITHMETIC[proof.request.rounding],
            problem=proof.problem,
            region=domain,
            request=request,
            states=states or {},
            share=None if split is None else split.share,
            claim=None if claim is None else claim.answer,
            found=float(seen.max()),
        )

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of the call, as they are kept."""
        return dict(as_json(self.request))

    @property
    def _before_ending(self) -> Tensor:
        return self.per_box if self.inner is None else self.inner

    @property
    def answer(self) -> Literal["proven", "refuted", "open"]:
        """Whether the deviation stays within the target of `certify`: "proven" on the whole domain,
        "refuted" by `worst_input` (a claim by `claim.counterexample`), or "open".
        """
        if self.claim is not None:
            return self.claim.answer
        target = self.request.target
        if target is None:
            raise ArgumentError(
                "no target was given, so there is no question to answer: call certify(..., "
                "target=0.05)."
            )
        if self.bound <= target:
            return "proven"
        return "refuted" if self.lower_bound > target else "open"

    @property
    def worth(self) -> Worth:
        """The bound compared with the outputs' range and margins."""
        sizes = worth(
            self.bound,
            self.lower_bound,
            self.per_box,
            self._before_ending,
            self.problem,
            self.region,
        )
        return replace(
            sizes, hopeless=TOO_LOOSE in self.skipped.values(), alone=is_alone(self.assumptions)
        )

    @property
    def verdict(self) -> str:
        """The value of the bound in words: how many predictions it keeps, or "vacuous"."""
        return self.worth.text

    @property
    def tightness(self) -> float:
        """bound / lower_bound ≥ 1; the truth lies between. Infinite if nothing was found, 1 if both
        are 0.
        """
        return ratio(self.bound, self.lower_bound)

    def certified_share(
        self,
        data: Any,
        labels: Tensor | None = None,
        *,
        radius: float | None = None,
        clip: tuple[float, float] | None = None,
        whole_ball: bool = False,
    ) -> float:
        """The share of inputs whose predicted class the change provably cannot alter; see
        `certified`.
        """
        kept = self.certified(data, labels, radius=radius, clip=clip, whole_ball=whole_ball)
        return float(kept.double().mean())

    def certified(
        self,
        data: Any,
        labels: Tensor | None = None,
        *,
        radius: float | None = None,
        clip: tuple[float, float] | None = None,
        whole_ball: bool = False,
    ) -> Tensor:
        """Per input: whether every deviation within the bound keeps its class, and with labels,
        whether that class is also right.

        Class c of f at x is safe when for each other class j the change of the logit difference f_c
        − f_j stays below the margin f_c(x) − f_j(x). The change is bounded over this certificate's
        domain, which must contain x (balls whose centres are the inputs are matched one to one), or
        with `radius` over a separate ball around each input. `whole_ball` requires something else:
        that g predicts c at every point of the ball.
        """
        given = Region(
            problem=self.problem,
            domain=self.region,
            # Classes are compared in front of a softmax, which changes no order.
            per_box=self._before_ending,
            methods=tuple(name for name in self.bounds if name != "split"),
            # The margins must cover what the bound did.
            errors=partial(self.problem.added_errors, rounding=self.request.rounding),
        )
        return certified(
            given,
            data,
            labels,
            radius=radius,
            clip=clip,
            whole_ball=whole_ball,
        )

    def as_dict(self) -> dict[str, Any]:
        """What `to_json(boxes=False)` writes, as plain values."""
        return dict(json.loads(self.to_json(boxes=False)))

    def to_json(self, *, boxes: bool = True) -> str:
        """Everything needed to keep the certificate and to prove it again (`recheck`), as JSON.

        An infinite value is written as null. Many boxes are written as their hash, and so are all
        with `boxes=False`, which also leaves out the worst input: then the text is short, and
        `recheck` needs the domain.
        """
        return self.record(inline=boxes and fits(self.region)).text

    def save(self, path: str | Path) -> None:
        """Write the JSON, and boxes that are too many for it into `NAME.boxes.safetensors`."""
        path = Path(path)
        region, file = self.region, None
        # Boxes first, then the text, so that a text never names a file that does not exist yet.
        if not fits(region):
            file = f"{path.stem}.boxes.safetensors"
            ends = {name: end.contiguous() for name, end in boxes_of(region).items()}
            write_whole(path.with_name(file), safetensors.torch.save(ends))
        text = self.record(inline=file is None, file=file).text
        write_whole(path, text.encode("utf-8"))

    def record(self, *, inline: bool = False, file: str | None = None) -> CertificateRecord:
        """Every field that is kept.

        inline: with the boxes and the worst input; file: the name of the one that holds the boxes.
        """
        worth, claim = self.worth, self.claim
        kept = None if worth.kept is None else KeptCount(kept=worth.kept, of=worth.boxes)
        answer = None
        if claim is not None:
            answer = ClaimRecord(
                answer=claim.answer, share=claim.share, counterexample=claim.counterexample
            )
        return CertificateRecord(
            verdict=worth.text,
            bound=self.bound,
            lower_bound=self.lower_bound,
            tightness=self.tightness,
            output_range=worth.output_range,
            smallest_margin=worth.smallest_margin,
            certified=kept,
            norm=self.norm,
            method=self.method,
            domain=self.domain,
            rounding=self.rounding,
            per_output=tuple(self.per_output.flatten().tolist()),
            bounds=self.bounds,
            skipped=self.skipped,
            assumptions=self.assumptions,
            options=self.request,
            versions=Versions(),
            states=StateRecord(**self.states),
            networks=networks_of(self.problem),
            boxes=domain_record(self.region, inline=inline, file=file),
            worst_input=self.worst_input if inline or file else None,
            claim=answer,
        )

    def __str__(self) -> str:
        name = {math.inf: "‖f − g‖_∞", 2: "‖f − g‖₂", 1: "‖f − g‖₁"}[self.norm]
        text = (
            f"{name} ≤ {self.bound:.6g} on the {self.domain} ({self.method}); found"
            f" {self.lower_bound:.6g}"
        )
        if self.lower_bound < 0.99 * min(self.found, self.bound):
            text += f" ({self.found:.6g} in float64, of which rounding may have made the rest)"
        if (target := self.request.target) is not None:
            parts = f", {self.share:.1%} of the volume" if self.answer == "open" else ""
            text += f"; ≤ {target:g} is {self.answer}{parts}"
            if self.answer == "open" and self.found > target:
                text += ": float64 finds more, but its rounding could be the reason"
        if self.claim is not None:
            lead = f" wherever f leads by more than {self.claim.margin:g}" * (self.claim.margin > 0)
            parts = f", {self.claim.share:.1%} of the volume" * (self.answer == "open")
            text += f"; one top class in both{lead} is {self.answer}{parts}"
        return text

    def __rich__(self) -> Table:
        """A table of what each method gives."""
        table = Table(title=str(self), title_justify="left")
        for column in ("method", "bound", "bound / found"):
            table.add_column(column, justify="left" if column == "method" else "right")
        for name, value in sorted(self.bounds.items(), key=lambda item: item[1]):
            table.add_row(name, f"{value:.6g}", f"{ratio(value, self.lower_bound):.3g}")
        for name, reason in self.skipped.items():
            table.add_row(name, "skipped", reason)
        table.caption = "; ".join((self.verdict, *self.assumptions))
        return table


def ratio(bound: float, found: float) -> float:
    """bound / found; 1 if both are 0."""
    if found > 0:
        return bound / found
    return 1.0 if bound == 0 else math.inf


def norm_of(per_output: Tensor, norm: float) -> Tensor:
    """The norm over the outputs, per box."""
    size: Tensor = torch.linalg.vector_norm(per_output, ord=norm, dim=1)
    return size


def consistent(found: Tensor, bound: Tensor) -> Tensor:
    """The difference found, at most the bound, which may be rounded by some 1e-12.

    A larger excess would be a fault of the proof, and is never ignored.
    """
    excess = found - bound
    if bool((excess > 1e-6 * bound + 1e-7 * found.clamp(min=1)).any()):
        raise TheoryError(
            f"a deviation of {float(found.max()):.6g} was found above the bound"
            f" {float(bound.max()):.6g}: the proof is at fault. Please report these two models."
        )
    return torch.minimum(found, bound)


def _packed(parts: Sequence[Parts]) -> tuple[str, ...]:
    """As text, for the record."""
    return tuple(one.pack() for one in parts)
