"""Masks drawn at initialisation by the best probabilities on paths, against other single looks.

    python benchmarks/path_draws.py
    python benchmarks/path_draws.py --train [NETWORK ...] [--seeds 0 1 2] [--out FILE]
    python benchmarks/path_draws.py --tune NETWORK
    python benchmarks/path_draws.py --trained FOLDER [--cuts FILE]
    python benchmarks/path_draws.py --tables

Printed for LeNet-300-100, LeNet-5 and ResNet-20 as initialised: the
relative variance of the paths, E‖Φ(θ) − Φ(m θ/p)‖₂² / ‖Φ(θ)‖₂², of draws with as many entries kept.
With `--train`: the test accuracy after training what was pruned at the start, by the protocols
below (SGD, one cycle, zeros held). Each row is written when it is there, and rows of --out are not
trained again, so that a run goes on where it was stopped. `--tune` trains the dense network with
several rates and prints the accuracy on images of the training set that nothing else sees.
`--trained` cuts a trained ResNet-20 of others (FOLDER holds its weights, docs/real_networks.md) and
a LeNet-5 of our own, once, without training on: what that does to the paths, to the function on the
test images, and to the accuracy. `--tables` prints the tables of the page from the rows. CIFAR-10
is read from $SECATEURS_DATA, as JPEG (docs/data.md).
"""

import argparse
import copy
import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import secateurs as sc
from secateurs.masks.systematic import inclusion_of_all
from secateurs.paths import draw_variance, keep_probabilities
from secateurs.scores import probe
from secateurs_lab import data, models

