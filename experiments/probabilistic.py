"""A probabilistic approach to pruning (Qian & Klabjan 2021): the numerical tables, and the
schemes of the theorems.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.experiment import (
    Comparison,
    Experiment,
    Measurement,
    Row,
    Scale,
    chosen_device,
    publish,
)
from secateurs.base import random
from secateurs.base.singular_values import spectral_norms
from secateurs.errors import ArgumentError, DataError
from secateurs.theory import LayerDiagnosis, diagnose
from secateurs.theory.laws import CLOSE
from secateurs.theory.random_matrices import measured_delta0
from secateurs_lab import data, models
from secateurs_lab.data import Dataset, load
from secateurs_lab.data.files import home
from secateurs_lab.report.published import printed_rows
from secateurs_lab.train import cosine, evaluate, fit_

# One row of Tables 2 and 3: draws matrices, takes their norms, compares numbers with the paper.

Values = np.ndarray[tuple[int], np.dtype[np.float64]]
RESIDUAL = 2e-4
# The paper gives three decimals.
_ROUNDING = 0.0005
# Entries of the matrices drawn at a time, which bounds the memory.
_CHUNK = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One number and the printed one. `error`: Monte-Carlo standard error of the measured number.

    The printed number has the same error and is rounded: `z` is the deviation over the standard
    error of the difference.
    """

    name: str
    measured: float
    error: float
    printed: float

    @property
    def deviation(self) -> float:
        """Ours minus the printed number."""
        return self.measured - self.printed

    @property
    def z(self) -> float:
        """Deviation in standard errors; rounding in the paper counts as a uniform error of ±0.0005."""
        # The paper's own sampling error is as large as ours, and a uniform error of ±a has variance
        # a²/3.
        spread = math.sqrt(2 * self.error**2 + _ROUNDING**2 / 3)
        return self.deviation / spread


@dataclass(frozen=True, slots=True, kw_only=True)
class NormRow:
    """A row of a table: its subject, its numbers, and the largest residual of its norms."""

    label: str
    cells: tuple[Cell, ...]
    residual: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NormTask:
    """Rows that differ only by a factor: norms are homogeneous, so they share their matrices."""

    rows: tuple[dict[str, str], ...]
    matrices: int

    def source(self, table: int) -> torch.Generator:
        """The generator of these rows alone, so that every process draws the same numbers."""
        return random.generator(0, f"table{table}/{'/'.join(list(self.rows[0].values())[:3])}")

    @property
    def cost(self) -> int:
        """Entries of a matrix, with which the time of a task grows."""
        first = self.rows[0]
        return int(first["d"]) ** 2 if "d" in first else int(first["n1"]) * int(first["n2"])


def size_of(row: dict[str, str]) -> tuple[str, ...]:
    """The key of the rows of Table 2 that share their matrices."""
    return row["n1"], row["n2"]


def law_of(row: dict[str, str]) -> tuple[str, ...]:
    """The key of the rows of Table 3 that share their matrices."""
    return row["d"], row["distribution"].partition("(")[0], row["alpha"]


def norms_of(batches: Iterator[Tensor]) -> tuple[Values, float]:
    """Spectral norms of all matrices, and the largest residual among them."""
    found = [spectral_norms(batch, tolerance=RESIDUAL) for batch in batches]
    return torch.cat([f.values for f in found]).double().numpy(), max(
        float(f.residual.max()) for f in found
    )


