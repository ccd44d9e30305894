"""Table 1 and the histograms of Qian & Klabjan (2021): how the weights of trained networks are
distributed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from secateurs import random
from secateurs.data import Dataset, load
from secateurs.diagnosis import Diagnosis, diagnose
from secateurs.errors import DataError
from secateurs.study.reproduce.probabilistic.tables import reference
from secateurs.train import fit_

Start: TypeAlias = Literal["glorot", "torch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentRow:
    """A row of Table 1: a layer's moments beside the printed ones (of another network: no error is
    due).
    """

    layer: str
    mean: float
    variance: float
    printed_mean: float | None
    printed_variance: float | None


def weight_moments(
    model: "nn.Module | Mapping[str, Tensor]",
) -> tuple[list[MomentRow], Diagnosis]:
    """Table 1 and both histograms for any network: moments per layer, and the diagnosis with
    histogram data.
    """
    found = diagnose(model)
    # Print's network has six layers; what has another number stands alone.
    printed = reference(1) if len(found.layers) == 6 else []
    rows = []
    for index, layer in enumerate(found.layers):
        beside = printed[index] if printed else None
        rows.append(
            MomentRow(
                layer=layer.name,
                mean=layer.mean,
                variance=layer.variance,
                printed_mean=None if beside is None else float(beside["mean"]),
                printed_variance=None
                if beside is None
                else float(beside["variance"]),
            )
        )
    return rows, found


def data_at_hand(
    root: Path | None = None, *, download: bool = False
) -> tuple[Dataset, str]:
    """Covertype, on which print trained, else Fashion-MNIST, else the digits; and why that one."""
    reasons: list[str] = []
    for name in ("covertype", "fashion-mnist"):
        try:
            return load(name, root=root, download=download), " ".join(
                reasons
            ) or "print's own"
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
    start: Start = "glorot",
) -> nn.Sequential:
    """The network of appendix D.1 on data at hand: five hidden layers, ReLU, Adam at 0.001 (there:
    Covertype).

    start: "glorot" draws uniformly on ±√(6/(fan-in + fan-out)) with biases 0, as the text suggests
    (variance 1/1024 in the inner layers; its "3/1024" is the square of the bound); "torch" is
    PyTorch's own rule.
    """
    dataset = load(data) if isinstance(data, str) else data
    model = network(dataset, width=width, seed=seed, start=start)
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


def network(
    dataset: Dataset, *, width: int, seed: int, start: Start
) -> nn.Sequential:
    """Five hidden layers, untrained."""
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
