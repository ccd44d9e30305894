"""Methods: ordinary training, pruning (at once, in rounds with rewinding, or while the network
trains), training with a penalty that makes it sparse, and sparse training through a plain
optimizer.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from secateurs.base.registry import Registry, unknown
from secateurs.masks.budget import SCOPES, AmountFields
from secateurs.optim.factorized.schedules import SCHEDULES
from secateurs.optim.factorized.start import INITS
from secateurs.optim.groupings import grouping
from secateurs.prune.recipe import Recipe
from secateurs.scores import SCORES
from secateurs.scores.scorer import check_options
from secateurs_lab.study.fields import (
    CheckedSettings,
    Count,
    Misfit,
    NotNegative,
    PlainTable,
    Positive,
    Problem,
    Read,
    Text,
    build,
    distinct,
    excerpt,
    not_empty,
    problems_at,
    within,
)
from secateurs_lab.study.settings import Training, When, at_least_one_step, comes_after

MOST_ROUNDS = 10_000
"""More rounds than this are a typing error; counting them would take for ever."""

METHODS: Registry[type["Method"]] = Registry("method")
"""Kinds of methods by name, as a file may say them. Their trainers are in
`secateurs_lab.study.fitting`.
"""


# What all methods have: a label, their own training settings, one run or several.


@dataclass(frozen=True, kw_only=True)
class Method(CheckedSettings):
    """The base of all methods. A method of your own is a frozen dataclass of this kind with a
    `kind` and a `trainer`; the text of the trainer is part of the keys of its runs.

    Attributes:
        trainer: A static method that takes a `TrainingJob` and returns a `Trainer`; None for the
            kinds of `METHODS`.
        label: The name in tables and figures; by default made from the settings. Not part of a
            run's key.
        train: Fields of the study's training that differ for this method.
    """

    kind: ClassVar[str] = ""
    # A run's training already contains the method's own fields.
    silent: ClassVar[frozenset[str]] = frozenset({"label", "train"})
    # What it takes and returns is made of methods, and cannot be imported here.
    trainer: ClassVar[Any] = None
    by_compression: ClassVar[bool] = False
    """Whether a run of this method is asked for a compression."""
    usual: ClassVar[Mapping[str, Any]] = {}
    """Fields of the training that this kind sets, before `train` does."""

    # Without a label a title is made; one of spaces would be invisible.
    label: Annotated[str, lambda label: label and not_empty(label)] = ""
    train: Annotated[Mapping[str, Any], Training.read] = field(default_factory=dict)

    def __init_subclass__(cls) -> None:
        cls.called = cls.kind

    @classmethod
    def read(cls, value: Any) -> Self:
        """A method, or a table of the fields of its `kind`."""
        if isinstance(value, cls):
            if value.trainer is None and value.kind not in {*METHODS, Choice.kind}:
                raise Misfit.of(
                    f"{type(value).__name__} does not say how it is trained: give the class a"
                    " static method trainer(job) that returns a Trainer"
                )
            if not value.kind:
                raise Misfit.of(f'{type(value).__name__} needs a name: kind = "my-method"')
            return value
        if not isinstance(value, Mapping):
            raise Misfit.of(
                f"{excerpt(value)} is not a method: write Prune(score=...), Dwf(...), or in a file"
                " a table under [[methods]]"
            )
        kind = value.get("kind", "prune")
        if not isinstance(kind, str) or kind not in {*METHODS, Choice.kind}:
            known = (*METHODS.names(), Choice.kind)
            raise Misfit([Problem(("kind",), unknown("method", kind, known).rstrip("."))])
        given = {name: entry for name, entry in value.items() if name != "kind"}
        # A choice is not a method itself: it selects one of several.
        made: Self = build(Choice if kind == Choice.kind else METHODS[kind], given)
        return made

    def single(self) -> "Iterator[Method]":
        """One method per run: a list of strengths is split."""
        strength = getattr(self, "strength", None)
        if not isinstance(strength, tuple):
            yield self
            return
        yield from (replace(self, strength=value) for value in strength)  # type: ignore[call-arg]

    @property
    def title(self) -> str:
        """The label, or one made from the settings that differ from the defaults."""
        return self.label or self.description()

    def description(self) -> str:
        """The kind, and how it differs from the defaults."""
        return self.kind


def unusual(method: Method, *names: str) -> list[str]:
    """Those of these settings that differ from the defaults, so that titles stay short."""
    usual = {entry.name: entry.default for entry in fields(method)}
    return [str(getattr(method, name)) for name in names if getattr(method, name) != usual[name]]


def one_strength(after: "str | Method") -> None:
    """A method starts from one network; choosing one from a list would be a guess."""
    if isinstance(after, Method) and isinstance(getattr(after, "strength", None), tuple):
        raise Misfit.of(
            f"{after.kind} has a list of strengths here: give one, and write a method for each"
        )


def distinct_settings(candidates: "tuple[Method, ...]") -> None:
    """At least two candidates, all different."""
    if len(candidates) < 2:
        raise Misfit.of("there is nothing to choose: give two candidates or more")
    bare = [replace(candidate, label="") for candidate in candidates]
    for place, one in enumerate(bare):
        if one in bare[:place]:
            raise Misfit([Problem((place,), "these settings are given twice")])


Begin: TypeAlias = Annotated[Literal["dense", "init"] | Method, one_strength]
"""The network a method begins with: trained, fresh, or another method's."""


