"""Training as the weight-factorization paper does, by the library's loop, epoch by epoch."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from experiments.experiment import as_texts, chosen_device
from experiments.factorization import gaussian_start as _gaussian_start  # noqa: F401
from secateurs.base.random import generator
from secateurs.errors import ArgumentError, TrainingError
from secateurs.masks import apply_, select
from secateurs.optim import FactorizedSGD, RampHoldRelax, hold, prune_and_tune_
from secateurs.optim.factorized.start import spreads
from secateurs.prune import Recipe, prune_
from secateurs_lab import data, models
from secateurs_lab.data import Dataset
from secateurs_lab.train import Clock, Schedule, evaluate, fit_
from secateurs_lab.train.evaluate import Loss

# One run of the weight-factorization paper as a frozen value, and its results.

METHODS = ("dense", "dwf", "l1", "gmp", "snip", "synflow", "random")

LITERAL = 1.0
"""`spread` of the paper's text: σ_w = 1/√n_in goes into Algorithm 1 as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorizationSettings:
    """All settings of a run. The defaults are the paper's text: rate 0.15, constant λ, 75 epochs.

    Attributes:
        strength: λ, for "dwf" and "l1"; depth and the schedule of λ (`ramp`, `relax`) are for
            "dwf".
        prune_to: A compression, for the pruning methods.
        init: How the factors start; `spread` multiplies σ_w = 1/√n_in, and `match_variance`
            corrects the factors so that their product has variance σ_w² after the truncation.
        anneal: Power of the cosine: rate · ((1 + cos πt)/2)^anneal; 0 keeps the rate. "steps": a
            tenth of the rate after half of the epochs, and a hundredth after three quarters.
        examples: Only the first training images; None for all.
        tune: Epochs of Adam on the collapsed (or pruned) net, from `tune_rate`, cosine to 0.
    """

    method: str = "dwf"
    model: str = "lenet-300-100"
    data: str = "fashion-mnist"
    seed: int = 0
    depth: int = 3
    strength: float = 1e-3
    rate: float = 0.15
    momentum: float = 0.9
    nesterov: bool = False
    ramp: float = 0.0
    relax: float = 0.0
    anneal: float | Literal["steps"] = 1.0
    epochs: int = 75
    batch: int = 256
    freeze: float = 1e-12
    prune_to: float = 1.0
    tune: int = 0
    tune_rate: float = 2e-3
    init: str = "dwf"
    spread: float = LITERAL
    match_variance: bool = False
    augment: bool = False
    examples: int | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ArgumentError(f"method={self.method!r} is none of {', '.join(METHODS)}.")

    @property
    def narrow(self) -> bool:
        """Whether the net is a chain of linear layers that is cut to its live units along the way."""
        return self.model == "lenet-300-100"


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorizationRow:
    """The result of a run: compression (all parameters over non-zero ones) and test accuracy in
    percent.

    Three pairs: with the paper's threshold 1.19e-7, with the widest gap of the log-magnitudes, and
    after fine-tuning the latter. Pruning methods have the first pair, and the last when tuned.
    """

    settings: FactorizationSettings
    compression: float
    accuracy: float
    gap_compression: float
    gap_accuracy: float
    tuned_accuracy: float
    seconds: float

    def flat(self) -> dict[str, str]:
        """All fields as text, settings first: one line of a CSV file."""
        figures = asdict(self)
        return as_texts({**figures.pop("settings"), **figures})


def key(settings: FactorizationSettings) -> dict[str, str]:
    """The settings as text: what identifies a row of a table."""
    return as_texts(asdict(settings))


def name_of(settings: FactorizationSettings) -> str:
    """The settings that differ from the paper's text, in one line: the name of a job.

    >>> name_of(FactorizationSettings(seed=2, strength=2e-3))
    'dwf seed=2 strength=0.002'
    """
    usual = key(FactorizationSettings())
    # Named even at their defaults, since nearly all rows of a table differ in these.
    shown = {"seed", *(("strength",) if settings.method in ("dwf", "l1") else ())}
    own = {name: value for name, value in key(settings).items() if name != "method"}
    differing = [f"{n}={v}" for n, v in own.items() if n in shown or v != usual[n]]
    return " ".join([settings.method, *differing])


