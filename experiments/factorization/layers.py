"""Figures 5a, 10 and 13: what is left of every layer, how large it is, and weights that never
move.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from torch import Tensor, nn

from experiments.experiment import Comparison, Experiment, Row, Scale, publish
from experiments.factorization import plans
from experiments.factorization.plans import at
from experiments.factorization.training import (
    AT_START,
    EpochEnd,
    FactorizationSettings,
    TrainedNetwork,
    accuracy_of,
    at_start,
    build_network,
    key,
    load_images,
    method_of,
    nonzero,
    pruned_at_start,
    train_or_none,
)
from secateurs.optim.factorized.maths import EPS
from secateurs_lab.data import Dataset

# Rows of layers, read back as networks.


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One network at one epoch, and the rows of its layers in order."""

    layers: Sequence[Row]

    @property
    def first(self) -> Row:
        """The first row: every row has the settings and the figures of the whole network."""
        return self.layers[0]

    @property
    def method(self) -> str:
        """As the paper's tables name it."""
        return method_of(self.first)

    @property
    def place(self) -> str:
        """Network and data."""
        return f"{self.first['model']}, {self.first['data']}"

    def figure(self, name: str) -> float:
        """A figure of the whole network."""
        return float(self.first[name])

    def share(self, layer: int) -> float:
        """The share of a layer's parameters that is kept."""
        row = self.layers[layer]
        return float(row["kept"]) / float(row["total"])

    def part(self, counted: str) -> float:
        """The share of all parameters that the layers count under this name."""
        total = sum(float(row["total"]) for row in self.layers)
        return sum(float(row[counted]) for row in self.layers) / total

    @property
    def empty(self) -> list[str]:
        """The layers that have collapsed."""
        return [row["layer"] for row in self.layers if row["collapsed"] == "True"]

    @property
    def gone(self) -> bool:
        """Whether no layer has a weight left: the training died as a whole."""
        return len(self.empty) == len(self.layers)


def networks(rows: Sequence[Row]) -> list[Network]:
    """The networks of figures 10 and 13, without those whose training diverged."""
    return [x for x in _networks(rows) if not _is_watched(x)]


def watched(rows: Sequence[Row]) -> Mapping[str, list[Network]]:
    """The runs of figure 5a by the name of their job, epoch by epoch."""
    found: dict[str, list[Network]] = {}
    for network in _networks(rows):
        if _is_watched(network):
            found.setdefault(network.first["job"], []).append(network)
    return found


def _networks(rows: Sequence[Row]) -> list[Network]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["kept"] != "nan":
            groups.setdefault((row["job"], row["epoch"]), []).append(row)
    return [Network(layers=group) for group in groups.values()]


def _is_watched(network: Network) -> bool:
    return network.first["method"] == "dwf" and network.figure("strength") == 0


# What the paper says about layers in words, as figures of ours.

FACTORIZED = ("dwf-depth-2", "dwf-depth-3", "dwf-depth-4")
EMPTY = {
    "gmp": "paper: whole layers at high compression",
    "snip": "paper: whole layers at high compression",
    "synflow": "paper: none but skip connections of a ResNet",
    "random": "not in the paper",
}
SPARSE = 1 / 0.99
"""Sparsity has emerged from one zero in a hundred on."""


def compare(rows: Sequence[Row]) -> list[Comparison]:
    """Figure 10, then 13, then 5a."""
    figures: list[Comparison] = []
    found = networks(rows)
    for place in dict.fromkeys(x.place for x in found):
        here = [x for x in found if x.place == place]
        for method in dict.fromkeys(x.method for x in here):
            figures += _emptied([x for x in here if x.method == method])
        figures += _against_synflow(here)
        figures += _norms(here)
        figures += _deeper(here)
    for job, epochs in watched(rows).items():
        figures += _dead(job, epochs)
    return figures


