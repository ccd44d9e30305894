"""Trained networks of others, made sparse without labels: what is left of them.

    python benchmarks/real_networks.py resnet20 resnet56 --weights FOLDER --images FILE_OR_FOLDER
    python benchmarks/real_networks.py minilm --weights FOLDER --images FOLDER

Weights and data lie beside the repository; docs/real_networks.md says where they come from. Every
finished row is added to --out at once and is not measured again, so that a run goes on where it was
stopped. Calibration, distillation and test data are apart: images (sentences) of the training set,
of which no label is read, and the whole test set.

ResNets: `--images` is an .npz of x_train, x_test (uint8, N × 32 × 32 × 3) and y_test, or a folder
train/CLASS/*.jpg, test/CLASS/*.jpg. MiniLM: `--weights` is the folder of the model, `--images` that
of stsb-en-train.csv and stsb-en-test.csv.
"""

import argparse
import copy
import csv
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

import secateurs as sc

SPARSITIES = (0.5, 0.7, 0.8, 0.9, 0.95)
FIELDS = ("network", "way", "sparsity", "quality", "seconds", "bytes", "note")
Row = dict[str, Any]


# The ResNets of CIFAR-10 with shortcuts without parameters (He et al. 2016, option A).


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.more, self.stride = (outputs - inputs) // 2, stride

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.more or self.stride > 1:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.more, self.more))
        return F.relu(x + y)


class ResNet(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        widths = (16, 16, 32, 64)
        for place in (1, 2, 3):
            first = Block(widths[place - 1], widths[place], 1 if place == 1 else 2)
            more = (Block(widths[place], widths[place], 1) for _ in range((depth - 2) // 6 - 1))
            setattr(self, f"layer{place}", nn.Sequential(first, *more))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


def resnet(depth: int, folder: Path) -> ResNet:
    model = ResNet(depth)
    state = load_file(folder / f"resnet{depth}.safetensors")
    model.load_state_dict({name.removeprefix("module."): v for name, v in state.items()})
    return model.eval()


class Images:
    """The images, normalised as these networks were trained on."""

    def __init__(self, place: Path) -> None:
        mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])
        raw = np.load(place) if place.is_file() else _read_folder(place)
        self.labels = torch.from_numpy(raw["y_test"])
        self.train_labels = torch.from_numpy(raw["y_train"]) if "y_train" in raw else None
        self.train, self.test = (
            ((torch.from_numpy(raw[name]).float() / 255 - mean) / std).permute(0, 3, 1, 2)
            for name in ("x_train", "x_test")
        )

    def calibration(self, count: int, seed: int) -> list[Tensor]:
        chosen = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(seed))
        return list(self.train[chosen[:count]].contiguous().split(128))

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        right = [model(x).argmax(1) for x in self.test.contiguous().split(500)]
        return 100 * float((torch.cat(right) == self.labels).double().mean())


def _read_folder(place: Path) -> dict[str, np.ndarray]:
    from PIL import Image

    found: dict[str, np.ndarray] = {}
    for part in ("train", "test"):
        names = sorted(each.name for each in (place / part).iterdir())
        files = [(f, k) for k, n in enumerate(names) for f in sorted((place / part / n).iterdir())]
        found[f"x_{part}"] = np.stack([np.asarray(Image.open(file)) for file, _ in files])
        found[f"y_{part}"] = np.array([label for _, label in files])
    return found


def distil(
    model: nn.Module, dense: nn.Module, masks: Any, images: Tensor, seconds: float
) -> nn.Module:
    """Trained for so long on the answers of the dense network, zeros held."""
    teacher, rate = copy.deepcopy(dense).eval(), 0.02
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, nesterov=True)
    held = sc.hold(model, masks, optimizer) if masks is not None else None
    source, begin, spent = torch.Generator().manual_seed(0), time.process_time(), 0.0
    model.train()
    while spent < seconds:
        x = images[torch.randint(len(images), (128,), generator=source)]
        x = F.pad(x, (4, 4, 4, 4))
        row, column = (int(v) for v in torch.randint(9, (2,), generator=source))
        x = x[:, :, row : row + 32, column : column + 32]
        x = x.flip(3) if torch.rand((), generator=source) < 0.5 else x
        with torch.no_grad():
            wanted = teacher(x)
        optimizer.param_groups[0]["lr"] = rate * (1 - spent / seconds) + 1e-4
        optimizer.zero_grad()
        F.mse_loss(model(x), wanted).backward()
        optimizer.step()
        spent = time.process_time() - begin
    if held is not None:
        held.release()
    return model.eval()


def size_of(model: nn.Module) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        sc.save_sparse(model, path)
        return path.stat().st_size


