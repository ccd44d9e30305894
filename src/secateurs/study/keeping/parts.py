"""The parts of a row: moments of a training, what is left of a layer, what is certified."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One moment of a training, as a rule the end of an epoch. What was not measured is None.

    `strength` is λ as it is then, `misalignment` that of the factors (M(ω) ≥ 0), `sparsity` the
    share of zeros
    (|w| < 1.19e-7) of the prunable weights.
    """

    epoch: int
    iteration: int
    loss: float
    test_loss: float | None = None
    test_accuracy: float | None = None
    learning_rate: float | None = None
    sparsity: float | None = None
    strength: float | None = None
    misalignment: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKept:
    """One prunable parameter at the end: what is left of it, and how large."""

    name: str
    shape: tuple[int, ...]
    total: int
    kept: int
    norm: float
    """‖w‖₂."""
    histogram: tuple[int, ...] = ()
    """Counts of the non-zero entries by log10|w|, in the bins of `HISTOGRAM_EDGES`."""
    verdict: str = ""
    """What it means that nothing is left, where nothing is."""

    @property
    def density(self) -> float:
        """kept / total."""
        return self.kept / self.total if self.total else 1.0

    @property
    def collapsed(self) -> bool:
        """Whether nothing is left."""
        return self.total > 0 and self.kept == 0


HISTOGRAM_EDGES: tuple[float, ...] = tuple(-8 + 0.25 * k for k in range(41))
"""Edges of the forty bins, as log10 of a magnitude: 1e-8 to 100; what lies outside is in the
outermost bins.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified:
    """What is known of the distance between the sparse network and its dense one.

    `kind` is "proven" (holds for every input of `domain`) or "statistical" (for fresh inputs, with
    the confidence
    that `text` says). `certified_share`: of the inputs looked at, those that provably keep their
    class.
    """

    kind: str
    domain: str
    bound: float
    lower_bound: float
    certified_share: float | None = None
    method: str = ""
    text: str = ""
