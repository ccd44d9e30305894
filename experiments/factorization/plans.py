"""The runs that an experiment of the weight-factorization paper consists of, at every scale."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import fmean
from time import perf_counter
from typing import Any, TypeAlias

from torch import Tensor

from experiments.experiment import Comparison, Experiment, Measurement, Row, Scale, publish
from experiments.factorization.training import (
    START,
    FactorizationRow,
    FactorizationSettings,
    accuracy_of,
    columns_of,
    compression_of,
    load_images,
    method_of,
    name_of,
    recipe_of,
    train,
    tuned_accuracy,
)
from secateurs.errors import TrainingError
from secateurs.optim.factorized.collapse import gap
from secateurs.optim.factorized.maths import EPS
from secateurs_lab.data import Dataset
from secateurs_lab.report.published import printed_rows

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

DYING = (1e-2, 1.2e-2, 1.5e-2, 2e-2)
"""λ of depth 2 beyond these: the paper's table has it where its nets die."""

MORE_SEEDS = (3, 4, 5)
"""Three more seeds of depth 3, which say how much the compression within 10 points scatters."""

SCATTER = (5e-3, 6e-3, 4e-3, 7e-3)
"""λ of these seeds, 8 to 15 points below the dense net."""

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
with rate × λ × steps. The shape of a curve, not the printed figures."""
DIGITS = "LeNet-300-100 on the digits, 300 epochs of batch 64, rate 0.3"


def base_of(scale: Scale) -> FactorizationSettings:
    """The settings that the runs of an ablation have in common."""
    return {"smoke": SMOKE, "short": SHORT}.get(scale, TEXT)


def pair_of(scale: Scale) -> tuple[float, float]:
    """Two λ for an ablation: one for a sparse and one for a very sparse network."""
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
    plan += [replace(TEXT, depth=2, strength=x, seed=seed) for x in DYING for seed in SEEDS]
    plan += [replace(convolutions, strength=x, seed=seed) for x in CONVOLUTIONS for seed in SEEDS]
    plan += [replace(TEXT, method="dense", seed=seed) for seed in MORE_SEEDS]
    plan += [replace(TEXT, strength=x, seed=seed) for x in SCATTER for seed in MORE_SEEDS]
    plan += [replace(AS_PRINTED, strength=x, seed=seed) for seed in SEEDS for x in STRENGTHS]
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
    ours = (4e-4, 6e-4, 1e-3, 2e-3, 3e-3, 6e-3, 8e-3)
    plan += [replace(TEXT, **OURS, strength=x, seed=seed) for seed in SEEDS for x in ours]
    plan += [
        replace(convolutions, init="dwf-as-printed", strength=x, seed=seed)
        for seed in SEEDS
        for x in CONVOLUTIONS
    ]
    return plan + [
        replace(convolutions, depth=depth, strength=x) for depth in (2, 4) for x in CONVOLUTIONS[:4]
    ]


def _published() -> list[FactorizationSettings]:
    """Everything that the paper's tables and figures 8 and 9 show, at the paper's own length."""
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
        # Table 4's rates are those of factorized training. The methods compared with take 0.1, and
        # 0.15 on the LeNets, K-MNIST too.
        other = replace(here, rate=TEXT.rate if base.model.startswith("lenet") else 0.1)
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
    # The pair kills networks with more than 4 factors: smaller λ make up their curve.
    return plan + [
        replace(base_of(scale), depth=depth, rate=rate, strength=x)
        for rate in rates
        for depth in tried
        for x in ((3e-4, 1e-4) if depth > 4 else (3e-4,))
    ]


def starts(scale: Scale) -> list[FactorizationSettings]:
    """Figures 4, 12b and 23: initialisations, and the scale of the paper's own."""
    base = SMOKE if scale == "smoke" else TEXT
    plan = [
        replace(base, spread=s, strength=x)
        # 1 is the paper's own scale, with which the others are compared.
        for s in (1.0, 2**0.5, 2.0, 4.0)
        for x in (1e-3, 3e-3)
    ]
    plan += [replace(base, match_variance=True, strength=x) for x in (1e-3, 3e-3)]
    # All with weights of the same variance: torch's own start, of which `root` takes roots, has a
    # different one.
    begun: tuple[dict[str, Any], ...] = (
        *({"init": x} for x in ("dwf", "dwf-as-printed", "varmatch", "vanilla", "gaussian")),
        {"init": "root", "match_variance": True},
    )
    models = ("lenet-300-100",) if scale == "smoke" else ("lenet-300-100", "lenet-5")
    plan += [
        replace(base, model=model, depth=depth, strength=2e-3, **start)
        for model in models
        for start in begun
        for depth in (3, 2)
    ]
    if scale == "smoke":
        return plan
    # Figure 23 has depth 4, too, and both figures have three seeds.
    plan += [
        replace(base, depth=depth, strength=x, seed=seed, **start)
        for x in (2e-3, 1e-3, 3e-3)
        for depth in (3, 4, 2)
        for seed in SEEDS
        for start in begun
    ]
    # A tenth of λ: where the usual start may live at depth 2.
    return plan + [
        replace(base, model=model, depth=2, strength=2e-4, init="vanilla") for model in models
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


# Curves of accuracy over compression, one per seed, and values interpolated between their runs.

Curve: TypeAlias = Sequence[tuple[float, float]]
"""(compression, accuracy in percent), compressions rising."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A compression; `open` means that the curve ends there, still above the accuracy."""

    compression: float
    open: bool = False


def at(curve: Curve, compression: float) -> float | None:
    """Accuracy at a compression, linear in its logarithm; None outside the curve.

    >>> at([(10.0, 90.0), (1000.0, 80.0)], 100.0)
    85.0
    """
    # A net asked for 10× that got 10.002× is where the curve of 10× begins.
    if curve and curve[0][0] / 1.001 <= compression < curve[0][0]:
        return curve[0][1]
    for (c0, a0), (c1, a1) in pairwise(curve):
        # Between two runs at the same compression there is nothing to interpolate: it would divide
        # by log 1.
        if c0 <= compression <= c1 and c0 < c1:
            return a0 + (a1 - a0) * math.log(compression / c0) / math.log(c1 / c0)
    return None


def largest(curve: Curve, accuracy: float) -> Crossing | None:
    """Where the curve crosses this accuracy for the last time; None if it lies below everywhere.

    >>> largest([(10.0, 90.0), (1000.0, 80.0)], 85.0)
    Crossing(compression=100.0, open=False)
    """
    if not curve or max(a for _, a in curve) < accuracy:
        return None
    if curve[-1][1] >= accuracy:
        return Crossing(compression=curve[-1][0], open=True)
    # The last crossing, because curves of single runs are not monotonic.
    (c0, a0), (c1, a1) = next(p for p in reversed(list(pairwise(curve))) if p[0][1] >= accuracy)
    return Crossing(
        # Compressions are evenly spaced in their logarithm, so interpolation is geometric.
        compression=round(c0 * (c1 / c0) ** ((a0 - accuracy) / (a0 - a1)), 6)
    )


def curves(rows: Iterable[Mapping[str, str]], columns: tuple[str, str]) -> dict[str, Curve]:
    """By seed, from two columns; rows without these figures are left out.

    A row without its own compression after fine-tuning has the one it was pruned to.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        compression, accuracy = (float(row[name]) for name in columns)
        if math.isnan(compression):
            compression = float(row["compression"])
        if not math.isnan(accuracy):
            found.setdefault(row["seed"], []).append((compression, accuracy))
    return {seed: sorted(points) for seed, points in found.items()}


# Deep weight factorization: one run and its row.
#
# Equal settings give equal rows, so a table that grows row by row can be resumed. Reference: Kolb
# et al. 2025, table 1, table 2 and table 4 (LeNet-300-100 and LeNet-5: 75 epochs, batch 256, rate
# 0.15).


def run(settings: FactorizationSettings) -> FactorizationRow:
    """Train with one settings value. If the loss diverges, the figures are NaN."""
    # Reading the data counts as well: it is part of a row's cost.
    start, dataset = perf_counter(), load_images(settings)
    found: list[tuple[float, float]] = []
    tuned = math.nan
    try:
        trained = train(settings, dataset)
        # The gap comes last, because its model is the one tuned below. Methods other than
        # factorization make their zeros themselves.
        limits = (EPS, gap(trained.weights)) if settings.method == "dwf" else (0.0,)
        for limit in limits:
            model = trained.cut_(limit)
            found.append((compression_of(model), accuracy_of(model, dataset)))
        tuned = tuned_accuracy(trained.model, settings, dataset)
    except TrainingError:
        # A rate that is too large is a result, too, and the following jobs continue.
        found = []
    figures = [*found, *[(math.nan, math.nan)] * (2 - len(found))]
    return FactorizationRow(
        settings=settings,
        compression=figures[0][0],
        accuracy=figures[0][1],
        gap_compression=figures[1][0],
        gap_accuracy=figures[1][1],
        tuned_accuracy=tuned,
        seconds=perf_counter() - start,
    )


def train_and_cut(settings: FactorizationSettings) -> tuple[list[Tensor], Dataset]:
    """The parameters that factorized training leaves, cut at the gap, and the training images."""
    dataset = load_images(settings)
    trained = train(settings, dataset)
    model = trained.cut_(gap(trained.weights))
    # What follows works on a handful of weights, for which a GPU mostly waits.
    return [p.detach().cpu() for p in model.parameters()], dataset.to("cpu")


# Rows of the weight-factorization paper beside the printed ones: tables 1 and 2, and every setting.

Group = tuple[str, str, str, str]
"""Model, data, method, recipe."""


TOLERANCES = (5, 10)


def by_recipe(rows: Sequence[Row]) -> dict[Group, list[Row]]:
    """Rows of one model, data set, method and recipe, without diverged runs."""
    groups: dict[Group, list[Row]] = {}
    for row in (row for row in rows if row["accuracy"] != "nan"):
        groups.setdefault((row["model"], row["data"], method_of(row), recipe_of(row)), []).append(
            row
        )
    return groups


def compare_frontiers(rows: Sequence[Row]) -> list[Comparison]:
    """Table 1, then table 2, read off the curves of each seed."""
    groups = by_recipe(rows)
    dense = {key[:2]: found for key, found in groups.items() if key[2] == "dense"}
    figures = [_accuracy_of_dense(place, found) for place, found in dense.items()]
    factorized = {key: found for key, found in groups.items() if key[2] != "dense"}
    for key, found in factorized.items():
        figures += _limits(key, found, dense.get(key[:2], []))
    for key, found in factorized.items():
        figures += _accuracies(key, found)
    return figures


def _accuracy_of_dense(place: tuple[str, str], rows: Sequence[Row]) -> Comparison:
    ours = tuple(float(row["accuracy"]) for row in rows)
    return Comparison(
        what=f"{_title((*place, 'dense', ''))}: accuracy %",
        ours=ours,
        printed=_printed("table2", "accuracy_percent", *place, "dense", "0"),
    )


def _limits(key: Group, rows: Sequence[Row], dense: Sequence[Row]) -> Iterator[Comparison]:
    """The largest compression within 5 and 10 points of the dense net of the same seed."""
    if not dense:
        return
    usual = fmean(float(row["accuracy"]) for row in dense)
    by_seed = {row["seed"]: float(row["accuracy"]) for row in dense}
    lines = curves(rows, columns_of(key[3]))
    for points in TOLERANCES:
        reached = [
            # A seed without a dense net is compared with the mean of the others.
            largest(curve, by_seed.get(s, usual) - points)
            for s, curve in lines.items()
        ]
        what = f"{_title(key)}: compression within {points} points"
        yield from reach(
            what, reached, _printed("table1", "compression_ratio", *key[:3], str(points))
        )


def reach(
    what: str, crossings: Iterable[Crossing | None], printed: float | None = None
) -> Iterator[Comparison]:
    """The compressions of the seeds whose curves cross at all; nothing if none does."""
    found = [one for one in crossings if one is not None]
    if found:
        # A curve that stays above the limit up to its end gives only a lower bound.
        ends = sum(one.open for one in found)
        note = f"at least: {ends} of {len(found)} curves end above" if ends else ""
        ours = tuple(one.compression for one in found)
        yield Comparison(what=what, ours=ours, printed=printed, note=note)


def _accuracies(key: Group, rows: Sequence[Row]) -> Iterator[Comparison]:
    """Accuracy at the sparsities of table 2."""
    lines = curves(rows, columns_of(key[3])).values()
    for line in printed_rows("weight_factorization_table2.csv"):
        if (line["model"], line["dataset"], line["method"]) == key[:3]:
            sparsity = float(line["sparsity_percent"])
            # Interpolated between two runs, since hardly any run has exactly the printed sparsity.
            values = (at(curve, 1 / (1 - sparsity / 100)) for curve in lines)
            ours = tuple(value for value in values if value is not None)
            if ours:
                what = f"{_title(key)}: accuracy at {sparsity:g} %"
                yield Comparison(what=what, ours=ours, printed=float(line["accuracy_percent"]))


def _title(key: Group) -> str:
    model, data, method, recipe = key
    return f"{model}, {data}, {method}" + (f" ({recipe})" if recipe else "")


def _printed(table: str, figure: str, *wanted: str) -> float | None:
    """A figure of the line of a table whose first columns hold these texts."""
    for line in printed_rows(f"weight_factorization_{table}.csv"):
        if (*line.values(),)[: len(wanted)] == wanted:
            return float(line[figure])
    return None


def compare_runs(rows: Sequence[Row]) -> list[Comparison]:
    """Every setting as it is, over the seeds (the paper has curves, no figures)."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(_setting(row), []).append(row)
    figures = []
    for name, group in found.items():
        for figure in ("compression", "accuracy"):
            ours = tuple(float(row[figure]) for row in group)
            lost = sum(math.isnan(value) for value in ours)
            note = f"diverged: {lost} of {len(ours)}" if lost else ""
            figures.append(Comparison(what=f"{name}: {figure}", ours=ours, note=note))
    return figures


def compare_starts(rows: Sequence[Row]) -> list[Comparison]:
    """How far each start lies above the paper's own at equal compression, seed by seed; then every
    setting.
    """
    groups, figures = by_recipe(rows), []
    for key, own in groups.items():
        usual = curves(groups.get((*key[:3], START), ()), columns_of(START))
        above = [
            [a - b for c, a in curve if (b := at(usual.get(seed, ()), c)) is not None]
            for seed, curve in curves(own, columns_of(key[3])).items()
        ]
        ours = tuple(fmean(one) for one in above if one)
        if ours and key[3] != START:
            what = f"{_title(key)}: points above the curve of {START}"
            figures.append(Comparison(what=what, ours=ours))
    return figures + compare_runs(rows)


def _setting(row: Row) -> str:
    recipe = recipe_of(row)
    strength = (
        f", λ {row['strength']}" if row["method"] in ("dwf", "l1") else f", {row['prune_to']}×"
    )
    return _title((row["model"], row["data"], method_of(row), recipe)) + strength


def runs_table(rows: Sequence[Row]) -> str:
    """All settings as Markdown: how many seeds, compression and accuracy as trained."""
    figures = compare_runs(rows)
    lines = [
        "",
        "## Every setting",
        "",
        "| setting | seeds | compression | accuracy % |",
        "|---|---|---|---|",
    ]
    for compression, accuracy in zip(figures[::2], figures[1::2], strict=True):
        name = compression.what.rpartition(":")[0]
        lines.append(
            f"| {name} | {len(compression.ours)} | {_span(compression)} | {_span(accuracy)} |"
        )
    return "\n".join([*lines, ""])


def _span(figure: Comparison) -> str:
    low, high = min(figure.ours), max(figure.ours)
    spread = f" ({low:.5g} to {high:.5g})" if len(figure.ours) > 1 else ""
    return f"{figure.mean:.5g}{spread}"


# The weight-factorization paper as experiments: tables 1 and 2 beside the printed ones, ablations
# as rows.

Plan = Callable[[Scale], Sequence[FactorizationSettings]]


def jobs_of(
    plan: Plan, work: Callable[[FactorizationSettings], Iterable[Mapping[str, object]]]
) -> Callable[[Scale], list[Measurement]]:
    """One job per run."""

    def jobs(scale: Scale) -> list[Measurement]:
        # Parts of a plan overlap, and equal settings are one job.
        unique = {name_of(settings): settings for settings in plan(scale)}
        return [Measurement(name=name, work=partial(work, each)) for name, each in unique.items()]

    return jobs


def _work(settings: FactorizationSettings) -> list[Mapping[str, object]]:
    return [run(settings).flat()]


def _register(
    name: str,
    what: str,
    plan: Plan,
    settings: Mapping[Scale, str],
    *,
    compare: Callable[[Sequence[Row]], Sequence[Comparison]] = compare_runs,
) -> None:
    publish(
        Experiment(
            name=name,
            paper="Kolb et al. 2025",
            what=what,
            jobs=jobs_of(plan, _work),
            compare=compare,
            more=runs_table if compare is compare_frontiers else lambda rows: "",
            settings={
                "smoke": "LeNet-300-100, 2,000 images of Fashion-MNIST, 8 epochs",
                **settings,
            },
        )
    )


CPU = "LeNet-300-100 on Fashion-MNIST, 75 epochs"
_register(
    "weight-factorization",
    "tables 1, 2, figures 8, 9: accuracy against compression",
    frontier,
    {
        "cpu": f"{CPU}: depths 2 to 4, 14 to 16 strengths, three seeds; the others (hours: --part)",
        "full": "all networks of table 4 at their recipes, 15 strengths, three seeds",
    },
    compare=compare_frontiers,
)
_register(
    "weight-factorization-depth",
    "figure 14: depths to 8",
    depths,
    {"short": f"{DIGITS}, two λ", "cpu": CPU, "full": CPU},
)
_register(
    "weight-factorization-start",
    "figures 4, 12b, 23: initialisations and their scale",
    starts,
    {"cpu": f"{CPU}, three seeds, and LeNet-5", "full": f"{CPU}, three seeds, and LeNet-5"},
    compare=compare_starts,
)
_register(
    "weight-factorization-rate",
    "figures 11, 12a: rates",
    rates,
    {"short": f"{DIGITS} (and others), depth 3", "cpu": CPU, "full": CPU},
)