def _emptied(own: Sequence[Network]) -> Iterator[Comparison]:
    """How many networks lost a layer, and from which compression on."""
    title, last = f"{own[0].place}, {own[0].method}", max(map(_compression, own))
    note = EMPTY.get(own[0].method, "paper: none")
    lost = [x for x in own if x.empty and not x.gone]
    if dead := sum(x.gone for x in own):
        note += f"; of {dead} more nothing is left"
    what = f"{title}: networks with an empty layer, of {len(own)} up to {last:.0f}×"
    yield Comparison(what=what, ours=(float(len(lost)),), note=note)
    if lost:
        one = min(lost, key=_compression)
        what = f"{title}: smallest compression with an empty layer"
        empty = f"empty: {', '.join(one.empty)}"
        yield Comparison(what=what, ours=(_compression(one),), note=empty)


def _against_synflow(here: Sequence[Network]) -> Iterator[Comparison]:
    """First and last layer: the share that DWF leaves over SynFlow's at the same compression."""
    compared = [x for x in here if x.method == "synflow"]
    for method in FACTORIZED:
        own = [x for x in here if x.method == method]
        for layer, name in ((0, "first"), (-1, "last")):
            # Shares fall with compression like a power, so their logarithms are nearly linear.
            curve = sorted(
                (_compression(x), math.log(x.share(layer))) for x in compared if x.share(layer)
            )
            logs = [
                math.log(x.share(layer)) - there
                for x in own
                if x.share(layer) and (there := at(curve, _compression(x))) is not None
            ]
            if logs:
                what = f"{here[0].place}, {method}: left of the {name} layer, over SynFlow's"
                note = f"geometric mean over {len(logs)} λ; paper: below 1"
                ours = (math.exp(sum(logs) / len(logs)),)
                yield Comparison(what=what, ours=ours, note=note)


def _norms(here: Sequence[Network]) -> Iterator[Comparison]:
    """The paper: the norm grows with λ up to the λ that makes zeros, and falls from there on."""
    for method in FACTORIZED:
        own = [x for x in here if x.method == method]
        own.sort(key=lambda x: x.figure("strength"))
        # A peak has something on both sides.
        if len(own) < 3:
            continue
        title = f"{own[0].place}, {method}"
        peak = max(own, key=lambda x: x.figure("norm"))
        yield Comparison(
            what=f"{title}: λ of the largest norm",
            ours=(peak.figure("strength"),),
            note=f"of {len(own)} λ; norm {peak.figure('norm'):.4g}",
        )
        sparse = [x for x in own if _compression(x) > SPARSE]
        if sparse:
            yield Comparison(
                what=f"{title}: smallest λ with zeros",
                ours=(sparse[0].figure("strength"),),
                note="paper: where the norm is largest, on small networks",
            )
            yield Comparison(
                what=f"{title}: norm at the largest compression",
                ours=(max(own, key=_compression).figure("norm"),),
                note="paper: goes to zero",
            )


def _deeper(here: Sequence[Network]) -> Iterator[Comparison]:
    """The paper: at the same λ, depth 4 is sparser than depth 3, which is sparser than depth 2."""
    for shallow, deep in pairwise(FACTORIZED):
        ratios = [
            _compression(b) / _compression(a)
            for a in here
            for b in here
            if (a.method, b.method) == (shallow, deep)
            and a.figure("strength") == b.figure("strength")
            and a.first["seed"] == b.first["seed"]
            # Two dense networks say nothing, and neither does one without any weights left.
            and min(_compression(a), _compression(b)) > SPARSE
            and not (a.gone or b.gone)
        ]
        if ratios:
            yield Comparison(
                what=f"{here[0].place}, {deep}: least compression over {shallow}'s, at one λ",
                ours=(min(ratios),),
                note=f"over {len(ratios)} λ; paper: above 1",
            )


