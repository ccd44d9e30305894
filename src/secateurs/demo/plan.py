"""The study of the demo: which methods, how long, how sparse."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from secateurs.study import Certify, Dwf, Method, Prune, Study, Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long everything takes. The defaults take about a minute of two cores.

    Every method trains as many epochs in all: `dense` and then `tuning` where a trained network is
    cut, `whole` where the training itself is sparse.
    """

    compressions: tuple[float, ...] = (10, 20, 50, 100)
    seeds: tuple[int, ...] = (0, 1)
    dense: str = "80ep"
    tuning: str = "40ep"
    whole: str = "120ep"
    rounds: int = 100
    balls: int = 8


QUICK: dict[str, Any] = {
    "compressions": (10,),
    "dense": "6ep",
    "tuning": "3ep",
    "whole": "9ep",
    "rounds": 5,
}
"""A few seconds instead of a minute."""

METHODS: dict[str, Callable[[Settings], Method]] = {
    "magnitude": lambda s: Prune(),
    "magnitude, drawn": lambda s: Prune(how="sample"),
    "path": lambda s: Prune(score="path", rounds=min(20, s.rounds)),
    "snip": lambda s: _fresh("snip", s),
    "synflow": lambda s: _fresh("synflow", s, rounds=s.rounds),
    "random": lambda s: _fresh("random", s),
    # A rate of 0.3 and a small λ to begin with: at the usual 0.5 the steering overshoots on so
    # few steps (1,440), and at 100× one of two runs diverged.
    "factorized": lambda s: Dwf(
        target=True, strength=3e-4, train={"lr": 0.3, "length": s.whole}
    ),
}
"""The lines of the figures: `settings -> method`."""


def plan(settings: Settings, data: Any) -> Study:
    """The study that compares `METHODS` on a LeNet-300-100."""
    methods = tuple(
        replace(make(settings), label=name) for name, make in METHODS.items()
    )
    return Study(
        name="demo",
        data=data,
        model="lenet-300-100",
        methods=methods,
        compressions=settings.compressions,
        seeds=settings.seeds,
        train=Training(length=settings.dense),
        tune=Training(length=settings.tuning, lr=0.05),
        certify=Certify(images=settings.balls),
    )


def _fresh(score: str, settings: Settings, *, rounds: int = 1) -> Prune:
    """Pruning before training, which then is as long as the others' two trainings."""
    return Prune(
        score=score, rounds=rounds, after="init", train={"length": settings.whole}
    )