def _candidate(method: "Method") -> None:
    """Check that a candidate is a single run."""
    if isinstance(method, Choice):
        raise Misfit.of("a choice among choices: list all candidates in one")
    one_strength(method)


@dataclass(frozen=True, kw_only=True)
class Choice(Method):
    """One method with several settings to choose from: `Study.tuning` trains each of them, and the
    best on held-out training images is the one that the study compares.

    Attributes:
        label: Its title; required here.
        candidates: The method with each of the settings. Give all choices of a study the same
            number, and every method has the same tuning budget.

    >>> Choice(label="RigL", candidates=[RigLMethod(), RigLMethod(fraction=0.5)]).title
    'RigL'
    """

    kind: ClassVar[str] = "choice"

    candidates: Annotated[
        tuple[Annotated[Method, Read(Method.read), _candidate], ...], distinct_settings
    ] = ()

    def conflicts(self) -> Iterator[Problem]:
        """Its own fields are used only for a title."""
        if not self.label:
            yield Problem(("label",), "a choice needs a label: the title of the method it settles")
        if self.train:
            yield Problem(("train",), "give each candidate its own train, and the choice none")

    def single(self) -> Iterator[Method]:
        """None until something is chosen."""
        yield from ()

    def trials(self) -> Iterator[Method]:
        """The candidates under separate titles."""
        for number, candidate in enumerate(self.candidates, start=1):
            yield replace(candidate, label=f"{self.title}, candidate {number}")


Strength: TypeAlias = Positive | Annotated[tuple[Positive, ...], distinct]
"""λ, or a list of them: one run each."""


@METHODS.register("dense")
@dataclass(frozen=True, kw_only=True)
class Dense(Method):
    """Ordinary training. Every study has it: the other methods are compared with it, and many start
    from its result.

    `until` stops early, as if interrupted, at the network that iterative pruning rewinds to.
    """

    kind: ClassVar[str] = "dense"
    until: When | None = None

    def description(self) -> str:
        """dense, and where it stops."""
        return "dense" if self.until is None else f"dense until {self.until}"


# Methods that cut: once, in rounds with rewinding, or during training.


