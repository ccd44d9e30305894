"""Networks of others against a pruned or rounded copy: the bound on a ball, and what was found.

    python benchmarks/real_certified.py resnet20 resnet56 --weights FOLDER --images CIFAR
    python benchmarks/real_certified.py rnet onet --weights FOLDER --images CIFAR --copies pruned
    python benchmarks/real_certified.py efficientnet --weights FILE --images PHOTOGRAPHS

Each test image (scaled for the networks of MTCNN; of the others a calibration input; of a
photograph 64 × 64 pixels, of which the 8 × 8 in the middle vary), two copies (a tenth of the
weights pruned by magnitude; weights rounded to int8 a row), balls in normalised pixels. Rows that
are in --out are not measured again. Where weights and images come from: docs/real_networks.md.
"""

import argparse
import copy
import csv
import resource
import time
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import secateurs as sc
from real_networks import TASKS, Images, resnet

IMAGES = 200
"""Those of which the share is asked that keep their class, spread over all classes."""
SECONDS = 300
"""For one such ball."""
SIDES = {"rnet": 24, "onet": 48}
"""The inputs of MTCNN's networks."""

FIELDS = (
    *("network", "copy", "image", "radius", "rounding", "method"),
    *("bound", "found", "seconds", "gigabytes"),
)
"""`found` is a difference of two evaluations in float64."""


def changed(dense: nn.Module, how: str) -> nn.Module:
    """The copy whose difference is bounded."""
    other = copy.deepcopy(dense)
    if how == "pruned":
        sc.prune_(other, "magnitude", sparsity=0.1)
        return other
    with torch.no_grad():
        for module in other.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                weight = module.weight
                step = weight.flatten(1).abs().amax(1).clamp(min=1e-30) / 127
                step = step.view(-1, *[1] * (weight.ndim - 1))
                weight.copy_((weight / step).round() * step)
    return other


