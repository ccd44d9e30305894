"""The fast path against torch and onnxruntime, both dense: interleaved in one process, medians.

    python benchmarks/fast_path.py resnet18 --masks uniform-0.9 global-0.9
    python benchmarks/fast_path.py resnet18-224 --masks uniform-0.9
    python benchmarks/fast_path.py mobilenet --masks uniform-0.9
    python benchmarks/fast_path.py lenet

One thread unless --threads says otherwise; with one thread, times are processor times. Weights are
drawn, not trained: zeros are those of magnitude pruning, uniform per layer or global.
"""

import argparse
import copy
import ctypes
import io
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

import secateurs as sc
import secateurs.ship
import secateurs_lab as lab
from secateurs.ship.c_source import c_source

MASKS = [f"{kind}-{s}" for kind in ("uniform", "global") for s in (0.5, 0.8, 0.9, 0.95, 0.98)]


def onnx_session(model: nn.Module, example: Tensor, threads: int):
    import onnxruntime

    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = torch.export.Dim("batch", min=1, max=4096)
        program = torch.onnx.export(
            model, (example.expand(2, *example.shape[1:]),), dynamo=True, verbose=False,
            dynamic_shapes=({0: batch},),
        )  # fmt: skip
    program.save(buffer)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(
        buffer.getvalue(), options, providers=["CPUExecutionProvider"]
    )


def masked(model: nn.Module, mask: str) -> nn.Module:
    """A copy with zeros of magnitude pruning in every weight of more than one dimension."""
    kind, sparsity = mask.split("-")
    model = copy.deepcopy(model)
    if float(sparsity) > 0:
        sc.prune_(model, "magnitude", sparsity=float(sparsity), scope=kind)
    return model.eval()


def medians(calls: dict, rounds: int, clock) -> dict:
    """Median seconds of each, called in turns; the first turn warms up."""
    times: dict = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            start = clock()
            call()
            if turn:
                times[name].append(clock() - start)
    return {name: statistics.median(spent) for name, spent in times.items()}


