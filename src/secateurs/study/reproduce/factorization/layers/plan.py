"""Which networks the figures on layers are made of, at every scale."""

from collections.abc import Iterator
from dataclasses import replace

from secateurs.study.reproduce.experiment import Scale
from secateurs.study.reproduce.factorization import plans
from secateurs.study.reproduce.factorization.settings import FactorizationSettings

DEPTHS = (3, 2, 4)
METHODS = ("gmp", "synflow", "snip", "random")

STRENGTHS = (1e-3, 2e-3, 3e-4, 6e-4, 4e-3)
"""λ of the fully connected net, the most telling first."""

ENDS = (1e-4, 1e-2)
"""Far below the λ that makes zeros, and above the λ that a net survives: the ends of figure 13."""

DEEP = 10
"""The depth of figure 5a."""

DEEP_EPOCHS = 40
"""Ours: print does not say how long it trained, and weights that are dead show at once."""

DIGITS = (4e-4, 7.5e-4, 1.25e-3)
LARGE = tuple(
    (model, data, rates, rest)
    for model, data, rates, rest in plans.LARGE
    if (model, data) in {("resnet-18", "cifar-10"), ("vgg-16", "cifar-10")}
)
"""The networks of figure 10, with their rates at depths 2, 3 and 4."""


def plan(scale: Scale) -> list[FactorizationSettings]:
    """Pruned networks first: the cheap ones; then factorized ones, and those of figure 5a."""
    if scale == "full":
        return _published()
    base = plans.base_of(scale)
    if scale == "smoke":
        pruned = _pruned(base, (50.0, 5_000.0))
        strong = [replace(base, strength=x) for x in (5e-3, 2e-2)]
        return [*pruned, *strong, *_deep(base, 2, ("varmatch",))]
    pruned = _pruned(base, plans.COMPRESSIONS)
    if scale == "short":
        return [*pruned, *_factorized(base, DIGITS), *_deep(base, base.epochs)]
    return [
        *pruned,
        *_factorized(base, STRENGTHS),
        *_deep(base, DEEP_EPOCHS),
        *_factorized(base, ENDS),
    ]


def _pruned(
    base: FactorizationSettings, compressions: tuple[float, ...]
) -> Iterator[FactorizationSettings]:
    for method in METHODS:
        for compression in compressions:
            yield replace(base, method=method, prune_to=compression)


def _factorized(
    base: FactorizationSettings, strengths: tuple[float, ...]
) -> Iterator[FactorizationSettings]:
    for strength in strengths:
        for depth in DEPTHS:
            yield replace(base, depth=depth, strength=strength)


def _deep(
    base: FactorizationSettings,
    epochs: int,
    starts: tuple[str, ...] = ("varmatch", "dwf", "dwf-as-printed"),
) -> Iterator[FactorizationSettings]:
    """Figure 5a: λ = 0 at depth 10, without the truncation of the factors and with it."""
    deep = replace(base, depth=DEEP, strength=0.0, epochs=epochs)
    for start in starts:
        yield replace(deep, init=start)
        # As printed, truncation also takes variance away. With the variance
        # restored, the truncation is the only difference.
        if start == "dwf-as-printed":
            yield replace(deep, init=start, match_variance=True)


def _published() -> list[FactorizationSettings]:
    """Figure 10 has ResNet-18 and VGG-16 on CIFAR-10; figure 13 small networks, too."""
    settings: list[FactorizationSettings] = []
    for model, data, rates, rest in LARGE:
        base = FactorizationSettings(model=model, data=data, **rest)
        settings += _pruned(replace(base, rate=0.1), plans.COMPRESSIONS)
        for depth, rate in zip((2, 3, 4), rates, strict=True):
            here = replace(base, depth=depth, rate=rate)
            settings += [replace(here, strength=x) for x in plans.PUBLISHED]
        if model == "resnet-18":
            # The rate of depth 4: print names none for depth 10.
            settings += _deep(replace(base, rate=rates[-1]), base.epochs)
    for model, data, rate in plans.SMALL:
        base = FactorizationSettings(model=model, data=data, rate=rate)
        settings += _factorized(base, plans.PUBLISHED)
    return settings
