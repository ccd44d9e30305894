"""Deep weight factorization on Fashion-MNIST: the compression-accuracy curves of the paper, and
beyond.

Every run is a frozen `FactorizationSettings`; `run` trains it and returns one `Row`. Equal settings
give equal rows,
so a table that grows row by row can be resumed: what is there is skipped.
Reference: Kolb et al. 2025, table 1, table 2 and table 4 (LeNet-300-100 and LeNet-5: 75 epochs,
batch 256, rate 0.15).
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs import data, models
from secateurs.errors import ArgumentError
from secateurs.masks import apply_, select
from secateurs.optim import FactorizedSGD, RampHoldRelax, hold
from secateurs.optim.factorized.collapse import gap
from secateurs.optim.factorized.factors.maths import EPS
from secateurs.optim.holding.tune import prune_and_tune_
from secateurs.random import generator
from secateurs.scores import score
from secateurs.study.reproduce.factorization.narrow import Companions, Narrow
from secateurs.train.denormals import flushed_denormals

METHODS = ("dense", "dwf", "gmp", "snip", "synflow", "random")


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorizationSettings:
    """One run, whole. `strength`, `depth` and λ schedule are for "dwf"; `prune_to`, a compression,
    for the others.

    `anneal` is the power of the cosine: rate · ((1 + cos πt)/2)^anneal. `tune` epochs of Adam
    follow on the collapsed
    (or pruned) net, from rate `tune_rate`, cosine to 0.
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
    anneal: float = 1.0
    epochs: int = 75
    batch: int = 256
    freeze: float = 1e-12
    prune_to: float = 1.0
    tune: int = 0
    tune_rate: float = 2e-3

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ArgumentError(f"method={self.method!r} is none of {', '.join(METHODS)}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a run gave: compression (all parameters over non-zero ones) and test accuracy in
    percent.

    Three pairs: with the paper's threshold 1.19e-7, with the widest gap of the log-magnitudes, and
    after fine-tuning
    the latter. Pruning methods have the first pair, and the last when tuned.
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
        results = {
            f.name: f"{getattr(self, f.name):.6g}" for f in fields(self) if f.name != "settings"
        }
        return {**key(self.settings), **results}


def key(settings: FactorizationSettings) -> dict[str, str]:
    """The settings as text: what identifies a row of a table."""
    return {
        name: f"{value:g}" if isinstance(value, float) else str(value)
        for name, value in asdict(settings).items()
    }


OURS: dict[str, Any] = {"rate": 0.5, "ramp": 0.7, "relax": 0.3, "tune": 25}
"""Beyond the paper: a larger rate, λ that ramps and relaxes, then 25 epochs of gentle
fine-tuning.
"""


def grid() -> list[FactorizationSettings]:
    """All runs of the table, the most telling first."""
    plan: list[FactorizationSettings] = []
    for seed in (0, 1, 2):
        ours, paper = FactorizationSettings(seed=seed, **OURS), FactorizationSettings(seed=seed)
        plan += [replace(ours, strength=x) for x in (3e-3, 6e-4, 6e-3, 1e-3, 4e-4, 2e-3, 8e-4)]
        plan += [FactorizationSettings(method="dense", seed=seed), replace(paper, strength=1.5e-3)]
    plan += [replace(FactorizationSettings(), strength=x) for x in (6e-4, 3e-3, 1e-3, 5e-3)]
    constant = replace(
        FactorizationSettings(), rate=OURS["rate"], tune=OURS["tune"]
    )  # ours but for the movement of λ
    plan += [replace(constant, strength=x) for x in (3e-4, 6e-4, 1e-3)]
    return plan + [settings for seed in (0, 1, 2) for settings in _comparison(seed)]


def _comparison(seed: int) -> list[FactorizationSettings]:
    """The pruning methods at the same budget, depths 2 and 4, and LeNet-5 at fewer points."""
    ours, plain = FactorizationSettings(seed=seed, **OURS), FactorizationSettings(seed=seed)
    plan = [
        replace(plain, method="gmp", prune_to=x, tune=25)
        for x in (50.0, 100.0, 200.0, 500.0, 1000.0)
    ]
    plan += [replace(ours, depth=4, strength=x) for x in (3e-4, 6e-4, 1e-3, 2e-3, 4e-3)]
    plan += [replace(ours, depth=2, strength=x) for x in (3e-4, 1e-3, 2e-3, 4e-3)]
    levels = (50.0, 100.0, 200.0, 500.0)
    plan += [
        replace(plain, method=m, prune_to=x) for x in levels for m in ("synflow", "snip", "random")
    ]
    convolutions = replace(ours, model="lenet-5", rate=0.15, tune=5)
    plan += [replace(plain, method="dense", model="lenet-5"), replace(convolutions, strength=2e-3)]
    return (
        plan
        if seed
        else [*plan, replace(convolutions, strength=6e-3), replace(plain, model="lenet-5")]
    )


def run(settings: FactorizationSettings) -> Row:
    """Train one settings value on one thread, denormals flushed."""
    start = perf_counter()
    images = _images(settings)
    with flushed_denormals():
        row = (
            _factorized(settings, images) if settings.method == "dwf" else _pruned(settings, images)
        )
    return replace(row, seconds=perf_counter() - start)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Images:
    """Pixels in [0, 1], flat for fully connected nets; nothing is copied per epoch."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    def columns(self, index: Tensor) -> "_Images":
        """Only these pixels."""
        return replace(
            self, x=self.x[:, index].contiguous(), test_x=self.test_x[:, index].contiguous()
        )


def _images(settings: FactorizationSettings) -> _Images:
    loaded = data.load(settings.data)
    flat = settings.model == "lenet-300-100"
    x, test_x = (t.flatten(1) if flat else t for t in (loaded.train_x, loaded.test_x))
    return _Images(x=x, y=loaded.train_y, test_x=test_x, test_y=loaded.test_y)


def _factorized(settings: FactorizationSettings, images: _Images) -> Row:
    model, weights = _weights(settings, images)
    return _measure(model, weights, settings, images)


def survivors(settings: FactorizationSettings) -> tuple[list[Tensor], _Images]:
    """The parameters that factorized training leaves, cut at the gap, and the images they were
    trained on.
    """
    images = _images(settings)
    with flushed_denormals():
        model, weights = _weights(settings, images)
    _cut(model, weights, gap(weights), images)
    return [p.detach() for p in model.parameters()], images


def _weights(settings: FactorizationSettings, images: _Images) -> tuple[nn.Module, list[Tensor]]:
    """The model as it was built, and its trained weights."""
    model = models.build(settings.model, generator=generator(settings.seed, "model"))
    if settings.model == "lenet-300-100":
        return model, _train_narrow(model, settings, images)
    optimizer = _optimizer(
        list(model.parameters()), settings, images, generator(settings.seed, "factors")
    )
    _train(model, optimizer, settings, images, lambda: images)
    return model, [p.detach() for p in model.parameters()]


def _measure(
    model: nn.Module, weights: list[Tensor], settings: FactorizationSettings, images: _Images
) -> Row:
    found = [_cut(model, weights, limit, images) for limit in (EPS, gap(weights))]
    tuned = _tune(model, settings, images) if settings.tune else math.nan
    return Row(
        settings=settings,
        compression=found[0][0],
        accuracy=found[0][1],
        gap_compression=found[1][0],
        gap_accuracy=found[1][1],
        tuned_accuracy=tuned,
        seconds=0.0,
    )


def _cut(
    model: nn.Module, weights: list[Tensor], limit: float, images: _Images
) -> tuple[float, float]:
    """Zero what is below the limit, write it into the model; compression and accuracy."""
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(torch.where(weight.abs() < limit, 0.0, weight))
    return _compression(model), _accuracy(model, images)


def _compression(model: nn.Module) -> float:
    kept = sum(int((p != 0).sum()) for p in model.parameters())
    return sum(p.numel() for p in model.parameters()) / max(1, kept)


@torch.no_grad()
def _accuracy(model: Callable[[Tensor], Tensor], images: _Images) -> float:
    if isinstance(model, nn.Module):
        model.eval()
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in _chunks(images, 1000))
    return 100 * right / len(images.test_y)


def _chunks(images: _Images, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(torch.split(images.test_x, size), torch.split(images.test_y, size), strict=True)


def _optimizer(
    parameters: list[nn.Parameter],
    settings: FactorizationSettings,
    images: _Images,
    draw: torch.Generator,
) -> FactorizedSGD:
    constant = settings.ramp == settings.relax == 0
    return FactorizedSGD(
        parameters,
        lr=settings.rate,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        depth=settings.depth,
        strength=settings.strength,
        freeze=settings.freeze,
        steps=settings.epochs * _per_epoch(settings, images),
        schedule=None if constant else RampHoldRelax(ramp=settings.ramp, relax=settings.relax),
        generator=draw,
    )


def _per_epoch(settings: FactorizationSettings, images: _Images) -> int:
    return -(-len(images.x) // settings.batch)


def _train(
    model: Callable[[Tensor], Tensor],
    optimizer: Optimizer,
    settings: FactorizationSettings,
    images: _Images,
    after_epoch: Callable[[], _Images],
) -> None:
    """The loop: shuffled batches, cosine annealing per step. `after_epoch` may change net,
    optimizer and images.
    """
    if isinstance(model, nn.Module):
        model.train()
    draw, total, done = (
        generator(settings.seed, "order"),
        settings.epochs * _per_epoch(settings, images),
        0,
    )
    for _ in range(settings.epochs):
        for chosen in torch.split(torch.randperm(len(images.x), generator=draw), settings.batch):
            for group in optimizer.param_groups:
                group["lr"] = (
                    settings.rate * ((1 + math.cos(math.pi * done / total)) / 2) ** settings.anneal
                )
            loss = F.cross_entropy(model(images.x[chosen]), images.y[chosen])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            done += 1
        images = after_epoch()


def _train_narrow(
    model: nn.Module, settings: FactorizationSettings, images: _Images
) -> list[Tensor]:
    """Train the fully connected net, cutting dead units out after every epoch."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    net, seen = Narrow(layers=layers), images
    optimizer = _optimizer(net.parameters(), settings, images, generator(settings.seed, "factors"))

    def cut() -> _Images:
        nonlocal seen
        units = net.alive()
        if net.worth_cutting(units):
            states: Companions = {p: list(optimizer.state[p].values()) for p in net.parameters()}
            names = list(next(iter(optimizer.state.values())))
            kept = net.cut_(units, states)
            _move_state_(
                optimizer,
                net.parameters(),
                {p: dict(zip(names, t, strict=True)) for p, t in kept.items()},
            )
            seen = images.columns(net.index[0])
        return seen

    _train(net, optimizer, settings, images, cut)
    return net.full()


def _move_state_(
    optimizer: FactorizedSGD,
    parameters: list[nn.Parameter],
    states: dict[Tensor, dict[str, Tensor]],
) -> None:
    """Let the optimizer go on with the cut parameters and their cut factors and momenta."""
    optimizer.param_groups[0]["params"] = parameters
    optimizer.state.clear()
    for parameter, state in states.items():
        optimizer.state[parameter] = state
    optimizer.refresh_()


def _pruned(settings: FactorizationSettings, images: _Images) -> Row:
    """Dense training, or pruning before it (snip, synflow, random) or after it (gmp)."""
    model = models.build(settings.model, generator=generator(settings.seed, "model"))
    masks = {name: torch.ones_like(p, dtype=torch.bool) for name, p in model.named_parameters()}
    if settings.method in ("snip", "synflow", "random"):
        masks = _masks_at_start(model, settings, images)
    apply_(model, masks)
    if settings.method in ("dense", "gmp"):
        model.load_state_dict(_dense(replace(settings, method="dense", prune_to=1.0, tune=0)))
    else:
        optimizer = torch.optim.SGD(
            model.parameters(), lr=settings.rate, momentum=settings.momentum
        )
        with hold(model, masks, optimizer):
            _train(model, optimizer, settings, images, lambda: images)
    if settings.method == "gmp":
        sizes = {name: p.detach().abs() for name, p in model.named_parameters()}
        apply_(model, select(sizes, compression=settings.prune_to, floor=0))
    return Row(
        settings=settings,
        compression=_compression(model),
        accuracy=_accuracy(model, images),
        gap_compression=math.nan,
        gap_accuracy=math.nan,
        tuned_accuracy=_tune(model, settings, images) if settings.tune else math.nan,
        seconds=0.0,
    )


@lru_cache(maxsize=1)
def _dense(settings: FactorizationSettings) -> dict[str, Tensor]:
    """The trained dense net: every compression of "gmp" prunes the same one."""
    model, images = (
        models.build(settings.model, generator=generator(settings.seed, "model")),
        _images(settings),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.rate, momentum=settings.momentum)
    _train(model, optimizer, settings, images, lambda: images)
    return {name: value.clone() for name, value in model.state_dict().items()}


def _masks_at_start(
    model: nn.Module, settings: FactorizationSettings, images: _Images
) -> dict[str, Tensor]:
    """Global masks over all parameters, biases too (as dwf counts them); synflow in its 100
    rounds.
    """
    draw = generator(settings.seed, "masks")
    chosen = torch.randint(len(images.x), (1000,), generator=draw)
    batch, shape = (images.x[chosen], images.y[chosen]), (1, *images.x.shape[1:])
    rounds = 100 if settings.method == "synflow" else 1
    working, masks = copy.deepcopy(model), None
    for step in range(1, rounds + 1):
        scores = score(
            working,
            settings.method,
            where="*",
            batch=batch,
            loss=F.cross_entropy,
            example=torch.ones(shape),
            generator=draw,
        )
        density = settings.prune_to ** (-step / rounds)
        masks = select(scores, density=density, floor=0, within=masks)
        apply_(working, masks)
    return masks or {}


def _tune(model: nn.Module, settings: FactorizationSettings, images: _Images) -> float:
    """Adam on the survivors, cosine to 0; a fully connected net is cut to its live units first."""
    gentle = replace(settings, epochs=settings.tune, rate=settings.tune_rate, anneal=1.0)
    if settings.model != "lenet-300-100":
        prune_and_tune_(
            model, lambda adam: _train(model, adam, gentle, images, lambda: images), lr=gentle.rate
        )
        return _accuracy(model, images)
    net = Narrow(
        layers=[layer for layer in copy.deepcopy(model).modules() if isinstance(layer, nn.Linear)]
    )
    net.cut_(net.alive(), {})
    seen, chain = images.columns(net.index[0]), nn.Sequential(*net.interleaved())
    prune_and_tune_(
        chain, lambda adam: _train(chain, adam, gentle, seen, lambda: seen), lr=gentle.rate
    )
    return _accuracy(chain, seen)