@METHODS.register("prune")
@dataclass(frozen=True, kw_only=True)
class Prune(Method, Recipe):
    """A recipe of a study: score, cut to a compression, train what is left.

    Attributes:
        after: What is cut: "dense", the trained network; "init", the fresh one; or another method,
            whose result is cut (plain L1, a path penalty, a factorized network).
        score, rounds, schedule, scope, pattern, how, where, floor, convention, options: As in
            `secateurs.Recipe`, except values that a file cannot hold: predicates, densities per
            parameter.
        examples: Training examples on which a score is computed.
        rewind: None continues from the weights that were cut; "0it" first restores the initial
            weights, "2ep" those after two epochs.

    >>> Prune(score="synflow", rounds=100, after="init").title
    'synflow, 100 rounds, at init'
    """

    kind: ClassVar[str] = "prune"
    by_compression: ClassVar[bool] = True
    # The study says how much is kept: the amounts of the recipe are all None.
    silent: ClassVar[frozenset[str]] = Method.silent | set(AmountFields.__annotations__)

    after: Begin = "dense"
    examples: Count = 256
    rewind: When | None = None
    # Narrower than a recipe's: values that a file can hold, for any compression.
    rounds: Annotated[int, within(1, MOST_ROUNDS)] = 1
    scope: Annotated[str, SCOPES.check] = "global"
    where: Text | None = None
    options: PlainTable = field(default_factory=dict)

    def recipe(self, compression: float | None) -> Recipe:
        """The recipe at a compression."""
        own = {entry.name: getattr(self, entry.name) for entry in fields(Recipe)}
        return Recipe(**own | {"compression": compression})

    def conflicts(self) -> Iterator[Problem]:
        """Problems of the recipe, and settings that this kind of pruning does not use."""
        checks = Recipe.field_checks(self)
        del checks["amount"]
        for name, check in checks.items():
            yield from problems_at((name,), check)
        for name in self.given:
            yield Problem((name,), "a study says how much is kept: compressions = [...]")
        if isinstance(self.score, str) and self.score in SCORES:
            # Options that the score does not have would fail in every run.
            rule, given = SCORES[self.score], dict(self.options)
            yield from problems_at(("options",), lambda: check_options(rule, given))
        yield from self.misplacements()

    def misplacements(self) -> Iterator[Problem]:
        """Settings that this kind of pruning does not use."""
        if self.rewind is not None and self.after == "init":
            yield Problem(("rewind",), "there is nothing to rewind after='init'; leave it out")

    def description(self) -> str:
        """The score, and how its use differs from the defaults."""
        own = getattr(self.score, "__name__", "own score")
        begins = {"init": "at init", "dense": ""}
        parts = [
            self.score if isinstance(self.score, str) else own,
            f"{self.rounds} rounds" if self.rounds > 1 else "",
            *unusual(self, "scope", "pattern", "how", "schedule", "convention"),
            f"after {self.after.title}" if isinstance(self.after, Method) else begins[self.after],
            f"rewound to {self.rewind}" if self.rewind is not None else "",
        ]
        return ", ".join(part for part in parts if part)


@METHODS.register("imp")
@dataclass(frozen=True, kw_only=True)
class Imp(Prune):
    """Iterative pruning with rewinding: cut the share `per_round`, go back to `rewind`, train, and
    repeat (Frankle & Carbin 2019).

    Each round is a run of its own, so that every intermediate compression is in the table and can
    be shared.
    """

    kind: ClassVar[str] = "imp"
    per_round: Annotated[float, within(0, 0.99, above=True)] = 0.2
    rewind: When | None = "0it"

    def misplacements(self) -> Iterator[Problem]:
        """Settings excluded because the share cut in each round determines the rounds."""
        if self.rounds != 1 or self.schedule is not None:
            text = "the rounds of imp follow from per_round: leave rounds and schedule out"
            yield Problem(("rounds",), text)
        if self.after != "dense":
            yield Problem(("after",), "imp begins with a dense training; leave after= out")

    def rounds_to(self, compression: float) -> float:
        """About how many rounds it takes to reach total/kept = `compression`."""
        # log1p, because 1 - per_round is exactly 1 for the smallest shares.
        return -math.log(compression) / math.log1p(-self.per_round)

    def description(self) -> str:
        """imp, with its score unless that is the magnitude."""
        # The description of Prune with imp's defaults, from which that part is then removed.
        shown = replace(self, rewind="0it", per_round=0.2)
        rest = (
            Prune.description(shown)
            .removeprefix("magnitude")
            .removesuffix(", rewound to 0it")
            .strip(", ")
        )
        more = f"rewound to {self.rewind}" if self.rewind not in ("0it", None) else ""
        return ", ".join(part for part in ("imp", rest, more) if part)


@METHODS.register("gradual")
@dataclass(frozen=True, kw_only=True)
class Gradual(Prune):
    """Prune during training: every `every` steps from `begin` to `end`, along a cubic schedule (Zhu
    & Gupta 2017).

    By default from the start to three quarters of the training, in twenty cuts.
    """

    kind: ClassVar[str] = "gradual"
    after: Begin = "init"
    begin: When = "0it"
    end: When | None = None
    every: Annotated[When, at_least_one_step] | None = None

    def misplacements(self) -> Iterator[Problem]:
        """Settings excluded because begin, end and every determine the rounds."""
        if self.end is not None and comes_after(self.begin, self.end):
            yield Problem(("end",), f"{self.end!r} is before begin, {self.begin!r}")
        if self.rounds != 1 or self.rewind is not None:
            text = "the cuts follow from begin, end and every: no rounds, no rewind"
            yield Problem(("rounds",), text)

    def description(self) -> str:
        """gradual, and how it differs from the defaults."""
        return "gradual " + Prune.description(replace(self, after="dense"))


