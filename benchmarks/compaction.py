"""What compaction brings: ResNet-18 with 70 % of its channels gone, and how long a ResNet-50 takes.

    python benchmarks/compaction.py [--threads N] [--only speed|time]

Latencies are medians of interleaved runs in one process. onnxruntime is measured where it is
installed.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import secateurs as sc

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))


def interleaved(runs: dict[str, Callable[[], object]], times: int) -> dict[str, float]:
    """Median milliseconds of each function, called in turn."""
    seen: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(times + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if turn:  # the first round warms up
                seen[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in seen.items()}


def session(
    model: nn.Module, x: torch.Tensor, threads: int
) -> Callable[[], object] | None:
    """The model in onnxruntime; None where that is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/m.onnx"
        torch.onnx.export(model, (x,), path, dynamo=True, verbose=False)
        made = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
    feed = {made.get_inputs()[0].name: x.numpy()}
    return lambda: made.run(None, feed)


@torch.no_grad()
def speed(threads: int) -> None:
    """ResNet-18 at 32×32 with 70 % of its channels pruned whole, against the dense one."""
    model = sc.models.build(
        "resnet-18", generator=torch.Generator().manual_seed(0)
    ).eval()
    example = torch.randn(1, 3, 32, 32)
    pruned = sc.prune_channels_(model, example, channels=0.3)
    small = sc.compact(model, example)
    account = small.compaction
    print(pruned)
    print(f"parameters {account.parameters}, difference {account.difference:.1e}")
    for batch, times in ((1, 60), (32, 12)):
        x = torch.randn(batch, 3, 32, 32)
        runs: dict[str, Callable[[], object]] = {
            "torch dense": lambda x=x: model(x),
            "torch compact": lambda x=x: small(x),
        }
        for name, net in (("dense", model), ("compact", small)):
            made = session(net, x, threads)
            if made is not None:
                runs[f"onnxruntime {name}"] = made
        took = interleaved(runs, times)
        for name, value in took.items():
            print(f"batch {batch:3d}  {name:22s} {value:8.2f} ms")
        for kind in ("torch", "onnxruntime"):
            if f"{kind} dense" in took:
                gain = took[f"{kind} dense"] / took[f"{kind} compact"]
                print(f"batch {batch:3d}  {kind} gain {gain:.2f}x")


def how_long() -> None:
    """`compact` of a ResNet-50 with 40 % of its filters zeroed, at 224×224."""
    import architectures
    from dead_filters import dead_filters

    # The tracer's own first import.
    sc.compact(nn.Linear(2, 2).eval(), torch.zeros(1, 2))
    model = architectures.resnet50().eval()
    dead_filters(model, 0.4)
    start = time.perf_counter()
    small = sc.compact(
        model,
        torch.randn(1, 3, 224, 224),
        progress=lambda step: print(f"  {time.perf_counter() - start:5.1f} s  {step}"),
    )
    print(
        f"ResNet-50: {time.perf_counter() - start:.1f} s, {small.compaction.parameters}"
    )


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=["speed", "time"])
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.only != "time":
        speed(asked.threads)
    if asked.only != "speed":
        how_long()


if __name__ == "__main__":
    main()
