"""Methods that cut: once, in rounds with rewinding, or while the network trains."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from secateurs.study.settings import (
    METHODS,
    Method,
    Problem,
    after_what,
    choice,
    flag,
    groupings,
    later,
    maybe,
    named,
    number,
    option,
    options_of,
    patterns,
    plain_table,
    positive,
    rounds_schedules,
    scopes,
    scores,
    selections,
    step,
    steps,
    strengths,
    text,
    whole,
)

MOST_ROUNDS = 10_000
"""More rounds than this are a slip of the pen; counting them would take for ever."""


@METHODS.register("prune")
@dataclass(frozen=True, slots=True, kw_only=True)
class Prune(Method):
    """Score, cut to a compression, train what is left.

    Attributes:
        after: What is cut: "dense", the trained network; "init", the fresh one; or another method,
        whose result is
            cut (plain L1, a path penalty, a factorized network).
        score, rounds, schedule, scope, pattern, how, where, floor, convention, options: See
        `secateurs.Recipe`.
        examples: Training examples a score looks at.
        rewind: None trains on from the weights that were cut; "0it" gives the fresh weights back
        first, "2ep" those
            after two epochs.

    >>> Prune(score="synflow", rounds=100, after="init").title
    'synflow, 100 rounds, at init'
    """

    kind: ClassVar[str] = "prune"
    by_compression: ClassVar[bool] = True

    score: Any = option("magnitude", named("score", scores, other=" or a rule"))
    after: "str | Method" = option("dense", after_what)
    rounds: int = option(1, whole(1, MOST_ROUNDS))
    schedule: str | None = option(None, maybe(named("schedule", rounds_schedules)))
    scope: str = option("global", named("scope", scopes))
    pattern: Any = option("unstructured", patterns)
    how: str = option("topk", named("selection", selections))
    where: str | None = option(None, maybe(text))
    floor: float = option(1, number())
    convention: str = option("paper", choice("convention", "paper", "reference"))
    options: Mapping[str, Any] = option(check=plain_table, make=dict)
    examples: int = option(256, whole(1))
    rewind: str | None = option(None, maybe(step))

    def conflicts(self) -> list[Problem]:
        """Rewinding needs a trained network, one-shot needs one round."""
        found = []
        if self.rewind is not None and self.after == "init":
            found.append(
                Problem(
                    ("rewind",),
                    "there is nothing to rewind after='init'; leave it out",
                )
            )
        if self.schedule == "one-shot" and self.rounds > 1:
            found.append(Problem(("schedule",), "'one-shot' has one round; leave rounds out"))
        return [*found, *self._misspelt()]

    def _misspelt(self) -> list[Problem]:
        """Options that the score does not have would fail in every run."""
        wrong = options_of(self.score, self.options)
        return [Problem(("options",), wrong)] if wrong else []

    def described(self) -> str:
        """The score, and how it is used where that is not the usual way."""
        score = (
            self.score
            if isinstance(self.score, str)
            else getattr(self.score, "__name__", "own score")
        )
        parts = [
            score,
            f"{self.rounds} rounds" if self.rounds > 1 else "",
            *self._choices(),
        ]
        parts.append(
            {"init": "at init", "dense": ""}.get(str(self.after), f"after {_title(self.after)}")
        )
        parts.append(f"rewound to {self.rewind}" if self.rewind is not None else "")
        return ", ".join(part for part in parts if part)

    def _choices(self) -> list[str]:
        # Only what differs from the usual is said, so that titles stay short.
        usual = {entry.name: entry.default for entry in fields(self)}
        names = ("scope", "pattern", "how", "schedule", "convention")
        return [str(getattr(self, name)) for name in names if getattr(self, name) != usual[name]]


def _title(after: "str | Method") -> str:
    return after if isinstance(after, str) else after.title


@METHODS.register("imp")
@dataclass(frozen=True, slots=True, kw_only=True)
class Imp(Prune):
    """Iterative pruning with rewinding: cut the share `per_round`, go back to `rewind`, train,
    again and again.

    Each round is a run of its own, so that every compression on the way is in the table and shared
    by all.
    Reference: Frankle & Carbin 2019.
    """

    kind: ClassVar[str] = "imp"
    per_round: float = option(0.2, number(0.0, 0.99, above=True))
    rewind: str | None = option("0it", maybe(step))

    def conflicts(self) -> list[Problem]:
        """The rounds follow from the share cut in each."""
        found = []
        if self.rounds != 1 or self.schedule is not None:
            found.append(
                Problem(
                    ("rounds",),
                    "the rounds of imp follow from per_round: leave rounds and schedule out",
                )
            )
        if self.after != "dense":
            found.append(Problem(("after",), "imp begins with a dense training; leave after= out"))
        return [*found, *self._misspelt()]

    def rounds_to(self, compression: float) -> float:
        """About how many rounds it takes to reach total/kept = `compression`."""
        # log1p, because 1 - per_round is exactly 1 for the smallest shares.
        return -math.log(compression) / math.log1p(-self.per_round)

    def described(self) -> str:
        """imp, with its score where it is not the magnitude."""
        # Prune's words with what is usual for imp; that part is then taken out of them.
        shown = replace(self, rewind="0it", per_round=0.2)
        rest = (
            Prune.described(shown)
            .removeprefix("magnitude")
            .removesuffix(", rewound to 0it")
            .strip(", ")
        )
        more = f"rewound to {self.rewind}" if self.rewind not in ("0it", None) else ""
        return ", ".join(part for part in ("imp", rest, more) if part)


@METHODS.register("gradual")
@dataclass(frozen=True, slots=True, kw_only=True)
class Gradual(Prune):
    """Prune while training: every `every` steps from `begin` to `end`, along a cubic schedule (Zhu
    & Gupta 2017).

    By default from the start to three quarters of the training, in twenty cuts.
    """

    kind: ClassVar[str] = "gradual"
    after: "str | Method" = option("init", after_what)
    begin: str = option("0it", step)
    end: str | None = option(None, maybe(step))
    every: str | None = option(None, maybe(steps))

    def conflicts(self) -> list[Problem]:
        """The rounds follow from begin, end and every."""
        found = self._misspelt()
        if self.end is not None and later(self.begin, self.end):
            found.append(Problem(("end",), f"{self.end!r} is before begin, {self.begin!r}"))
        if self.rounds != 1 or self.rewind is not None:
            found.append(
                Problem(
                    ("rounds",),
                    "the cuts follow from begin, end and every: no rounds, no rewind",
                )
            )
        return found

    def described(self) -> str:
        """gradual, with what is special."""
        return "gradual " + Prune.described(replace(self, after="dense"))


# Methods that train sparse: weight factorization, plain L1, the path norm as a penalty.

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
    strength_schedule: str = option("constant", choice("λ schedule", *STRENGTH_SCHEDULES))
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
            text = "dwf has an optimizer of its own (SGD on the factors): leave this out"
            found.append(Problem(("train", "optimizer"), text))
        if own.get("weight_decay", 0.0) != 0.0:
            text = "the penalty of dwf is a decay already: set strength instead"
            found.append(Problem(("train", "weight_decay"), text))
        return found

    def described(self) -> str:
        """Depth, and what is not usual."""
        usual = {entry.name: entry.default for entry in fields(self)}
        names = ("init", "strength_schedule", "groups")
        more = [str(getattr(self, name)) for name in names if getattr(self, name) != usual[name]]
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