def load_images(settings: FactorizationSettings) -> Dataset:
    """The images, pixels in [0, 1]; as single pixels in a row for fully connected nets."""
    whole = data.load(settings.data).to(chosen_device())
    if settings.examples is not None:
        whole = whole.first(settings.examples, len(whole.test_y))
    if not settings.narrow:
        return whole
    # Pixels become channels, so that unread inputs can be cut out like channels.
    rows = [x.flatten(1)[:, :, None, None] for x in (whole.train_x, whole.test_x)]
    return replace(whole, train_x=rows[0], test_x=rows[1])


def columns(dataset: Dataset, index: Tensor) -> Dataset:
    """Only these channels, which are pixels."""
    train_x, test_x = (x[:, index].contiguous() for x in (dataset.train_x, dataset.test_x))
    return replace(dataset, train_x=train_x, test_x=test_x)


def build_network(settings: FactorizationSettings, dataset: Dataset) -> nn.Module:
    """The network before training; the seed fixes every weight."""
    channels, size = dataset.in_channels, dataset.size
    if settings.narrow:
        channels, size = 1, math.isqrt(dataset.in_channels)
    return models.build(
        settings.model,
        in_channels=channels,
        classes=dataset.classes,
        size=size,
        generator=generator(settings.seed, "model"),
    ).to(chosen_device())


def train_(
    model: nn.Module,
    optimizer: Optimizer,
    settings: FactorizationSettings,
    dataset: Dataset,
    loss: Loss = F.cross_entropy,
) -> None:
    """Train for all epochs in the ordinary way."""
    order = generator(settings.seed, "order")
    for epoch in range(settings.epochs):
        one_epoch(model, optimizer, settings, dataset, epoch, order, loss)


def one_epoch(
    model: nn.Module,
    optimizer: Optimizer,
    settings: FactorizationSettings,
    dataset: Dataset,
    epoch: int,
    order: torch.Generator,
    loss: Loss = F.cross_entropy,
) -> float:
    """One epoch of the cosine over all of them; returns the mean loss.

    The net, the optimizer's state and the images may change between two epochs.
    """
    done = fit_(
        model,
        dataset,
        optimizer=optimizer,
        loss=loss,
        length="1ep",
        batch=settings.batch,
        # A part of one long schedule, since each call of `fit_` sees only its own epoch.
        schedule=part_of_schedule(epoch, settings.epochs, settings.anneal),
        augment=data.augment if settings.augment else None,
        generator=order,
        evaluate_every=0,
        verbose=False,
    )
    return done.history[-1].loss


def part_of_schedule(epoch: int, epochs: int, anneal: float | Literal["steps"]) -> Schedule:
    """The part of ((1 + cos πt)/2)^anneal, or of the steps, that falls into one epoch.

    >>> [round(part_of_schedule(1, 2, 1.0)(Clock(step, 10, 10)), 3) for step in (0, 5, 10)]
    [0.5, 0.146, 0.0]
    >>> [part_of_schedule(epoch, 8, "steps")(Clock(0, 10, 10)) for epoch in (3, 4, 6)]
    [1.0, 0.1, 0.01]
    """

    def factor(clock: Clock) -> float:
        done, total = (
            epoch * clock.per_epoch + clock.iteration,
            epochs * clock.per_epoch,
        )
        if anneal == "steps":
            return 1.0 if 2 * done < total else 0.1 if 4 * done < 3 * total else 0.01
        share: float = ((1 + math.cos(math.pi * done / total)) / 2) ** anneal
        return share

    return factor


# Training a fully connected net without the units that are already dead, which changes only the
# time.
#
# A factorized weight that is exactly zero stays zero (Lemma 4). A hidden unit whose incoming
# weights and bias are all zero outputs zero; one whose outgoing weights are all zero is never read.
# Neither gets a gradient again, so both are cut out of the matrices, together with the input pixels
# that are never read. Late epochs of a sparse run become ten times faster.

Companions: TypeAlias = dict[Tensor, list[Tensor]]
"""Tensors that belong to a parameter, such as its factors and momenta."""

