"""What is left of every layer of a network: how many of its parameters, and their norm."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from secateurs.study.reproduce.factorization.settings import (
    FactorizationSettings,
    key,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer: all its parameters, those kept, those kept of its weight alone, and ‖w‖₂.

    `still` counts the weights that have not moved since the start, where that was watched.
    """

    name: str
    total: int
    kept: float
    weights: float
    norm: float
    still: float = math.nan

    @property
    def collapsed(self) -> bool:
        """Whether no weight is left. Biases do not count: they carry nothing of the input."""
        return self.weights == 0


def nonzero(model: nn.Module) -> dict[str, Tensor]:
    """Masks of what is not zero."""
    return {name: p.detach() != 0 for name, p in model.named_parameters()}


def layers_of(
    model: nn.Module,
    kept: Mapping[str, Tensor],
    still: Mapping[str, float] | None = None,
) -> list[Layer]:
    """The layers in order, with what these masks keep of them.

    Masks and not zeros, since a bias that begins at zero may well be kept.

    >>> model = nn.Sequential(nn.Linear(3, 2))
    >>> kept = nonzero(model) | {"0.weight": model[0].weight > 9}
    >>> layer = layers_of(model, kept)[0]
    >>> layer.name, layer.total, layer.kept, layer.collapsed
    ('0', 8, 2, True)
    """
    names: dict[str, list[str]] = {}
    for name, _ in model.named_parameters():
        names.setdefault(name.rpartition(".")[0], []).append(name)
    parameters = dict(model.named_parameters())
    moved = still or {}
    return [
        Layer(
            name=layer,
            total=sum(parameters[name].numel() for name in own),
            kept=sum(int(kept[name].sum()) for name in own),
            # Modules of torch name their weight before their bias.
            weights=int(kept[own[0]].sum()),
            norm=math.hypot(
                *(
                    float((parameters[n].detach() * kept[n]).double().norm())
                    for n in own
                )
            ),
            still=sum(moved.get(name, math.nan) for name in own),
        )
        for layer, own in names.items()
    ]


def diverged(model: nn.Module) -> list[Layer]:
    """Layers of a training whose loss was NaN: nothing to count."""
    whole = layers_of(model, nonzero(model))
    lost = {"kept": math.nan, "weights": math.nan, "norm": math.nan}
    return [Layer(name=layer.name, total=layer.total, **lost) for layer in whole]


def rows(
    settings: FactorizationSettings,
    layers: Sequence[Layer],
    *,
    epoch: int,
    accuracy: float = math.nan,
) -> Iterator[dict[str, object]]:
    """A row a layer: the settings, the layer, and then the whole network."""
    total, kept = sum(x.total for x in layers), sum(x.kept for x in layers)
    for layer in layers:
        yield {
            **_settings(settings),
            "epoch": epoch,
            "layer": layer.name,
            "total": layer.total,
            "kept": layer.kept,
            "weights": layer.weights,
            "collapsed": layer.collapsed,
            "layer_norm": layer.norm,
            "still": layer.still,
            "compression": total / max(1, kept),
            "accuracy": accuracy,
            "norm": math.hypot(*(x.norm for x in layers)),
        }


def _settings(settings: FactorizationSettings) -> dict[str, str]:
    """What a method has no use for is NaN: its default would mislead."""
    found = key(settings)
    idle = (
        ("prune_to",)
        if settings.method == "dwf"
        else ("depth", "strength", "init", "match_variance")
    )
    names = ("method", "model", "data", "seed", "depth", "strength", "prune_to")
    shown = (*names, "init", "match_variance")
    return {name: "nan" if name in idle else found[name] for name in shown}