def measure_resnet(
    name: str, args: argparse.Namespace, wanted: Callable[..., bool]
) -> Iterator[Row]:
    """One row after another; those that are not wanted are not measured."""
    dense, data = resnet(int(name.removeprefix("resnet")), args.weights), Images(args.images)
    given = data.calibration(512, seed=0)
    scores: dict[str, dict[str, Any]] = {
        "magnitude": {},
        "wanda": {"batch": given, "scope": "row"},
        "path": {"example": given[0][:1]},
        "synflow": {"example": given[0][:1], "rounds": 100},
    }

    def row(way: str, sparsity: float | None, model: nn.Module, seconds: float = 0.0) -> Row:
        quality = data.accuracy(model)
        values = (name, way, sparsity, round(quality, 2), round(seconds, 1), size_of(model), "")
        return dict(zip(FIELDS, values, strict=True))

    if wanted("dense", None):
        yield row("dense", None, dense)
    for sparsity in SPARSITIES:
        for score, more in scores.items():
            model, begin = copy.deepcopy(dense), time.process_time()
            ways = (score, f"{score}, reconstructed", f"{score}, reconstructed, distilled")
            if score in ("path", "synflow"):
                ways = ways[:1]
            if not any(wanted(way, sparsity) for way in ways):
                continue
            masks = sc.prune_(model, score, sparsity=sparsity, **more)
            if wanted(ways[0], sparsity):
                yield row(ways[0], sparsity, model, time.process_time() - begin)
            if len(ways) > 1:
                begin = time.process_time()
                sc.reconstruct_(model, dense, masks=masks, batch=given)
                if wanted(ways[1], sparsity):
                    yield row(ways[1], sparsity, model, time.process_time() - begin)
            if score == "magnitude" and wanted(ways[2], sparsity):
                model = distil(model, dense, masks, data.train, args.seconds)
                yield row(ways[2], sparsity, model, args.seconds)
            if score == "magnitude" and wanted("magnitude, distilled", sparsity):
                model = copy.deepcopy(dense)
                masks = sc.prune_(model, score, sparsity=sparsity)
                model = distil(model, dense, masks, data.train, args.seconds)
                yield row("magnitude, distilled", sparsity, model, args.seconds)
    way = "half of the multiplications, distilled"
    if wanted(way, None):
        model, example = copy.deepcopy(dense), given[0][:1]
        cut = sc.prune_channels_(model, example, macs=0.5, scope="global", floor=0.25)
        sc.reconstruct_(model, dense, batch=given)
        small = sc.compact(model, example)
        small = distil(small, dense, None, data.train, args.cut_seconds)
        share = sc.macs(small, example).dense / sc.macs(dense, example).dense
        yield row(way, None, small, args.cut_seconds) | {
            "note": f"macs {share:.3f}; {cut.channels}"
        }


# A sentence encoder of transformers: Spearman's correlation with people's judgements.


def measure_minilm(_: str, args: argparse.Namespace, wanted: Callable[..., bool]) -> Iterator[Row]:
    """As above, with recipes for transformers."""
    from scipy.stats import spearmanr
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.weights)
    dense = AutoModel.from_pretrained(args.weights).eval()

    def pairs(part: str) -> list[list[str]]:
        with open(args.images / f"stsb-en-{part}.csv", encoding="utf-8", newline="") as file:
            return list(csv.reader(file))

    def tokens(texts: list[str]) -> dict[str, Tensor]:
        return dict(
            tokenizer(texts, padding=True, truncation=True, max_length=128, return_tensors="pt")
        )

    @torch.no_grad()
    def embed(model: nn.Module, texts: list[str]) -> Tensor:
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        found: list[Tensor] = [torch.empty(0)] * len(texts)
        for start in range(0, len(order), 64):
            part = order[start : start + 64]
            given = tokens([texts[i] for i in part])
            weight = given["attention_mask"][..., None]
            mean = (model(**given).last_hidden_state * weight).sum(1) / weight.sum(1)
            for i, vector in zip(part, F.normalize(mean, dim=1), strict=True):
                found[i] = vector
        return torch.stack(found)

    test, train = pairs("test"), pairs("train")

    def quality(model: nn.Module) -> float:
        one, two = (embed(model, [row[k] for row in test]) for k in (0, 1))
        judged = [float(row[2]) for row in test]
        return 100 * float(spearmanr((one * two).sum(1).numpy(), judged).statistic)

    def row(way: str, sparsity: float | None, model: nn.Module, seconds: float = 0.0) -> Row:
        values = ("minilm", way, sparsity, round(quality(model), 2), round(seconds, 1), "", "")
        return dict(zip(FIELDS, values, strict=True))

    if wanted("dense", None):
        yield row("dense", None, dense)
    for seed in range(args.draws):
        chosen = np.random.default_rng(seed).permutation(len(train))[:128]
        texts = [train[i][0] for i in chosen]
        batch = [tokens(texts[start : start + 32]) for start in range(0, len(texts), 32)]
        for sparsity in (0.5, 0.6):
            for score in ("magnitude", "wanda", "sparsegpt"):
                for fate in ("", ", reconstructed in blocks", ", reconstructed"):
                    way = f"{score}{fate}, draw {seed}"
                    if not wanted(way, sparsity) or (score == "magnitude" and fate):
                        continue
                    model, begin = copy.deepcopy(dense), time.process_time()
                    recipe = sc.Recipe(score=score, scope="row", sparsity=sparsity)
                    done = sc.prune_blocks_(model, recipe, batch=batch, reconstruct="in" in fate)
                    if fate == ", reconstructed":
                        sc.reconstruct_(model, dense, masks=done.masks, batch=batch)
                    yield row(way, sparsity, model, time.process_time() - begin)


def main() -> None:
    """Measure what is not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+", choices=["resnet20", "resnet56", "minilm"])
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=120, help="of distillation, a row")
    parser.add_argument(
        "--cut-seconds", type=float, default=600, help="the same with fewer channels"
    )
    parser.add_argument("--draws", type=int, default=3, help="of calibration sentences")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/real_networks.csv"))
    args = parser.parse_args()
    torch.manual_seed(0)
    known = set()
    if args.out.exists():
        with args.out.open(encoding="utf-8", newline="") as file:
            known = {(r["network"], r["way"], r["sparsity"]) for r in csv.DictReader(file)}
    else:
        args.out.write_text(",".join(FIELDS) + "\n", encoding="utf-8")
    for name in args.networks:
        measured = measure_minilm if name == "minilm" else measure_resnet

        def wanted(way: str, sparsity: float | None, name: str = name) -> bool:
            return (name, way, "" if sparsity is None else str(sparsity)) not in known

        for row in measured(name, args, wanted):
            print(row, flush=True)
            with args.out.open("a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, FIELDS).writerow(row)


if __name__ == "__main__":
    main()
