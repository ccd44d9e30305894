"""Which trainings an experiment of the weight-factorization paper consists of, at every scale."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from secateurs.study.reproduce.experiment import Scale
from secateurs.study.reproduce.factorization.settings import FactorizationSettings

SEEDS = (0, 1, 2)
STRENGTHS = (
    *(
        1e-3,
        1.5e-3,
        2e-3,
        6e-4,
        2.5e-3,
        1.25e-3,
        1.75e-3,
        2.25e-3,
        8e-4,
        2.75e-3,
        3e-3,
    ),
    *(4e-4, 2e-4, 1e-4),
)
"""λ of the fully connected net from the printed start, the most telling first: dense where it
dies."""

SHALLOW = (*STRENGTHS, 4e-3, 6e-3)
"""λ of depth 2 from the printed start, which dies later."""

DEEP = (*STRENGTHS, 4e-3)
"""λ of depth 4 from the printed start."""

REACHING = (
    *(2e-3, 5e-3, 6e-3, 4e-3, 1e-3, 8e-3, 3e-3, 6e-4, 1.5e-3, 7e-3),
    *(2.5e-3, 3e-4, 1e-4),
)
"""λ from the start of two deviations, the most telling first: up to where every curve has passed
10 points."""

FEWER = (1e-3, 2e-3, 1.5e-3, 6e-4, 3e-3, 4e-3, 2.5e-3, 4e-4)
CONVOLUTIONS = (
    *(1e-3, 2e-3, 4e-3, 3e-3, 1.5e-3, 6e-3, 8e-3, 6e-4, 2.5e-3, 5e-3),
    *(4e-4, 2e-4),
)
"""λ of LeNet-5, whose fewer weights bear more."""

PUBLISHED = tuple(round(10 ** (-6 + 5 * i / 14), 10) for i in range(15))
"""15 values from 1e-6 to 1e-1, evenly in the logarithm."""

COMPRESSIONS = tuple(round(10 ** (1 + 4 * i / 14), 1) for i in range(15))
"""15 compressions from 10 to 1e5, evenly in the logarithm, for the methods compared with."""

OURS: dict[str, Any] = {"rate": 0.5, "ramp": 0.7, "relax": 0.3, "tune": 25}
"""Beyond the paper: a larger rate, λ that ramps and relaxes, then 25 epochs of gentle
fine-tuning.
"""

TEXT = FactorizationSettings()
AS_PRINTED = replace(TEXT, init="dwf-as-printed")
"""The upper end of the truncation read to the letter: its rows stay beside those of `dwf`."""
RESTORED = replace(AS_PRINTED, match_variance=True)

SMOKE = replace(TEXT, examples=2_000, epochs=8, batch=50, rate=0.3)
"""Too short for the paper's sparsities: that everything runs, in a minute."""

SHORT = replace(TEXT, data="digits", epochs=300, batch=64, rate=0.3)
"""The digits: 6,900 steps, each a tenth of the work, at twice the rate, since a weight's decay goes
with rate × λ × steps. The shape of a curve, not print's figures."""
DIGITS = "LeNet-300-100 on the digits, 300 epochs of batch 64, rate 0.3"


def base_of(scale: Scale) -> FactorizationSettings:
    """What the trainings of an ablation have in common."""
    return {"smoke": SMOKE, "short": SHORT}.get(scale, TEXT)


def pair_of(scale: Scale) -> tuple[float, float]:
    """Two λ for an ablation: of the sparse and of the very sparse."""
    return (7.5e-4, 1.25e-3) if scale == "short" else (1e-3, 2e-3)


_CIFAR: dict[str, Any] = {"epochs": 250, "batch": 128, "augment": True}
LARGE: tuple[tuple[str, str, tuple[float, float, float], dict[str, Any]], ...] = (
    ("vgg-16", "cifar-10", (0.5, 0.6, 0.6), _CIFAR),
    ("vgg-19", "cifar-100", (0.3, 0.6, 0.6), _CIFAR),
    ("resnet-18", "cifar-10", (0.2, 0.5, 0.7), _CIFAR),
    ("resnet-18", "cifar-100", (0.2, 0.5, 0.7), _CIFAR),
    ("resnet-18", "tiny-imagenet", (0.5, 0.8, 1.1), _CIFAR),
    ("wrn-16-8", "cifar-10", (0.2, 0.5, 0.7), _CIFAR),
    ("wrn-16-8", "cifar-100", (0.2, 0.5, 0.7), _CIFAR),
    ("wrn-16-8", "tiny-imagenet", (0.2, 0.5, 0.7), _CIFAR),
    ("resnet-34", "cifar-100", (0.2, 0.5, 0.7), _CIFAR),
    ("resnet-34", "tiny-imagenet", (0.2, 0.5, 0.7), {**_CIFAR, "epochs": 150}),
)
"""Network, data, rates of depths 2, 3 and 4, and the rest, as in table 4 of the paper."""

SMALL = tuple(
    (model, data, 0.4 if (model, data) == ("lenet-300-100", "kmnist") else 0.15)
    for model in ("lenet-300-100", "lenet-5")
    for data in ("mnist", "fashion-mnist", "kmnist")
)
"""The LeNets and their rates."""


def frontier(scale: Scale) -> list[FactorizationSettings]:
    """Tables 1 and 2, figures 8 and 9: dense, factorized at depths 2 to 4, the methods compared."""
    if scale == "smoke":
        dwf = [replace(SMOKE, strength=x) for x in (5e-3, 2e-2)]
        return [
            replace(SMOKE, method="dense"),
            *dwf,
            replace(SMOKE, method="snip", prune_to=50.0),
        ]
    return _published() if scale == "full" else _fashion()


