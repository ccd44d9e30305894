"""The result of `certify`: an upper bound, a lower bound, and all assumptions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
from rich.table import Table
from torch import Tensor

from secateurs.errors import ArgumentError
from secateurs.proof.domain import Domain
from secateurs.proof.margins import Region, certified
from secateurs.proof.methods import TOO_LOOSE
from secateurs.proof.problem import NetworkPair
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
from secateurs.proof.statistical import StatisticalCertificate
from secateurs.proof.top_class import ClassAnswer

COVERED = "float64 arithmetic of the certificate and both networks' own evaluation"
"""What `rounding=True` covers."""


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
        request: The arguments of the call; None if the certificate is statistical.
        states: Hashes of all weights of both networks when this was proved.
        assumptions: What was assumed and what was checked.
        share: The share of the domain's volume on which the target was proven; None without one.
        claim: The result of `claim="top-1"`; None if nothing was claimed.
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
    statistical: StatisticalCertificate | None = None
    problem: NetworkPair | None = field(default=None, repr=False, compare=False)
    region: Domain | None = field(default=None, repr=False, compare=False)
    per_box: Tensor = field(repr=False)
    request: Request | None = field(default=None, repr=False)
    states: Mapping[str, str] = field(default_factory=dict, repr=False)
    share: float | None = field(default=None, repr=False)
    claim: ClassAnswer | None = field(default=None, repr=False)
    found: float = field(default=0.0, repr=False, compare=False)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of the call, as they are kept."""
        return as_json(self.request) or {}

    @property
    def _target(self) -> float | None:
        return None if self.request is None else self.request.target

    @property
    def answer(self) -> Literal["proven", "refuted", "open"]:
        """Whether the deviation stays within the target of `certify`: "proven" on the whole domain,
        "refuted" by `worst_input` (a claim by `claim.counterexample`), or "open".
        """
        if self.claim is not None:
            return self.claim.answer
        target = self._target
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
        sizes = worth(self.bound, self.lower_bound, self.per_box, self.problem, self.region)
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
        if self.problem is None or self.region is None or self.request is None:
            raise ArgumentError(
                "this certificate is statistical; margins need a bound over a domain: give box= "
                "or radius=."
            )
        given = Region(
            problem=self.problem,
            domain=self.region,
            per_box=self.per_box,
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

    def to_json(self, *, boxes: bool = True) -> str:
        """Everything needed to keep the certificate and to prove it again (`recheck`), as JSON.

        An infinite value is written as null. Many boxes are written as their hash, and so are all
        with `boxes=False`, which also leaves out the worst input: then the text is short, and
        `recheck` needs the domain.
        """
        inline = boxes and self.region is not None and fits(self.region)
        return self.record(inline=inline).text

    def save(self, path: str | Path) -> None:
        """Write the JSON, and boxes that are too many for it into `NAME.boxes.safetensors`."""
        path = Path(path)
        region, file = self.region, None
        # Boxes first, then the text, so that a text never names a file that does not exist yet.
        if region is not None and not fits(region):
            file = f"{path.stem}.boxes.safetensors"
            ends = {name: end.contiguous() for name, end in boxes_of(region).items()}
            write_whole(path.with_name(file), safetensors.torch.save(ends))
        text = self.record(inline=file is None, file=file).text
        write_whole(path, text.encode("utf-8"))

    def record(self, *, inline: bool = False, file: str | None = None) -> CertificateRecord:
        """Every field that is kept.

        inline: with the boxes and the worst input; file: the name of the one that holds the boxes.
        """
        worth, problem, region, claim = self.worth, self.problem, self.region, self.claim
        kept = None if worth.kept is None else KeptCount(kept=worth.kept, of=worth.boxes)
        boxes = None if region is None else domain_record(region, inline=inline, file=file)
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
            networks=None if problem is None else networks_of(problem),
            boxes=boxes,
            worst_input=self.worst_input if inline or file else None,
            statistical=self.statistical,
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
        if self._target is not None:
            parts = f", {self.share:.1%} of the volume" if self.answer == "open" else ""
            text += f"; ≤ {self._target:g} is {self.answer}{parts}"
        if self.claim is not None:
            lead = f" wherever f leads by more than {self.claim.margin:g}" * (self.claim.margin > 0)
            parts = f", {self.claim.share:.1%} of the volume" * (self.answer == "open")
            text += f"; one top class in both{lead} is {self.answer}{parts}"
        return text if self.statistical is None else f"{text}\n{self.statistical}"

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
