"""The methods a study compares: each kind is one frozen value, registered under its name.

A method of one run has one `strength`; in a study it may be a list, which is tried one by one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from secateurs.registry import Registry
from secateurs.study.settings.options import (
    Problem,
    choice,
    each,
    flag,
    maybe,
    misfits,
    named,
    number,
    option,
    plain_table,
    refuse,
    step,
    text,
    whole,
)
from secateurs.study.settings.training import overrides

METHODS: Registry[type["Method"]] = Registry("method")
"""Kinds of methods by name. A new kind is a frozen subclass of `Method` and its stages in
`study.stages`.
"""

INITS = ("dwf", "varmatch", "vanilla", "root", "gaussian", "pretrained")
STRENGTH_SCHEDULES = ("constant", "ramp", "relax", "ramp-hold-relax")

positive = number(0.0, above=True)


def _scores() -> list[str]:
    from secateurs.scores import SCORES

    return SCORES.names()


def _patterns(value: Any) -> str:
    from secateurs.errors import SecateursError
    from secateurs.masks.pattern import pattern_of

    try:
        pattern_of(value)
    except (SecateursError, TypeError) as error:
        return str(error).rstrip(".")
    return ""


def _selections() -> list[str]:
    from secateurs.masks import SELECTIONS

    return SELECTIONS.names()


def _scopes() -> list[str]:
    from secateurs.masks import SCOPES

    return SCOPES.names()


def _rounds_schedules() -> list[str]:
    from secateurs.prune import SCHEDULES

    return SCHEDULES.names()


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What all methods have.

    Attributes:
        label: The name in tables and figures; by default made from the settings. It is no part of a
        run's key.
        train: Fields of the study's training that differ for this method.
    """

    kind: ClassVar[str] = ""
    by_compression: ClassVar[bool] = False
    """Whether a run of this method is asked for a compression."""
    usual: ClassVar[Mapping[str, Any]] = {}
    """Fields of the training that this kind sets, before `train` does."""

    label: str = option("", maybe(lambda value: text(value) if value else ""))
    train: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for entry in fields(
            self
        ):  # lists are written in TOML and by hand; a frozen value holds tuples
            if isinstance(getattr(self, entry.name), list):
                object.__setattr__(self, entry.name, tuple(getattr(self, entry.name)))
        refuse(f"the method {self.kind!r}", self.problems())

    def problems(self) -> list[Problem]:
        """Everything wrong with these settings."""
        return [
            *misfits(self),
            *(p.inside("train") for p in overrides(self.train)),
            *self.conflicts(),
        ]

    def conflicts(self) -> list[Problem]:
        """Settings that exclude each other."""
        return []

    def single(self) -> "Iterator[Method]":
        """The methods of single runs: a list of strengths one by one."""
        strength = getattr(self, "strength", None)
        if not isinstance(strength, tuple):
            yield self
            return
        yield from (replace(self, strength=value) for value in strength)  # type: ignore[call-arg]

    @property
    def title(self) -> str:
        """The label, or one made from the settings that are not the usual ones."""
        return self.label or self.described()

    def described(self) -> str:
        """The kind, and what is special about it."""
        return self.kind


def _strengths(value: Any) -> str:
    return positive(value) if not isinstance(value, tuple) else each(positive)(value)


@METHODS.register("dense")
@dataclass(frozen=True, slots=True, kw_only=True)
class Dense(Method):
    """Ordinary training. Every study has it: the others are compared with it, and many begin at its
    end.

    `until` stops early, as if interrupted: the network that iterative pruning rewinds to.
    """

    kind: ClassVar[str] = "dense"
    until: str | None = option(None, maybe(step))

    def described(self) -> str:
        """dense, and where it stops."""
        return "dense" if self.until is None else f"dense until {self.until}"


def _after(value: Any) -> str:
    if isinstance(value, Method) or value in ("init", "dense"):
        return ""
    return f"{value!r} is neither 'init', 'dense' nor another method"


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

    score: Any = option("magnitude", named("score", _scores, other=" or a rule"))
    after: "str | Method" = option("dense", _after)
    rounds: int = option(1, whole(1))
    schedule: str | None = option(None, maybe(named("schedule", _rounds_schedules)))
    scope: str = option("global", named("scope", _scopes))
    pattern: Any = option("unstructured", _patterns)
    how: str = option("topk", named("selection", _selections))
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
                Problem(("rewind",), "there is nothing to rewind after='init'; leave it out")
            )
        if self.schedule == "one-shot" and self.rounds > 1:
            found.append(Problem(("schedule",), "'one-shot' has one round; leave rounds out"))
        return found

    def described(self) -> str:
        """The score, and how it is used where that is not the usual way."""
        score = (
            self.score
            if isinstance(self.score, str)
            else getattr(self.score, "__name__", "own score")
        )
        parts = [score, f"{self.rounds} rounds" if self.rounds > 1 else "", *self._choices()]
        parts.append(
            {"init": "at init", "dense": ""}.get(str(self.after), f"after {_title(self.after)}")
        )
        parts.append(f"rewound to {self.rewind}" if self.rewind is not None else "")
        return ", ".join(part for part in parts if part)

    def _choices(self) -> list[str]:
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
        return found

    def described(self) -> str:
        """imp, with its score where it is not the magnitude."""
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
    after: "str | Method" = option("init", _after)
    begin: str = option("0it", step)
    end: str | None = option(None, maybe(step))
    every: str | None = option(None, maybe(step))

    def conflicts(self) -> list[Problem]:
        """The rounds follow from begin, end and every."""
        wrong = self.rounds != 1 or self.rewind is not None
        return (
            [
                Problem(
                    ("rounds",), "the cuts follow from begin, end and every: no rounds, no rewind"
                )
            ]
            if wrong
            else []
        )

    def described(self) -> str:
        """gradual, with what is special."""
        return "gradual " + Prune.described(replace(self, after="dense"))


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
    usual: ClassVar[Mapping[str, Any]] = {"lr": 0.5, "weight_decay": 0.0}

    strength: float | tuple[float, ...] = option(5e-4, _strengths)
    target: bool = option(False, flag)
    depth: int = option(3, whole(2))
    init: str = option("dwf", choice("initialisation", *INITS))
    strength_schedule: str = option("constant", choice("λ schedule", *STRENGTH_SCHEDULES))
    decoupled: bool = option(False, flag)
    sigma: float | None = option(None, maybe(positive))
    match_variance: bool = option(False, flag)
    groups: str | None = option(None, maybe(text))
    shared: int = option(1, whole(1))
    lean: bool = option(False, flag)
    freeze: float | None = option(None, maybe(number()))
    after: "str | Method" = option("init", _after)
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
                    ("target",), "with target=true λ is steered: give one strength to begin with"
                )
            )
        if self.after != "init" and self.init != "pretrained":
            found.append(
                Problem(("init",), "a trained network is factorized with init='pretrained'")
            )
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
    strength: float | tuple[float, ...] = option(1e-4, _strengths)
    threshold: float = option(1.1920929e-07, number())


@METHODS.register("path-penalty")
@dataclass(frozen=True, slots=True, kw_only=True)
class PathPenalty(Method):
    """The loss plus strength · ln ‖Φ(w)‖_q, the logarithm of the path norm; cut it with
    `Prune(after=...)`.
    """

    kind: ClassVar[str] = "path-penalty"
    strength: float | tuple[float, ...] = option(1e-2, _strengths)
    q: float = option(1.0, number(1.0))
