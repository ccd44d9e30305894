"""What a bound is worth: beside the outputs' range and margins, and in words."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from secateurs.paths.certificates.domain import Domain
from secateurs.paths.certificates.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The sizes a bound has to be compared with.

    What the outputs are needed for is None where they are no logits.

    Attributes:
        bound, lower_bound: Those of the certificate.
        largest: The largest bound of a single output.
        output_range: Largest minus smallest output of the dense network at the boxes' middles.
        smallest_margin: Between its two largest logits there.
        kept: At how many of the middles the predicted class provably stays.
        boxes: How many there are.
    """

    bound: float
    lower_bound: float
    largest: float
    output_range: float | None = None
    smallest_margin: float | None = None
    kept: int | None = None
    boxes: int = 0

    @property
    def text(self) -> str:
        """The verdict in words.

        >>> Worth(bound=0.5, lower_bound=0.1, largest=0.5, output_range=0.2).text
        'vacuous: the bound 0.5 exceeds the range of the outputs, 0.2'
        """
        if not math.isfinite(self.bound):
            return "vacuous: nothing finite was proved"
        if self.bound == 0:
            return "the two networks agree everywhere on the domain"
        wide = self.output_range is not None and self.largest > self.output_range
        if self.kept:
            worst = "; the bound of the worst one exceeds the outputs' range"
            return f"certifies {self.kept} of {self.boxes}{worst if wide else ''}"
        if wide:
            return (
                f"vacuous: the bound {self.largest:.4g} exceeds the range of the outputs,"
                f" {self.output_range:.4g}"
            )
        if self.kept == 0:
            return (
                f"certifies 0 of {self.boxes}: the bound {self.largest:.4g} lies within the"
                f" outputs' range, {self.output_range:.4g}, but above the margins"
            )
        size = (
            ""
            if self.output_range is None
            else f"; the outputs span {self.output_range:.4g}"
        )
        return (
            f"the networks differ by at most {self.bound:.4g}, and somewhere by"
            f" {self.lower_bound:.4g}{size}"
        )


@torch.no_grad()
def worth(
    bound: float,
    lower: float,
    per_box: Tensor,
    problem: Problem | None,
    region: Domain | None,
) -> Worth:
    """Compare the bounds of all boxes with what the dense network answers at their middles."""
    told = Worth(bound=bound, lower_bound=lower, largest=float(per_box.max()))
    if problem is None or region is None:
        return told
    # 64 inputs at a time: the values of a wide network for all of them may not fit.
    outputs = torch.cat([problem.dense(part.center) for part in region.split(64)])
    # One output at one point has no range of its own: its size, both ways, stands for it.
    span = float(outputs.max() - outputs.min()) or 2 * float(outputs.abs().max())
    # Outputs that overflow have no range to compare with.
    if not math.isfinite(span):
        return told
    if len(problem.output_shape) != 1 or problem.outputs < 2:
        return replace(told, output_range=span)
    two = outputs.topk(2, dim=1).values
    return replace(
        told,
        output_range=span,
        smallest_margin=float((two[:, 0] - two[:, 1]).min()),
        kept=int(_keeps(outputs, per_box).sum()),
        boxes=len(outputs),
    )


def _keeps(outputs: Tensor, per_box: Tensor) -> Tensor:
    """The margin to every other class exceeds what both logits can move together."""
    chosen = outputs.argmax(dim=1, keepdim=True)
    change = per_box.gather(1, chosen) + per_box
    # Strictly: at a tie argmax could answer either class. Against itself a class counts
    # as safe.
    clear = outputs.gather(1, chosen) - outputs > change
    return clear.scatter(1, chosen, True).all(dim=1)
