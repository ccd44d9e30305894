"""What the package answers, written down; later compared bit for bit.

`python tools/golden.py write FILE` asks some 60 networks for scores, masks, path norms, bounds,
certificates, compaction, files, trained weights, guarantees, experiments and refusals.
`python tools/golden.py compare FILE` asks again and prints every difference with its section and
key; it ends with 1 if there is one. `--only SECTION` (repeatable) asks a part. Without it all is
asked but `experiments`, which takes longer and runs by name.

Floats are written in hexadecimal and tensors as digests of their bytes, so equal means equal in
every bit. Answers depend on the machine's CPU and on torch, so a file is compared where it was
written. Prose (a string with a space) is left out: words may be bettered. A refusal is kept by the
class of its error and the parameters it names. Only public faces are imported, so that the answers
survive a move of files.
"""

import argparse
import copy
import csv
import hashlib
import importlib
import inspect
import itertools
import json
import logging
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

# Set before torch is imported: sums depend on the number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import secateurs as sc  # noqa: E402
from architectures import ZOO  # noqa: E402
from secateurs import errors  # noqa: E402
from tiny_networks import KINDS, pruned, randomize, rounded, tuned  # noqa: E402

Answers = Iterator[tuple[str, Callable[[], Any]]]
"""Keys, and what to call for the answer."""

SECTIONS: dict[str, Callable[[], Answers]] = {}

# Times and places differ from run to run.
PASSING = {"clock", "seconds", "built_in", "machine", "path", "timings", "provenance", "model"}


def section(function: Callable[[], Answers]) -> Callable[[], Answers]:
    SECTIONS[function.__name__] = function
    return function


def public(name: str, *rooms: str) -> Any:
    """A public name, from the first of these rooms that has it or from the top."""
    for room in rooms:
        try:
            found = getattr(importlib.import_module(f"secateurs.{room}"), name, None)
        except ModuleNotFoundError:
            continue
        if found is not None:
            return found
    return getattr(sc, name)


# -- answers as text ---------------------------------------------------------------------------


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every part of an answer with its key; what is said in prose is left out."""
    if isinstance(value, Tensor):
        yield key, digest(value)
    elif isinstance(value, bool | int | None) and not isinstance(value, float):
        yield key, value
    elif isinstance(value, float):
        # Path norms are floats that carry more.
        yield key, float(value).hex()
        for name in sorted(vars(value)) if hasattr(value, "__dict__") else ():
            yield from leaves(getattr(value, name), f"{key}.{name}")
    elif isinstance(value, str):
        if " " not in value:
            yield key, value
    elif isinstance(value, bytes):
        yield key, hashlib.sha256(value).hexdigest()[:16]
    elif isinstance(value, Fraction):
        yield key, str(value)
    elif isinstance(value, nn.Module):
        yield from leaves(value.state_dict(), key)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            if field.name not in PASSING and not field.name.startswith("_"):
                yield from leaves(getattr(value, field.name), f"{key}.{field.name}")
    elif isinstance(value, Mapping):
        for name in sorted(value, key=str):
            if name not in PASSING:
                yield from leaves(value[name], f"{key}[{name}]")
    elif isinstance(value, Sequence) and len(value) > 12:
        # Histograms and the like, in one line.
        parts = [leaf for i, part in enumerate(value) for leaf in leaves(part, f"[{i}]")]
        made = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
        yield key, f"{len(value)} parts:{made}"
    elif isinstance(value, Sequence):
        yield f"{key}.count", len(value)
        for i, part in enumerate(value):
            yield from leaves(part, f"{key}[{i}]")


def digest(tensor: Tensor) -> str:
    tensor = tensor.detach().to("cpu").contiguous()
    data = tensor.flatten().view(torch.uint8) if tensor.numel() else tensor
    name = str(tensor.dtype).removeprefix("torch.")
    made = hashlib.sha256(bytes(data.numpy())).hexdigest()[:16]
    return f"{name}{list(tensor.shape)}:{made}"


def whole(tensors: Mapping[str, Tensor]) -> str:
    """Masks of a network in one digest, with the number of entries kept."""
    lines = "\n".join(f"{name}={digest(tensors[name])}" for name in sorted(tensors))
    kept = sum(int(t.count_nonzero()) for t in tensors.values())
    return f"{kept}:{hashlib.sha256(lines.encode()).hexdigest()[:16]}"


def refusal(error: BaseException, call: Mapping[str, Any]) -> str:
    """The class of an error and the names that it tells: of parameters and of arguments."""
    # What an argument is called counts where its value is plain; a model is also a word.
    names = {name for name, value in call.items() if isinstance(value, str | int | float)}
    for value in call.values():
        if isinstance(value, nn.Module):
            names |= set(dict(value.named_parameters()))
    told = sorted(n for n in names if re.search(rf"(?<![\w.]){re.escape(n)}(?![\w])", str(error)))
    return " ".join([f"!{type(error).__name__}", *told])


def ask(thunk: Callable[[], Any]) -> list[tuple[str, Any]]:
    """The leaves of one answer; its own randomness begins anew."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return list(leaves(thunk()))
        except errors.SecateursError as error:
            given = getattr(thunk, "keywords", {})
            return [("", refusal(error, given))]
        except Exception as error:  # what torch itself refuses is an answer, too
            return [("", f"!{type(error).__name__}")]


# -- networks ----------------------------------------------------------------------------------


def mlp(
    *widths: int,
    act: Callable[[], nn.Module] = nn.ReLU,
    bias: bool = True,
    norm: bool = False,
) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [
            nn.Linear(a, b, bias=bias),
            *([nn.BatchNorm1d(b)] if norm else []),
            act(),
        ]
    return nn.Sequential(*layers[:-1])


def cnn(
    *channels: int,
    act: Callable[[], nn.Module] = nn.ReLU,
    norm: bool = False,
    pool: Callable[[], nn.Module] | None = None,
    classes: int = 4,
    **options: Any,
) -> nn.Module:
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(itertools.pairwise(channels)):
        # Groups cannot divide the channels of an image.
        more = {k: v for k, v in options.items() if i or k != "groups"}
        layers.append(nn.Conv2d(a, b, **{"kernel_size": 3, "padding": 1, **more}))
        layers += [
            *([nn.BatchNorm2d(b)] if norm else []),
            act(),
            *([pool()] if pool else []),
        ]
    head = nn.Linear(channels[-1], classes)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


def chain(**options: Any) -> nn.Module:
    """What the theorems on filters read: convolutions, then one linear layer on their maps."""
    convs = [nn.Conv2d(a, b, 3, **options) for a, b in ((2, 8), (8, 8), (8, 8))]
    inner = [part for conv in convs for part in (conv, nn.ReLU())]
    return nn.Sequential(*inner, nn.Flatten(), nn.Linear(8 * 64, 4))