WORTH = 0.93
"""Cut only when some dimension shrinks below this share: every cut costs a copy of the data."""


@dataclass(slots=True, kw_only=True)
class NarrowChain:
    """A chain of linear layers with ReLU between them, cut to its live units; `index` says which
    units are left.

    `layers` are the live layers, with the indices of their inputs (`index[i]`) and outputs
    (`index[i + 1]`) in the full net of `sizes`.
    """

    layers: list[nn.Linear]
    sizes: list[int] = field(init=False)
    index: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = [
            self.layers[0].in_features,
            *(layer.out_features for layer in self.layers),
        ]
        device = self.layers[0].weight.device
        self.index = [torch.arange(size, device=device) for size in self.sizes]

    def __call__(self, x: Tensor) -> Tensor:
        """Logits for inputs that are already cut to `index[0]`."""
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)  # type: ignore[no-any-return]

    def parameters(self) -> list[nn.Parameter]:
        """Weight and bias of each layer, in order."""
        return [p for layer in self.layers for p in layer.parameters()]

    def interleaved(self) -> list[nn.Module]:
        """The layers with ReLU between them, for an `nn.Sequential`."""
        chain: list[nn.Module] = [module for layer in self.layers for module in (layer, nn.ReLU())]
        return chain[:-1]

    def alive(self) -> list[Tensor]:
        """For every dimension, the units that still matter: read by a live unit and fed by one (or
        by a bias).
        """
        masks = [layer.weight.detach() != 0 for layer in self.layers]
        biases = [layer.bias.detach() != 0 for layer in self.layers]
        # All alive at first: dead units are found from the zeros of the weights.
        units = [mask.new_ones(mask.shape[1]) for mask in masks]
        units.append(torch.ones_like(biases[-1]))
        # Dead units spread by one layer each time, forwards and backwards: twice the depth is
        # enough.
        for _ in range(2 * len(masks)):
            for i, (mask, bias) in enumerate(zip(masks, biases, strict=True)):
                mask &= units[i + 1][:, None] & units[i][None]
                units[i] = mask.any(0)
                if i + 1 < len(masks):
                    units[i + 1] &= mask.any(1) | (bias & units[i + 1])
        return units

    def live_units(self) -> list[Tensor]:
        """The live units, or the first if none is alive, since an image needs a pixel."""
        return [
            units if bool(units.any()) else torch.arange(len(units), device=units.device) == 0
            for units in self.alive()
        ]

    def cut_(self, units: list[Tensor], companions: Companions) -> Companions:
        """Keep these units; companions (factors, momenta: leading dimensions allowed) are cut like
        their parameters.
        """
        kept: Companions = {}
        for i, layer in enumerate(self.layers):
            rows, columns = (
                units[i + 1].nonzero().flatten(),
                units[i].nonzero().flatten(),
            )
            weight, bias = layer.weight, layer.bias
            self.layers[i] = nn.Linear(len(columns), len(rows), device=weight.device)
            with torch.no_grad():
                self.layers[i].weight.copy_(weight[rows][:, columns])
                self.layers[i].bias.copy_(bias[rows])
            kept[self.layers[i].weight] = [
                t[..., rows, :][..., columns].contiguous() for t in companions.get(weight, [])
            ]
            kept[self.layers[i].bias] = [
                t[..., rows].contiguous() for t in companions.get(bias, [])
            ]
        # Indices refer to the full net, so that one cut can follow another.
        self.index = [old[unit] for old, unit in zip(self.index, units, strict=True)]
        return kept

    def worth_cutting(self, units: list[Tensor]) -> bool:
        """Whether some dimension would shrink noticeably."""
        return any(float(unit.float().mean()) < WORTH for unit in units)

    def full(self) -> list[Tensor]:
        """Weights and biases of the whole net, zeros where it was cut."""
        result = []
        for i in range(len(self.layers)):
            like = self.layers[i].weight.detach()
            result.append(like.new_zeros(self.sizes[i + 1], self.sizes[i]))
            result.append(like.new_zeros(self.sizes[i + 1]))
        self.write_(result)
        return result

    @torch.no_grad()
    def write_(self, whole: Sequence[Tensor]) -> None:
        """Write the live weights and biases to their places in those of the whole net."""
        for i, layer in enumerate(self.layers):
            rows, columns = self.index[i + 1], self.index[i]
            whole[2 * i][rows[:, None], columns[None]] = layer.weight.detach()
            whole[2 * i + 1][rows] = layer.bias.detach()


