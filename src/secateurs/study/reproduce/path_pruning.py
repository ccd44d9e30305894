"""Magnitude against Φ-pruning: mask overlap (table 1), prune, rewind, retrain with random rescaling
(table 2), scatter.

`PAPER` holds the published settings (ResNet-18 on ImageNet); the default `PathSettings` are a small
residual network on
the digits, minutes on a CPU. The rows carry the paper's figures beside ours.
Reference: Gonon et al. 2024, "Path-metrics, pruning, and generalization", Section 4, tables 1 and
2, Appendix D.
"""

import csv
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from importlib.resources import files

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateurs.data import Dataset, load
from secateurs.masks import apply_, select
from secateurs.optim import hold
from secateurs.paths import rescale_random_
from secateurs.prune.checked.invariance import overlap
from secateurs.random import generator
from secateurs.scores import score
from secateurs.train import evaluate, fit

METHODS = {
    "magnitude-layerwise": ("magnitude", "layer"),
    "path-layerwise": ("path", "layer"),
    "path-global": ("path", "global"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSettings:
    """One study, whole. Layerwise methods prune p % of each convolution and p/2 % of the last
    linear layer.
    """

    data: str = "digits"
    width: int = 8
    epochs: int = 20
    rewind: int = 2
    batch: int = 64
    rate: float = 0.1
    momentum: float = 0.9
    decay: float = 1e-4
    percents: tuple[int, ...] = (10, 20, 40, 60, 80)
    factors: tuple[float, ...] = (1, 128, 4096)
    seed: int = 0


PAPER = PathSettings(
    data="imagenet",
    width=64,
    epochs=90,
    rewind=5,
    batch=1024,
    rate=0.1,
    momentum=0.9,
    decay=1e-4,
    seed=0,
)
"""The published settings. ImageNet is not among our data sets; they are here to be read and
compared.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """One cell of table 1: the share of pruned weights that both methods prune, ours and the
    paper's, in percent.
    """

    pair: str
    percent: int
    overlap: float
    paper: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrained:
    """One cell of table 2: test accuracy after prune, rewind, retrain, in percent; the paper's is
    ImageNet top-1.

    same_mask: the mask is the one found without rescaling, entry by entry.
    """

    method: str
    percent: int
    rescaled: bool
    accuracy: float
    same_mask: bool
    paper: float


class Block(nn.Module):
    """Two convolutions with batch norm and a skip connection."""

    def __init__(self, inp: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inp, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.skip = (
            nn.Conv2d(inp, out, 1, stride, bias=False)
            if (inp, stride) != (out, 1)
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        """ReLU(skip + body)."""
        out: Tensor = F.relu(self.skip(x) + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return out


class SmallResNet(nn.Module):
    """A stem and three residual blocks; average pool; one linear layer."""

    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(
            Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2)
        )
        self.fc = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        out: Tensor = self.fc(self.blocks(F.relu(self.bn(self.stem(x)))).mean((2, 3)))
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A trained network, its weights at the rewinding point, its data."""

    model: nn.Module
    rewind: nn.Module
    data: Dataset
    accuracy: float


def train(settings: PathSettings = PathSettings()) -> Trained:
    """Train the dense network, keeping the weights of the rewinding epoch."""
    data = load(settings.data)
    torch_seed = generator(settings.seed, "paths/initialise")
    model = SmallResNet(data.train_x.shape[1], data.classes, settings.width)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                fan = parameter[0].numel()
                parameter.copy_(
                    torch.randn(parameter.shape, generator=torch_seed) * (2 / fan) ** 0.5
                )
        model.fc.bias.zero_()
    _fit(model, data, settings, settings.rewind, {})
    rewind = deepcopy(model)
    _fit(model, data, settings, settings.epochs - settings.rewind, {})
    return Trained(model=model, rewind=rewind, data=data, accuracy=100 * _accuracy(model, data))


def mask_overlaps(trained: Trained, settings: PathSettings = PathSettings()) -> list[Overlap]:
    """Table 1: how much magnitude and Φ agree on what to prune."""
    rows = []
    for line in _reference("path_pruning_table1.csv"):
        other = "path-global" if line["pair"].endswith("global") else "path-layerwise"
        percent = int(line["pruning_percent"])
        if percent in settings.percents:
            masks = [
                _masks(trained.model, trained.data, name, percent)
                for name in ("magnitude-layerwise", other)
            ]
            share = 100 * overlap(masks[0], masks[1])
            paper = float(line["mask_overlap_percent"])
            rows.append(Overlap(pair=line["pair"], percent=percent, overlap=share, paper=paper))
    return rows


def retrainings(trained: Trained, settings: PathSettings = PathSettings()) -> Iterator[Retrained]:
    """Table 2: prune the trained net, as it is and randomly rescaled, rewind, retrain; cell by
    cell.
    """
    moved = deepcopy(trained.model)
    draws = generator(settings.seed, "paths/rescale")
    rescale_random_(
        moved.eval(), trained.data.train_x[:1], factors=settings.factors, generator=draws
    )
    for method in METHODS:
        for percent in settings.percents:
            plain = _masks(trained.model, trained.data, method, percent)
            for rescaled in (False, True):
                masks = _masks(moved, trained.data, method, percent) if rescaled else plain
                yield Retrained(
                    method=method,
                    percent=percent,
                    rescaled=rescaled,
                    accuracy=_retrained(trained, masks, settings),
                    same_mask=all(bool((masks[name] == plain[name]).all()) for name in masks),
                    paper=_printed(method, percent, rescaled),
                )


def scatter(trained: Trained) -> dict[str, tuple[Tensor, Tensor]]:
    """|w| and Φ-cost of every weight of every layer: the data of the paper's scatter plots."""
    example = trained.data.train_x[:1]
    magnitude = score(trained.model, "magnitude")
    path = score(trained.model, "path", example=example)
    return {name: (magnitude[name].flatten(), path[name].flatten()) for name in magnitude}


def _masks(model: nn.Module, data: Dataset, method: str, percent: int) -> dict[str, Tensor]:
    """Masks of one method on the trained weights."""
    rule, scope = METHODS[method]
    scores = score(model.eval(), rule, example=data.train_x[:1])
    if scope == "global":
        return select(scores, sparsity=percent / 100)
    last = list(scores)[-1]
    shares = {name: 1 - percent / (200 if name == last else 100) for name in scores}
    return {name: select({name: scores[name]}, density=shares[name])[name] for name in scores}


def _retrained(trained: Trained, masks: dict[str, Tensor], settings: PathSettings) -> float:
    model = deepcopy(trained.rewind)
    apply_(model, masks)
    _fit(model, trained.data, settings, settings.epochs - settings.rewind, masks)
    return 100 * _accuracy(model, trained.data)


def _fit(
    model: nn.Module, data: Dataset, settings: PathSettings, epochs: int, masks: dict[str, Tensor]
) -> None:
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=settings.rate,
        momentum=settings.momentum,
        weight_decay=settings.decay,
    )
    held = hold(model, masks, optimizer) if masks else None
    order = generator(settings.seed, "paths/order")
    model.train()
    fit(
        model,
        data,
        optimizer=optimizer,
        length=f"{epochs}ep",
        batch=settings.batch,
        generator=order,
        evaluate_every=0,
        verbose=False,
    )
    if held is not None:
        held.release()


def _accuracy(model: nn.Module, data: Dataset) -> float:
    return float(evaluate(model.eval(), data).accuracy)


def _printed(method: str, percent: int, rescaled: bool) -> float:
    """The paper's accuracy; Φ-masks have one figure for both."""
    answers = {"yes", "either"} if rescaled else {"no", "either"}
    for line in _reference("path_pruning_table2.csv"):
        at = line["method"] == method and int(line["pruning_percent"]) == percent
        if at and line["random_rescale"] in answers:
            return float(line["imagenet_top1_percent"])
    return float("nan")


def _reference(name: str) -> list[dict[str, str]]:
    text = files("secateurs.study").joinpath(f"reference/{name}").read_text()
    return list(csv.DictReader(text.splitlines()))
