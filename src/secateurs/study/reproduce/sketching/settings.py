"""The methods of the published accuracy tables, and the settings of one table, as frozen values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from secateurs.errors import ArgumentError
from secateurs.registry import unknown
from secateurs.scores import Convention


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A way to prune at initialisation: a score, how masks follow from it, and what data it
    sees.
    """

    score: str
    how: str = "topk"
    probe: str | None = None
    rounds: int = 1
    convention: Convention = "paper"

    @property
    def signed(self) -> bool:
        """Whether its scores have both signs, so that a draw takes their magnitudes."""
        return self.score == "grasp"


METHODS: dict[str, Method] = {
    "random": Method(score="random"),
    "magnitude": Method(score="magnitude"),
    "snip-supervised": Method(score="snip"),
    "snip-supervised+random-mask": Method(score="snip", how="sample"),
    "snip-unsupervised": Method(score="snip", probe="random"),
    "snip-unsupervised+random-mask": Method(
        score="snip", how="sample", probe="random"
    ),
    "snip-unsupervised+sparse-data": Method(score="snip", probe="sparse"),
    "snip-unsupervised+sparse-data+random-mask": Method(
        score="snip", how="sample", probe="sparse"
    ),
    "grasp-supervised": Method(score="grasp", convention="reference"),
    "grasp-supervised+random-mask": Method(
        score="grasp", how="sample", convention="reference"
    ),
    "grasp-unsupervised": Method(
        score="grasp", probe="random", convention="reference"
    ),
    "grasp-unsupervised+random-mask": Method(
        score="grasp", how="sample", probe="random", convention="reference"
    ),
    "synflow": Method(score="synflow", rounds=100),
    "synflow+random-mask": Method(score="synflow", how="sample", rounds=100),
    "synflow-chi": Method(score="synflow-chi", rounds=100),
    "synflow-chi+random-mask": Method(score="synflow-chi", how="sample", rounds=100),
}
"""The methods by the names of the published tables, without IMP (`sketching.tickets`). GraSP runs
at the reference's temperature (docs/scores.md says why); how masks are drawn from its signed scores
is said at `masks.drawn_by_magnitude`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchingSettings:
    """One table. The defaults are those of the paper for VGG-19 on CIFAR-10."""

    data: str = "cifar-10"
    root: str | None = None
    model: str = "vgg-19"
    options: Mapping[str, Any] = field(default_factory=lambda: {"hidden": 0})
    methods: Sequence[str] = tuple(METHODS)
    densities: Sequence[float] = (0.10, 0.05, 0.02)
    seeds: Sequence[int] = (0, 1, 2)
    score_examples: int = 256
    examples: int | None = None
    length: str = "160ep"
    batch: int = 128
    rate: float = 0.1
    momentum: float = 0.9
    decay: float = 1e-4
    drops: Sequence[str] = ("80ep", "120ep")
    augment: bool = True
    rewind_to: str = "1000it"

    def __post_init__(self) -> None:
        misses = [
            unknown("method", name, METHODS)
            for name in self.methods
            if name not in METHODS
        ]
        if misses:
            raise ArgumentError(" ".join(misses))


PAPER = SketchingSettings()
SMALL = SketchingSettings(
    data="digits",
    model="lenet-300-100",
    options={},
    seeds=(0, 1),
    length="12ep",
    drops=("6ep", "9ep"),
    augment=False,
    rewind_to="24it",
)
"""Minutes on a laptop: the shape of the experiment, not its figures."""