class Branched(nn.Module):
    """Two branches that are joined: added, or put side by side."""

    def __init__(self, join: str) -> None:
        super().__init__()
        self.join = join
        self.first, self.left = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.right = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(16 if join == "cat" else 8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        a, b = self.left(x), self.right(x)
        both = torch.cat([a, b], 1) if self.join == "cat" else a + b
        return self.head(both.relu().amax((2, 3)))


class Recurrent(nn.Module):
    """One layer used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.cell, self.out = (
            nn.Linear(4, 8),
            nn.Linear(8, 8),
            nn.Linear(8, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x).relu()
        for _ in range(3):
            x = self.cell(x).relu()
        return self.out(x)


class Attention(nn.Module):
    """What no primitive describes between two layers that one does."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.out = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1) * torch.ones(3, 1)
        weights = torch.softmax(self.q(x) @ self.k(x).transpose(1, 2), -1)
        return self.out((weights @ self.v(x)).mean(1))


IMAGE = ((2, 8, 8),)
OWN: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]] = {
    "linear": (lambda: mlp(8, 4), ((8,),)),
    "mlp-narrow": (lambda: mlp(8, 2, 4), ((8,),)),
    "mlp-wide": (lambda: mlp(16, 64, 32, 8), ((16,),)),
    "mlp-deep": (lambda: mlp(8, *[12] * 12, 4), ((8,),)),
    "mlp-bias-free": (lambda: mlp(8, 16, 16, 4, bias=False), ((8,),)),
    "mlp-norm": (lambda: mlp(8, 16, 16, 4, norm=True), ((8,),)),
    "mlp-one": (lambda: mlp(1, 1, 1), ((1,),)),
    **{
        f"mlp-{name}": (partial(mlp, 8, 16, 4, act=act), ((8,),))
        for name, act in {
            "leaky": partial(nn.LeakyReLU, 0.1),
            "prelu": nn.PReLU,
            "tanh": nn.Tanh,
            "sigmoid": nn.Sigmoid,
            "gelu": nn.GELU,
            "elu": nn.ELU,
            "hardtanh": nn.Hardtanh,
        }.items()
    },
    "conv": (lambda: cnn(2, 8, 16), IMAGE),
    "conv-norm": (lambda: cnn(2, 8, 16, norm=True), IMAGE),
    "conv-grouped": (lambda: cnn(2, 8, 16, groups=4), IMAGE),
    "conv-depthwise": (lambda: cnn(2, 8, 8, groups=8), IMAGE),
    "conv-strided": (lambda: cnn(2, 8, 16, stride=2), IMAGE),
    "conv-dilated": (lambda: cnn(2, 8, 8, dilation=2, padding=2), IMAGE),
    "conv-pointwise": (lambda: cnn(2, 8, 8, kernel_size=1, padding=0), IMAGE),
    "conv-circular": (lambda: cnn(2, 8, 8, padding_mode="circular"), IMAGE),
    "conv-reflect": (lambda: cnn(2, 8, 8, padding_mode="reflect"), IMAGE),
    "conv-bias-free": (lambda: cnn(2, 8, 8, bias=False), IMAGE),
    "conv-max-pool": (lambda: cnn(2, 8, 8, pool=lambda: nn.MaxPool2d(2)), IMAGE),
    "conv-average-pool": (lambda: cnn(2, 8, 8, pool=lambda: nn.AvgPool2d(2)), IMAGE),
    "conv-leaky-norm": (lambda: cnn(2, 8, 8, act=nn.LeakyReLU, norm=True), IMAGE),
    "conv-deep": (lambda: cnn(2, 8, 8, 8, 8, 8, norm=True), IMAGE),
    "chain": (partial(chain, padding=1), IMAGE),
    "chain-circular": (partial(chain, padding=1, padding_mode="circular"), IMAGE),
    "added": (lambda: Branched("add"), IMAGE),
    "side-by-side": (lambda: Branched("cat"), IMAGE),
    "recurrent": (Recurrent, ((4,),)),
    "attention": (Attention, ((8,),)),
}
NETWORKS = {
    **OWN,
    **{f"tiny {name}": (make, (shape,)) for name, (make, shape) in KINDS.items()},
    # Published ones that are read in a second each. One needs a library of its own.
    **{
        name: ZOO[name]
        for name in ZOO
        if name
        not in {
            *(
                "huggingface-resnet",
                "resnet152",
                "resnet50",
                "resnet34",
                "vgg19-bn",
                "alexnet",
            ),
            *(
                "densenet121",
                "inception-v3",
                "googlenet",
                "vgg16-bn",
                "squeezenet",
                "mobilenet",
            ),
        }
    },
    **{
        f"model {name}": (partial(lab.models.build, name), (shape,))
        for name, shape in {
            "lenet-300-100": (1, 28, 28),
            "lenet-5": (1, 28, 28),
            "resnet-20": (3, 32, 32),
        }.items()
    },
    # Of these the theorems and the large analyses are asked only once.
    **{f"seed {seed}": (partial(mlp, 6, 10, 8, 4), ((6,),)) for seed in range(6)},
}
LARGE = {"resnet18", "model resnet-20", "model lenet-300-100"}
SMALL = [name for name in NETWORKS if name not in LARGE and not name.startswith("model")]


def network(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Any]:
    """The network as it always begins, in eval mode, with an input of batch 2."""
    torch.manual_seed(sum(map(ord, name)))
    make, shapes = NETWORKS[name]
    generator = torch.Generator().manual_seed(len(name))
    model = make().to(dtype)
    with torch.no_grad():
        randomize(model, generator, scale=1.5)
    inputs = tuple(torch.randn(2, *s, generator=generator).to(dtype) for s in shapes)
    return model, inputs[0] if len(inputs) == 1 else inputs


