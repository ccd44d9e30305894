"""What factorization is compared with: dense nets, plain L1, pruning before and after training."""

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateurs.data import Dataset
from secateurs.masks import apply_, select
from secateurs.optim import hold, prune_and_tune_
from secateurs.prune import Recipe, prune_
from secateurs.random import generator
from secateurs.study.reproduce.factorization.factorized import at_least_one, chain_of
from secateurs.study.reproduce.factorization.narrow import Narrow
from secateurs.study.reproduce.factorization.settings import FactorizationSettings
from secateurs.study.reproduce.factorization.training import (
    built,
    columns,
    loaded,
    train_,
)
from secateurs.train import evaluate
from secateurs.train.evaluate import Loss

AT_START = ("snip", "synflow", "random")


def trained(settings: FactorizationSettings, dataset: Dataset) -> nn.Module:
    """The network of a method that is no factorization, before any fine-tuning."""
    if settings.method in ("dense", "gmp", "l1"):
        model = built(settings, dataset)
        model.load_state_dict(_whole(_without_cut(settings)))
    else:
        model = _trained_under_masks(settings, dataset)
    if settings.method == "gmp":
        apply_(model, by_magnitude(model, settings.prune_to))
    return model


def by_magnitude(model: nn.Module, compression: float) -> dict[str, Tensor]:
    """Masks of the largest weights and biases, over all layers."""
    sizes = {name: p.detach().abs() for name, p in model.named_parameters()}
    return select(sizes, compression=compression, floor=0)


def compression_of(model: nn.Module) -> float:
    """All parameters over those that are not zero."""
    kept = sum(int((p != 0).sum()) for p in model.parameters())
    return sum(p.numel() for p in model.parameters()) / max(1, kept)


def accuracy_of(model: nn.Module, dataset: Dataset) -> float:
    """Test accuracy in percent."""
    return 100 * evaluate(model, dataset).accuracy


def tuned_accuracy(
    model: nn.Module, settings: FactorizationSettings, dataset: Dataset
) -> float:
    """After Adam on the survivors, cosine to 0; NaN without such epochs.

    A fully connected net is cut to its live units first. The model may change.
    """
    if not settings.tune:
        return math.nan
    gentle = replace(
        settings, epochs=settings.tune, rate=settings.tune_rate, anneal=1.0
    )
    if settings.narrow:
        net, _ = _live(model, {})
        # Dead units get no gradient: without them the same training takes less time.
        model, dataset = chain_of(net), columns(dataset, net.index[0])
    prune_and_tune_(
        model, lambda adam: train_(model, adam, gentle, dataset), lr=gentle.rate
    )
    return accuracy_of(model, dataset)


def _without_cut(settings: FactorizationSettings) -> FactorizationSettings:
    """Every compression of "gmp" prunes the same dense net."""
    method = "l1" if settings.method == "l1" else "dense"
    return replace(settings, method=method, prune_to=1.0, tune=0)


# One is enough: the jobs that cut the same dense net follow each other.
@lru_cache(maxsize=1)
def _whole(settings: FactorizationSettings) -> dict[str, Tensor]:
    """The weights of a net that trained whole, with plain L1 or without."""
    dataset = loaded(settings)
    model = built(settings, dataset)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=settings.rate, momentum=settings.momentum
    )
    loss = (
        F.cross_entropy
        if settings.method == "dense"
        else _with_l1(model, settings.strength)
    )
    train_(model, optimizer, settings, dataset, loss)
    return {name: value.clone() for name, value in model.state_dict().items()}


def _with_l1(model: nn.Module, strength: float) -> Loss:
    """Mean loss + λ‖w‖₁ over all weights and biases, for gradient descent as it is."""
    parameters = list(model.parameters())

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        size = torch.stack([p.abs().sum() for p in parameters]).sum()
        return F.cross_entropy(outputs, labels) + strength * size

    return loss


def pruned_at_start(
    settings: FactorizationSettings, dataset: Dataset
) -> tuple[nn.Module, dict[str, Tensor]]:
    """The network before training and its masks, global and over all parameters.

    Biases are pruned, too, since dwf counts them; synflow takes 100 rounds.
    """
    model = built(settings, dataset)
    draw = generator(settings.seed, "masks")
    chosen = torch.randint(len(dataset.train_y), (1000,), generator=draw)
    recipe = Recipe(
        score=settings.method,
        compression=settings.prune_to,
        rounds=100 if settings.method == "synflow" else 1,
        where="*",
        floor=0,
    )
    masks = prune_(
        model,
        recipe,
        example=dataset.train_x[:1],
        batch=(dataset.train_x[chosen], dataset.train_y[chosen]),
        loss=F.cross_entropy,
        generator=draw,
    ).masks
    return model, dict(masks)


def _trained_under_masks(
    settings: FactorizationSettings, dataset: Dataset
) -> nn.Module:
    model, masks = pruned_at_start(settings, dataset)
    if not settings.narrow:
        _train_held_(model, masks, settings, dataset)
        return model
    net, live = _live(model, masks)
    _train_held_(chain_of(net), live, settings, columns(dataset, net.index[0]))
    # Weights of dead units stay as they began: they are kept, and count.
    net.write_(list(model.parameters()))
    return model


def _train_held_(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    settings: FactorizationSettings,
    dataset: Dataset,
) -> None:
    optimizer = torch.optim.SGD(
        model.parameters(), lr=settings.rate, momentum=settings.momentum
    )
    with hold(model, masks, optimizer):
        train_(model, optimizer, settings, dataset)


def _live(
    model: nn.Module, masks: Mapping[str, Tensor]
) -> tuple[Narrow, dict[str, Tensor]]:
    """The net without its dead units, and the masks of its chain."""
    # A copy, because the cut takes the layers apart.
    whole = copy.deepcopy(model)
    net = Narrow(layers=[x for x in whole.modules() if isinstance(x, nn.Linear)])
    parameters = dict(whole.named_parameters())
    kept = net.cut_(
        [at_least_one(units) for units in net.alive()],
        {parameters[name]: [mask] for name, mask in masks.items()},
    )
    named = chain_of(net).named_parameters()
    return net, {name: kept[p][0] for name, p in named if kept[p]}