def sizes(matrices: int, entries: int) -> Iterator[int]:
    """How many matrices are drawn at a time, until all are drawn."""
    step = max(1, _CHUNK // entries)
    yield from (min(step, matrices - start) for start in range(0, matrices, step))


def printed_at(printed: dict[str, str], column: str) -> float:
    """A printed number."""
    return float(printed[column])


# Rows of Table 3: the terms of Lemma 4 from drawn matrices, and the constant that fits.

_VARIANCE = {"normal(0,3/d)": 3.0}
"""Times 1/d; the other laws have variance 1/d."""


def latala_rows(task: NormTask) -> list[NormRow]:
    """The rows of a task of Table 3."""
    first, d, source = task.rows[0], int(task.rows[0]["d"]), task.source(3)
    second, fourth = (
        torch.zeros(d, d, dtype=torch.float64),
        torch.zeros(d, d, dtype=torch.float64),
    )

    def drawn() -> Iterator[Tensor]:
        for n in sizes(task.matrices, d * d):
            batch = draw(first, n, d, source)
            squares = batch.square()
            second.add_(squares.sum(0))
            fourth.add_(squares.square().sum(0))
            yield batch

    norms, residual = norms_of(drawn())
    second, fourth = second / task.matrices, fourth / task.matrices
    return [
        _latala_cells(row, norms * math.sqrt(v), second * v, fourth * v**2, residual)
        for row in task.rows
        for v in (_VARIANCE.get(row["distribution"], 1.0),)
    ]


def _latala_cells(
    printed: dict[str, str],
    norms: Values,
    second: Tensor,
    fourth: Tensor,
    residual: float,
) -> NormRow:
    rows, columns = (float(second.sum(axis).max().sqrt()) for axis in (1, 0))
    quarter = float(fourth.sum() ** 0.25)
    total, mean = rows + columns + quarter, float(norms.mean())
    # One row sum of estimated moments; its maximum over d rows varies less than a single one does.
    spread = float(((fourth.mean() - second.mean() ** 2) * len(second) / len(norms)).sqrt())
    term, norm = spread / (2 * rows), float(norms.std(ddof=1)) / math.sqrt(len(norms))
    constant = mean / total
    errors = {
        "max_row_term": term,
        "max_col_term": term,
        "fourth_moment_term": term / math.sqrt(len(second)),
    }
    errors |= {
        "mean_norm": norm,
        "C": constant * math.hypot(norm / mean, math.sqrt(2) * term / total),
    }
    values = {
        "max_row_term": rows,
        "max_col_term": columns,
        "fourth_moment_term": quarter,
    }
    values |= {"mean_norm": mean, "C": constant}
    cells = (
        Cell(name=n, measured=v, error=errors[n], printed=printed_at(printed, n))
        for n, v in values.items()
    )
    alpha = "" if printed["alpha"] == "N/A" else f" alpha={printed['alpha']}"
    return NormRow(
        label=f"d={printed['d']} {printed['distribution']}{alpha}",
        cells=tuple(cells),
        residual=residual,
    )


def draw(printed: dict[str, str], count: int, d: int, source: torch.Generator) -> Tensor:
    """The given number of d × d matrices of a row's law; α zeroes some positions."""
    if printed["distribution"].startswith("uniform"):
        return (torch.rand(count, d, d, generator=source) * 2 - 1) * math.sqrt(3 / d)
    batch = torch.randn(count, d, d, generator=source) / math.sqrt(d)
    if printed["alpha"] == "N/A":
        return batch
    # With replacement, as the paper says: some positions are drawn twice and fewer are zero.
    gone = torch.randint(d * d, (count, int(d ** (2 - float(printed["alpha"])))), generator=source)
    return batch.view(count, -1).scatter_(1, gone, 0.0).view(count, d, d)


# Rows of Table 2: quantiles of the norms of drawn matrices.

LEVELS = (0.95, 0.99, 0.999, 0.9999)


def norm_rows(task: NormTask) -> list[NormRow]:
    """The rows of a task of Table 2."""
    rows, columns = (int(text) for text in size_of(task.rows[0]))
    source = task.source(2)
    norms, residual = norms_of(
        (torch.rand(n, rows, columns, generator=source) * 2 - 1) / math.sqrt(max(rows, columns))
        for n in sizes(task.matrices, rows * columns)
    )
    scales = {"1": 1.0, "sqrt3": math.sqrt(3.0)}
    return [_norm_row(printed, norms * scales[printed["K"]], residual) for printed in task.rows]


def _norm_row(printed: dict[str, str], norms: Values, residual: float) -> NormRow:
    rows, columns = int(printed["n1"]), int(printed["n2"])
    spread = norms.std(ddof=1)
    cells = [
        Cell(
            name="mean_norm",
            measured=norms.mean(),
            error=spread / math.sqrt(len(norms)),
            printed=printed_at(printed, "mean_norm"),
        ),
        Cell(
            name="std_norm",
            measured=spread,
            # The standard error of a standard deviation, as for normal values.
            error=spread / math.sqrt(2 * len(norms)),
            printed=printed_at(printed, "std_norm"),
        ),
    ]
    for level in LEVELS:
        tag = f"{level:.4f}".rstrip("0").removeprefix("0.")
        value, error = quantile(norms, level)
        delta0 = measured_delta0(max(rows, columns), level=level)
        cells.append(
            Cell(
                name=f"c0_{tag}",
                measured=value,
                error=error,
                printed=printed_at(printed, f"c0_{tag}"),
            )
        )
        cells.append(
            Cell(
                name=f"delta0_{tag}",
                measured=delta0,
                error=0.0,
                printed=printed_at(printed, f"delta0_{tag}"),
            )
        )
    return NormRow(
        label=f"{rows}x{columns} K={printed['K']}",
        cells=tuple(cells),
        residual=residual,
    )


def quantile(values: Values, level: float) -> tuple[float, float]:
    """The empirical quantile and its standard error: bootstrap, and for extremes at least that of a
    Gumbel maximum.

    (The bootstrap of a maximum is degenerate: it mostly draws the maximum again.)
    """
    # A fixed seed, so that the error of a figure is the same every time.
    draws = np.random.default_rng(0).integers(len(values), size=(200, len(values)))
    spread = float(np.quantile(values[draws], level, axis=1, method="higher").std())
    # The deviation of a Gumbel maximum of n values: π/√6 · σ/√(2 ln n).
    if len(values) * (1 - level) < 2:
        spread = max(
            spread,
            float(values.std(ddof=1)) * math.pi / math.sqrt(12 * math.log(len(values))),
        )
    return float(np.quantile(values, level, method="higher")), spread


# The numerical studies of Qian & Klabjan (2021), appendix D: Tables 1–3 and the histograms, beside
# the printed ones.
#
# Every matrix of a row comes from its own generator, named by the row, so the numbers do not depend
# on the number of processes. Norms are those of `theory.spectral_norms` at relative residual 2e-4;
# the largest residual is reported. Rows that differ by a factor only (K = 1 and √3, variance 1/d
# and 3/d) share their matrices: norms are homogeneous.


def norm_constants(*, matrices: int = 1_000, workers: int = 1) -> list[NormRow]:
    """Table 2: quantiles of ‖B‖₂ for n1×n2 matrices uniform on ±K/√n; δ0 follows from the level
    alone.

    1,000 matrices cannot show a 99.99 % quantile: in the paper it is the largest norm seen, and so
    it is here.
    """
    _check(matrices, workers)
    tasks = [NormTask(rows=rows, matrices=matrices) for rows in _groups(2, size_of)]
    return _spread(norm_rows, tasks, workers)


def latala_constants(*, matrices: int = 500, workers: int = 1) -> list[NormRow]:
    """Table 3: the smallest C of Lemma 4 that fits, with the moments estimated from the matrices as
    in the paper.

    (Estimated row sums, then their maximum: the terms come out above their true values 1, 1 and so
    on. The rows with α zero ⌊d^{2−α}⌋ positions drawn with replacement and keep the rest: the paper
    says this is the situation of eq. (19), which is about the removed part. Both are in
    docs/errata.md.)
    """
    _check(matrices, workers)
    tasks = [NormTask(rows=rows, matrices=matrices) for rows in _groups(3, law_of)]
    return _spread(latala_rows, tasks, workers)


def reference(table: Literal[1, 2, 3]) -> list[dict[str, str]]:
    """The printed table, as text by column."""
    return printed_rows(f"probabilistic_table{table}.csv")


def _groups(
    table: Literal[2, 3], key: Callable[[dict[str, str]], tuple[str, ...]]
) -> list[tuple[dict[str, str], ...]]:
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in reference(table):
        groups.setdefault(key(row), []).append(row)
    return [tuple(rows) for rows in groups.values()]


def _spread(
    work: Callable[[NormTask], list[NormRow]], tasks: Sequence[NormTask], workers: int
) -> list[NormRow]:
    """The rows in the paper's order; expensive tasks first when processes share the work, so that
    none waits at the end.
    """
    order = sorted(tasks, key=lambda task: -task.cost)
    if workers == 1:
        done = [work(task) for task in order]
    else:
        with ProcessPoolExecutor(
            # Spawned, because a forked process inherits locks of torch's threads; one
            # thread each, because the processes share the cores.
            workers,
            get_context("spawn"),
            torch.set_num_threads,
            (1,),
        ) as pool:
            done = list(pool.map(work, order))
    # Back into the paper's order: the tasks were sorted by cost.
    places = [
        reference(2 if "n1" in tasks[0].rows[0] else 3).index(row)
        for task in order
        for row in task.rows
    ]
    rows = [row for rows in done for row in rows]
    return [row for _, row in sorted(zip(places, rows, strict=True), key=lambda pair: pair[0])]


def _check(matrices: int, workers: int) -> None:
    if matrices < 2 or workers < 1:
        raise ArgumentError(
            f"matrices = {matrices} and workers = {workers}: give at least two matrices and one "
            "process."
        )


# Table 1 and the histograms of Qian & Klabjan (2021): how the weights of trained networks are
# distributed.

Start: TypeAlias = Literal["glorot", "torch"]


def data_at_hand(root: Path | None = None) -> tuple[Dataset, str]:
    """Covertype, as in the paper, else Fashion-MNIST, else the digits; and why that one."""
    reasons: list[str] = []
    for name in ("covertype", "fashion-mnist"):
        try:
            return load(name, root=root), " ".join(reasons) or "the paper's own"
        except DataError as error:
            reasons.append(str(error))
    return load("digits"), " ".join(reasons)


def train_network(
    *,
    data: "str | Dataset" = "fashion-mnist",
    width: int = 1_024,
    epochs: int = 20,
    batch: int = 512,
    seed: int = 0,
) -> nn.Sequential:
    """The network of appendix D.1 on the available data: five hidden layers, ReLU, Adam at 0.001
    (there: Covertype).
    """
    dataset = load(data) if isinstance(data, str) else data
    model = network(dataset, width=width, seed=seed, start="glorot")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    order = random.generator(seed, "table1/order")
    fit_(
        model,
        dataset,
        optimizer=optimizer,
        length=f"{epochs}ep",
        batch=batch,
        generator=order,
        verbose=False,
    )
    return model


def network(dataset: Dataset, *, width: int, seed: int, start: Start) -> nn.Sequential:
    """Five hidden layers, untrained.

    start: "glorot" draws uniformly on ±√(6/(fan-in + fan-out)) with biases 0, as the text suggests
    (variance 1/1024 in the inner layers; its "3/1024" is the square of the bound); "torch" is
    PyTorch's own rule.
    """
    widths = [dataset.train_x[0].numel(), *[width] * 5, dataset.classes]
    # nn.Linear draws from torch's own generator, which is the user's.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
    if start == "glorot":
        draws = random.generator(seed, "table1/start")
        for layer in layers:
            _glorot_(layer, draws)
    hidden = [part for layer in layers[:-1] for part in (layer, nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, layers[-1])


@torch.no_grad()
def _glorot_(layer: nn.Linear, draws: torch.Generator) -> None:
    """Uniform with variance 2/(fan-in + fan-out) (Glorot & Bengio 2010)."""
    bound = math.sqrt(6 / (layer.in_features + layer.out_features))
    layer.weight.uniform_(-bound, bound, generator=draws)
    layer.bias.zero_()


# The tables of Qian & Klabjan (2021) as experiments.

MATRICES = {"smoke": (100, 50), "cpu": (1_000, 500), "full": (1_000, 500)}
"""Matrices per row of tables 2 and 3; the paper's are 1,000 and 500."""


def norm_jobs(scale: Scale) -> list[Measurement]:
    """Tables 2 and 3, seconds each."""
    second, third = MATRICES[scale]
    return [
        Measurement(name=f"table 2, {second} matrices", work=partial(_cells, 2, second)),
        Measurement(name=f"table 3, {third} matrices", work=partial(_cells, 3, third)),
    ]


def _cells(table: int, matrices: int) -> Iterator[dict[str, object]]:
    found = (norm_constants if table == 2 else latala_constants)(matrices=matrices)
    for row in found:
        for cell in row.cells:
            numbers = {
                "measured": float(cell.measured),
                "mc_error": float(cell.error),
                "printed": cell.printed,
            }
            yield {
                "table": table,
                "row": row.label,
                "quantity": cell.name,
                **numbers,
                "z": float(cell.z),
            }


def compare_norms(rows: Sequence[Row]) -> list[Comparison]:
    """Every number, its deviation in standard errors in the note."""
    return [
        Comparison(
            what=f"table {row['table']}, {row['row']}, {row['quantity']}",
            ours=(float(row["measured"]),),
            printed=float(row["printed"]),
            note=f"{float(row['z']):+.1f} standard errors",
        )
        for row in rows
    ]


def moment_jobs(scale: Scale) -> list[Measurement]:
    """Table 1: networks from Glorot's start and from PyTorch's, on the data that is there."""
    if scale == "smoke":
        return [
            Measurement(
                name="digits, width 128, 3 epochs, glorot, seed 0",
                work=partial(_moments, "digits", 128, 3, 0),
            )
        ]
    # At full scale nothing may replace the paper's data.
    data = "covertype" if scale == "full" else data_at_hand()[0].name
    epochs = 20 if data == "covertype" else 10
    return [
        Measurement(
            name=f"{data}, width 1024, {epochs} epochs, glorot, seed {seed}",
            work=partial(_moments, data, 1_024, epochs, seed),
        )
        for seed in (0, 1, 2)
    ]


def _moments(data: str, width: int, epochs: int, seed: int) -> Iterator[dict[str, object]]:
    """Moments per layer before and after training, and the histogram of figure 1 as counts."""
    try:
        dataset = load(data)
    except DataError as error:
        raise DataError(f"table 1 needs Covertype, the paper's data: {error}") from None
    # With the seed of the training below: its own initial weights.
    before = diagnose(network(dataset, width=width, seed=seed, start="glorot")).layers
    model = train_network(data=dataset, width=width, epochs=epochs, seed=seed)
    accuracy = 100 * evaluate(model, dataset).accuracy
    after = diagnose(model).layers
    for number, (old, layer) in enumerate(zip(before, after, strict=True), start=1):
        figures = {
            "start_variance": old.variance,
            "mean": layer.mean,
            "variance": layer.variance,
            "accuracy": accuracy,
        }
        # In one cell, since all rows of a file have the same columns.
        counts = " ".join(str(int(count)) for count in layer.counts)
        yield {
            "data": data,
            "width": width,
            "epochs": epochs,
            "seed": seed,
            "layer": number,
            **figures,
            "low": layer.edges[0],
            "high": layer.edges[-1],
            "counts": counts,
        }


def compare_moments(rows: Sequence[Row]) -> list[Comparison]:
    """Means and variances per layer over the seeds; the printed ones are for Covertype."""
    printed = {line["layer"]: line for line in reference(1)}
    found = []
    for layer in dict.fromkeys(row["layer"] for row in rows):
        for quantity in ("mean", "variance"):
            ours = tuple(float(row[quantity]) for row in rows if row["layer"] == layer)
            what = f"layer {layer}: {quantity} of the trained weights"
            found.append(Comparison(what=what, ours=ours, printed=float(printed[layer][quantity])))
    return found


publish(
    Experiment(
        name="probabilistic-norms",
        paper="Qian & Klabjan 2021",
        what="tables 2, 3: the constants of Lemmas 3 and 4",
        jobs=norm_jobs,
        compare=compare_norms,
        settings={
            "smoke": "100 and 50 matrices a row",
            "cpu": "as in the paper: 1,000 and 500 matrices a row",
            "full": "as in the paper: 1,000 and 500 matrices a row",
        },
    )
)
publish(
    Experiment(
        name="probabilistic-moments",
        paper="Qian & Klabjan 2021",
        what="table 1, figure 1: moments and histograms of trained weights, from Glorot's start",
        jobs=moment_jobs,
        compare=compare_moments,
        settings={
            "smoke": "width 128, digits, 3 epochs",
            "cpu": "width 1,024, Covertype 20 epochs if it is there, else Fashion-MNIST 10 epochs",
            "full": "width 1,024, Covertype, 20 epochs, Adam at 0.001, batch 512",
        },
    )
)


# Figure 2 of Qian & Klabjan (2021): the weights of a VGG-16, layer by layer.
#
# The paper's network is torchvision's, trained on ImageNet. If its weights are in the data folder
# as `vgg16.safetensors`, `full` reads them; `cpu` briefly trains the VGG-16 for 32×32 images.

WEIGHTS = "vgg16.safetensors"
SIDE = 32
"""The least that five halvings leave a pixel of."""


def jobs(scale: Scale) -> list[Measurement]:
    """One network, and at "cpu" the same before its training."""
    if scale == "full":
        return [Measurement(name=f"{WEIGHTS}, as published", work=_published)]
    images, epochs = (64, 1) if scale == "smoke" else (4_096, 5)
    return [
        Measurement(
            name=f"vgg-16, {images} images of fashion-mnist, {length} epochs, seed 0",
            work=partial(_train_and_measure, images, length),
        )
        for length in (0, epochs)
    ]


def _published() -> Iterator[dict[str, object]]:
    from safetensors.torch import load_file

    path = home() / WEIGHTS
    if not path.exists():
        raise DataError(
            f"figure 2 shows torchvision's VGG-16, and {path} is not there. Save its weights:"
            " safetensors.torch.save_file(vgg16(weights='IMAGENET1K_V1').state_dict(), path)."
        )
    return rows_of("vgg-16, ImageNet", load_file(path))


def _train_and_measure(images: int, epochs: int) -> Iterator[dict[str, object]]:
    dataset = padded(data.load("fashion-mnist").first(images, images)).to(chosen_device())
    model = models.build(
        "vgg-16",
        in_channels=dataset.in_channels,
        classes=dataset.classes,
        size=SIDE,
        generator=random.generator(0, "vgg/start"),
    ).to(chosen_device())
    if epochs:
        fit_(
            model,
            dataset,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
            length=f"{epochs}ep",
            batch=64,
            schedule=cosine(),
            generator=random.generator(0, "vgg/order"),
            verbose=False,
        )
    yield from rows_of(f"vgg-16, {epochs} epochs", model)


def padded(dataset: Dataset) -> Dataset:
    """Images of 32×32 pixels: smaller ones get a black border."""
    left = (SIDE - dataset.size) // 2
    right = SIDE - dataset.size - left
    train_x, test_x = (
        F.pad(x, (left, right, left, right)) for x in (dataset.train_x, dataset.test_x)
    )
    return replace(dataset, train_x=train_x, test_x=test_x)


def rows_of(
    network: str, weights: "nn.Module | Mapping[str, Tensor]"
) -> Iterator[dict[str, object]]:
    """One row per layer: moments, the distance to the normal law, and the histogram."""
    found = (x for x in diagnose(weights).layers if x.kind in ("linear", "convolution"))
    for number, layer in enumerate(found, start=1):
        yield {"network": network, "layer": number, **_row(layer)}


def _row(layer: LayerDiagnosis) -> dict[str, object]:
    return {
        "name": layer.name,
        "kind": layer.kind,
        "mean": layer.mean,
        "variance": layer.variance,
        "kurtosis": layer.kurtosis,
        "ks_normal": layer.ks_normal,
        "low": layer.edges[0],
        "high": layer.edges[-1],
        # In one cell, since all rows of a file have the same columns.
        "counts": " ".join(map(str, layer.counts)),
    }


def compare(rows: Sequence[Row]) -> list[Comparison]:
    """The paper calls the internal layers "approximately Gaussian": the distance says how close."""
    return [
        Comparison(
            what=f"{row['network']}, layer {row['layer']} ({row['kind']}):"
            " distance to the normal law",
            ours=(float(row["ks_normal"]),),
            note="close" if float(row["ks_normal"]) <= CLOSE else "",
        )
        for row in rows
    ]


publish(
    Experiment(
        name="probabilistic-vgg",
        paper="Qian & Klabjan 2021",
        what="figure 2: histograms of the weights of a VGG-16",
        jobs=jobs,
        compare=compare,
        settings={
            "smoke": "64 images of Fashion-MNIST, before and after one epoch",
            "cpu": "4,096 images of Fashion-MNIST, before and after five epochs",
            "full": f"torchvision's weights, in the data folder as {WEIGHTS}",
        },
    )
)