SPARSITIES = (0.5, 0.8, 0.9, 0.95, 0.98)
FIELDS = ("network", "init", "way", "sparsity", "seed", "accuracy")
BEST, SYNFLOW = "draw best p", "SynFlow, 50 rounds"
DRAWN = {"how": "systematic", "scope": "proportional"}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "top |w|": ("magnitude", {}),
    "top path cost": ("path", {}),
    "draw |w|": ("magnitude", DRAWN),
    "draw path cost": ("path", DRAWN),
    BEST: ("path-draw", DRAWN),
    SYNFLOW: ("synflow", {"rounds": 50}),
}
CLOSER: dict[str, tuple[str, dict[str, Any]]] = {
    f"{BEST}, 10 rounds": ("path-draw", {**DRAWN, "rounds": 10}),
    f"{BEST}, 50 rounds": ("path-draw", {**DRAWN, "rounds": 50}),
    f"{BEST}, weights over p": ("path-draw", DRAWN),
    "draw SynFlow, 50 rounds": ("synflow", {**DRAWN, "rounds": 50}),
}
"""What may bring a draw nearer to SynFlow, on the smallest network alone."""
SAMPLED = {"how": "sample"}
SKETCHED: dict[str, tuple[str, dict[str, Any]]] = {
    "top SNIP": ("snip", {}),
    "draw SNIP": ("snip", SAMPLED),
    "top SNIP on noise": ("snip", {}),
    "draw SNIP on noise": ("snip", SAMPLED),
    "draw SynFlow": ("synflow", {**SAMPLED, "rounds": 50}),
}
"""The sketching paper's own comparison, drawn as there: at two sparsities, on CIFAR-10 alone."""
SKETCHED_AT = (0.9, 0.98)
SKETCHED_PAIRS = (
    ("draw SNIP", "top SNIP"),
    ("draw SNIP on noise", "top SNIP on noise"),
    ("draw SNIP on noise", "top SNIP"),
    ("draw SynFlow", SYNFLOW),
)
DENSE = "dense"
WEIGHT = r"\|w\|"


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How a network is trained after it was pruned."""

    data: str
    channels: int
    size: int
    images: int
    epochs: int
    batch: int
    rate: float
    inits: tuple[str, ...] = ("kaiming-normal",)
    sparsities: tuple[float, ...] = (0.8, 0.9, 0.95, 0.98)
    ways: tuple[str, ...] = (DENSE, *WAYS)
    bf16: bool = True


PROTOCOLS = {
    "lenet-300-100": Protocol(
        data="fashion-mnist",
        channels=1,
        size=28,
        images=20_000,
        epochs=10,
        batch=128,
        rate=0.1,
        inits=("kaiming-normal", "torch"),
        sparsities=(0.8, 0.9, 0.95, 0.98, 0.99),
        ways=tuple(WAYS) + tuple(CLOSER),
        bf16=False,
    ),
    "lenet-5": Protocol(
        data="fashion-mnist", channels=1, size=28, images=20_000, epochs=10, batch=128, rate=0.1
    ),
    "resnet-20": Protocol(
        data="cifar-10-jpeg",
        channels=3,
        size=32,
        images=10_000,
        epochs=3,
        batch=64,
        rate=0.1,
        sparsities=(0.8, 0.9, 0.98),
        ways=(DENSE, "top |w|", "top path cost", "draw |w|", BEST, SYNFLOW, *SKETCHED),
    ),
}
"""A batch of 64 makes more of three epochs; a ResNet-20 takes a minute each."""
HELD_OUT = slice(40_000, 42_000)
"""Training images for the choice of a rate alone."""
RATES = (0.05, 0.1, 0.2)


def variances(name: str, model: nn.Module, example: torch.Tensor) -> None:
    """One row a sparsity."""
    chosen = [n for n, p in model.named_parameters() if p.ndim > 1]
    weights = {n: model.get_parameter(n).detach().abs() for n in chosen}
    costs = {q: sc.path_costs(model, example, q=q, relative=True) for q in (1, 2)}
    total = sum(w.numel() for w in weights.values())
    for sparsity in SPARSITIES:
        keep = round(total * (1 - sparsity))
        best = keep_probabilities(model, example, sparsity=sparsity)
        draws = {
            "|w|": weights,
            "w²": {n: w**2 for n, w in weights.items()},
            "path cost": {n: costs[1][n] for n in chosen},
            "√ path cost (q = 2)": {n: costs[2][n].sqrt() for n in chosen},
        }
        found = {
            way: draw_variance(model, example, inclusion_of_all(scores, keep))
            for way, scores in draws.items()
        }
        assert best.variance <= min(found.values()) * (1 + 1e-6), (name, sparsity)
        line = " | ".join(f"{v:.3g}" for v in (*found.values(), best.variance))
        print(f"| {name} | {sparsity:.0%} | {line} | {best.steps} |", flush=True)


def accuracy(
    name: str, init: str, way: str, sparsity: float, seed: int, images: data.Dataset
) -> float:
    """Pruned at the start, trained, tested."""
    torch.manual_seed(seed)
    protocol = PROTOCOLS[name]
    shape = (1, protocol.channels, protocol.size, protocol.size)
    model = models.build(
        name, in_channels=protocol.channels, classes=10, size=protocol.size, init=init
    ).to(memory_format=torch.channels_last)
    masks = None if way == DENSE else prune(model, way, sparsity, seed, torch.ones(shape), images)
    if sc.path_norm(model.eval(), torch.ones(shape), split=True).inputs == 0:
        # No training brings a path back: one answer for all images, a tenth of which it fits.
        return 10.0
    train(model, masks, protocol, protocol.rate, seed, images)
    return right(model, images.test_x, images.test_y, protocol)


def prune(
    model: nn.Module,
    way: str,
    sparsity: float,
    seed: int,
    example: torch.Tensor,
    images: data.Dataset,
) -> dict[str, torch.Tensor]:
    """The masks, which the model has on return."""
    score, more = {**WAYS, **CLOSER, **SKETCHED}[way]
    generator = torch.Generator().manual_seed(100 + seed)
    if score == "snip":
        # As in the paper, on the statistics of the batch.
        more = {**more, "batch": _scored(way, generator, images), "loss": F.cross_entropy}
    p: Mapping[str, torch.Tensor] = {}
    if way.endswith("over p"):
        p = keep_probabilities(model.eval(), example, sparsity=sparsity)
    done = sc.prune_(
        model.train(score == "snip"),
        score,
        sparsity=sparsity,
        example=example,
        generator=generator,
        **more,
    )
    _divide(model, p)
    return dict(done.masks)


def _scored(
    way: str, generator: torch.Generator, images: data.Dataset
) -> tuple[torch.Tensor, torch.Tensor]:
    """256 images, or as many of normal numbers with their mean and deviation."""
    if way.endswith("noise"):
        about = {"mean": images.mean, "std": images.std, "classes": 10}
        return probe("random", images.train_x[:1], generator=generator, **about)
    rows = torch.randperm(len(images.train_y), generator=generator)[:256]
    return images.train_x[rows], images.train_y[rows]


def train(
    model: nn.Module,
    masks: dict[str, torch.Tensor] | None,
    protocol: Protocol,
    most: float,
    seed: int,
    images: data.Dataset,
) -> None:
    """SGD, one cycle up to this rate; zeros stay."""
    x, y = images.train_x[: protocol.images], images.train_y[: protocol.images]
    optimizer = torch.optim.SGD(model.parameters(), lr=most, momentum=0.9)
    if masks is not None:
        sc.hold(model, masks, optimizer)
    steps = protocol.epochs * -(-len(x) // protocol.batch)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, most, steps)
    source = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(protocol.epochs):
        for rows in torch.randperm(len(x), generator=source).split(protocol.batch):
            optimizer.zero_grad()
            batch = x[rows].contiguous(memory_format=torch.channels_last)
            with torch.autocast("cpu", torch.bfloat16, enabled=protocol.bf16):
                loss = F.cross_entropy(model(batch), y[rows])
            loss.backward()
            optimizer.step()
            rate.step()


@torch.no_grad()
def right(model: nn.Module, x: torch.Tensor, y: torch.Tensor, protocol: Protocol) -> float:
    """How many classes of a hundred images."""
    model.eval()
    with torch.autocast("cpu", torch.bfloat16, enabled=protocol.bf16):
        found = torch.cat([model(part).argmax(1) for part in x.split(500)])
    return 100 * float((found == y).double().mean())


def tune(name: str) -> None:
    """The dense network on images held out, one line a rate."""
    protocol = PROTOCOLS[name]
    images = data.load(protocol.data)
    for most in RATES:
        torch.manual_seed(0)
        model = models.build(
            name, in_channels=protocol.channels, classes=10, size=protocol.size
        ).to(memory_format=torch.channels_last)
        train(model, None, protocol, most, 0, images)
        held = right(model, images.train_x[HELD_OUT], images.train_y[HELD_OUT], protocol)
        print(f"{name}, rate {most}: {held:.1f} of the images held out", flush=True)


def measure(out: Path, names: Sequence[str], seeds: Sequence[int]) -> None:
    """Every cell that is not in the file; all ways of one start, seed and sparsity in a row."""
    known = set()
    if out.exists():
        known = {tuple(row[f] for f in FIELDS[:5]) for row in read(out)}
    else:
        out.write_text(",".join(FIELDS) + "\n", encoding="utf-8")
    for name in names:
        protocol, images = PROTOCOLS[name], None
        cells = (
            (init, way, sparsity, seed)
            for seed in seeds
            for init in protocol.inits
            for sparsity in (0.0, *protocol.sparsities)
            for way in protocol.ways
            if (way == DENSE) == (sparsity == 0)
            and (way not in SKETCHED or sparsity in SKETCHED_AT)
        )
        for cell in cells:
            if (name, *map(str, cell)) in known:
                continue
            images = images or data.load(protocol.data)
            found = round(accuracy(name, *cell, images), 2)
            print(name, *cell, found, flush=True)
            with out.open("a", encoding="utf-8", newline="") as file:
                csv.writer(file).writerow((name, *cell, found))


def read(out: Path) -> list[dict[str, str]]:
    """The rows of the file."""
    with out.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# Networks that are trained already, cut once.

CUT_FIELDS = ("network", "way", "sparsity", "draw", "paths", "change", "accuracy")
CUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "top |w|": ("magnitude", {}),
    "top path cost": ("path", {}),
    "draw |w|": ("magnitude", DRAWN),
    BEST: ("path-draw", DRAWN),
    "draw |w|, weights over p": ("magnitude", DRAWN),
    f"{BEST}, weights over p": ("path-draw", DRAWN),
}
CUT_SPARSITIES = (0.5, 0.8)


def measure_trained(folder: Path, out: Path) -> None:
    """Rows that are not in the file."""
    known = set()
    if out.exists():
        known = {tuple(row[f] for f in CUT_FIELDS[:4]) for row in read(out)}
    else:
        out.write_text(",".join(CUT_FIELDS) + "\n", encoding="utf-8")
    for name, prepare in (("resnet-20 of others", _theirs), ("lenet-5", _ours)):
        model, x, y = prepare(folder)
        outputs = _logits(model, x)
        for sparsity in (0.0, *CUT_SPARSITIES):
            for way, (_, more) in (CUTS if sparsity else {DENSE: ("", {})}).items():
                for draw in range(3 if "how" in more else 1):
                    if (name, way, str(sparsity), str(draw)) in known:
                        continue
                    cut, paths = (model, 0.0) if way == DENSE else _cut(model, way, sparsity, draw)
                    found = _logits(cut, x)
                    change = float((found - outputs).norm() / outputs.norm())
                    share = 100 * float((found.argmax(1) == y).double().mean())
                    row = (
                        name,
                        way,
                        sparsity,
                        draw,
                        f"{paths:.4g}",
                        f"{change:.4g}",
                        round(share, 2),
                    )
                    print(*row, flush=True)
                    with out.open("a", encoding="utf-8", newline="") as file:
                        csv.writer(file).writerow(row)


def _theirs(folder: Path) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Their weights, and the test images as they were normalised for them."""
    from real_networks import resnet

    images = data.load("cifar-10-jpeg")
    scale, offset = (torch.tensor(v).view(-1, 1, 1) for v in (images.scale, images.offset))
    mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[..., None, None]
    return resnet(20, folder), (images.test_x * scale + offset - mean) / std, images.test_y