# One run, by any of the methods.


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnd:
    """A factorized run after an epoch: the current net (without dead units), the images that it
    reads, and the mean loss of the epoch.
    """

    number: int
    net: nn.Module
    optimizer: FactorizedSGD
    images: Dataset
    loss: float


Watch: TypeAlias = Callable[[EpochEnd], None]
"""Called after every epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedNetwork:
    """The network of a run, and the weights that it ended with."""

    model: nn.Module
    weights: list[Tensor]

    @torch.no_grad()
    def cut_(self, limit: float) -> nn.Module:
        """Write these weights into the network, those below the limit as zeros."""
        for parameter, weight in zip(self.model.parameters(), self.weights, strict=True):
            parameter.copy_(torch.where(weight.abs() < limit, 0.0, weight))
        return self.model


def train(
    settings: FactorizationSettings, dataset: Dataset, watch: Watch | None = None
) -> TrainedNetwork:
    """Train by any method, without fine-tuning. `watch` is for factorized training."""
    if settings.method == "dwf":
        return _train_factorized(settings, dataset, watch)
    model = _train_other(settings, dataset)
    weights = [p.detach().clone() for p in model.parameters()]
    return TrainedNetwork(model=model, weights=weights)


def train_or_none(
    settings: FactorizationSettings, dataset: Dataset, watch: Watch | None = None
) -> TrainedNetwork | None:
    """The same; None if the loss diverges. A rate or a strength that is too large is a result, too,
    and the following jobs continue.
    """
    with suppress(TrainingError):
        return train(settings, dataset, watch)
    return None


def _train_factorized(
    settings: FactorizationSettings, dataset: Dataset, watch: Watch | None
) -> TrainedNetwork:
    """Train with the library's optimizer; the fully connected net loses dead units along the way."""
    model = build_network(settings, dataset)
    net = NarrowChain(layers=linear_layers(model)) if settings.narrow else None
    optimizer = _optimizer(list(model.parameters()), settings, dataset)
    order = generator(settings.seed, "order")
    live, images = (model if net is None else chain_of(net)), dataset
    for epoch in range(settings.epochs):
        loss = one_epoch(live, optimizer, settings, images, epoch, order)
        if net is not None and net.worth_cutting(units := net.live_units()):
            _cut_(net, units, optimizer)
            # Taken from the whole data set, because indices refer to the full net.
            live, images = chain_of(net), columns(dataset, net.index[0])
        if watch is not None:
            watch(
                EpochEnd(number=epoch + 1, net=live, optimizer=optimizer, images=images, loss=loss)
            )
    weights = [p.detach() for p in model.parameters()] if net is None else net.full()
    return TrainedNetwork(model=model, weights=weights)


def at_start(settings: FactorizationSettings, dataset: Dataset) -> list[Tensor]:
    """The weights that factorized training starts from: the products of its first factors."""
    parameters = list(build_network(settings, dataset).parameters())
    # Making the optimizer draws the factors and writes their products.
    _optimizer(parameters, settings, dataset)
    return [p.detach() for p in parameters]