def squares(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def batch_of(model: nn.Module, x: Any) -> tuple[Any, Tensor]:
    with torch.no_grad():
        out = model(*x) if isinstance(x, tuple) else model(x)
    return x, torch.randn(out.shape, generator=seeded(5)).to(out)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def thinned(name: str, *, dtype: torch.dtype = torch.float32, rows: bool = True) -> tuple:
    """A network with half of its weights zero, whole rows of every second layer among them."""
    model, x = network(name, dtype)
    masks = sc.select(sc.score(model, "magnitude"), sparsity=0.5)
    if rows:
        for i, mask in enumerate(masks.values()):
            mask[:: 3 + i % 2] = False
    sc.apply_(model, masks)
    return model, x, masks


# -- scores, masks, budgets --------------------------------------------------------------------


def scored(name: str, rule: str, **options: Any) -> dict[str, Tensor]:
    model, x = network(name)
    return sc.score(
        model,
        rule,
        example=x,
        batch=batch_of(model, x),
        loss=squares,
        generator=seeded(),
        **options,
    )


@section
def scores() -> Answers:
    from secateurs.scores import PROBES, SCORES, l1, probe

    for name, rule in itertools.product(NETWORKS, SCORES.names()):
        if name not in LARGE or rule in ("magnitude", "synflow", "path"):
            yield f"{rule} / {name}", partial(scored, name, rule)
    for rule in SCORES.names():
        yield (
            f"{rule} / reference",
            partial(scored, "conv-norm", rule, convention="reference"),
        )
        yield f"{rule} / where", partial(scored, "conv-norm", rule, where="0.weight")
    for kind in PROBES.names():
        like = torch.randn(3, 2, 4, 4, generator=seeded())
        yield (
            f"probe {kind}",
            partial(probe, kind, like, examples=5, classes=3, generator=seeded()),
        )
    yield "l1", lambda: l1(torch.tensor([1.0, -2.0]), torch.tensor([0.5, 1.0]))


@cache
def kept_scores(name: str, rule: str) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return scored(name, rule)


def drawn(name: str, rule: str, **options: Any) -> str:
    return whole(sc.select(kept_scores(name, rule), generator=seeded(1), **options))


@section
def masks() -> Answers:
    from secateurs import masks as room
    from secateurs.scores import SCORES

    grid = (
        SCORES.names(),
        room.SCOPES.names(),
        room.PATTERNS.names(),
        room.SELECTIONS.names(),
    )
    for name in ("mlp-wide", "conv", "side-by-side"):
        rules = grid[0] if name == "conv" else ("magnitude", "synflow")
        for rule, scope, pattern, how in itertools.product(rules, *grid[1:]):
            key = f"{name} / {rule} / {scope} / {pattern} / {how}"
            options = {"scope": scope, "pattern": pattern, "how": how}
            yield key, partial(drawn, name, rule, sparsity=0.6, **options)
    for scope, pattern, how in itertools.product(*grid[1:]):
        key = f"model lenet-5 / magnitude / {scope} / {pattern} / {how}"
        options = {"scope": scope, "pattern": pattern, "how": how}
        yield (
            key,
            partial(drawn, "model lenet-5", "magnitude", density=0.1, **options),
        )
    for name, rule in itertools.product(SMALL, ("magnitude", "synflow")):
        yield f"{name} / {rule}", partial(drawn, name, rule, sparsity=0.7)
    own = (
        room.NM(1, 4),
        room.Block(2, 2),
        room.Channel(),
        room.Filter(),
        room.Kernel(),
    )
    for i, pattern in enumerate((*own, room.Unstructured())):
        yield (
            f"pattern {i}",
            partial(drawn, "conv", "magnitude", sparsity=0.5, pattern=pattern),
        )


@section
def budgets() -> Answers:
    from secateurs import masks as room

    amounts = [{"sparsity": s} for s in (0.0, 0.5, 0.9, 0.999, 1.0)]
    amounts += [{"density": 0.03}, {"compression": 7.5}]
    for name in (
        "mlp-wide",
        "conv-norm",
        "recurrent",
        "model lenet-5",
        "tiny u-shaped",
    ):
        for scope, amount in itertools.product(room.SCOPES.names(), amounts):
            for floor in (0, 1, 0.02):
                options = {**amount, "scope": scope, "floor": floor}
                yield f"{name} / {options}", partial(kept_counts, name, **options)
    shares = {"0.weight": 0.2, "2.weight": 0.7, "4.weight": 0.4}
    yield "shares", partial(kept_counts, "mlp-wide", scope=shares)
    yield "within", within_masks
    yield (
        "weights",
        partial(drawn, "mlp-wide", "magnitude", sparsity=0.5, how="sample", weights={}),
    )
    for name in SMALL:
        yield f"report {name}", lambda name=name: sc.sparsity_report(thinned(name)[0])
    for how in room.SELECTIONS.names():
        yield f"sketch {how}", partial(sketched, how)


def kept_counts(name: str, **options: Any) -> dict[str, int]:
    found = sc.select(kept_scores(name, "magnitude"), **options)
    return {key: int(mask.sum()) for key, mask in found.items()}


def within_masks() -> str:
    scores = kept_scores("mlp-wide", "synflow")
    first = sc.select(scores, sparsity=0.4)
    return whole(sc.select(scores, sparsity=0.8, scope="layer", within=first))


def sketched(how: str) -> Any:
    from secateurs.masks import sketch

    scores = kept_scores("mlp-wide", "magnitude")
    return sketch(scores, sparsity=0.7, how=how, weights=scores, generator=seeded())


# -- paths, channels, certificates -------------------------------------------------------------


@section
def paths() -> Answers:
    double = torch.float64
    for name in NETWORKS:
        yield f"single {name}", lambda name=name: sc.log2_path_norm(*network(name))
        yield f"costs {name}", lambda name=name: sc.path_costs(*network(name))
    for name in SMALL:
        for options in ({"split": True}, {"q": 2}, {"per_output": True}):
            yield (
                f"norm {name} / {options}",
                lambda name=name, options=options: sc.path_norm(*network(name, double), **options),
            )
        for options in ({"relative": True}, {"q": 2}):
            yield (
                f"costs {name} / {options}",
                lambda name=name, options=options: sc.path_costs(*network(name, double), **options),
            )
        yield f"metric {name}", partial(metric, name)
        yield f"penalty {name}", partial(penalty, name)
        yield f"lipschitz {name}", partial(both, name, "lipschitz_bounds")
        yield (
            f"generalization {name}",
            lambda name=name: sc.generalization_bounds(
                *network(name, double),
                samples=1000,
                input_bound=2.0,
                loss_lipschitz=1.0,
            ),
        )
    lifting = public("lifting", "paths")
    for name in ("mlp", "tied", *(f"tiny {kind}" for kind in KINDS)):
        yield f"lifting {name}", lambda name=name: lifting(*network(name, double))


def both(name: str, function: str) -> Any:
    dense, x = network(name, torch.float64)
    return getattr(sc, function)(dense, pruned(dense, seeded()), x)


def metric(name: str) -> Any:
    dense, x = network(name, torch.float64)
    other = pruned(dense, seeded())
    return [
        sc.path_metric(dense, other, x),
        sc.path_metric(dense, other, x, split=True),
    ]


def penalty(name: str) -> Any:
    model, x = network(name, torch.float64)
    value = sc.path_norm_penalty(model, x)
    value.backward()
    return value, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@section
def channels() -> Answers:
    for name in (*SMALL, "model lenet-5"):
        if name.startswith("seed"):
            continue
        yield f"compact {name}", partial(compacted, name)
        yield f"normalize {name}", partial(rewritten, name, "normalize_")
        yield (
            f"rescale {name}",
            partial(rewritten, name, "rescale_random_", generator=True),
        )
        yield f"remove dead {name}", partial(rewritten, name, "remove_dead_")
        yield f"live {name}", lambda name=name: sc.liveness(*thinned(name)[:2])
        yield f"macs {name}", lambda name=name: sc.macs(*thinned(name)[:2])
        yield f"prune channels {name}", partial(channels_cut, name, sparsity=0.5)
    for name in (
        "mlp-wide",
        "conv-norm",
        "added",
        "side-by-side",
        "unet-nearest",
        "shufflenet",
    ):
        yield f"compact 4 {name}", partial(compacted, name, multiple_of=4)
        double = partial(rewritten, name, "normalize_", torch.float64)
        yield f"normalize {name} / double", double
        for budget in ({"macs": 0.4}, {"density": 0.3}):
            key = f"prune channels {name} / {budget}"
            yield key, partial(channels_cut, name, scope="global", **budget)
    lost = public("lost_layers", "channels", "paths")
    for name in ("mlp-narrow", "conv", "added"):
        yield f"lost {name}", lambda name=name: sorted(lost_in(lost, name))


def compacted(name: str, **options: Any) -> Any:
    model, x, _ = thinned(name)
    small = sc.compact(model, x, **options)
    with torch.no_grad():
        out = small(*x) if isinstance(x, tuple) else small(x)
    report = getattr(small, "compaction", None)
    return {"weights": small.state_dict(), "output": out, "report": report}


def rewritten(
    name: str,
    how: str,
    dtype: torch.dtype = torch.float32,
    *,
    generator: bool = False,
) -> Any:
    model, x, _ = thinned(name, dtype=dtype, rows=how == "remove_dead_")
    options = {"generator": seeded()} if generator else {}
    report = public(how, "channels", "paths")(model, x, **options)
    return {"weights": model.state_dict(), "report": report}


def channels_cut(name: str, **options: Any) -> Any:
    model, x = network(name)
    report = sc.prune_channels_(model, x, **options)
    return {"weights": whole(model.state_dict()), "report": report}


def lost_in(lost: Callable[..., Any], name: str) -> Any:
    model, x = network(name)
    names = [n for n, p in model.named_parameters() if p.ndim > 1]
    with torch.no_grad():
        model.get_parameter(names[0]).zero_()
    return lost(x)(model, names)


CHANGES = {
    "pruned": lambda model: pruned(model, seeded(3)),
    "rounded": rounded,
    "tuned": lambda model: tuned(model, seeded(3)),
}


def certificate(name: str, change: str, **options: Any) -> Any:
    dense, x = network(name, options.pop("dtype", torch.float64))
    other = CHANGES[change](dense)
    domain = {"around": x, "radius": 0.1}
    if "box" in options or "data" in options:
        domain = {}
        options = {k: v(x) if callable(v) else v for k, v in options.items()}
    return sc.certify(dense, other, generator=seeded(), **domain, **options)


@section
def certificates() -> Answers:
    methods = public("METHODS", "certificates").names()
    for name, change in itertools.product((f"tiny {kind}" for kind in KINDS), CHANGES):
        yield f"{name} / {change}", partial(certificate, name, change)
        for method in methods:
            quick = {"methods": method, "restarts": 1, "steps": 1}
            yield (
                f"{name} / {change} / {method}",
                partial(certificate, name, change, **quick),
            )
    for norm, name in itertools.product((1, 2), KINDS):
        key = f"tiny {name}"
        yield (
            f"{key} / norm {norm}",
            partial(certificate, key, "pruned", norm=norm, restarts=0),
        )
    for name in OWN:
        quick = {"restarts": 1, "steps": 1, "effort": 1e6}
        yield f"{name} / pruned", partial(certificate, name, "pruned", **quick)
    variants = {
        "single": {"dtype": torch.float32},
        "rounding": {"rounding": True},
        "no rounding": {"rounding": False},
        "box": {"box": lambda x: (x[:1] - 0.2, x[:1] + 0.3)},
        "data": {"data": lambda x: torch.cat([x * size for size in torch.linspace(0.5, 2, 20)])},
        "clip": {"clip": (-1.0, 1.0)},
        "no search": {"restarts": 0},
        "effort": {"effort": 1e3},
        "symbols": {"symbols": 8},
    }
    for (key, options), name in itertools.product(
        variants.items(), ("tiny fully connected", "tiny batch norm", "tiny max-pool")
    ):
        yield f"{name} / {key}", partial(certificate, name, "pruned", **options)
    yield "kept and checked again", kept_certificate
    for change, amount in (("masked", 0.5), ("rounded", 6)):
        made = partial(public(change, "certificates"), amount)
        yield f"gap {change}", partial(gap, made)


def kept_certificate() -> Any:
    dense, x = network("tiny residual", torch.float64)
    other = pruned(dense, seeded(3))
    found = sc.certify(dense, other, around=x, radius=0.1, generator=seeded())
    with tempfile.TemporaryDirectory() as folder:
        found.save(Path(folder) / "certificate.json")
        recheck = public("recheck", "certificates")
        return recheck(Path(folder) / "certificate.json", dense, other)


def gap(change: Callable[[], Any]) -> Any:
    model, x = network("tiny fully connected")
    graph = sc.capture(model, x)
    found = public("certified_gap", "certificates")(
        model, graph, x, radius=0.05, change=change(), generator=seeded()
    )
    labels = torch.tensor([0, 2])
    loss = public("certified_loss", "certificates")(model(x), labels, found)
    loss.backward()
    return found, loss, {n: p.grad for n, p in model.named_parameters()}


# -- pruning, files, training ------------------------------------------------------------------


@section
def prune() -> Answers:
    from secateurs import prune as room
    from secateurs.scores import SCORES

    for name, rule in itertools.product(("mlp-wide", "conv-norm", "recurrent"), SCORES.names()):
        for rounds, schedule in ((1, None), (5, "exponential"), (4, "linear")):
            options = {"sparsity": 0.8, "rounds": rounds, "schedule": schedule}
            yield f"{name} / {rule} / {rounds}", partial(cut, name, rule, **options)
    for how, budget in itertools.product(
        ("conv", "mlp-wide"),
        ({"macs": 0.3}, {"compression": 8}, {"density": 0.2, "of": "left"}),
    ):
        yield f"{how} / {budget}", partial(cut, how, "magnitude", **budget)
    for schedule in room.SCHEDULES.names():
        counts = partial(
            room.counts,
            schedule,
            start=1000,
            end=30,
            rounds=1 if schedule == "one-shot" else 7,
        )
        yield f"schedule {schedule}", counts
    for rule in ("magnitude", "synflow", "path"):
        yield f"invariance {rule}", partial(invariance, rule)
        yield f"to bound {rule}", partial(to_bound, rule)
    yield "imp", partial(imp, rewind="weights")
    yield "imp rewound later", partial(imp, rewind="learning-rate", rewind_to=2)
    yield "gradual", gradual
    yield "blocks", blocks
    yield "tuned", pruned_and_tuned
    yield (
        "plan",
        lambda: sc.Recipe(sparsity=0.5, rounds=3).check(network("conv-norm")[0]),
    )


def cut(name: str, rule: str, **options: Any) -> Any:
    model, x = network(name)
    found = sc.prune_(
        model,
        rule,
        example=x,
        batch=batch_of(model, x),
        loss=squares,
        generator=seeded(),
        **options,
    )
    return {
        "weights": whole(model.state_dict()),
        "masks": whole(found.masks),
        "report": found.report,
        "rounds": found.rounds,
    }


def invariance(rule: str) -> Any:
    model, x = network("conv-norm")
    return public("check_invariance", "prune")(model, rule, x, generator=seeded())


def to_bound(rule: str) -> Any:
    model, x = network("tiny fully connected", torch.float64)
    return sc.prune_to_bound_(
        model,
        x,
        bound=0.5,
        radius=0.05,
        score=rule,
        tolerance=0.05,
        generator=seeded(),
    )


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, start: int = 0) -> None:
    x = model.example  # put there by `pupil`
    for step in range(start, start + steps):
        generator = seeded(step)
        inputs = torch.randn(x.shape, generator=generator)
        optimizer.zero_grad()
        out = model(inputs)
        squares(out, torch.randn(out.shape, generator=generator)).backward()
        optimizer.step()


