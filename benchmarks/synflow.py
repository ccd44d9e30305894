"""100 rounds of SynFlow on ResNet-18 at 32x32 against 100 plain forward and backward passes of
batch 1.

    python benchmarks/synflow.py [rounds] [wall|cpu]

Prints milliseconds per round of what `prune_(model, "synflow", rounds=100, sparsity=0.98)` runs
(exponential: density 0.02^(k/100) after round k), of its score, and of the public functions called
one by one. Plain passes and rounds alternate in one run, so that the machine's moods hit both.
`cpu` counts processor time: on a machine that does other work it is the better measure.
"""

import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import nn
from torch.nn import functional as F

from secateurs.masks import select
from secateurs.prune import Recipe, Round
from secateurs.scores import Scorer
from secateurs_lab.models import build

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
T = TypeVar("T")


class Watch:
    """Seconds by what they were spent on."""

    def __init__(self, clock: str) -> None:
        self.clock, self.seconds = CLOCKS[clock], dict[str, float]()

    def time(self, name: str, task: Callable[[], T]) -> T:
        started = self.clock()
        result = task()
        took = self.clock() - started
        self.seconds[name] = self.seconds.get(name, 0.0) + took
        return result


def main(rounds: int = 100, clock: str = "wall", sparsity: float = 0.98) -> None:
    torch.set_num_threads(1)
    model = build("resnet-18", size=32, generator=torch.Generator().manual_seed(0)).eval()
    x, y = torch.randn(1, 3, 32, 32), torch.tensor([1])
    plain(model, x, y)
    watch = Watch(clock)
    pruning = watch.time(ROUND, lambda: rounds_of(model, x, rounds, sparsity))
    scorer = watch.time(SCORE, lambda: Scorer(model, "synflow", example=x))
    masks = None
    for _ in range(rounds):
        watch.time(PLAIN, lambda: plain(model, x, y))
        pruned, entry = watch.time(ROUND, lambda: next(pruning))
        watch.time(PLAIN + " again", lambda: plain(model, x, y))
        scores = watch.time(SCORE, lambda: scorer.scores(masks))  # noqa: B023
        density = entry.asked / entry.total
        masks = watch.time(
            SELECT,
            lambda: select(scores, density=density, within=masks),  # noqa: B023
        )
    same = all(torch.equal(pruned[name], mask) for name, mask in masks.items())
    kept = sum(int(mask.sum()) for mask in masks.values())
    total = sum(mask.numel() for mask in masks.values())
    report(watch.seconds, rounds)
    print(
        f"{total:,} weights, {kept:,} kept, the same by both ways: {same}; {clock} time, torch"
        f" {torch.__version__}, {torch.get_num_threads()} thread, seed 0"
    )


PLAIN = "plain forward + backward"
ROUND = "a round of `prune_`"
SCORE = "`Scorer.scores`"
SELECT = "`select`"


def plain(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()


def rounds_of(
    model: nn.Module, x: torch.Tensor, rounds: int, sparsity: float
) -> Iterator[tuple[dict[str, torch.Tensor], Round]]:
    """What `prune_` iterates over."""
    recipe = Recipe(score="synflow", sparsity=sparsity, rounds=rounds, schedule="exponential")
    inputs = {"example": x, "batch": None, "loss": None}
    return recipe.ready(model, score_inputs=inputs, within={}).rounds()


def report(seconds: dict[str, float], rounds: int) -> None:
    both = (seconds[PLAIN] + seconds.pop(PLAIN + " again")) / 2
    rows = {**seconds, PLAIN: both}
    rows["score and selection by hand"] = rows[SCORE] + rows[SELECT]
    print("| part | ms per round | times plain |\n| --- | --- | --- |")
    for name, value in rows.items():
        print(f"| {name} | {1000 * value / rounds:.1f} | {value / both:.2f} |")


if __name__ == "__main__":
    main(*(int(a) if a.isdigit() else a for a in sys.argv[1:]))