def steps_of(settings: FactorizationSettings, dataset: Dataset) -> int:
    """Optimizer steps of the whole run."""
    return settings.epochs * -(-len(dataset.train_y) // settings.batch)


def _optimizer(
    parameters: list[nn.Parameter], settings: FactorizationSettings, dataset: Dataset
) -> FactorizedSGD:
    constant = settings.ramp == settings.relax == 0
    pairs = zip(parameters, spreads(parameters), strict=True)
    # One group each, because every layer has its own spread.
    groups = [{"params": [p], "sigma": settings.spread * sigma} for p, sigma in pairs]
    return FactorizedSGD(
        parameters if settings.spread == 1 else groups,
        lr=settings.rate,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        depth=settings.depth,
        strength=settings.strength,
        init=settings.init,
        match_variance=settings.match_variance,
        freeze=settings.freeze,
        steps=steps_of(settings, dataset),
        schedule=None if constant else RampHoldRelax(ramp=settings.ramp, relax=settings.relax),
        generator=generator(settings.seed, "factors"),
    )


def linear_layers(model: nn.Module) -> list[nn.Linear]:
    """The layers of a fully connected net, in order."""
    return [layer for layer in model.modules() if isinstance(layer, nn.Linear)]


def chain_of(net: NarrowChain) -> nn.Module:
    """The live layers as a module that reads images of single pixels."""
    return nn.Sequential(nn.Flatten(), *net.interleaved())


def _cut_(net: NarrowChain, units: list[Tensor], optimizer: FactorizedSGD) -> None:
    """Cut the net; the optimizer continues with the cut parameters, factors and momenta."""
    states: Companions = {p: list(optimizer.state[p].values()) for p in net.parameters()}
    # All parameters have the same entries, in the same order.
    names = list(next(iter(optimizer.state.values())))
    kept = net.cut_(units, states)
    optimizer.state.clear()
    parameters = iter(net.parameters())
    for group in optimizer.param_groups:
        group["params"] = [next(parameters) for _ in group["params"]]
    for parameter, tensors in kept.items():
        optimizer.state[parameter] = dict(zip(names, tensors, strict=True))
    # Factors were cut separately, so the weights are written again as their products.
    optimizer.refresh_()


# The methods compared with factorization: dense nets, plain L1, pruning before and after training.

AT_START = ("snip", "synflow", "random")


def _train_other(settings: FactorizationSettings, dataset: Dataset) -> nn.Module:
    """Train the network by a method other than factorization."""
    if settings.method in ("dense", "gmp", "l1"):
        model = build_network(settings, dataset)
        model.load_state_dict(_whole(_without_cut(settings)))
    else:
        model = _train_under_masks(settings, dataset)
    if settings.method == "gmp":
        apply_(model, by_magnitude(model, settings.prune_to))
    return model


def by_magnitude(model: nn.Module, compression: float) -> dict[str, Tensor]:
    """Masks of the largest weights and biases, over all layers."""
    sizes = {name: p.detach().abs() for name, p in model.named_parameters()}
    return select(sizes, compression=compression, floor=0)


def compression_of(model: nn.Module) -> float:
    """The number of all parameters over that of the non-zero ones."""
    kept = sum(int((p != 0).sum()) for p in model.parameters())
    return sum(p.numel() for p in model.parameters()) / max(1, kept)


def accuracy_of(model: nn.Module, dataset: Dataset) -> float:
    """Test accuracy in percent."""
    return 100 * evaluate(model, dataset).accuracy


def tuned_accuracy(model: nn.Module, settings: FactorizationSettings, dataset: Dataset) -> float:
    """Test accuracy after Adam on the survivors, cosine to 0; NaN without such epochs.

    A fully connected net is cut to its live units first. The model may change.
    """
    if not settings.tune:
        return math.nan
    gentle = replace(settings, epochs=settings.tune, rate=settings.tune_rate, anneal=1.0)
    if settings.narrow:
        net, _ = _live(model, {})
        # Dead units get no gradient: without them training takes less time.
        model, dataset = chain_of(net), columns(dataset, net.index[0])
    prune_and_tune_(model, lambda adam: train_(model, adam, gentle, dataset), lr=gentle.rate)
    return accuracy_of(model, dataset)


def _without_cut(settings: FactorizationSettings) -> FactorizationSettings:
    """Every compression of "gmp" prunes the same dense net."""
    method = "l1" if settings.method == "l1" else "dense"
    return replace(settings, method=method, prune_to=1.0, tune=0)


# One entry is enough, since the jobs that cut the same dense net follow each other.
@lru_cache(maxsize=1)
def _whole(settings: FactorizationSettings) -> dict[str, Tensor]:
    """The weights of a net trained without a cut, with or without plain L1."""
    dataset = load_images(settings)
    model = build_network(settings, dataset)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.rate, momentum=settings.momentum)
    loss = F.cross_entropy if settings.method == "dense" else _with_l1(model, settings.strength)
    train_(model, optimizer, settings, dataset, loss)
    return {name: value.clone() for name, value in model.state_dict().items()}


