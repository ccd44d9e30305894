"""Certificates on tasks that others published.

    python benchmarks/third_party.py acasxu PATH [--seeds 1 50] [--seconds 100] [--threads 2]
        [--out rows.csv]

acasxu: PATH is a checkout of github.com/lukasmrohwer/acasxu-benchmark (isomorphic ACAS Xu, a
category of VNN-COMP): for each seed the pair that its script makes, and whether both networks
differ by at most 0.05 in every output on its box. As the script does, every initializer of the
second network is moved by N(0, 0.001²).

Rows are appended as they come, and seeds that are there are left out: a stopped run goes on.
"""

import argparse
import csv
import random
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from secateurs.compat.verify import verify

FIELDS = (
    "seed",
    "network",
    "answer",
    "bound",
    "found",
    "share",
    "parts",
    "seconds",
    "cpu",
    "commit",
)


def instance(path: Path, seed: int, folder: Path) -> tuple[str, Path, Path]:
    """The name of the network, its file, and the file of the perturbed one."""
    random.seed(seed)
    name = f"{random.randint(1, 5)}_{random.randint(1, 9)}"
    first = path / f"onnx/original/ACASXU_run2a_{name}_batch_2000.onnx"
    model = onnx.load(str(first))
    np.random.seed(random.randint(0, 2**32 - 1))
    for one in model.graph.initializer:
        value = numpy_helper.to_array(one)
        noise = np.random.normal(loc=0.0, scale=0.001, size=value.shape).astype(value.dtype)
        one.CopyFrom(numpy_helper.from_array(value + noise, name=one.name))
    second = folder / f"{seed}.onnx"
    onnx.save(model, str(second))
    return name, first, second


def acasxu(path: Path, seeds: range, seconds: float, out: Path) -> None:
    commit = subprocess.run(
        ["git", "-C", str(path), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    done = set()
    if out.exists():
        with out.open() as file:
            done = {int(row["seed"]) for row in csv.DictReader(file)}
    else:
        out.write_text(",".join(FIELDS) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            if seed in done:
                continue
            name, first, second = instance(path, seed, Path(folder))
            start, began = time.monotonic(), time.process_time()
            found = verify(first, second, path / "vnnlib/instance_0.vnnlib", seconds=seconds)
            taken, busy = time.monotonic() - start, time.process_time() - began
            cert = found.certificate
            row = (
                seed,
                name,
                found.answer,
                f"{cert.bound:.6g}",
                f"{cert.lower_bound:.6g}",
                f"{cert.share or 0:.4f}",
                parts_of(cert.assumptions),
                f"{taken:.1f}",
                f"{busy:.1f}",
                commit,
            )
            with out.open("a") as file:
                csv.writer(file).writerow(row)
            print(*row, flush=True)


def parts_of(assumptions: tuple[str, ...]) -> int:
    """How many parts the box was split into."""
    told = [text for text in assumptions if text.startswith("split: ")]
    return int(told[0].split("largest of ")[1].split()[0]) if told else 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=["acasxu"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--seeds", type=int, nargs=2, default=(1, 50))
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("acasxu.csv"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    first, last = args.seeds
    acasxu(args.path, range(first, last + 1), args.seconds, args.out)


if __name__ == "__main__":
    main()
