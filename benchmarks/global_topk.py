"""Global exact top-k over 96 M weights: secateurs against torch.nn.utils.prune.global_unstructured.

    python benchmarks/global_topk.py [float32 float16 bfloat16 float64] [--entries 96000000]
    [--threads 1]

Each row runs in a process of its own: 40 linear layers are filled with normal weights, then one
call is timed. Extra memory is the highest resident size during the call minus the resident size
before it (Linux), masks included.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.utils.prune as torch_prune
from torch import nn

from secateurs.masks import select

DTYPES = ("float32", "float16", "bfloat16", "float64")
LAYERS, SPARSITY = 40, 0.9


def by_torch(layers: list[nn.Linear]) -> int:
    torch_prune.global_unstructured(
        [(x, "weight") for x in layers], torch_prune.L1Unstructured, amount=SPARSITY
    )
    return sum(int(x.weight_mask.count_nonzero()) for x in layers)


def by_absolute(layers: list[nn.Linear]) -> int:
    """The weights themselves to boolean masks, ranked by magnitude on the way."""
    masks = select(
        {str(i): layer.weight for i, layer in enumerate(layers)},
        sparsity=SPARSITY,
        absolute=True,
    )
    return sum(int(mask.count_nonzero()) for mask in masks.values())


def by_select(layers: list[nn.Linear]) -> int:
    """Ready scores to boolean masks. The weights stand for the scores: signed values are the harder
    case.
    """
    masks = select({str(i): layer.weight for i, layer in enumerate(layers)}, sparsity=SPARSITY)
    return sum(int(mask.count_nonzero()) for mask in masks.values())


WAYS: dict[str, Callable[[list[nn.Linear]], int]] = {
    "torch.nn.utils.prune.global_unstructured": by_torch,
    "secateurs.select on weights, absolute=True": by_absolute,
    "secateurs.select on ready scores": by_select,
}


def resident(field: str) -> int:
    """Bytes of resident memory now (VmRSS) or at most so far (VmHWM)."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def one(way: str, dtype: str, entries: int, threads: int) -> None:
    torch.set_num_threads(threads)
    layers = [
        nn.Linear(entries // LAYERS // 1000, 1000, bias=False, dtype=getattr(torch, dtype))
        for _ in range(LAYERS)
    ]
    generator = torch.Generator().manual_seed(0)
    for layer in layers:
        nn.init.normal_(layer.weight, generator=generator)
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    before, wall, cpu = resident("VmRSS"), time.perf_counter(), time.process_time()
    with torch.no_grad():
        kept = WAYS[way](layers)
    print(
        time.perf_counter() - wall,
        time.process_time() - cpu,
        resident("VmHWM") - before,
        kept,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dtypes", nargs="*", default=list(DTYPES))
    parser.add_argument("--entries", type=int, default=96_000_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--one", choices=list(WAYS))
    options = parser.parse_args()
    if options.one:
        return one(options.one, options.dtypes[0], options.entries, options.threads)
    print(
        "| dtype | threads | call | seconds | CPU seconds | extra GB | kept | faster | faster (CPU)"
        " | of the memory |"
    )
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for dtype in options.dtypes:
        base: list[float] = []
        for way in WAYS:
            arguments = [
                dtype,
                "--entries",
                str(options.entries),
                "--threads",
                str(options.threads),
                "--one",
                way,
            ]
            output = subprocess.run(
                [sys.executable, __file__, *arguments],
                check=True,
                capture_output=True,
                text=True,
            )
            wall, cpu, extra, kept = map(float, output.stdout.split())
            base = base or [wall, cpu, extra]
            print(
                f"| {dtype} | {options.threads} | {way} | {wall:.2f} | {cpu:.2f} |"
                f" {extra / 1e9:.2f} | {kept:.0f} | {base[0] / wall:.1f}× | {base[1] / cpu:.1f}× |"
                f" 1/{base[2] / extra:.1f} |",
                flush=True,
            )
    return None


if __name__ == "__main__":
    main()
