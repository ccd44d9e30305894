"""The result of `statistical`: three statements, each with the level at which it holds."""

import json
import math
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticalCertificate:
    """What n held-out inputs say about f and g: an upper confidence limit, a conformal level, the
    largest seen.
    """

    samples: int
    changed: int
    change_bound: float
    alpha: float
    deviation_level: float
    confident_level: float
    beta: float
    largest: float
    median: float
    norm: float
    assumptions: tuple[str, ...]

    @property
    def _confident(self) -> str:
        level = self.confident_level
        return "no finite level" if math.isinf(level) else f"{level:.4g}"

    @property
    def change_rate(self) -> float:
        """The share of these inputs on which the predicted class changed."""
        return self.changed / self.samples

    def to_json(self) -> str:
        """All fields as JSON; an infinite level is written as null."""
        fields = {
            k: None if isinstance(v, float) and math.isinf(v) else v
            for k, v in asdict(self).items()
        }
        return json.dumps(
            fields | {"norm": str(self.norm)}, indent=2, allow_nan=False
        )

    def __str__(self) -> str:
        level = (
            "no finite level"
            if math.isinf(self.deviation_level)
            else f"{self.deviation_level:.4g}"
        )
        return (
            f"{self.changed} of {self.samples} predictions changed; with confidence"
            f" {1 - self.alpha:g} a fresh input's prediction changes with probability at most"
            f" {self.change_bound:.4g}. A fresh deviation exceeds {level} with probability at most"
            f" {self.beta:g} on average over such samples, and {self._confident} with probability"
            f" at most {self.beta:g} with confidence {1 - self.alpha:g}. Largest seen:"
            f" {self.largest:.4g}."
        )


def assumptions_at(alpha: float, beta: float) -> tuple[str, ...]:
    """What the three statements assume."""
    return (
        (
            "the inputs are exchangeable with the fresh one and were not used to choose the"
            " changed network"
        ),
        "both networks evaluated in eval mode, in their own precision",
        f"the limits hold one at a time, at α = {alpha:g} and β = {beta:g}",
        (
            "`deviation_level` holds on average over samples of this size: for about half of"
            " them the true probability is above β; `confident_level` holds for all but a"
            " share α of them"
        ),
    )