def _ours(_: Path) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The dense LeNet-5 of the protocol."""
    protocol = PROTOCOLS["lenet-5"]
    images = data.load(protocol.data)
    torch.manual_seed(0)
    model = models.build("lenet-5", in_channels=1, classes=10, size=28)
    train(model, None, protocol, protocol.rate, 0, images)
    return model.eval(), images.test_x, images.test_y


@torch.no_grad()
def _logits(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([model(part) for part in x.split(500)])


def _cut(model: nn.Module, way: str, sparsity: float, draw: int) -> tuple[nn.Module, float]:
    """A cut copy, and ‖Φ(θ) − Φ(θ')‖₂² / ‖Φ(θ)‖₂²: of a mask what it takes away, and of weights
    over p the expected value."""
    score, more = CUTS[way]
    cut, example = copy.deepcopy(model), _example(model)
    generator = torch.Generator().manual_seed(100 + draw)
    done = sc.prune_(cut, score, sparsity=sparsity, example=example, generator=generator, **more)
    if not way.endswith("over p"):
        left = sc.path_norm(cut, example, q=2) / sc.path_norm(model, example, q=2)
        return cut, 1 - left**2
    if score == "path-draw":
        p = dict(keep_probabilities(model, example, sparsity=sparsity))
    else:
        weights = {n: model.get_parameter(n).detach().abs() for n in done.masks}
        p = inclusion_of_all(weights, sum(int(m.sum()) for m in done.masks.values()))
    _divide(cut, p)
    return cut, draw_variance(model, example, p)


def _example(model: nn.Module) -> torch.Tensor:
    channels = next(p for p in model.parameters()).shape[1]
    return torch.ones(1, channels, *((28, 28) if channels == 1 else (32, 32)))


@torch.no_grad()
def _divide(model: nn.Module, p: Mapping[str, torch.Tensor]) -> None:
    """Weights over the probability that they are kept; those that are not are zero already."""
    for name, chance in p.items():
        model.get_parameter(name).div_(chance.clamp_min(1e-30).float())


# The tables of the page.


Cells = dict[tuple[str, float, int], float]


def tables(rows: list[dict[str, str]]) -> None:
    """Means over the seeds that all ways of a sparsity have, and in how many pairs of equal start,
    sparsity and seed the best p is ahead of another way, and others are ahead of it and SynFlow."""
    groups: dict[str, Cells] = {}
    for r in rows:
        cell = r["way"], float(r["sparsity"]), int(r["seed"])
        groups.setdefault(f"{r['network']}, {r['init']}", {})[cell] = float(r["accuracy"])
    _print_means(tuple(WAYS), groups)
    _print_pairs([BEST], [way for way in WAYS if way != BEST], groups)
    closer = {
        name: cells for name, cells in groups.items() if any(way in CLOSER for way, _, _ in cells)
    }
    _print_means((BEST, *CLOSER, SYNFLOW), closer)
    _print_pairs(list(CLOSER), [BEST, SYNFLOW], closer)
    sketched = {
        name: {key: value for key, value in cells.items() if key[1] in SKETCHED_AT}
        for name, cells in groups.items()
        if any(way in SKETCHED for way, _, _ in cells)
    }
    _print_means((*SKETCHED, SYNFLOW), sketched)
    _head(("network, start",), [f"{drawn}, of {top}" for drawn, top in SKETCHED_PAIRS])
    for name, cells in sketched.items():
        texts = [_ahead(drawn, top, cells) for drawn, top in SKETCHED_PAIRS]
        print(f"| {name} | {' | '.join(texts)} |")


def _head(first: Sequence[str], ways: Sequence[str]) -> None:
    print(f"\n| {' | '.join([*first, *ways])} |".replace("|w|", WEIGHT))
    print("| --- " * (len(first) + len(ways)) + "|")


def _print_means(ways: tuple[str, ...], groups: dict[str, Cells]) -> None:
    _head(("network, start", "zeros", "seeds"), ways)
    for name, cells in groups.items():
        there = [way for way in ways if any(way == key[0] for key in cells)]
        for sparsity in sorted({key[1] for key in cells} - {0.0}):
            seeds = {s for _, z, s in cells if z == sparsity}
            seeds = {s for s in seeds if all((way, sparsity, s) in cells for way in there)}
            if not seeds:
                continue
            means = {w: sum(cells[w, sparsity, s] for s in seeds) / len(seeds) for w in there}
            best = f"{max(means.values()):.1f}"
            texts = [f"{means[way]:.1f}" if way in means else "–" for way in ways]
            texts = [f"**{text}**" if text == best else text for text in texts]
            print(f"| {name} | {sparsity:.0%} | {len(seeds)} | {' | '.join(texts)} |")


def _print_pairs(ways: list[str], others: list[str], groups: dict[str, Cells]) -> None:
    _head(("network, start", "ahead"), [f"of {other}" for other in others])
    for name, cells in groups.items():
        for way in ways:
            texts = [_ahead(way, other, cells) for other in others]
            print(f"| {name} | {way} | {' | '.join(texts)} |")


def _ahead(way: str, other: str, cells: Cells) -> str:
    """In how many pairs of equal sparsity and seed one way is ahead of another."""
    pairs = [
        (cells[way, *key[1:]], accuracy)
        for key, accuracy in cells.items()
        if key[0] == other and (way, *key[1:]) in cells
    ]
    ahead = sum(one > two for one, two in pairs)
    return f"{ahead} of {len(pairs)}" if pairs else "–"


def tables_trained(rows: list[dict[str, str]]) -> None:
    """Means over the draws of a sparsity: error of the paths, change of the logits, accuracy."""
    _head(("network", "way"), [f"{z:.0%}: paths, change, accuracy" for z in CUT_SPARSITIES])
    for name, way in dict.fromkeys((r["network"], r["way"]) for r in rows):
        texts = []
        for sparsity in CUT_SPARSITIES if way != DENSE else (0.0, 0.0):
            own = [
                [float(r[field]) for field in CUT_FIELDS[4:]]
                for r in rows
                if (r["network"], r["way"], float(r["sparsity"])) == (name, way, sparsity)
            ]
            if own:
                paths, change, share = (sum(each) / len(own) for each in zip(*own, strict=True))
                texts.append(f"{paths:.3g}, {change:.3g}, {share:.1f}")
        print(f"| {name} | {way.replace('|w|', WEIGHT)} | {' | '.join(texts)} |")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", nargs="*", choices=[*PROTOCOLS, []], metavar="NETWORK")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--tune", choices=PROTOCOLS, metavar="NETWORK")
    parser.add_argument("--trained", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--cuts", type=Path, default=Path("benchmarks/results/path_draws_trained.csv")
    )
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/path_draws.csv"))
    args = parser.parse_args()
    if args.tune:
        return tune(args.tune)
    if args.trained:
        return measure_trained(args.trained, args.cuts)
    if args.tables:
        tables(read(args.out))
        return tables_trained(read(args.cuts))
    if args.train is not None:
        return measure(args.out, args.train or tuple(PROTOCOLS), args.seeds)
    print("| network | zeros | \\|w\\| | w² | path cost | √ path cost | best p | steps |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    torch.manual_seed(0)
    for name, protocol in PROTOCOLS.items():
        channels, size = protocol.channels, protocol.size
        model = models.build(name, in_channels=channels, classes=10, size=size).eval()
        variances(name, model, torch.zeros(1, channels, size, size))
    return None


if __name__ == "__main__":
    main()
