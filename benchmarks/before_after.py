"""Two versions of the library side by side: kernels, path costs and `secateurs --help`.

    git worktree add --detach /tmp/before 08af658
    OMP_NUM_THREADS=1 python benchmarks/before_after.py /tmp/before . [case]… [--rounds 31]

Three processes answer by turns: one of the old checkout, one of the new, and a second one of the
old. Each does the same block of calls, so a round meets the same machine. Printed is the median
over rounds of the ratio of processor times. The ratio of the two old processes to each other says
what such a ratio is worth. Only names that both versions have are called.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

Task = Callable[[], object]


def factorized(name: str, fused: bool | None) -> Task:
    """One step of FactorizedSGD with gradients that stay."""
    import torch

    import secateurs as sc

    model = sc.models.build(name, generator=torch.Generator().manual_seed(0))
    options = {"lr": 0.01, "depth": 3, "init": "dwf", "strength": 1e-4}
    optimizer = sc.optim.FactorizedSGD(model.parameters(), fused=fused, **options)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * 1e-3
    return optimizer.step


def held() -> Task:
    """One step of SGD on a ResNet-18 whose zeros are held."""
    import torch

    import secateurs as sc

    model = sc.models.build("resnet-18", generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    masks = sc.prune_(model, "magnitude", sparsity=0.9).masks
    sc.hold(model, masks, optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * 1e-3
    return optimizer.step


def topk() -> Task:
    """The largest tenth of 10 M scores."""
    import torch

    import secateurs as sc

    scores = {str(i): torch.randn(500, 500) for i in range(40)}
    return lambda: sc.select(scores, sparsity=0.9)


def costs(captured: bool) -> Task:
    """The cost of every weight of a ResNet-20; with or without reading the network."""
    import torch

    import secateurs as sc

    model = sc.models.build("resnet-20", generator=torch.Generator().manual_seed(0))
    x = torch.zeros(1, 3, 32, 32)
    with torch.no_grad():
        # No weight is zero, as after training. A program with a layer of zeros is compared with its
        # model at every reading, because zeros would hide a mistake.
        for parameter in model.eval().parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    graph = sc.capture(model, x) if captured else x
    return lambda: sc.path_costs(model, graph)


def command() -> Task:
    """`secateurs --help`, a process of its own."""
    words = [sys.executable, "-m", "secateurs", "--help"]
    return lambda: subprocess.run(words, check=True, capture_output=True)


# How a case is made, and calls a block.
CASES: dict[str, tuple[Callable[[], Task], int]] = {
    "step-compiled": (lambda: factorized("resnet-18", None), 3),
    "step-compiled-small": (lambda: factorized("lenet-300-100", None), 40),
    "step-torch": (lambda: factorized("lenet-300-100", False), 10),
    "hold": (held, 5),
    "topk": (topk, 2),
    "path-costs": (lambda: costs(True), 5),
    "capture-and-path-costs": (lambda: costs(False), 1),
    "help": (command, 1),
}


def work() -> None:
    """Answers each name read from the parent with the seconds of one block of its calls."""
    tasks: dict[str, Task] = {}
    for line in sys.stdin:
        make, calls = CASES[line.strip()]
        task = tasks.get(line)
        if task is None:
            # Only one case is kept: its memory is nobody else's.
            tasks.clear()
            task = tasks.setdefault(line, make())
            task()
        # The caches are another process's: a call that is not counted brings them back.
        task()
        start = spent()
        for _ in range(calls):
            task()
        print((spent() - start) / calls, flush=True)


def spent() -> float:
    """Seconds of processor time of this process and of those that it ran.

    Run on one thread: other programs of the machine do not count then.
    """
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + others.ru_utime + others.ru_stime


class Version:
    """A process that imports the library of one checkout."""

    def __init__(self, checkout: str) -> None:
        source = str(Path(checkout).resolve() / "src")
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--work"],
            env=os.environ | {"PYTHONPATH": source},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self, case: str) -> float:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(case + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def row(case: str, rounds: int, versions: dict[str, Version]) -> str:
    """The line of one case: milliseconds of both, and the ratios."""
    for version in versions.values():
        version.seconds(case)
    times: dict[str, list[float]] = {name: [] for name in versions}
    for number in range(rounds):
        # Every second round goes the other way about, so that no place in the turn is favoured.
        for name in sorted(versions, reverse=bool(number % 2)):
            times[name].append(versions[name].seconds(case))

    def ratio(other: str) -> float:
        pairs = zip(times[other], times["before"], strict=True)
        return statistics.median(a / b for a, b in pairs)

    low = {name: 1e3 * sorted(found)[rounds // 10] for name, found in times.items()}
    return (
        f"| {case} | {low['before']:.3f} | {low['after']:.3f} | {ratio('after'):.3f}"
        f" | {ratio('again'):.3f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", nargs="?")
    parser.add_argument("after", nargs="?")
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--work", action="store_true")
    args = parser.parse_args()
    if args.work:
        work()
    else:
        compare(args)


def compare(args: argparse.Namespace) -> None:
    """Prints the table."""
    folders = {"before": args.before, "after": args.after, "again": args.before}
    versions = {name: Version(folder) for name, folder in folders.items()}
    print(
        "| case | before (ms) | after (ms) | after / before | before / before |\n"
        "| --- | --- | --- | --- | --- |"
    )
    for case in args.cases or CASES:
        print(row(case, args.rounds, versions), flush=True)
    for version in versions.values():
        version.end()


if __name__ == "__main__":
    main()
