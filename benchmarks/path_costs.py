"""All Φ-costs against a plain forward and backward pass, capture against torch.export, one run,
side by side.

    PYTHONPATH=src python benchmarks/path_costs.py [--threads 1] [--only resnet18]
    PYTHONPATH=src python benchmarks/path_costs.py --from-model      from a model, no graph at hand

Peak memory is measured in a fresh process per row (`--measure`), as the peak resident size above
the loaded model.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import secateurs as sc
from secateurs.graph.replay import COMPARED, REMEMBERED

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
NETS = ("resnet18", "resnet152")


def build(name: str) -> nn.Module:
    """The networks of the tests, written out there."""
    import architectures

    return getattr(architectures, name)().double().eval()


def plain(model: nn.Module, x: torch.Tensor) -> None:
    """One forward and one backward pass."""
    model.zero_grad(set_to_none=True)
    model(x).sum().backward()


def seconds(task: Callable[[], object], repeats: int) -> float:
    """The fastest of some runs, after one to warm up."""
    task()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        task()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(name: str, what: str) -> None:
    """Peak memory of one task, in MiB above the loaded model; printed for the parent process."""
    torch.manual_seed(0)
    model, x = build(name), torch.randn(1, 3, 224, 224, dtype=torch.float64)
    graph = sc.capture(model, x)
    # The peak starts anew: export has its own.
    Path("/proc/self/clear_refs").write_text("5")
    base = resident("VmRSS")
    if what == "plain":
        plain(model, x)
    else:
        sc.path_costs(model, graph, relative=True)
    print((resident("VmHWM") - base) / 1024)


def resident(key: str) -> int:
    """KiB of resident memory now (VmRSS) or at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(key)))


def memory(name: str, what: str, threads: int) -> float:
    command = [
        sys.executable,
        __file__,
        "--measure",
        name,
        what,
        "--threads",
        str(threads),
    ]
    return float(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]
    )


def row(name: str, threads: int, repeats: int) -> None:
    torch.manual_seed(0)
    model, x = build(name), torch.randn(1, 3, 224, 224, dtype=torch.float64)
    count = sum(p.numel() for p in model.parameters())
    export = seconds(lambda: torch.export.export(model, (x,), strict=False), 2)
    capture = seconds(lambda: sc.capture(model, x), 2)
    graph = sc.capture(model, x)
    base = seconds(lambda: plain(model, x), repeats)
    ours = seconds(lambda: sc.path_costs(model, graph, relative=True), repeats)
    norm = seconds(lambda: sc.log2_path_norm(model, graph), repeats)
    peak = [memory(name, what, threads) for what in ("plain", "costs")]
    print(
        f"| {name} | {count:,} | {base:.3f} | {ours:.3f} | {ours / base:.2f} |"
        f" {2 * count * norm:.2e} | ",
        end="",
    )
    print(
        f"{2 * count * norm / ours:.1e} | {peak[0]:.0f} | {peak[1]:.0f} |"
        f" {peak[1] / peak[0]:.2f} | ",
        end="",
    )
    print(
        f"{export:.2f} | {capture:.2f} | {capture / export:.2f} |"
        f" {sc.log2_path_norm(model, graph):.1f} |",
        flush=True,
    )


def from_model(name: str, repeats: int, clock: Callable[[], float] = time.perf_counter) -> None:
    """Capturing and costs together, in plain passes of the same round: a model never seen, one
    whose program was compared before (the sparse twin of a dense model), and the same again.
    """
    torch.manual_seed(0)
    model, x = build(name), torch.randn(1, 3, 224, 224, dtype=torch.float64)
    ratios: dict[str, list[float]] = {}
    for number in range(repeats + 1):
        COMPARED.clear()
        once: dict[str, float] = {}
        for label in ("plain", "never seen", "its program compared", "again"):
            if label == "its program compared":
                REMEMBERED.clear()
            start = clock()
            plain(model, x) if label == "plain" else sc.path_costs(model, x)
            once[label] = clock() - start
        REMEMBERED.clear()
        if number:  # the first round loads the tracer
            for label, took in once.items():
                ratios.setdefault(label, []).append(took / once["plain"])
            ratios.setdefault("s", []).append(once["plain"])
    cells = [f"{statistics.median(values):.2f}" for values in ratios.values()]
    print("| net, float64 | " + " | ".join(ratios) + " |\n" + "| --- " * 6 + "|")
    print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=NETS)
    parser.add_argument("--measure", nargs=2)
    parser.add_argument("--from-model", action="store_true")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="with --from-model, for a machine that does other work",
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.measure:
        measure(*options.measure)
        return
    if options.from_model:
        clock = time.process_time if options.processor_time else time.perf_counter
        from_model(options.only or NETS[0], options.repeats, clock)
        return
    print(
        "| net, 224×224, float64 | parameters | plain s | costs s | ratio | two passes per"
        " parameter s | × slower ",
        end="",
    )
    print("| plain MiB | costs MiB | ratio | export s | capture s | ratio | log2 norm |")
    print("|" + "---|" * 14)
    for name in NETS if options.only is None else [options.only]:
        row(name, options.threads, options.repeats)


if __name__ == "__main__":
    main()
