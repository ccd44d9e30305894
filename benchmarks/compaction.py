"""What compaction brings: ResNet-18 with 70 % of its channels gone, and how long a ResNet-50 takes.

    python benchmarks/compaction.py [--threads N] [--only speed|time]

Latencies are medians of interleaved runs in one process. onnxruntime is measured where it is
installed.
"""

import argparse
import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import secateurs as sc
import secateurs_lab as lab

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))


def interleaved(
    runs: dict[str, Callable[[], object]], times: int, threads: int
) -> dict[str, float]:
    """Median milliseconds of each function, called in turn; of processor time with one thread."""
    clock = time.process_time if threads == 1 else time.perf_counter
    seen: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(times + 1):
        for name, run in runs.items():
            start = clock()
            run()
            if turn:  # the first round warms up
                seen[name].append(1000 * (clock() - start))
    return {name: statistics.median(values) for name, values in seen.items()}


def session(model: nn.Module, x: torch.Tensor, threads: int) -> Callable[[], object] | None:
    """The model in onnxruntime; None where that is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/m.onnx"
        torch.onnx.export(model, (x,), path, dynamo=True, verbose=False)
        made = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {made.get_inputs()[0].name: x.numpy()}
    return lambda: made.run(None, feed)


@torch.inference_mode()
def speed(threads: int) -> None:
    """ResNet-18 at 32×32 with 70 % of its channels pruned whole, against the dense one."""
    model = lab.models.build("resnet-18", generator=torch.Generator().manual_seed(0)).eval()
    example = torch.randn(1, 3, 32, 32)
    pruned = sc.prune_channels_(model, example, channels=0.3)
    small = sc.compact(model, example)
    account = small.compaction
    print(pruned)
    print(f"parameters {account.parameters}, difference {account.difference:.1e}")
    fast = sc.accelerate(model, example, keep="always")
    torch_forms = {"dense": model, "compact": small}
    torch_forms |= {f"{n}, channels last": _last(m) for n, m in torch_forms.items()}
    ort_forms = {"dense": model, "compact": small}
    ort_forms |= {
        f"compact, multiples of {n}": sc.compact(model, example, multiple_of=n) for n in (8, 16)
    }
    print("| batch | form | ms | over torch dense | over ORT dense |\n" + "|---" * 5 + "|")
    for batch, times in ((1, 40), (32, 9)):
        x = torch.randn(batch, 3, 32, 32)
        runs: dict[str, Callable[[], object]] = {
            f"torch {name}": lambda net=net, x=x: net(x) for name, net in torch_forms.items()
        }
        runs["program of the compact one"] = lambda x=x: fast(x)
        for name, net in ort_forms.items():
            made = session(net, x, threads)
            if made is not None:
                runs[f"ORT {name}"] = made
        took = interleaved(runs, times, threads)
        ort = took.get("ORT dense", float("nan"))
        for name, value in took.items():
            over = f"{took['torch dense'] / value:.2f} | {ort / value:.2f}"
            print(f"| {batch} | {name} | {value:.2f} | {over} |", flush=True)


def _last(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).to(memory_format=torch.channels_last)


def how_long() -> None:
    """`compact` of a ResNet-50 with 40 % of its filters zeroed, at 224×224."""
    import architectures
    from dead_filters import dead_filters

    # The tracer's own first import.
    sc.compact(nn.Linear(2, 2).eval(), torch.zeros(1, 2))
    model = architectures.resnet50().eval()
    dead_filters(model, 0.4)
    start, wall = time.process_time(), time.perf_counter()
    small = sc.compact(
        model,
        torch.randn(1, 3, 224, 224),
        progress=lambda step: print(f"  {time.process_time() - start:5.1f} s  {step}"),
    )
    print(
        f"ResNet-50: {time.process_time() - start:.1f} s of processor time, "
        f"{time.perf_counter() - wall:.1f} s on the clock, {small.compaction.parameters}"
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