# Methods that train sparse: weight factorization, plain L1, the path norm as a penalty.


@METHODS.register("dwf")
@dataclass(frozen=True, kw_only=True)
class Dwf(Method):
    """Deep weight factorization: every weight a product of `depth` factors, with penalty
    `strength`.

    Attributes:
        strength: λ, or a list of values, one run each. With `target` it is steered.
        target: Reach the study's compressions by steering λ.
        strength_schedule: λ over time: "constant", "ramp", "relax" or "ramp-hold-relax".
        init, depth, decoupled, sigma, match_variance, freeze: See `secateurs.optim.FactorizedSGD`.
        after: "init", or a network to factorize: "dense" or another method (with
            init="pretrained").
        threshold: What counts as zero at the end: "eps" (1.19e-7, the paper's), "gap", or a
            magnitude; None is "eps", or with `target` the magnitude that meets it.

    >>> [method.strength for method in Dwf(strength=(1e-4, 1e-3)).single()]
    [0.0001, 0.001]
    """

    kind: ClassVar[str] = "dwf"
    # A larger rate than for plain training; the penalty already is a decay of the factors.
    usual: ClassVar[Mapping[str, Any]] = {"lr": 0.5, "weight_decay": 0.0}

    strength: Strength = 5e-4
    target: bool = False
    depth: Annotated[int, within(2)] = 3
    init: Annotated[str, INITS.check] = "dwf"
    strength_schedule: Annotated[str, SCHEDULES.check] = "constant"
    decoupled: bool = False
    sigma: Positive | None = None
    match_variance: bool = False
    freeze: NotNegative | None = None
    after: Begin = "init"
    threshold: Literal["eps", "gap"] | NotNegative | None = None

    @property
    def by_compression(self) -> bool:  # type: ignore[override]
        """Runs are given a compression if λ is steered."""
        return self.target

    def conflicts(self) -> Iterator[Problem]:
        """Conflicts: steering decides λ; factorizing a trained network keeps its weights;
        factorized SGD has its own optimizer and decay.
        """
        if self.target and isinstance(self.strength, tuple):
            text = "with target=true λ is steered: give one strength to begin with"
            yield Problem(("target",), text)
        if self.after != "init" and self.init != "pretrained":
            yield Problem(("init",), "a trained network is factorized with init='pretrained'")
        # Fields of its own training that it would ignore are refused instead.
        if self.train.get("optimizer", "sgd") != "sgd":
            text = "dwf has an optimizer of its own (SGD on the factors): leave this out"
            yield Problem(("train", "optimizer"), text)
        if self.train.get("weight_decay", 0.0) != 0.0:
            text = "the penalty of dwf is a decay already: set strength instead"
            yield Problem(("train", "weight_decay"), text)

    def description(self) -> str:
        """Depth, and how it differs from the defaults."""
        more = unusual(self, "init", "strength_schedule")
        return ", ".join([f"dwf D={self.depth}", *more, *(["steered"] if self.target else [])])


@METHODS.register("l1")
@dataclass(frozen=True, kw_only=True)
class L1(Method):
    """Plain L1: the loss plus strength · ‖w‖₁ by gradient descent. Weights below `threshold` then
    count as zero.

    Gradient descent makes few exact zeros: cut its result with `Prune(after=L1(...))`.
    """

    kind: ClassVar[str] = "l1"
    strength: Strength = 1e-4
    # The epsilon of float32, by which the factorization paper counts zeros.
    threshold: NotNegative = 1.1920929e-07


@METHODS.register("path-penalty")
@dataclass(frozen=True, kw_only=True)
class PathPenalty(Method):
    """The loss plus strength · ln ‖Φ(w)‖_q, the logarithm of the path norm; cut it with
    `Prune(after=...)`.
    """

    kind: ClassVar[str] = "path-penalty"
    strength: Strength = 1e-2
    q: Annotated[float, within(1)] = 1.0


# Methods that act through the hooks of a plain optimizer: `secateurs.optim` has the same ones for
# your own loop.


