"""Masked = compacted = fast = saved and loaded = ONNX, over named architectures and random nets.

    python benchmarks/shipping_equality.py run --seeds 320 --out equality.csv
    python benchmarks/shipping_equality.py table --out equality.csv

A run goes on where it stopped.

40 % of the filters of a named architecture are zeroed, biases and norms kept; random nets (plain,
residual, dense, U-shaped, grouped, depthwise, shared, linear) are seeded. Every difference is the
largest one over the largest output: in float64 (asked: 1e-9), in float32 against float64 (asked:
1e-5), on two inputs of two resolutions; "sizes" says how many the net takes. ONNX is float32, run
by onnxruntime; named architectures are exported at both resolutions, every eighth random net (of
all kinds) at the first.
"""

import argparse
import copy
import csv
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import secateurs as sc

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

COLUMNS = (
    "compact f64", "fast f64", "saved f64", "compact f32", "fast f32", "onnx f32",
)  # fmt: skip


def leaves(outputs) -> list[torch.Tensor]:
    found = torch.utils._pytree.tree_leaves(outputs)
    return [t for t in found if isinstance(t, torch.Tensor)]


def apart(outputs, wanted) -> float:
    """The largest relative difference over all outputs."""
    return max(
        float((a.double() - b).abs().max() / b.abs().max().clamp_min(1e-300))
        for a, b in zip(leaves(outputs), wanted, strict=True)
    )


@torch.inference_mode()
def worst(form: nn.Module, net: nn.Module, inputs: list, dtype: torch.dtype) -> float:
    return max(apart(form(*[t.to(dtype) for t in x]), leaves(net(*x))) for x in inputs)


def fast(net: nn.Module, wanted: nn.Module, inputs: list, dtype: torch.dtype) -> float:
    """A program is made for one resolution: one for each input."""
    found = 0.0
    for x in inputs:
        given = [t.to(dtype) for t in x]
        made = sc.accelerate(net, given, tune="guess", keep="always")
        found = max(found, worst(made, wanted, [x], dtype))
    return found


def saved(small: nn.Module, net: nn.Module, inputs: list, folder: str) -> float:
    """The compacted model through a file, into a fresh copy of the original."""
    path = f"{folder}/m.safetensors"
    sc.save_sparse(small, path)
    back = sc.load_sparse(path, into=copy.deepcopy(net), narrow=True)
    return worst(back, net, inputs, torch.float64)


def exported(thin: nn.Module, inputs: list, folder: str) -> float | str:
    """The largest difference of the ONNX file, exported once for each input; "" for none."""
    found = [sc.export(thin, f"{folder}/m.onnx", [t.float() for t in x]).difference for x in inputs]
    return max(found, default="")


def differences(net: nn.Module, inputs: list, onnx: int) -> dict[str, object]:
    """One row: `net` and `inputs` are float64, `onnx` is on how many inputs it is exported."""
    net.eval()
    small = sc.compact(net, inputs[0])
    single, thin = copy.deepcopy(net).float(), copy.deepcopy(small).float()
    with tempfile.TemporaryDirectory() as folder:
        row: dict[str, object] = {
            "compact f64": worst(small, net, inputs, torch.float64),
            "fast f64": fast(net, net, inputs, torch.float64),
            "saved f64": saved(small, net, inputs, folder),
            "compact f32": worst(thin, net, inputs, torch.float32),
            "fast f32": fast(single, net, inputs, torch.float32),
            "onnx f32": exported(thin, inputs[:onnx], folder),
            "sizes": len({x[0].shape[2:] for x in inputs}),
        }
    return row


def named(name: str) -> dict[str, object]:
    import architectures
    from dead_filters import dead_filters

    net, x = architectures.build(name)
    dead_filters(net, 0.4)
    return differences(net, [x, second(net, x)], onnx=2)


@torch.inference_mode()
def second(net: nn.Module, x: list) -> list:
    """Another input: larger images where the net takes them, else other numbers."""
    draw = torch.Generator().manual_seed(1)
    if x[0].ndim == 4:
        large = [
            torch.randn(3, t.shape[1], *(n + 32 for n in t.shape[2:]), generator=draw) for t in x
        ]
        large = [t.double() for t in large]
        try:
            net(*large)
            return large
        except RuntimeError:
            pass  # a classifier of a fixed number of pixels
    return [torch.cat([t, t.flip(0)])[:3] * 0.7 + 0.1 for t in x]


def drawn(seed: int) -> dict[str, object]:
    from ship.random_nets import random_net

    net, x, y = random_net(seed)
    # Every eighth, but of all kinds: the kind is the rest of the seed divided by eight.
    return differences(net, [[x], [y]], onnx=seed // 8 % 8 == seed % 8)


def run(asked: argparse.Namespace) -> None:
    import architectures

    path = Path(asked.out)
    done = {row["net"] for row in rows(path)}
    jobs = {str(seed): lambda s=seed: drawn(s) for seed in range(asked.first, asked.seeds)}
    if not asked.random:
        names = asked.names or architectures.ZOO
        jobs = {n: lambda n=n: named(n) for n in names} | jobs
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, ("net", *COLUMNS, "sizes", "seconds", "problem"))
        if not done:
            writer.writeheader()
        for name, job in jobs.items():
            if name in done:
                continue
            start, row, problem = time.process_time(), {}, ""
            try:
                row = job()
            except (sc.errors.SecateursError, RuntimeError) as error:
                problem = f"{type(error).__name__}: {error}"[:200]
            spent = round(time.process_time() - start, 1)
            row = {"net": name, **row, "seconds": spent, "problem": problem}
            writer.writerow(row)
            file.flush()


def rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def table(asked: argparse.Namespace) -> None:
    from ship.random_nets import KINDS

    found = rows(Path(asked.out))
    print("| net | nets | sizes |", " | ".join(COLUMNS), "|\n" + "|---" * 9 + "|")
    groups = {row["net"]: [row] for row in found if not row["net"].isdigit()}
    for row in found:
        if row["net"].isdigit():
            kind = KINDS[int(row["net"]) % len(KINDS)]
            groups.setdefault(f"random, {kind}", []).append(row)
    for name, some in groups.items():
        cells = [_largest(row[column] for row in some) for column in COLUMNS]
        sizes = max((row["sizes"] for row in some), default="")
        print(f"| {name} | {len(some)} | {sizes} |", " | ".join(cells), "|")
    for row in found:
        if row["problem"]:
            print(f"\n{row['net']}: {row['problem']}")


def _largest(values) -> str:
    given = [float(v) for v in values if v]
    return f"{max(given):.1e}" if given else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--seeds", type=int, default=320)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--names", nargs="*", help="of architectures; all of them")
    parser.add_argument("--random", action="store_true", help="random nets only")
    parser.add_argument("--out", default="equality.csv")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    {"run": run, "table": table}[asked.what](asked)


if __name__ == "__main__":
    main()