class Face(nn.Module):
    """R-Net or O-Net of MTCNN (Zhang et al. 2016), in front of the softmax of "a face"."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        super().__init__()
        maps, count = list[nn.Module](), sum(name.startswith("conv") for name in state) // 2
        for number in range(1, count + 1):
            weight = state[f"conv{number}.weight"]
            maps += [
                nn.Conv2d(weight.shape[1], len(weight), weight.shape[-1]),
                nn.PReLU(len(weight)),
            ]
            if number < count:
                maps.append(nn.MaxPool2d(3 if number < 3 else 2, 2, ceil_mode=True))
        ends = [state[f"dense{count + 1}.weight"], state[f"dense{count + 2}_1.weight"]]
        first, last = (nn.Linear(weight.shape[1], len(weight)) for weight in ends)
        self.maps = nn.Sequential(*maps)
        self.head = nn.Sequential(first, nn.PReLU(len(ends[0])), last)
        # Both have their tensors in the order in which they run.
        names = [
            name for name in state if "_" not in name or name.startswith(f"dense{count + 2}_1")
        ]
        for parameter, name in zip(self.parameters(), names, strict=True):
            parameter.data = state[name]

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.maps(x).permute(0, 3, 2, 1).flatten(1))
        return found


def asked(name: str, args: argparse.Namespace) -> tuple[nn.Module, Tensor, Tensor]:
    """The network, inputs, and 1 where they vary."""
    if name in SIDES or name.startswith("resnet"):
        data = Images(args.images)
        # Images of different classes: folders are read class by class.
        x = data.test[torch.linspace(0, len(data.test) - 1, args.count).long()]
        if name in SIDES:
            x = nn.functional.interpolate(x, size=SIDES[name], mode="bilinear")
            dense: nn.Module = Face(
                torch.load(args.weights / f"{name}.pt", weights_only=True)
            ).eval()
        else:
            dense = resnet(int(name.removeprefix("resnet")), args.weights)
        return dense, x, torch.ones_like(x[:1])
    task = TASKS[name](name, args)
    x = torch.cat(task.given)
    vary = torch.ones_like(x[:1])
    if name == "efficientnet":
        middle = slice(80, 144)
        x = x[:, :, middle, middle]
        vary = torch.zeros_like(x[:1])
        vary[:, :, 28:36, 28:36] = 1
    return task.dense, x, vary


def keep_classes(args: argparse.Namespace, data: Images) -> None:
    """For each image the largest of the radii at which the whole ball provably has one class in
    both networks; each ball lies within the next.
    """
    path = args.out.with_name("real_classes.csv")
    if not path.exists():
        path.write_text("network,copy,image,proven,seconds\n", encoding="utf-8")
    with path.open(encoding="utf-8", newline="") as file:
        known = [tuple(row[:3]) for row in csv.reader(file)]
    # A prefix is spread over all classes, too.
    places = torch.linspace(0, len(data.test) - 1, IMAGES).long()
    order = [number * 47 % IMAGES for number in range(args.classes)]
    networks = {
        name: resnet(int(name.removeprefix("resnet")), args.weights) for name in args.networks
    }
    pairs = {(n, how): (d, changed(d, how)) for n, d in networks.items() for how in args.copies}
    for name, how, number in product(args.networks, args.copies, order):
        if (name, how, str(number)) in known:
            continue
        (dense, sparse), begin, proven = pairs[name, how], time.process_time(), 0.0
        x = data.test[places[number]][None].contiguous()
        for radius in sorted(args.radius, reverse=True):
            options = {"restarts": 0, "seconds": SECONDS}
            cert = sc.certify(dense, sparse, around=x, radius=radius, claim="top-1", **options)
            if cert.answer == "proven":
                proven = radius
            if cert.answer != "open":
                break
        row = (name, how, number, proven, round(time.process_time() - begin, 1))
        print(*row, flush=True)
        with path.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file).writerow(row)


def main() -> None:
    """Measure what is not in the file yet, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+", choices=[*TASKS, "onet"])
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--count", type=int, default=10, help="of test images")
    parser.add_argument("--radius", type=float, nargs="+", default=[1e-5, 1e-4, 3e-4])
    parser.add_argument("--copies", nargs="+", default=["pruned", "int8"])
    parser.add_argument("--rounding", action="store_true", help="what float32 computes")
    parser.add_argument("--classes", type=int, default=0, help="of 200 images, instead of bounds")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/real_certified.csv"))
    args = parser.parse_args()
    if args.classes:
        keep_classes(args, Images(args.images))
        return
    if not args.out.exists():
        args.out.write_text(",".join(FIELDS) + "\n", encoding="utf-8")
    with args.out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    known = {tuple(row[f] for f in FIELDS[:5]) for row in rows}
    networks = {name: asked(name, args) for name in args.networks}
    cells = product(args.networks, args.copies, range(args.count), args.radius)
    for name, how, number, radius in cells:
        if (name, how, str(number), str(radius), str(args.rounding)) in known:
            continue
        dense, inputs, vary = networks[name]
        x, begin = inputs[number : number + 1].contiguous(), time.process_time()
        ball: dict[str, Any] = {"around": x, "radius": radius}
        if not bool(vary.all()):
            ball = {"box": (x.double() - radius * vary, x.double() + radius * vary)}
        rounding = True if args.rounding else "auto"
        cert = sc.certify(dense, changed(dense, how), rounding=rounding, **ball)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        row = (
            *(name, how, number, radius, args.rounding, cert.method),
            *(f"{cert.bound:.6g}", f"{cert.found:.6g}"),
            *(round(time.process_time() - begin, 1), round(peak, 1)),
        )
        print(*row, flush=True)
        with args.out.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file).writerow(row)
        rows.append(dict(zip(FIELDS, map(str, row), strict=True)))
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault(
            tuple(row[f] for f in ("network", "copy", "radius", "rounding")), []
        ).append(row)
    for key, group in groups.items():
        ratio = median(float(r["bound"]) / float(r["found"]) for r in group)
        bound, seconds = (median(float(r[f]) for r in group) for f in ("bound", "seconds"))
        print("|", " | ".join(key), f"| {len(group)} | {bound:.4g} | {ratio:.3f} | {seconds:.0f} |")


if __name__ == "__main__":
    main()