@METHODS.register("rigl")
@dataclass(frozen=True, kw_only=True)
class RigLMethod(Method):
    """Sparse from the first step to the last, grown where the gradient is largest:
    `secateurs.optim.RigL` at the study's compressions.

    Attributes:
        every, fraction: ΔT and α of the paper.
        end: The point after which the masks stay as they are; by default three quarters of the
            training.
        scope: How the budget is divided among the layers.

    >>> RigLMethod(every="1ep").title
    'rigl, 1ep'
    """

    kind: ClassVar[str] = "rigl"
    by_compression: ClassVar[bool] = True

    every: Annotated[When, at_least_one_step] = "100it"
    end: When | None = None
    fraction: Annotated[float, within(0, 1)] = 0.3
    scope: Annotated[str, SCOPES.check] = "erk"

    def description(self) -> str:
        """The kind, and how it differs from the defaults."""
        return ", ".join([self.kind, *unusual(self, "every", "end", "fraction", "scope")])


@METHODS.register("set")
@dataclass(frozen=True, kw_only=True)
class SETMethod(RigLMethod):
    """Sparse from the first step to the last, grown anywhere at random: `secateurs.optim.SET`.

    `every` is an epoch, as in the paper, and `end` the end of the training.
    """

    kind: ClassVar[str] = "set"
    every: Annotated[When, at_least_one_step] = "1ep"


@METHODS.register("acdc")
@dataclass(frozen=True, kw_only=True)
class ACDCMethod(Method):
    """Phases of sparse and of dense training in turn: `secateurs.optim.ACDC` at the study's
    compressions, with its default phases if none are given.
    """

    kind: ClassVar[str] = "acdc"
    by_compression: ClassVar[bool] = True

    start: When | None = None
    every: Annotated[When, at_least_one_step] | None = None
    last_dense: When | None = None
    end: When | None = None
    scope: Annotated[str, SCOPES.check] = "global"

    def description(self) -> str:
        """The kind, and how it differs from the defaults."""
        return ", ".join(["acdc", *unusual(self, "start", "every", "last_dense", "end", "scope")])


@METHODS.register("ham")
@dataclass(frozen=True, kw_only=True)
class HAMMethod(Method):
    """A hyperbolic step after each step: `secateurs.optim.HAM`. It makes no zeros: cut its result
    with `Prune(after=HAMMethod(...))`.

    The paper's α for ImageNet, 200, makes a LeNet on the digits diverge at rate 0.1; 20 does not.
    """

    kind: ClassVar[str] = "ham"
    alpha: NotNegative = 20.0
    beta: NotNegative = 1e-3

    def description(self) -> str:
        """The kind, and how it differs from the defaults."""
        return ", ".join(["ham", *unusual(self, "alpha", "beta")])


@METHODS.register("d-gating")
@dataclass(frozen=True, kw_only=True)
class DGatingMethod(Method):
    """Gates that let whole groups of weights vanish: `secateurs.optim.DGating`. For a compression
    cut its result with `Prune(after=DGatingMethod(...))`.

    Attributes:
        strength: λ, or a list of them: one run each.
        depth, groups, start: As in `secateurs.optim.DGating`.
        threshold: Groups of a smaller norm are zero at the end.
    """

    kind: ClassVar[str] = "d-gating"
    strength: Strength = 1e-4
    depth: Annotated[int, within(2)] = 3
    # Any matrix will do: only the name is asked about.
    # Any matrix will do: only the name is asked about.
    groups: Annotated[str, lambda name: grouping(name, (8, 8))] = "neuron"
    start: Literal["ones", "balanced"] = "ones"
    threshold: NotNegative = 1.1920929e-07

    def description(self) -> str:
        """Depth, and how it differs from the defaults."""
        return ", ".join([f"d-gating D={self.depth}", *unusual(self, "groups", "start")])


@METHODS.register("power-propagation")
@dataclass(frozen=True, kw_only=True)
class PowerPropagationMethod(Method):
    """Trains θ in w = θ|θ|^(α−1): `secateurs.optim.PowerPropagation`. It makes no zeros: cut its
    result with `Prune(after=PowerPropagationMethod(...))`.
    """

    kind: ClassVar[str] = "power-propagation"
    alpha: Annotated[float, within(1)] = 2.0

    def description(self) -> str:
        """The kind, and how it differs from the defaults."""
        return ", ".join(["power-propagation", *unusual(self, "alpha")])
