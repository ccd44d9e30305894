"""The protocol of the paths paper: train, prune, rewind, retrain; with and without random rescaling
before pruning.

Multi-step rate, the epoch with the best validation accuracy counts as the last, layerwise and
global methods prune equally many weights, and channels are rescaled between the two convolutions of
a block.
Reference: Gonon et al. 2024, "Path-metrics, pruning, and generalization", Section 4 and Appendix D.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from secateurs import data as sets
from secateurs.data import Dataset
from secateurs.masks import apply_, select
from secateurs.models.initialise import initialise_
from secateurs.models.resnet import ResNet
from secateurs.optim import hold
from secateurs.random import generator
from secateurs.scores import score
from secateurs.study.reproduce.path_pruning.settings import METHODS, PathSettings
from secateurs.study.reproduce.place import place
from secateurs.train import Moment, evaluate, every, fit_, step_decay


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A data set whose last training images are held out to choose an epoch."""

    train: Dataset
    validation: Dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One epoch of a training, accuracies in percent."""

    epoch: int
    test: float
    validation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The network at its best validation epoch, the one to rewind to, its data, and how it went."""

    model: nn.Module
    rewind: nn.Module
    split: Split
    curves: tuple[Curve, ...]

    @property
    def best(self) -> Curve:
        """The epoch that counts: the first with the largest validation accuracy."""
        return best(self.curves)


def best(curves: Sequence[Curve]) -> Curve:
    """The first epoch with the largest validation accuracy."""
    # Of equals max keeps the first, which is the tie rule here.
    return max(curves, key=lambda curve: curve.validation)


def train(settings: PathSettings) -> Trained:
    """Train the dense network; remember it after `rewind` epochs."""
    split = halves(settings)
    channels, classes = split.train.in_channels, split.train.classes
    model = ResNet([*settings.stages], channels, classes)
    initialise_(model, generator=generator(settings.seed, "paths/initialise"))
    model.to(place())
    _fit(model, split, settings, 0, settings.rewind, {})
    rewind = deepcopy(model)
    curves = _fit(model, split, settings, settings.rewind, settings.epochs, {})
    return Trained(model=model, rewind=rewind, split=split, curves=curves)


def halves(settings: PathSettings) -> Split:
    """The training images that are learned from, and those held out."""
    whole = sets.load(settings.data).to(place())
    count = min(settings.examples or len(whole.train_y), len(whole.train_y))
    # At least one image has to choose the epoch.
    cut = count - max(1, round(settings.validation * count))
    learned = whole.first(cut, settings.tested or len(whole.test_y))
    held_out = replace(
        learned, test_x=whole.train_x[cut:count], test_y=whole.train_y[cut:count]
    )
    return Split(train=learned, validation=held_out)


def masks_of(
    model: nn.Module, example: Tensor, method: str, percent: int
) -> dict[str, Tensor]:
    """The masks of one method: equally many zeros, layer by layer or where the scores say."""
    rule, scope = METHODS[method]
    scores = score(model.eval(), rule, example=example)
    counts = _kept(scores, percent)
    if scope == "global":
        total = sum(value.numel() for value in scores.values())
        # As many in all as layer by layer: methods differ
        # in where they prune, not in how much.
        return select(scores, density=sum(counts.values()) / total, floor=0)
    return select(
        scores, scope={n: counts[n] / scores[n].numel() for n in scores}, floor=0
    )


def retrain(
    trained: Trained, masks: Mapping[str, Tensor], settings: PathSettings
) -> tuple[Curve, ...]:
    """Apply the masks to the rewound network and train the remaining epochs."""
    model = deepcopy(trained.rewind)
    apply_(model, masks)
    return _fit(
        model, trained.split, settings, settings.rewind, settings.epochs, masks
    )


def _kept(scores: Mapping[str, Tensor], percent: int) -> dict[str, int]:
    """How many entries each layer keeps: the last linear layer loses half the share of the
    convolutions.
    """
    last = list(scores)[-1]
    shares = {name: percent / (200 if name == last else 100) for name in scores}
    return {
        name: value.numel() - int(shares[name] * value.numel())
        for name, value in scores.items()
    }


def _fit(
    model: nn.Module,
    split: Split,
    settings: PathSettings,
    first: int,
    last: int,
    masks: Mapping[str, Tensor],
) -> tuple[Curve, ...]:
    """Train epochs `first` to `last`; in the end the model is that of the best validation epoch
    among them.
    """
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=settings.rate,
        momentum=settings.momentum,
        weight_decay=settings.decay,
    )
    curves: list[Curve] = []
    kept: dict[str, Tensor] = {}

    def watch(moment: Moment) -> None:
        epoch = first + len(curves) + 1
        validation, test = (
            100 * evaluate(model, d).accuracy for d in (split.validation, split.train)
        )
        curves.append(Curve(epoch=epoch, test=test, validation=validation))
        if best(curves) is curves[-1]:
            kept.update(
                {name: value.clone() for name, value in model.state_dict().items()}
            )

    held = hold(model, masks, optimizer) if masks else None
    fit_(
        model,
        split.train,
        optimizer=optimizer,
        length=f"{last - first}ep",
        batch=settings.batch,
        schedule=step_decay(
            at=[f"{drop - first}ep" for drop in settings.drops if drop > first]
        ),
        callbacks=[every("1ep", watch)],
        augment=sets.augment if settings.augment else None,
        generator=generator(settings.seed, f"paths/order {first}"),
        evaluate_every=0,
        verbose=False,
    )
    if held is not None:
        held.release()
    if first:  # The network to rewind to is the last of its epochs, not the best.
        model.load_state_dict(kept)
    return tuple(curves)
