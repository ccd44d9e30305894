"""What a method of the demo gets, what it gives back, and what is reported."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from rich.console import RenderableType
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.data import Dataset
from secateurs.random import generator
from secateurs.train import cosine, fit_


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long everything takes. The defaults take 80 s of one core."""

    sparsities: tuple[float, ...] = (0.9, 0.95, 0.98)
    dense: str = "1500it"
    tuning: str = "300it"
    batch: int = 256
    rate: float = 0.1
    tuning_rate: float = 0.03
    factor_rate: float = 0.5
    strength: float = 5e-4
    rounds: int = 100
    balls: int = 8
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The data, the trained dense network (to be copied, not changed), and the settings."""

    data: Dataset
    dense: nn.Module
    dense_accuracy: float
    settings: Settings

    @property
    def batch(self) -> tuple[Tensor, Tensor]:
        """The examples that scores look at."""
        return self.data.train_x[: self.settings.batch], self.data.train_y[
            : self.settings.batch
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A network and the masks it is to have; `tune` says whether fine-tuning follows."""

    model: nn.Module
    masks: dict[str, Tensor]
    tune: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of results. Accuracies are shares of the test set; `before` is the one before
    fine-tuning.
    """

    method: str
    asked_sparsity: float
    sparsity: float
    compression: float
    before: float
    accuracy: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All results, and the network that is written: the sparsest within a point of the dense one,
    if there is any.
    """

    bench: Bench
    rows: tuple[Row, ...]
    best: Row
    candidate: Candidate


Method: TypeAlias = Callable[[Bench, float], Candidate]
"""`(bench, sparsity) -> candidate`."""

Section: TypeAlias = Callable[[Outcome], RenderableType]
"""Something to show below the table."""


def train(
    model: nn.Module,
    data: Dataset,
    optimizer: Optimizer,
    *,
    length: str,
    settings: Settings,
) -> None:
    """Train with batches in the order of the seed and a cosine from the optimizer's own rate."""
    fit_(
        model,
        data,
        optimizer=optimizer,
        length=length,
        batch=settings.batch,
        schedule=cosine(),
        generator=generator(settings.seed, "batches"),
        evaluate_every=0,
        verbose=False,
    )