def pupil(name: str) -> nn.Module:
    model, x = network(name)
    model.example = torch.cat([x, x])
    return model.train()


def imp(**options: Any) -> Any:
    model = pupil("mlp-wide")

    def train(model: nn.Module, run: Any) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with run.hold(optimizer):
            for step in range(run.start, 5):
                learn(model, optimizer, 1, start=step)

    found = public("imp_", "prune")(model, train, sparsity=0.7, per_round=0.3, **options)
    return {
        "weights": model.state_dict(),
        "masks": found.masks,
        "report": found.report,
    }


def gradual() -> Any:
    from secateurs.prune import GradualPruning

    model = pupil("mlp-norm")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    steps = GradualPruning(model, sc.Recipe(sparsity=0.8), optimizer, start=2, end=12, every=3)
    done = []
    for step in range(15):
        learn(model, optimizer, 1, start=step)
        done.append(steps.step())
    return {"weights": model.state_dict(), "done": done}


def blocks() -> Any:
    torch.manual_seed(1)
    layers = nn.Sequential(*(mlp(16, 16, 16) for _ in range(3)))
    x = torch.randn(8, 16, generator=seeded())
    found = sc.prune_blocks_(layers, "wanda", batch=x, blocks=["0", "1", "2"], sparsity=0.5)
    return {"weights": layers.state_dict(), "report": found.report}


def pruned_and_tuned() -> Any:
    from secateurs.optim import prune_and_tune_

    model = pupil("mlp-wide")
    found = prune_and_tune_(model, lambda optimizer: learn(model, optimizer, 3), to_sparsity=0.7)
    return {"weights": model.state_dict(), "masks": found.masks}


