"""What the training loop costs besides the network: LeNet-300-100, batch 256, SGD with momentum.

    python benchmarks/train_loop.py [threads] [data set]

Milliseconds per step, all in one run: the bare step on one fixed batch, the same on batches
gathered in a drawn order, `train.fit`, and a `torch.utils.data.DataLoader` over the same tensors.
The best of three rounds each, in turns, so that the machine's moods hit all.
"""

import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from secateurs.data import Dataset, load
from secateurs.models import build
from secateurs.train import fit_

BATCH = 256
STEPS = 235


def main(threads: int = 1, name: str = "fashion-mnist") -> None:
    torch.set_num_threads(threads)
    data = load(name)
    ways: dict[str, Callable[[Dataset], None]] = {
        "bare step, one batch": bare,
        "bare step, gathered batches": gathered,
        "train.fit": fitted,
        "DataLoader": loaded,
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(3):
        for label, way in ways.items():
            start = time.perf_counter()
            way(data)
            best[label] = min(best[label], 1000 * (time.perf_counter() - start) / STEPS)
    print(
        f"LeNet-300-100 on {name}, batch {BATCH}, {threads} thread(s), torch {torch.__version__}\n"
    )
    print("| loop | ms per step | over the bare step |\n| --- | ---: | ---: |")
    for label, value in best.items():
        print(f"| {label} | {value:.2f} | {value - best['bare step, one batch']:+.2f} |")


def fresh(data: Dataset) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = build(
        "lenet-300-100",
        in_channels=data.in_channels,
        size=data.size,
        generator=torch.Generator().manual_seed(0),
    )
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    x: torch.Tensor,
    y: torch.Tensor,
) -> None:
    optimizer.zero_grad(set_to_none=True)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def bare(data: Dataset) -> None:
    model, optimizer = fresh(data)
    for _ in range(STEPS):
        step(model, optimizer, data.train_x[:BATCH], data.train_y[:BATCH])


def gathered(data: Dataset) -> None:
    model, optimizer = fresh(data)
    done = 0
    while done < STEPS:
        for x, y in data.batches(BATCH):
            step(model, optimizer, x, y)
            done += 1
            if done == STEPS:
                break


def fitted(data: Dataset) -> None:
    model, optimizer = fresh(data)
    fit_(
        model,
        data,
        optimizer=optimizer,
        length=STEPS,
        batch=BATCH,
        evaluate_every=0,
        verbose=False,
    )


def loaded(data: Dataset) -> None:
    model, optimizer = fresh(data)
    done = 0
    while done < STEPS:
        for x, y in DataLoader(
            TensorDataset(data.train_x, data.train_y), batch_size=BATCH, shuffle=True
        ):
            step(model, optimizer, x, y)
            done += 1
            if done == STEPS:
                break


if __name__ == "__main__":
    main(*(int(arg) if arg.isdigit() else arg for arg in sys.argv[1:]))