def _dead(job: str, epochs: Sequence[Network]) -> Iterator[Comparison]:
    """Figure 5a: weights that never move, those that are zero, and the accuracy."""
    start, end = epochs[0], epochs[-1]
    last = end.first["epoch"]
    found = {f"accuracy after epoch {last}": end.figure("accuracy")}
    for network in (start, end):
        what = f"% of weights below 1.19e-7 after epoch {network.first['epoch']}"
        found[what] = 100 * (1 - network.part("kept"))
    found[f"% of weights that have not moved by epoch {last}"] = 100 * end.part("still")
    for what, figure in found.items():
        yield Comparison(what=f"{job}: {what}", ours=(figure,))


def _compression(network: Network) -> float:
    return network.figure("compression")


# What is left of every layer of a network: the number of its parameters and their norm.


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCounts:
    """One layer: all its parameters, those kept, those kept of its weight alone, and ‖w‖₂.

    `still` counts the weights that have not moved since the start, if that was recorded.
    """

    name: str
    total: int
    kept: float
    weights: float
    norm: float
    still: float = math.nan

    @property
    def collapsed(self) -> bool:
        """Whether no weight is left. Biases do not count: they do not depend on the input."""
        return self.weights == 0


def layers_of(
    model: nn.Module,
    kept: Mapping[str, Tensor],
    still: Mapping[str, float] | None = None,
) -> list[LayerCounts]:
    """The layers in order, with what these masks keep of them.

    Masks instead of zeros, since a bias that starts at zero may well be kept.

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
        LayerCounts(
            name=layer,
            total=sum(parameters[name].numel() for name in own),
            kept=sum(int(kept[name].sum()) for name in own),
            # Modules of torch name their weight before their bias.
            weights=int(kept[own[0]].sum()),
            norm=math.hypot(
                *(float((parameters[n].detach() * kept[n]).double().norm()) for n in own)
            ),
            still=sum(moved.get(name, math.nan) for name in own),
        )
        for layer, own in names.items()
    ]


def diverged_layers(model: nn.Module) -> list[LayerCounts]:
    """The layers of a run whose loss was NaN: there is nothing to count."""
    whole = layers_of(model, nonzero(model))
    lost = {"kept": math.nan, "weights": math.nan, "norm": math.nan}
    return [LayerCounts(name=layer.name, total=layer.total, **lost) for layer in whole]


def rows(
    settings: FactorizationSettings,
    layers: Sequence[LayerCounts],
    *,
    epoch: int,
    accuracy: float = math.nan,
) -> Iterator[dict[str, object]]:
    """One row per layer: the settings, the layer, and then the whole network."""
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
    """The settings, NaN where a method has no use for one: its default would mislead."""
    found = key(settings)
    idle = (
        ("prune_to",)
        if settings.method == "dwf"
        else ("depth", "strength", "init", "match_variance")
    )
    names = ("method", "model", "data", "seed", "depth", "strength", "prune_to")
    shown = (*names, "init", "match_variance")
    return {name: "nan" if name in idle else found[name] for name in shown}


# The networks that the figures on layers consist of, at every scale.

DEPTHS = (3, 2, 4)
METHODS = ("gmp", "synflow", "snip", "random")

STRENGTHS = (1e-3, 2e-3, 3e-4, 6e-4, 4e-3)
"""λ of the fully connected net, the most telling first."""

ENDS = (1e-4, 1e-2)
"""Far below the λ that makes zeros, and above the λ that a net survives: the ends of figure 13."""

DEEP = 10
"""The depth of figure 5a."""

DEEP_EPOCHS = 40
"""Ours: the paper does not say how long it trained, and weights that are dead show at once."""

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
        # As printed, truncation also reduces the variance. With the variance restored, the
        # truncation is the only difference.
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
            # The rate of depth 4: the paper names none for depth 10.
            settings += _deep(replace(base, rate=rates[-1]), base.epochs)
    for model, data, rate in plans.SMALL:
        base = FactorizationSettings(model=model, data=data, rate=rate)
        settings += _factorized(base, plans.PUBLISHED)
    return settings


# One network, counted layer by layer: at the start, after training, or in between.

SHOWN = (1, 2, 5, 10, 20, 50, 100, 200)
"""Epochs of figure 5a, besides the start and the last."""


def work(settings: FactorizationSettings) -> Iterator[dict[str, object]]:
    """The rows of one network."""
    dataset = load_images(settings)
    if settings.method in AT_START:
        # What such a method leaves of each layer is decided before any training.
        model, masks = pruned_at_start(settings, dataset)
        yield from rows(settings, layers_of(model, masks), epoch=0)
        return
    watched = settings.method == "dwf" and settings.strength == 0
    yield from (_watched if watched else _train_and_count)(settings, dataset)


def _train_and_count(
    settings: FactorizationSettings, dataset: Dataset
) -> Iterator[dict[str, object]]:
    """Factorized, or dense and then cut by magnitude without fine-tuning."""
    trained = train_or_none(settings, dataset)
    if trained is None:
        yield from _lost(settings, dataset)
        return
    model = trained.cut_(EPS if settings.method == "dwf" else 0.0)
    yield from rows(
        settings,
        layers_of(model, nonzero(model)),
        epoch=settings.epochs,
        accuracy=accuracy_of(model, dataset),
    )


def _lost(settings: FactorizationSettings, dataset: Dataset) -> Iterator[dict[str, object]]:
    """A run that diverges is a result, too: rows of NaN, and the following jobs continue."""
    return rows(settings, diverged_layers(build_network(settings, dataset)), epoch=settings.epochs)


def _watched(settings: FactorizationSettings, dataset: Dataset) -> Iterator[dict[str, object]]:
    """Training without decay: the start and some epochs, with the weights that have not moved."""
    model, start = build_network(settings, dataset), at_start(settings, dataset)
    found: list[dict[str, object]] = []

    def count(epoch: int, weights: list[Tensor], accuracy: float) -> None:
        pairs = zip(model.named_parameters(), weights, start, strict=True)
        still = {
            name: float(((now - before).abs() < EPS).sum()) for (name, _), now, before in pairs
        }
        TrainedNetwork(model=model, weights=weights).cut_(EPS)
        layers = layers_of(model, nonzero(model), still)
        found.extend(rows(settings, layers, epoch=epoch, accuracy=accuracy))

    def watch(epoch: EpochEnd) -> None:
        if epoch.number in SHOWN or epoch.number == settings.epochs:
            # Without decay no weight becomes exactly zero, so
            # no unit was cut out and the shapes are those of the start.
            weights = [p.detach() for p in epoch.net.parameters()]
            count(epoch.number, weights, accuracy_of(epoch.net, epoch.images))

    count(0, start, accuracy_of(TrainedNetwork(model=model, weights=start).cut_(0.0), dataset))
    if train_or_none(settings, dataset, watch) is None:
        found.extend(_lost(settings, dataset))
    yield from found


# Figures 5a, 10 and 13 as one experiment, since two of them share their runs.


LENET = "LeNet-300-100 on Fashion-MNIST, one seed"
publish(
    Experiment(
        name="weight-factorization-layers",
        paper="Kolb et al. 2025",
        what="figures 5a, 10, 13: what is left of each layer, norms, weights that never move",
        jobs=plans.jobs_of(plan, work),
        compare=compare,
        settings={
            "smoke": "LeNet-300-100, 2,000 images of Fashion-MNIST, 8 epochs, two λ",
            "short": f"{plans.DIGITS}, depths 2-4, three λ",
            "cpu": f"{LENET}: depths 2-4, seven λ; other methods at 15 compressions; depth 10",
            "full": "ResNet-18 and VGG-16 on CIFAR-10, small networks for figure 13; depth 10",
        },
    )
)
