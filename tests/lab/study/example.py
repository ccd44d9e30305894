"""A store as a finished study leaves it, made in a moment: for everything that reads rows."""

import functools
import math
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save

from secateurs_lab.study import (
    HISTOGRAM_EDGES,
    Certified,
    Dwf,
    Imp,
    LayerKept,
    Point,
    Prune,
    Row,
    Run,
    Store,
    Study,
)
from secateurs_lab.study.config import waiting_row
from secateurs_lab.study.key import full_settings
from secateurs_lab.study.own import weights_hash

SHAPES = {
    "fc1.weight": (300, 64),
    "fc1.bias": (300,),
    "fc2.weight": (100, 300),
    "fc3.weight": (10, 100),
}


def example_study(*, seeds: int = 3) -> Study:
    """Four methods at four compressions: cheap to write down, never trained."""
    methods = [
        Prune(),
        Prune(score="synflow", rounds=100, after="init"),
        Imp(per_round=0.5),
        Dwf(strength=[1e-4, 5e-4, 2e-3]),
    ]
    return Study(
        name="example",
        methods=methods,
        compressions=[4, 16, 64, 256],
        seeds=list(range(seeds)),
    )


def example_store(path: str | Path, *, seeds: int = 3) -> Store:
    """A store of that study with made-up results: all states, histories, layers, certificates,
    weights.
    """
    shutil.copytree(Path(_made(seeds).name) / "store", path, dirs_exist_ok=True)
    return Store.create(path)


@functools.cache
def _made(seeds: int) -> tempfile.TemporaryDirectory:
    """Computed once in a process; removed with it."""
    folder = tempfile.TemporaryDirectory()
    runs = example_study(seeds=seeds).runs()
    with Store.create(Path(folder.name) / "store") as store:
        store.add([waiting_row(run) for run in runs])
        store.remember("study", {"name": "example", "text": "[study]\nname = 'example'\n"})
        for number, run in enumerate(runs):
            store.put(finished(run, number, store))
    return folder


def finished(run: Run, number: int, store: Store) -> Row:
    """A plausible end: accuracy falls with compression, some runs go wrong."""
    source = torch.Generator().manual_seed(number)
    compression = run.compression or 1 + 1e4 * (getattr(run.method, "strength", None) or 0) * 8
    weights = _weights(compression, source)
    name = store.artefacts.put(save(weights))
    layers = tuple(_layer(name, tensor) for name, tensor in weights.items())
    kept, total = (
        sum(layer.kept for layer in layers),
        sum(layer.total for layer in layers),
    )
    wrong = {
        7: ("diverged", "the loss is nan at step 41 of 240"),
        11: ("failed", "ValueError: <img src=x>"),
    }
    state, reason = wrong.get(number, ("collapsed" if kept < 60 else "done", ""))
    accuracy = (
        0.1
        + 0.88 / (1 + (compression / 120) ** 1.5)
        - 0.01 * float(torch.rand(1, generator=source))
    )
    return Row(
        **{
            **waiting_row(run).summary,
            "state": state,
            "reason": reason,
            "accuracy": accuracy,
            "progress": 1.0,
            "compression": total / max(kept, 1),
            "sparsity": 1 - kept / total,
            "kept": kept,
            "total": total,
            "seconds": 12.5 + number,
            "weights": name,
            "weights_hash": weights_hash(weights),
        },
        settings=full_settings(run),
        metrics={
            "accuracy": accuracy,
            "loss": 1 - accuracy,
            "accuracy_before": accuracy / 2,
            "own.f1": accuracy,
        },
        history=tuple(_point(epoch, accuracy, compression, run) for epoch in range(1, 21)),
        layers=layers,
        certificates=_certificates(number),
        timings={
            "begin": 0.1,
            "cut": 0.4,
            "train": 11.0 + number,
            "collapse": 0.0,
            "certify": 0.6,
            "measure": 0.4,
        },
        provenance={
            "versions": {"secateurs": "0.1.0", "torch": "2.13.0", "python": "3.11.2"},
            "data_hash": "0123456789abcdef",
            "seed": run.seed,
            "threads": 1,
            "machine": "x86_64",
            "device": "cpu",
            "precision": "float32",
            "begun": "2026-01-01T00:00:00Z",
            "ended": "2026-01-01T00:00:12Z",
            "attempts": 1,
        },
    )


def _weights(compression: float, source: torch.Generator) -> dict[str, torch.Tensor]:
    weights = {name: torch.randn(shape, generator=source) for name, shape in SHAPES.items()}
    flat = torch.cat([weight.abs().flatten() for weight in weights.values()])
    limit = flat.sort(descending=True).values[min(len(flat) - 1, int(len(flat) / compression))]
    return {name: weight * (weight.abs() >= limit) for name, weight in weights.items()}


def _layer(name: str, weight: torch.Tensor) -> LayerKept:
    logs = weight[weight != 0].abs().log10()
    counts = torch.histc(logs, len(HISTOGRAM_EDGES) - 1, HISTOGRAM_EDGES[0], HISTOGRAM_EDGES[-1])
    kept = int(weight.count_nonzero())
    return LayerKept(
        name=name,
        shape=tuple(weight.shape),
        total=weight.numel(),
        kept=kept,
        norm=float(weight.norm()),
        histogram=tuple(int(count) for count in counts),
        verdict="" if kept else "the output no longer depends on the input",
    )


def _point(epoch: int, accuracy: float, compression: float, run: Run) -> Point:
    share = 1 - math.exp(-epoch / 4)
    strength = getattr(run.method, "strength", None)
    return Point(
        epoch=epoch,
        iteration=12 * epoch,
        loss=2.3 - 2 * share * accuracy,
        test_loss=2.3 - 1.9 * share * accuracy,
        test_accuracy=0.1 + (accuracy - 0.1) * share,
        learning_rate=0.05 * (1 + math.cos(math.pi * epoch / 20)),
        sparsity=(1 - 1 / compression) * share,
        strength=strength,
        seconds=0.55,
        misalignment=None if strength is None else 50 * (1 - share),
    )


def _certificates(number: int) -> tuple[Certified, ...]:
    if number % 3:
        return ()
    return (
        Certified(
            kind="proven",
            domain="8 balls of radius 0.0039",
            bound=3.25,
            lower_bound=1.5,
            certified_share=0.75,
            method="linear",
            text="",
        ),
        Certified(
            kind="statistical",
            domain="360 inputs",
            bound=4.5,
            lower_bound=4.5,
            text="with confidence 95 % ...",
        ),
    )
