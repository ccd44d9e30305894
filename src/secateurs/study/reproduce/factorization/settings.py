"""One training of the weight-factorization paper, as a frozen value, and what it gave."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from secateurs.errors import ArgumentError

METHODS = ("dense", "dwf", "l1", "gmp", "snip", "synflow", "random")

LITERAL = 1.0
"""`spread` of the paper's text: σ_w = 1/√n_in goes into Algorithm 1 as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorizationSettings:
    """One training, whole. The defaults are the paper's text: rate 0.15, constant λ, 75 epochs.

    Attributes:
        strength: λ, of "dwf" and "l1"; depth and the movement of λ (`ramp`, `relax`) are for "dwf".
        prune_to: A compression, for the pruning methods.
        init: How the factors start; `spread` multiplies σ_w = 1/√n_in, and `match_variance`
            corrects the factors so that their product has variance σ_w² after the truncation.
        anneal: Power of the cosine: rate · ((1 + cos πt)/2)^anneal; 0 keeps the rate.
        examples: Only the first training images; None for all.
        tune: Epochs of Adam on the collapsed (or pruned) net, from `tune_rate`, cosine to 0.
    """

    method: str = "dwf"
    model: str = "lenet-300-100"
    data: str = "fashion-mnist"
    seed: int = 0
    depth: int = 3
    strength: float = 1e-3
    rate: float = 0.15
    momentum: float = 0.9
    nesterov: bool = False
    ramp: float = 0.0
    relax: float = 0.0
    anneal: float = 1.0
    epochs: int = 75
    batch: int = 256
    freeze: float = 1e-12
    prune_to: float = 1.0
    tune: int = 0
    tune_rate: float = 2e-3
    init: str = "dwf"
    spread: float = LITERAL
    match_variance: bool = False
    augment: bool = False
    examples: int | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ArgumentError(
                f"method={self.method!r} is none of {', '.join(METHODS)}."
            )

    @property
    def narrow(self) -> bool:
        """Whether the net is a chain of linear layers that is cut to its live units on the way."""
        return self.model == "lenet-300-100"


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorizationRow:
    """What a training gave: compression (all parameters over non-zero ones) and test accuracy in
    percent.

    Three pairs: with the paper's threshold 1.19e-7, with the widest gap of the log-magnitudes, and
    after fine-tuning the latter. Pruning methods have the first pair, and the last when tuned.
    """

    settings: FactorizationSettings
    compression: float
    accuracy: float
    gap_compression: float
    gap_accuracy: float
    tuned_accuracy: float
    seconds: float

    def flat(self) -> dict[str, str]:
        """All fields as text, settings first: one line of a CSV file."""
        names = [entry.name for entry in fields(self) if entry.name != "settings"]
        return {
            **key(self.settings),
            **{name: f"{getattr(self, name):.6g}" for name in names},
        }


def key(settings: FactorizationSettings) -> dict[str, str]:
    """The settings as text: what identifies a row of a table."""
    return {name: _text(value) for name, value in asdict(settings).items()}


def name_of(settings: FactorizationSettings) -> str:
    """The settings that differ from the paper's text, in one line: the name of a job.

    >>> name_of(FactorizationSettings(seed=2, strength=2e-3))
    'dwf seed=2 strength=0.002'
    """
    usual = key(FactorizationSettings())
    # Named even at their defaults: nearly all rows of a table differ in these.
    shown = {"seed", *(("strength",) if settings.method in ("dwf", "l1") else ())}
    own = {name: value for name, value in key(settings).items() if name != "method"}
    differing = [f"{n}={v}" for n, v in own.items() if n in shown or v != usual[n]]
    return " ".join([settings.method, *differing])


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