def _fashion() -> list[FactorizationSettings]:
    """The fully connected net from the start of two deviations, then LeNet-5, then the rest."""
    convolutions = replace(TEXT, model="lenet-5")
    plan = [replace(TEXT, method="dense", seed=seed) for seed in SEEDS]
    plan += [replace(convolutions, method="dense", seed=seed) for seed in SEEDS]
    plan += [
        replace(TEXT, depth=depth, strength=x, seed=seed)
        for depth in (3, 2, 4)
        for x in REACHING
        for seed in SEEDS
    ]
    plan += [
        replace(convolutions, strength=x, seed=seed)
        for x in CONVOLUTIONS
        for seed in SEEDS
    ]
    plan += [
        replace(AS_PRINTED, strength=x, seed=seed)
        for seed in SEEDS
        for x in STRENGTHS
    ]
    plan += [
        replace(AS_PRINTED, depth=depth, strength=x, seed=seed)
        for depth, strengths in ((4, DEEP), (2, SHALLOW))
        for seed in SEEDS
        for x in strengths
    ]
    plan += [
        replace(RESTORED, depth=depth, strength=x, seed=seed)
        for depth in (3, 4, 2)
        for seed in SEEDS
        for x in FEWER
    ]
    plan += [
        replace(TEXT, method="gmp", prune_to=x, tune=25, seed=seed)
        for seed in SEEDS
        for x in COMPRESSIONS
    ]
    plan += [
        replace(TEXT, method=method, prune_to=x, seed=seed)
        for seed in SEEDS
        for method in ("synflow", "snip", "random")
        for x in COMPRESSIONS
    ]
    plan += [
        replace(TEXT, **OURS, strength=x, seed=s)
        for s in SEEDS
        for x in (6e-4, 1e-3, 3e-3)
    ]
    plan += [
        replace(convolutions, init="dwf-as-printed", strength=x, seed=seed)
        for seed in SEEDS
        for x in CONVOLUTIONS
    ]
    return plan + [
        replace(convolutions, depth=depth, strength=x)
        for depth in (2, 4)
        for x in CONVOLUTIONS[:4]
    ]


def _published() -> list[FactorizationSettings]:
    """Everything the paper's tables and figures 8 and 9 show, at its own length."""
    plan: list[FactorizationSettings] = []
    for model, data, rate in SMALL:
        base = FactorizationSettings(model=model, data=data, rate=rate)
        plan += _whole(base, (rate, rate, rate))
    for model, data, rates, rest in LARGE:
        plan += _whole(FactorizationSettings(model=model, data=data, **rest), rates)
    return plan


def _whole(
    base: FactorizationSettings, rates: tuple[float, float, float]
) -> Iterable[FactorizationSettings]:
    for seed in SEEDS:
        here = replace(base, seed=seed)
        # Print prescribes the rate of the methods compared with, 0.1, but for the LeNets.
        other = replace(
            here, rate=base.rate if base.model.startswith("lenet") else 0.1
        )
        yield replace(other, method="dense")
        for depth, rate in zip((2, 3, 4), rates, strict=True):
            for x in PUBLISHED:
                yield replace(here, depth=depth, rate=rate, strength=x)
        for x in COMPRESSIONS:
            yield replace(other, method="gmp", prune_to=x, tune=25)
            for method in ("synflow", "snip", "random"):
                yield replace(other, method=method, prune_to=x)


def depths(scale: Scale) -> list[FactorizationSettings]:
    """Figure 14: depths up to 8 at three rates."""
    rates = {"smoke": (0.3,), "short": (0.3,)}.get(scale, (0.15, 0.3, 0.5))
    tried = (3, 6) if scale == "smoke" else (3, 4, 6, 8)
    plan = [
        replace(base_of(scale), depth=depth, rate=rate, strength=x)
        for rate in rates
        for depth in tried
        for x in pair_of(scale)
    ]
    if scale in ("smoke", "short"):
        return plan
    # The pair kills what is deeper than 4 factors: there smaller λ make the curve.
    return plan + [
        replace(base_of(scale), depth=depth, rate=rate, strength=x)
        for rate in rates
        for depth in tried
        for x in ((3e-4, 1e-4) if depth > 4 else (3e-4,))
    ]


def starts(scale: Scale) -> list[FactorizationSettings]:
    """Figures 4, 12b and 23: initialisations, and the scale of the paper's own."""
    base = SMOKE if scale == "smoke" else TEXT
    models = ("lenet-300-100",) if scale == "smoke" else ("lenet-300-100", "lenet-5")
    plan = [
        replace(base, spread=s, strength=x)
        # 1 is the text's own, beside which the others stand.
        for s in (1.0, 2**0.5, 2.0, 4.0)
        for x in (1e-3, 3e-3)
    ]
    plan += [replace(base, match_variance=True, strength=x) for x in (1e-3, 3e-3)]
    names = ("dwf", "dwf-as-printed", "varmatch", "vanilla", "root", "gaussian")
    return plan + [
        replace(base, model=model, init=init, depth=depth, strength=2e-3)
        for model in models
        for init in names
        for depth in (3, 2)
    ]


def rates(scale: Scale) -> list[FactorizationSettings]:
    """Figures 11 and 12a: rates from 1e-3 to 2, each at several strengths."""
    usual = (1e-2, 5e-2, 0.15, 0.5, 1.0)
    short = (5e-2, 0.15, 0.3, 0.5, 1.0)
    grid = {"smoke": (0.03, 0.3), "short": short}.get(scale, usual)
    return [
        replace(base_of(scale), depth=depth, rate=rate, strength=x)
        for depth in ((3,) if scale in ("smoke", "short") else (3, 2, 4))
        for rate in grid
        for x in pair_of(scale)
    ]
