"""Deep weight factorization: one training and its row.

Equal settings give equal rows, so a table that grows row by row can be resumed.
Reference: Kolb et al. 2025, table 1, table 2 and table 4 (LeNet-300-100 and LeNet-5: 75 epochs,
batch 256, rate 0.15).
"""

import math
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor, nn

from secateurs.data import Dataset
from secateurs.errors import TrainingError
from secateurs.optim.factorized.cutting.gap import gap
from secateurs.optim.factorized.factors.maths import EPS
from secateurs.study.reproduce.factorization.factorized import factorized
from secateurs.study.reproduce.factorization.pruned import (
    accuracy_of,
    compression_of,
    trained,
    tuned_accuracy,
)
from secateurs.study.reproduce.factorization.settings import (
    FactorizationRow,
    FactorizationSettings,
)
from secateurs.study.reproduce.factorization.training import loaded


def run(settings: FactorizationSettings) -> FactorizationRow:
    """Train one settings value. Where the loss diverges, the figures are NaN."""
    # Reading the data counts as well: it is part of what a row costs.
    start, dataset = perf_counter(), loaded(settings)
    work = _factorized if settings.method == "dwf" else _other
    try:
        row = work(settings, dataset)
    except TrainingError:
        # That a rate is too large is a result, and the jobs after it go on.
        row = _diverged(settings)
    return replace(row, seconds=perf_counter() - start)


def _diverged(settings: FactorizationSettings) -> FactorizationRow:
    return FactorizationRow(
        settings=settings,
        compression=math.nan,
        accuracy=math.nan,
        gap_compression=math.nan,
        gap_accuracy=math.nan,
        tuned_accuracy=math.nan,
        seconds=0.0,
    )


def survivors(settings: FactorizationSettings) -> tuple[list[Tensor], Dataset]:
    """The parameters that factorized training leaves, cut at the gap, and the images they were
    trained on.
    """
    dataset = loaded(settings)
    model, weights = factorized(settings, dataset)
    write_(model, weights, gap(weights))
    # Whoever goes on with them works on a handful of weights, where a GPU only waits.
    return [p.detach().cpu() for p in model.parameters()], dataset.to("cpu")


@torch.no_grad()
def write_(model: nn.Module, weights: list[Tensor], limit: float) -> None:
    """Write the weights into the model, those below the limit as zeros."""
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        parameter.copy_(torch.where(weight.abs() < limit, 0.0, weight))


def _factorized(
    settings: FactorizationSettings, dataset: Dataset
) -> FactorizationRow:
    model, weights = factorized(settings, dataset)
    found = []
    # The gap comes last: the model that it leaves is the one that is tuned below.
    for limit in (EPS, gap(weights)):
        write_(model, weights, limit)
        found.append((compression_of(model), accuracy_of(model, dataset)))
    return FactorizationRow(
        settings=settings,
        compression=found[0][0],
        accuracy=found[0][1],
        gap_compression=found[1][0],
        gap_accuracy=found[1][1],
        tuned_accuracy=tuned_accuracy(model, settings, dataset),
        seconds=0.0,
    )


def _other(settings: FactorizationSettings, dataset: Dataset) -> FactorizationRow:
    """Dense, plain L1 or pruned."""
    model = trained(settings, dataset)
    return FactorizationRow(
        settings=settings,
        compression=compression_of(model),
        accuracy=accuracy_of(model, dataset),
        gap_compression=math.nan,
        gap_accuracy=math.nan,
        tuned_accuracy=tuned_accuracy(model, settings, dataset),
        seconds=0.0,
    )