def _with_l1(model: nn.Module, strength: float) -> Loss:
    """Mean loss + λ‖w‖₁ over all weights and biases, for plain gradient descent."""
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
    model = build_network(settings, dataset)
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


def _train_under_masks(settings: FactorizationSettings, dataset: Dataset) -> nn.Module:
    model, masks = pruned_at_start(settings, dataset)
    if not settings.narrow:
        train_masked_(model, masks, settings, dataset)
        return model
    net, live = _live(model, masks)
    train_masked_(chain_of(net), live, settings, columns(dataset, net.index[0]))
    # Weights of dead units keep their initial values: they are kept, and count.
    net.write_(list(model.parameters()))
    return model


def nonzero(model: nn.Module) -> dict[str, Tensor]:
    """Masks of the non-zero entries, biases too, because the paper counts every parameter."""
    return {name: p.detach() != 0 for name, p in model.named_parameters()}


def train_masked_(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    settings: FactorizationSettings,
    dataset: Dataset,
) -> None:
    """Train with SGD under masks: zeros stay zero."""
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.rate, momentum=settings.momentum)
    with hold(model, masks, optimizer):
        train_(model, optimizer, settings, dataset)


def _live(model: nn.Module, masks: Mapping[str, Tensor]) -> tuple[NarrowChain, dict[str, Tensor]]:
    """The net without its dead units, and the masks of its chain."""
    # A copy, because the cut takes the layers apart.
    whole = copy.deepcopy(model)
    net = NarrowChain(layers=linear_layers(whole))
    parameters = dict(whole.named_parameters())
    kept = net.cut_(
        net.live_units(),
        {parameters[name]: [mask] for name, mask in masks.items()},
    )
    named = chain_of(net).named_parameters()
    return net, {name: kept[p][0] for name, p in named if kept[p]}


# The recipe by which a row was made: the paper's text and every departure from it are kept apart.

START = "two deviations"
TEXT = "the text"
RESTORED = "variance restored"
OURS = "ours"
OURS_AS_PRINTED = "ours, from the printed start"


def recipe_of(row: Mapping[str, str]) -> str:
    """The paper's recipe, or what differs from it.

    "two deviations": Algorithm 1 with factors cut at two of their standard deviations, rate 0.15,
    constant λ, which reproduces the paper's curves. "the text": the same with the upper end as
    printed. "variance restored": as "the text", with factors scaled so that their product has the
    variance of the standard initialisation. "ours": λ varies, the rate is larger, fine-tuning
    follows.
    """
    if row["method"] != "dwf":
        return "tuned" if row["tune"] != "0" else ""
    start = {"dwf": START, "dwf-as-printed": TEXT}.get(row["init"], f"init {row['init']}")
    if (row["ramp"], row["relax"]) != ("0", "0"):
        return {START: OURS, TEXT: OURS_AS_PRINTED}.get(start, f"{OURS}, {start}")
    if start == TEXT and row["match_variance"] == "True":
        parts = [RESTORED]
    else:
        parts = [start] + ([RESTORED] if row["match_variance"] == "True" else [])
    parts += [f"sigma × {row['spread']}"] if row["spread"] != "1" else []
    parts += [f"rate {row['rate']}"] if row["rate"] != "0.15" else []
    parts += ["tuned"] if row["tune"] != "0" else []
    return ", ".join(parts)


def method_of(row: Mapping[str, str]) -> str:
    """As the paper's tables name it."""
    return f"dwf-depth-{row['depth']}" if row["method"] == "dwf" else row["method"]


def columns_of(recipe: str) -> tuple[str, str]:
    """Compression and accuracy: after fine-tuning if there is any, else as trained."""
    tuned = recipe.startswith(OURS) or "tuned" in recipe
    return ("gap_compression", "tuned_accuracy") if tuned else ("compression", "accuracy")