def compare(dense: nn.Module, example: Tensor, args: argparse.Namespace) -> None:
    clock = time.process_time if args.threads == 1 else time.perf_counter
    session = onnx_session(dense, example, args.threads)
    name = session.get_inputs()[0].name
    print(
        "| mask | MMAC | built in s | batch | torch ms | ORT ms | fast ms | over torch | over ORT |"
        " GMAC/s | kept | over the better |\n" + "|---" * 12 + "|"
    )
    for mask in args.masks:
        model = masked(dense, mask)
        start = time.perf_counter()
        fast = sc.accelerate(model, example, keep="always")
        built = time.perf_counter() - start
        kept = fast if not args.rivals else chosen(model, example)
        for batch in args.batches:
            x = torch.randn(batch, *example.shape[1:])
            given = {name: x.numpy()}
            calls = {
                "torch": lambda model=model, x=x: model(x),
                "ort": lambda given=given: session.run(None, given),
                "fast": lambda fast=fast, x=x: fast(x),
                "kept": lambda kept=kept, x=x: kept(x),
            }
            with torch.inference_mode():
                difference = (model(x) - fast(x)).abs().max() / model(x).abs().max()
                if difference > 1e-5:
                    sys.exit(f"{mask}: outputs differ by {difference:.1e}")
                found = medians(calls, args.rounds if batch < 16 else args.rounds // 3 + 1, clock)
            t, o, f, k = (1e3 * found[n] for n in ("torch", "ort", "fast", "kept"))
            macs = fast.report.macs
            print(
                f"| {mask} | {macs / 1e6:.0f} | {built:.1f} | {batch} | {t:.2f} | {o:.2f} "
                f"| {f:.2f} "
                f"| {t / f:.2f} | {o / f:.2f} | {macs * batch / f / 1e6:.1f} "
                f"| {type(kept).__name__} | {min(t, o) / k:.2f} |",
                flush=True,
            )


def chosen(model: nn.Module, example: Tensor) -> nn.Module:
    """What the choice by timing keeps where onnxruntime is among the forms."""
    rival = sc.ship.in_onnxruntime(model, example)
    return sc.accelerate(model, example, rivals={"onnxruntime": rival})


def resnet18(args: argparse.Namespace) -> None:
    compare(lab.models.build("resnet-18").eval(), torch.zeros(1, 3, 32, 32), args)


def resnet18_224(args: argparse.Namespace) -> None:
    sys.path.insert(0, "tests")
    from architectures import resnet18 as build

    compare(settled(build()), torch.zeros(1, 3, 224, 224), args)


def mobilenet(args: argparse.Namespace) -> None:
    sys.path.insert(0, "tests")
    from architectures import mobilenet as build

    compare(settled(build()), torch.zeros(1, 3, 224, 224), args)


@torch.no_grad()
def settled(model: nn.Module) -> nn.Module:
    """With batch norms that know their inputs, as trained ones do: through the 28 layers of fresh
    ones nothing of the image is left, and outputs that are all bias compare nothing.
    """
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the mean over all batches seen
    model.train()(torch.randn(4, 3, 224, 224))
    return model.eval()


def sparse_lenet() -> nn.Module:
    """LeNet-300-100 of 640 connected non-zeros (416×), as trained ones have them: 400, 180, 60."""
    model = lab.models.build("lenet-300-100").eval()
    sizes = ((model.fc1, 40, 10, 784), (model.fc2, 20, 9, 40), (model.fc3, 10, 6, 20))
    with torch.no_grad():
        for layer, rows, each, columns in sizes:
            mask = torch.zeros_like(layer.weight)
            for row in range(rows):
                mask[row, torch.randperm(columns)[:each]] = 1
            layer.weight.copy_(mask * torch.randn_like(mask))
            layer.bias.uniform_(0, 1)
    return model


def lenet(args: argparse.Namespace) -> None:
    """LeNet-300-100 with drawn zeros, and its C file called from C."""
    model = sparse_lenet()
    fast = sc.accelerate(model, torch.zeros(1, 1, 28, 28), keep="always")
    print(
        "| batch | torch µs | fast µs | over torch | nn.Module that returns torch.empty, µs |"
        "\n|---|---|---|---|---|"
    )
    for batch in (1, 64, 256):
        x = torch.randn(batch, 1, 28, 28)
        calls = {
            "torch": lambda x=x: repeated(model, x),
            "fast": lambda x=x: repeated(fast, x),
            "nothing": lambda x=x: repeated(Nothing(), x),
        }
        with torch.inference_mode():
            found = medians(calls, args.rounds, time.process_time)
        times = repeats(x)
        t, f, n = (1e6 * found[k] / times for k in ("torch", "fast", "nothing"))
        print(f"| {batch} | {t:.1f} | {f:.2f} | {t / f:.1f} | {n:.2f} |", flush=True)
    print(f"\nC file, called from C: {1e9 * c_seconds(model):.0f} ns an image")


class Nothing(nn.Module):
    """What a call and an output tensor cost in Python, without anything computed."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.empty(len(x), 10)


def repeats(x: Tensor) -> int:
    """Calls at a stretch: long enough that the network before has left the caches."""
    return 1000 if len(x) == 1 else 50


def repeated(module: nn.Module, x: Tensor) -> None:
    for _ in range(repeats(x)):
        module(x)


def c_seconds(model: nn.Module) -> float:
    """Seconds an image of the generated file, looped over in C."""
    source = c_source(model, torch.zeros(1, 1, 28, 28))
    print("\n" + source[: source.index("*/") + 2])
    loop = (
        "void predict(const float *restrict, float *restrict);\n"
        "void many(const float *x, float *y, long n) {\n"
        "    for (long i = 0; i < n; ++i) predict(x + i % 64 * 784, y);\n}\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "net.c").write_text(source)
        (Path(folder) / "loop.c").write_text(loop)
        command = [
            "cc",
            "-O2",
            "-march=native",
            "-shared",
            "-fPIC",
            "net.c",
            "loop.c",
            "-o",
            "net.so",
        ]
        subprocess.run(command, cwd=folder, check=True)
        many = ctypes.CDLL(f"{folder}/net.so").many
    x, y = torch.rand(64, 784), torch.empty(10)
    times = []
    for _ in range(15):
        start = time.process_time()
        many(
            *map(ctypes.c_void_p, (x.data_ptr(), y.data_ptr())),
            ctypes.c_long(100_000),
        )
        times.append((time.process_time() - start) / 100_000)
    return statistics.median(times)


PARTS = {
    "resnet18": resnet18,
    "resnet18-224": resnet18_224,
    "mobilenet": mobilenet,
    "lenet": lenet,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--masks", nargs="*", default=MASKS)
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 64])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rivals", action="store_true", help="onnxruntime can be kept")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {args.threads} thread(s), {args.part}\n")
    PARTS[args.part](args)


if __name__ == "__main__":
    main()
