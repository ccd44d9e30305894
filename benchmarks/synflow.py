"""100 rounds of SynFlow on ResNet-18 at 32x32 against 100 plain forward and backward passes of
batch 1.

    python benchmarks/synflow.py [rounds]

Prints milliseconds per round: the plain pass, the score alone, and the whole round with its
selection of a mask (98 % sparsity, exponential: density 0.02^(k/100) after round k). Plain passes
and rounds alternate in one run, so that the machine's moods hit both.
"""

import sys
import time

import torch
from torch.nn import functional as F

from secateurs.masks import select
from secateurs.models import build
from secateurs.scores import Scorer


def main(rounds: int = 100, sparsity: float = 0.98) -> None:
    torch.set_num_threads(1)
    model = build(
        "resnet-18", size=32, generator=torch.Generator().manual_seed(0)
    ).eval()
    x, y = torch.randn(1, 3, 32, 32), torch.tensor([1])
    plain(model, x, y)
    started = time.perf_counter()
    scorer = Scorer(model, "synflow", example=x)
    masks = None
    seconds = {
        "prepare": time.perf_counter() - started,
        "plain": 0.0,
        "score": 0.0,
        "select": 0.0,
    }
    for k in range(1, rounds + 1):
        started = time.perf_counter()
        plain(model, x, y)
        seconds["plain"] += lap(started)
        started = time.perf_counter()
        scores = scorer.scores(masks)
        seconds["score"] += lap(started)
        started = time.perf_counter()
        masks = select(scores, density=(1 - sparsity) ** (k / rounds), within=masks)
        seconds["select"] += lap(started)
    kept = sum(int(mask.sum()) for mask in masks.values())
    total = sum(mask.numel() for mask in masks.values())
    report(seconds, rounds)
    print(
        f"{total:,} weights, {kept:,} kept; torch {torch.__version__}, {torch.get_num_threads()}"
        " thread, seed 0"
    )


def plain(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()


def lap(started: float) -> float:
    return time.perf_counter() - started


def report(seconds: dict[str, float], rounds: int) -> None:
    score = seconds["score"] + seconds["prepare"]
    rows = {
        "plain forward + backward": seconds["plain"],
        "score (prepared once)": score,
        "selection of the mask": seconds["select"],
        "score + selection": score + seconds["select"],
    }
    print("| part | ms per round | times plain |\n| --- | --- | --- |")
    for name, value in rows.items():
        print(
            f"| {name} | {1000 * value / rounds:.1f} | {value / seconds['plain']:.2f} |"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