@section
def files() -> Answers:
    for name in (*SMALL, "model lenet-5"):
        yield f"sparse {name}", partial(sparse_file, name, "exact")
        yield f"masks {name}", partial(mask_file, name)
    # Coarser values are saved with a bound on what they change.
    for name, values in itertools.product(("mlp", "tiny residual"), ("bf16", "int8")):
        yield f"sparse {name} / {values}", partial(sparse_file, name, values)
    for score, pattern in itertools.product(("magnitude", "random"), ("unstructured", "2:4")):
        yield f"pruned file {score} {pattern}", partial(pruned_file, score, pattern)
    for name in (
        "mlp-wide",
        "conv-norm",
        "conv-max-pool",
        "conv-grouped",
        "side-by-side",
    ):
        yield f"accelerated {name}", partial(accelerated, name)


def sparse_file(name: str, values: str) -> Any:
    model, x, _ = thinned(name)
    more = {"example": x, "radius": 0.1} if values == "int8" else {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        sizes = sc.save_sparse(model, path, values=values, notes={"a": "b"}, **more)
        return {
            "bytes": path.read_bytes(),
            "sizes": sizes,
            "read": sc.read_sparse(path).tensors,
        }


def mask_file(name: str) -> Any:
    _, _, masks = thinned(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "masks.safetensors"
        sc.save_masks(masks, path)
        return {"bytes": path.read_bytes(), "read": sc.load_masks(path)}


def pruned_file(score: str, pattern: str) -> Any:
    from safetensors.torch import load_file, save_file

    with tempfile.TemporaryDirectory() as folder:
        source, out = (
            Path(folder) / "in.safetensors",
            Path(folder) / "out.safetensors",
        )
        save_file(network("mlp-wide")[0].state_dict(), source)
        found = sc.prune_file(source, out, score=score, pattern=pattern, sparsity=0.5)
        return {
            "weights": load_file(out),
            "bytes": out.read_bytes(),
            "report": found.report,
        }


def accelerated(name: str) -> Any:
    model, x, _ = thinned(name)
    with torch.no_grad():
        return sc.accelerate(model, x, tune="guess", keep="always")(x)


INITS = ("dwf", "dwf-wide", "varmatch", "vanilla", "root", "gaussian", "pretrained")


def factorized(name: str, make: Callable[..., Any], **options: Any) -> Any:
    model = pupil(name)
    optimizer = make(model.named_parameters(), generator=seeded(), **options)
    learn(model, optimizer, 50)
    return {
        "weights": whole(model.state_dict()),
        "state": optimizer.state_dict()["state"],
    }


@section
def optimizers() -> Answers:
    from secateurs.optim import Factorized, FactorizedSGD

    sgd = partial(FactorizedSGD, lr=0.02)
    every = itertools.product(["mlp-wide"], (2, 3, 4, 8), INITS)
    few = itertools.product(["conv-norm", "mlp-norm", "added"], (2, 3), ("dwf", "pretrained"))
    for name, depth, init in (*every, *few):
        for fused in (True, False):
            options = {"depth": depth, "init": init, "fused": fused}
            yield f"sgd {name} / {options}", partial(factorized, name, sgd, **options)
    variants: dict[str, dict[str, Any]] = {
        "plain": {"momentum": 0.0},
        "nesterov": {"nesterov": True},
        "decoupled": {"decoupled": True},
        "lean": {"lean": True, "init": "root"},
        "zeros frozen": {"zeros": "frozen", "init": "pretrained"},
        "zeros revived": {"zeros": "revive", "init": "pretrained"},
        "matched": {"match_variance": True},
        "sigma": {"sigma": 0.2},
        "where": {"where": "0.*"},
        "freeze": {"freeze": 1e-6, "strength": 1e-2},
        "target": {"target_sparsity": 0.8, "steps": 50, "strength": 1e-3},
        **{f"groups {g}": {"groups": g} for g in ("neuron", "channel", "kernel", "block")},
        "shared": {"groups": "neuron", "shared": 2},
        **{
            f"schedule {s}": {"schedule": s, "steps": 50}
            for s in ("ramp-hold-relax", "ramp", "relax", "constant")
        },
    }
    for (key, options), name in itertools.product(variants.items(), ("mlp-wide", "conv-norm")):
        for fused in (None, False):
            made = partial(factorized, name, sgd, fused=fused, **{"init": "dwf", **options})
            yield f"sgd {name} / {key} / fused {fused}", made
    bases = {
        "SGD": {"lr": 0.05, "momentum": 0.9},
        "Adam": {"lr": 1e-2},
        "AdamW": {"lr": 1e-2},
        "RMSprop": {"lr": 1e-3},
        "Adagrad": {"lr": 1e-2},
        "NAdam": {"lr": 1e-3},
    }
    for (base, given), depth, init in itertools.product(
        bases.items(), (2, 3), ("dwf", "pretrained")
    ):
        for decoupled in (False, True)[: 4 - depth]:
            made = partial(
                factorized,
                "mlp-norm",
                Factorized,
                base=getattr(torch.optim, base),
                base_kwargs=given,
                depth=depth,
                init=init,
                decoupled=decoupled,
            )
            yield f"{base} / depth {depth} / {init} / decoupled {decoupled}", made
    yield "collapsed", collapsed
    yield "held", held
    yield "grid", swept
    for schedule in (None, "ramp", "ramp-hold-relax"):
        yield f"forecast {schedule}", partial(forecasted, schedule)


def collapsed() -> Any:
    from secateurs.optim import Dynamics, FactorizedSGD

    model = pupil("mlp-wide")
    optimizer = FactorizedSGD(
        model.named_parameters(),
        lr=0.1,
        strength=0.05,
        init="dwf",
        generator=seeded(),
    )
    dynamics = Dynamics(optimizer, every=5, model=model)
    for step in range(120):
        learn(model, optimizer, 1, start=step)
        dynamics.record(float(step))
    rows = dynamics.rows()
    found = optimizer.collapse_(model)
    return {"weights": model.state_dict(), "masks": found.masks, "rows": rows}


def held() -> Any:
    model = pupil("conv-norm")
    masks = sc.select(sc.score(model, "magnitude"), sparsity=0.7)
    sc.apply_(model, masks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with sc.hold(model, masks, optimizer):
        learn(model, optimizer, 20)
    return {"weights": model.state_dict(), "state": optimizer.state_dict()["state"]}


def swept() -> Any:
    from secateurs_lab.train import grid

    model = mlp(6, 8, 3)
    data = [
        (
            torch.randn(8, 6, generator=seeded(i)),
            torch.randn(8, 3, generator=seeded(i + 9)),
        )
        for i in range(10)
    ]
    return grid(model, squares, data, strengths=[1e-3, 1e-2], seeds=[0, 1], lr=0.05)


def forecasted(schedule: str | None) -> Any:
    from secateurs.optim import forecast

    return [
        forecast(strength=strength, steps=500, lr=0.1, momentum=momentum, schedule=schedule)
        for strength in (1e-4, 1e-2)
        for momentum in (0.0, 0.9)
    ]


# -- theory and diagnosis ----------------------------------------------------------------------


def sketching_inputs(features: int = 7, examples: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    X = torch.randn(features, examples, generator=seeded(1), dtype=torch.float64)
    w0, w = (torch.randn(features, generator=seeded(i), dtype=torch.float64) for i in (2, 3))
    return X, w0, w


@section
def theory() -> Answers:
    t = importlib.import_module("secateurs.theory")
    yield from pruning_theorems(t)
    yield from norms_and_lemmas(t)
    yield from sketching(t)
    yield from plans(t)
    for name in SMALL:
        yield f"diagnose {name}", lambda name=name: sc.diagnose(network(name)[0])
        yield (
            f"diagnose pruned {name}",
            lambda name=name: sc.diagnose(thinned(name)[0]),
        )
    for name in ("mlp", "mlp-wide", "conv", "conv-circular", "added", "seed 1"):
        for options in ({}, {"epsilon": 0.5}):
            yield f"measure {name} / {options}", partial(measured, name, options)


def pruning_theorems(t: Any) -> Answers:
    for width, depth, alpha in itertools.product((64, 1000), (3, 5), (0.2, 0.6, 0.9)):
        key = f"{width} / {depth} / {alpha}"
        for printed in (False, True):
            yield (
                f"theorem_1 {key} / {printed}",
                partial(
                    t.theorem_1,
                    width,
                    depth=depth,
                    alpha=alpha,
                    lipschitz=1.2,
                    as_printed=printed,
                ),
            )
            norms = t.NormBounds(bounds=(1.5,) * depth, failures=(0.001,) * depth)
            widths = [width // 2, *[width] * (depth - 1), 10]
            moments = {
                "norms": norms,
                "k1": 1 / 3,
                "k2": 1 / 5,
                "as_printed": printed,
            }
            yield (
                f"theorem_2 {key} / {printed}",
                partial(t.theorem_2, widths, alpha=alpha, require=False, **moments),
            )
            yield (
                f"theorem_2_width {key} / {printed}",
                partial(
                    t.theorem_2_width,
                    depth=depth,
                    alpha=alpha,
                    epsilon=0.5,
                    delta=0.1,
                    **moments,
                ),
            )
        yield (
            f"theorem_1 required {key}",
            partial(
                t.theorem_1,
                width,
                depth=depth,
                alpha=alpha,
                constants=t.lemma_3(slack=0.5),
            ),
        )
        yield (
            f"theorem_1_width {key}",
            partial(
                t.theorem_1_width,
                depth=depth,
                alpha=alpha,
                epsilon=0.5,
                delta=0.1,
                scale=0.7,
            ),
        )
    laws = ("uniform", "bounded", "normal", "subgaussian")
    between = [t.Between(lipschitz=1.1, bias=0.2, rest=0.1)] * 4
    widths = [32, 64, 48, 8]
    for law, amount in itertools.product(laws, ({"alpha": 0.3}, {"alpha": 0.8}, {"counts": [100]})):
        for name in ("theorem_1_explicit", "theorem_1_global", "theorem_2_explicit"):
            call = partial(getattr(t, name), widths, delta=0.05, law=law, **amount)
            yield f"{name} {law} / {amount}", call
            yield (
                f"{name} {law} / {amount} / scaled",
                partial(call, scale=0.8, lipschitz=1.3),
            )
            yield f"{name} {law} / {amount} / between", partial(call, between=between)
        call = partial(t.theorem_2_explicit, widths, delta=0.05, law=law, **amount)
        yield (
            f"theorem_2_explicit without {law} / {amount}",
            partial(call, replacement=False),
        )
        thresholds = partial(t.theorem_1_explicit, widths, delta=0.05, law=law, thresholds=[0.02])
        yield (
            f"theorem_1_explicit thresholds {law} / {amount}",
            partial(thresholds, **amount),
        )
    settings = {
        "small": t.ConvSetting(depth=4, channels=16, kernel=3, map_size=8),
        "wide": t.ConvSetting(depth=3, channels=1000, kernel=3, map_size=400, lipschitz=1.1),
        "other": t.ConvSetting(
            depth=4, channels=64, kernel=1, map_size=4, input_channels=1, input_size=6
        ),
    }
    for (name, setting), alpha in itertools.product(settings.items(), (0.4, 0.8, 1.5)):
        for law in laws:
            for theorem in ("theorem_3_explicit", "theorem_3_magnitude"):
                call = partial(getattr(t, theorem), setting, delta=0.1, law=law)
                yield (
                    f"{theorem} {name} / {alpha} / {law}",
                    partial(call, alpha=alpha),
                )
                counts = [20] * (setting.depth - 2)
                yield (
                    f"{theorem} {name} / counts / {law}",
                    partial(call, counts=counts, scale=0.9),
                )
        for printed, require in itertools.product((False, True), repeat=2):
            moments = {"beta1": 0.2, "beta2": 0.05, "c1": 1 / 3, "c2": 0.2, "c5": 0.6}
            yield (
                f"theorem_3 {name} / {alpha} / {printed} / {require}",
                partial(
                    t.theorem_3,
                    setting,
                    alpha=alpha,
                    as_printed=printed,
                    require=require,
                    **moments,
                ),
            )
        without = partial(t.theorem_3_explicit, setting, delta=0.1, alpha=alpha, replacement=False)
        yield f"theorem_3_explicit without {name} / {alpha}", without
    for rank, count, below in itertools.product((1, 10, 1000), (1000, 10**6), (1e-3, 0.1, 0.9)):
        for printed in (False, True):
            key = f"{rank} / {count} / {below}"
            yield (
                f"theorem_4 {key} / {printed}",
                partial(t.theorem_4, rank, count, below=below, as_printed=printed),
            )
        yield (
            f"order statistic {key}",
            partial(t.exact_order_statistic, rank, count, below=below),
        )


def norms_and_lemmas(t: Any) -> Answers:
    for rank, count in ((1, 1), (2, 5), (50, 100), (5, 4)):
        yield f"lemma_1 {rank} {count}", partial(t.lemma_1, rank, count, bound=1.5)
    yield "lemma_2", t.lemma_2
    for scale, slack in itertools.product((0.3, 1.0, -1.0), (0.1, 0.5, 1.0)):
        yield f"lemma_3 {scale} {slack}", partial(t.lemma_3, scale, slack=slack)
    matrices = torch.rand(4, 12, 9, generator=seeded(), dtype=torch.float64)
    for constant in (t.LATALA_CONSTANT, t.LATALA_MEASURED):
        yield (
            f"lemma_4 {constant}",
            partial(t.lemma_4, matrices[0], 1.5 * matrices[0] ** 2, constant=constant),
        )
    for excess, mean, printed in itertools.product((0.1, 1.0, 8.0), (0.5, 100.0), (False, True)):
        key = f"{excess} {mean} {printed}"
        yield f"lemma_5 {key}", partial(t.lemma_5, excess, mean, as_printed=printed)
    for bins, balls, printed in itertools.product(
        (1, 100, 10_000), (10, 1000, 10**6), (False, True)
    ):
        yield (
            f"lemma_6 {bins} {balls} {printed}",
            partial(t.lemma_6, bins, balls, as_printed=printed),
        )
        yield f"fullest bin {bins} {balls}", partial(t.fullest_bin, bins, balls)
    for law, draws in itertools.product(
        ("uniform", "bounded", "normal", "subgaussian"), (None, 20, 500)
    ):
        for layer in (
            t.RandomLayer(rows=20, columns=30, bound=0.3),
            t.RandomLayer(rows=16, columns=8, bound=0.1, taps=9, frequencies=64),
        ):
            for replacement, cap in itertools.product((True, False), (None, 2.0)):
                options = {
                    "draws": draws,
                    "law": law,
                    "replacement": replacement,
                    "cap": cap,
                }
                key = f"masked norm {layer.rows} / {options}"
                yield (
                    key,
                    partial(t.masked_norm_bound, layer, failure=0.01, **options),
                )
    yield (
        "uniform norm",
        partial(t.uniform_norm_bound, 30, 20, bound=0.5, failure=0.01),
    )
    yield "spectral norms", partial(t.spectral_norms, matrices)
    yield (
        "spectral norms, hard",
        partial(t.spectral_norms, matrices, tolerance=1e-12, max_steps=5),
    )
    weights = {
        "3x3": torch.randn(6, 4, 3, 3, generator=seeded(), dtype=torch.float64),
        "1x1": torch.randn(5, 5, 1, 1, generator=seeded(1)),
        "2x3": torch.randn(3, 2, 2, 3, generator=seeded(2)),
        "1d": torch.randn(4, 3, 3, generator=seeded(3)),
    }
    variants: list[dict[str, Any]] = [
        {},
        {"certify": True},
        {"padding": "zeros"},
        {"padding": 1},
        {"padding": 1, "padding_mode": "reflect"},
        {"padding": 1, "padding_mode": "replicate"},
        {"padding": 1, "padding_mode": "circular"},
        {"padding": [(1, 0), (2, 1)]},
        {"stride": 2},
        {"stride": 2, "padding": 1},
        {"dilation": 2},
        {"padding": 1, "certify": True},
    ]
    for (name, weight), options in itertools.product(weights.items(), variants):
        size = 9 if weight.ndim == 3 else (9, 8)
        yield (
            f"conv {name} / {options}",
            partial(t.conv_operator_norm, weight, size, **options),
        )
        yield f"lemma_7 {name}", partial(t.lemma_7, weight, size)
    grouped = torch.randn(6, 2, 3, 3, generator=seeded())
    yield (
        "conv grouped",
        partial(t.conv_operator_norm, grouped, 6, groups=2, padding=1),
    )


def sketching(t: Any) -> Answers:
    X, w0, w = sketching_inputs()
    p = t.sketch_probabilities(X, w0)
    for s in (1, 4, 100):
        yield f"lemma_41 {s}", partial(t.lemma_41, X, w0, s=s)
        for printed in (False, True):
            yield (
                f"lemma_42 {s} {printed}",
                partial(t.lemma_42, w0, s=s, as_printed=printed),
            )
            yield (
                f"lemma_42 {s} {printed} examples",
                partial(t.lemma_42, w0, s=s, examples=9, as_printed=printed),
            )
            yield (
                f"lemma_b1 {printed}",
                partial(t.lemma_b1, X, w, p, as_printed=printed),
            )
            for exact in (False, True):
                yield (
                    f"theorem_44 {s} {printed} {exact}",
                    partial(t.theorem_44, w0, w, s=s, exact=exact, as_printed=printed),
                )
            constants = t.NtkConstants(K=1.5, R0=0.3, lambda_min=0.2)
            columns = torch.linspace(0.5, 2, 7, dtype=torch.float64)
            yield (
                f"theorem_72 {s} {printed}",
                partial(
                    t.theorem_72,
                    w0,
                    columns,
                    constants=constants,
                    s=s,
                    as_printed=printed,
                ),
            )
        for exact in (False, True):
            yield (
                f"lemma_43 {s} {exact}",
                partial(t.lemma_43, X, w, p, s=s, exact=exact),
            )
            yield f"lemma_45 {s} {exact}", partial(t.lemma_45, w, s=s, exact=exact)
        yield f"lemma_b2 {s}", partial(t.lemma_b2, X, w, p, s=s)
        yield f"error {s}", partial(t.sketch_error, X, w0, s=s, w=w)
        yield (
            f"error {s} mixed",
            partial(t.sketch_error, X, w0, s=s, w=w, uniform=0.3),
        )
        yield (
            f"error {s} other",
            partial(t.sketch_error, X, w0, s=s, X_mask=2 * X + 1),
        )
        for method in t.SKETCHES.names():
            yield (
                f"mask {s} {method}",
                lambda s=s, method=method: t.sketch_mask(p, s, seeded(), method=method),
            )
    yield "probabilities", partial(t.sketch_probabilities, X, w0, uniform=0.2)
    yield "leverage", partial(t.leverage_scores, X)
    for name in ("mlp", "mlp-tanh", "conv", "recurrent"):
        for s, uniform in ((3, 0.0), (50, 0.2)):
            yield f"ntk {name} {s}", partial(ntk, t, name, s, uniform)


def ntk(t: Any, name: str, s: int, uniform: float) -> Any:
    model, x = network(name, torch.float64)
    constants = t.NtkConstants(K=2.0, R0=0.1, lambda_min=0.5)
    return t.ntk_sketch(
        model,
        x,
        s,
        trained=tuned(model, seeded()),
        uniform=uniform,
        constants=constants,
    )


SCHEMES = ("magnitude", "global", "random", "random-without")
FILTERS = ("filters", "filters-without", "filters-magnitude")


def plans(t: Any) -> Answers:
    wishes = (
        {"sparsity": 0.05},
        {"sparsity": 0.3, "epsilon": 1.0},
        {"alpha": 0.4, "epsilon": 0.1},
    )
    for scheme, wish in itertools.product(SCHEMES, wishes):
        for law in (None, "bounded", "normal", "subgaussian"):
            yield (
                f"plan {scheme} / {wish} / {law}",
                partial(t.plan, [32, 64, 64, 8], scheme=scheme, law=law, **wish),
            )
    for scheme, wish in itertools.product(FILTERS, wishes):
        yield (
            f"plan {scheme} / {wish} / widths",
            partial(t.plan, [3, 16, 16, 10], scheme=scheme, kernel=3, input_size=8, **wish),
        )
    for name, scheme, wish in itertools.product(SMALL, (*SCHEMES, *FILTERS), wishes[:2]):
        if name.startswith(("mlp", "chain", "seed", "tiny", "linear")):
            yield (
                f"plan {name} / {scheme} / {wish}",
                partial(planned, t, name, scheme, wish),
            )


def planned(t: Any, name: str, scheme: str, wish: Mapping[str, Any]) -> Any:
    model, x = network(name)
    size = {"input_size": tuple(x.shape[2:])} if isinstance(x, Tensor) and x.ndim > 2 else {}
    return t.plan(model, scheme=scheme, **size, **wish)


def measured(name: str, options: Mapping[str, Any]) -> Any:
    dense, x = network(name)
    other = pruned(dense, seeded())
    found = {"points": 50, "restarts": 2, "steps": 10, **options}
    return [
        sc.measure_pruning(dense, other, example=x[:1], generator=seeded(), **found),
        sc.measure_pruning(dense, other, generator=seeded(), **found),
    ]


# -- refusals ----------------------------------------------------------------------------------


@section
def refusals() -> Answers:
    """Wrong calls of the public functions: which error, and the places that it names."""
    model, x = network("mlp-wide")
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.get_parameter("2.weight").fill_(math.nan)
    scores, masks = (
        sc.score(model, "magnitude"),
        sc.select(sc.score(model, "magnitude"), sparsity=0.5),
    )
    odd = {**masks, "0.weight": masks["0.weight"][:-1], "none": masks["0.weight"]}
    wrong: dict[Callable[..., Any], list[dict[str, Any]]] = {
        sc.score: [
            {"model": model, "rule": "magnitud"},
            {"model": model, "rule": "snip"},
            {"model": model, "rule": "magnitude", "where": "nothing"},
            {"model": model, "rule": "magnitude", "speed": 3},
            {"model": broken, "rule": "magnitude"},
            {"model": "mlp", "rule": "magnitude"},
            {"model": model, "rule": "synflow", "example": x[:, :3]},
            {"model": model, "rule": "random", "generator": 3},
        ],
        sc.select: [
            {"scores": scores},
            {"scores": scores, "sparsity": 0.5, "density": 0.5},
            {"scores": scores, "sparsity": 1.5},
            {"scores": scores, "sparsity": math.nan},
            {"scores": scores, "compression": 0.5},
            {"scores": scores, "sparsity": 0.5, "scope": "globe"},
            {"scores": scores, "sparsity": 0.5, "scope": {"9.weight": 0.3}},
            {"scores": scores, "sparsity": 0.5, "pattern": "3:2"},
            {"scores": scores, "sparsity": 0.5, "pattern": "kernel"},
            {"scores": scores, "sparsity": 0.5, "how": "dice"},
            {"scores": scores, "sparsity": 0.5, "floor": -1},
            {"scores": scores, "sparsity": 0.1, "within": masks},
            {"scores": scores, "sparsity": 0.5, "within": odd},
            {"scores": {}, "sparsity": 0.5},
            {"scores": {"a": torch.tensor([math.nan])}, "sparsity": 0.5},
        ],
        sc.apply_: [
            {"model": model, "masks": odd},
            {"model": model, "masks": {"0.weight": 3}},
        ],
        sc.prune_: [
            {"model": model, "recipe": "magnitude"},
            {"model": model, "recipe": "magnitude", "sparsty": 0.5},
            {
                "model": model,
                "recipe": "magnitude",
                "sparsity": 2,
                "scope": "globe",
                "rounds": 0,
            },
            {"model": model, "recipe": "magnitude", "macs": 0.5},
            {"model": model, "recipe": "grasp", "sparsity": 0.5},
            {"model": broken, "recipe": "magnitude", "sparsity": 0.5},
            {"model": model, "recipe": "magnitude", "sparsity": 0.5, "of": "right"},
        ],
        sc.prune_channels_: [
            {"model": model, "example": x},
            {"model": model, "example": x, "sparsity": 3},
            {"model": model, "example": x[:, :3], "sparsity": 0.5},
        ],
        sc.prune_to_bound_: [
            {"model": model, "example": x, "bound": -1.0, "radius": 0.1},
            {"model": model, "example": x, "bound": 1.0},
        ],
        sc.certify: [
            {"dense": model, "sparse": model},
            {"dense": model, "sparse": nn.Linear(16, 8), "around": x, "radius": 0.1},
            {"dense": model, "sparse": broken, "around": x, "radius": 0.1},
            {"dense": model, "sparse": model, "around": x, "radius": -0.1},
            {
                "dense": model,
                "sparse": model,
                "around": x,
                "radius": 0.1,
                "methods": "magic",
            },
            {"dense": model, "sparse": model, "around": x, "radius": 0.1, "norm": 3},
            {
                "dense": model,
                "sparse": model,
                "around": x,
                "radius": 0.1,
                "seconds": -1,
            },
            {"dense": model, "sparse": model, "box": (x + 1, x)},
        ],
        sc.path_norm: [
            {"model": model, "example": x[:, :3]},
            {"model": model, "example": x, "q": 0},
            {"model": broken, "example": x},
            {"model": network("attention")[0], "example": torch.randn(2, 8)},
        ],
        sc.compact: [
            {"model": model, "example": x, "multiple_of": 0},
            {"model": model, "example": x, "masks": odd},
        ],
        sc.accelerate: [{"model": model, "example": x, "tune": "fast"}],
        sc.load_masks: [{"path": "/nowhere/masks.safetensors"}],
        sc.load_sparse: [{"path": "/nowhere/model.safetensors"}],
        sc.save_sparse: [{"model": model, "path": "/nowhere/else/m.safetensors", "values": "int3"}],
        sc.hold: [
            {
                "model": model,
                "masks": odd,
                "optimizer": torch.optim.SGD(model.parameters(), 0.1),
            },
            {
                "model": model,
                "masks": masks,
                "optimizer": torch.optim.SGD([torch.zeros(1)], 0.1),
            },
        ],
        sc.optim.FactorizedSGD: [
            {"params": model.parameters(), "lr": -1},
            {"params": model.parameters(), "depth": 1},
            {"params": model.parameters(), "init": "zero"},
            {"params": model.parameters(), "strength": -1},
            {"params": model.parameters(), "target_sparsity": 0.9},
            {"params": model.parameters(), "schedule": "up"},
            {"params": model.parameters(), "weight_decay": 0.1},
            {"params": []},
        ],
        sc.optim.Factorized: [
            {"params": model.parameters(), "base": torch.optim.LBFGS},
            {
                "params": model.parameters(),
                "base": torch.optim.Adam,
                "base_kwargs": {"rate": 1},
            },
        ],
        lab.models.build: [{"name": "lenet-6"}, {"name": "vgg-16", "size": 8}],
        sc.diagnose: [{"model": broken}, {"model": 3}],
        sc.measure_pruning: [{"dense": model, "sparse": nn.Linear(2, 2)}],
        sc.theory.plan: [
            {"model_or_widths": [4, 4], "sparsity": 0.5},
            {"model_or_widths": [8, 8, 8, 8]},
            {"model_or_widths": [8, 8, 8, 8], "sparsity": 0.5, "scheme": "dice"},
            {"model_or_widths": network("added")[0], "sparsity": 0.5},
        ],
    }
    for function, calls in wrong.items():
        for i, call in enumerate(calls):
            given = sorted(set(call) - set(inspect.signature(function).parameters))
            key = f"{function.__name__} {i}{' ' + ', '.join(given) if given else ''}"
            yield key, partial(function, **call)


# -- experiments -------------------------------------------------------------------------------


@section
def experiments() -> Answers:
    """Every published experiment at smoke scale, by the command: rows and figures beside print."""
    listed = command().splitlines()
    for name in (line for line in listed if line and not line.startswith(" ")):
        yield name, partial(rows_of, name)


def rows_of(name: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.csv"
        command(name, "--scale", "smoke", "--device", "cpu", "--out", str(out))
        with out.open(newline="") as file:
            rows = list(csv.DictReader(file))
    # One key a row; columns of time have it in their name.
    return {
        f"{number:04} {row['job']}": {
            column: value
            for column, value in row.items()
            if "seconds" not in column and "time" not in column
        }
        for number, row in enumerate(rows)
    }


def command(*arguments: str) -> str:
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "secateurs", "reproduce", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout


# -- the command -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Difference:
    section: str
    key: str
    was: Any
    now: Any


def collect(name: str) -> dict[str, Any]:
    """All leaves of a section by their keys."""
    found: dict[str, Any] = {}
    for key, thunk in SECTIONS[name]():
        found.update((f"{key}{leaf}" if leaf else key, value) for leaf, value in ask(thunk))
    return found


def spent() -> float:
    """Seconds of the processor, those of ended commands too: the machine may have other work."""
    return sum(os.times()[:4])


def differences(name: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    absent = "(not there)"
    return [
        Difference(section=name, key=key, was=was.get(key, absent), now=now.get(key, absent))
        for key in sorted({*was, *now})
        if was.get(key, absent) != now.get(key, absent)
    ]


def machine() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "cpu": platform.processor() or platform.machine(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", action="append", choices=SECTIONS, help="a section; repeatable")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    # What torch and the package log about calls that are meant to fail.
    logging.disable(logging.CRITICAL)
    try:
        return answer(given)
    finally:
        logging.disable(logging.NOTSET)


def answer(given: argparse.Namespace) -> int:
    names = given.only or [name for name in SECTIONS if name != "experiments"]
    held = json.loads(given.file.read_text()) if given.file.exists() else {}
    if given.what == "compare" and held.get("machine") != machine():
        print(
            f"written with {held.get('machine')}, compared with {machine()}",
            file=sys.stderr,
        )
    changed = 0
    for name in names:
        begun = spent()
        answers = collect(name)
        took = f"{name}: {len(answers):,} answers in {spent() - begun:.0f} s"
        print(took, file=sys.stderr, flush=True)
        if given.what == "write":
            held = {**held, "machine": machine(), name: answers}
            given.file.write_text(json.dumps(held, indent=0, sort_keys=True))
            continue
        for found in differences(name, held.get(name, {}), answers):
            print(f"{found.section}: {found.key}\n    was {found.was}\n    now {found.now}")
            changed += 1
    if given.what == "compare":
        print(f"{changed} differences")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
