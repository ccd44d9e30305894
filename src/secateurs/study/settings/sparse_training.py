"""Methods that train sparse: weight factorization, plain L1, the path norm as a penalty."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from secateurs.study.settings.checks import choice, flag, maybe, number, whole
from secateurs.study.settings.method import (
    METHODS,
    Method,
    after_what,
    positive,
    strengths,
)
from secateurs.study.settings.names import groupings
from secateurs.study.settings.options import Problem, option

INITS = (
    "dwf",
    "dwf-wide",
    "dwf-as-printed",
    "varmatch",
    "vanilla",
    "root",
    "gaussian",
    "pretrained",
)
STRENGTH_SCHEDULES = ("constant", "ramp", "relax", "ramp-hold-relax")


def _threshold(value: Any) -> str:
    if isinstance(value, str):
        return choice("threshold", "eps", "gap")(value)
    return number()(value)


@METHODS.register("dwf")
@dataclass(frozen=True, slots=True, kw_only=True)
class Dwf(Method):
    """Deep weight factorization: every weight a product of `depth` factors, with penalty
    `strength`.

    Attributes:
        strength: λ, or a list of them: one run each. Steered by itself with `target`.
        target: Reach the study's compressions by steering λ.
        strength_schedule: λ over time: "constant", "ramp", "relax" or "ramp-hold-relax".
        init, depth, decoupled, sigma, match_variance, groups, shared, lean, freeze: See
            `secateurs.optim.FactorizedSGD`.
        after: "init", or a network to factorize: "dense" or another method (with
        init="pretrained").
        threshold: What counts as zero at the end: "eps" (1.19e-7, the paper's), "gap", or a
        magnitude; None is
            "eps", or with `target` the magnitude that meets it.

    >>> [method.strength for method in Dwf(strength=(1e-4, 1e-3)).single()]
    [0.0001, 0.001]
    """

    kind: ClassVar[str] = "dwf"
    # A larger rate than plain training takes; the
    # penalty is a decay of the factors already.
    usual: ClassVar[Mapping[str, Any]] = {"lr": 0.5, "weight_decay": 0.0}

    strength: float | tuple[float, ...] = option(5e-4, strengths)
    target: bool = option(False, flag)
    depth: int = option(3, whole(2))
    init: str = option("dwf", choice("initialisation", *INITS))
    strength_schedule: str = option(
        "constant", choice("λ schedule", *STRENGTH_SCHEDULES)
    )
    decoupled: bool = option(False, flag)
    sigma: float | None = option(None, maybe(positive))
    match_variance: bool = option(False, flag)
    groups: str | None = option(None, maybe(groupings))
    shared: int = option(1, whole(1))
    lean: bool = option(False, flag)
    freeze: float | None = option(None, maybe(number()))
    after: "str | Method" = option("init", after_what)
    threshold: str | float | None = option(None, maybe(_threshold))

    @property
    def by_compression(self) -> bool:  # type: ignore[override]
        """Runs are asked for a compression where λ is steered."""
        return self.target

    def conflicts(self) -> list[Problem]:
        """Steering decides λ; factorizing a trained network keeps its weights."""
        found = []
        if self.target and isinstance(self.strength, tuple):
            found.append(
                Problem(
                    ("target",),
                    "with target=true λ is steered: give one strength to begin with",
                )
            )
        if self.after != "init" and self.init != "pretrained":
            found.append(
                Problem(
                    ("init",),
                    "a trained network is factorized with init='pretrained'",
                )
            )
        return found + self._unheard()

    def _unheard(self) -> list[Problem]:
        """Fields of its own training that factorized SGD would not hear: better said than lost."""
        own = self.train if isinstance(self.train, Mapping) else {}
        found = []
        if own.get("optimizer", "sgd") != "sgd":
            text = (
                "dwf has an optimizer of its own (SGD on the factors): leave this out"
            )
            found.append(Problem(("train", "optimizer"), text))
        if own.get("weight_decay", 0.0) != 0.0:
            text = "the penalty of dwf is a decay already: set strength instead"
            found.append(Problem(("train", "weight_decay"), text))
        return found

    def described(self) -> str:
        """Depth, and what is not usual."""
        usual = {entry.name: entry.default for entry in fields(self)}
        names = ("init", "strength_schedule", "groups")
        more = [
            str(getattr(self, name))
            for name in names
            if getattr(self, name) != usual[name]
        ]
        target = ["steered"] if self.target else []
        return ", ".join([f"dwf D={self.depth}", *more, *target])


@METHODS.register("l1")
@dataclass(frozen=True, slots=True, kw_only=True)
class L1(Method):
    """Plain L1: the loss plus strength · ‖w‖₁ by gradient descent. What is then below `threshold`
    counts as zero.

    Gradient descent makes few exact zeros: cut its result with `Prune(after=L1(...))`.
    """

    kind: ClassVar[str] = "l1"
    strength: float | tuple[float, ...] = option(1e-4, strengths)
    # The epsilon of float32, by which the factorization paper counts zeros.
    threshold: float = option(1.1920929e-07, number())


@METHODS.register("path-penalty")
@dataclass(frozen=True, slots=True, kw_only=True)
class PathPenalty(Method):
    """The loss plus strength · ln ‖Φ(w)‖_q, the logarithm of the path norm; cut it with
    `Prune(after=...)`.
    """

    kind: ClassVar[str] = "path-penalty"
    strength: float | tuple[float, ...] = option(1e-2, strengths)
    q: float = option(1.0, number(1.0))
