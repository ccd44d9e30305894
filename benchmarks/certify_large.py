"""A ResNet-18 at 224×224 certified with and without a limit of time, with and without the search.

    python benchmarks/certify_large.py [--seconds 20 60] [--whole] [--no-middle]

One ball of radius 1/255, 20 % of each layer cut, random weights. Wall and processor time of the
whole call, how often `progress=` was told something and the longest silence; `--whole` adds the
search without a limit, `--no-middle` leaves the run without a search out. The first capture of a
program also pays for the comparison of the graph with the model.
"""

import argparse
import copy
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch

import secateurs as sc

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from architectures import resnet18


def cut(model, share):
    """A copy without the smallest weights of each layer."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in (p for p in other.parameters() if p.ndim > 1):
            limit = weight.abs().flatten().kthvalue(int(share * weight.numel())).values
            weight[weight.abs() <= limit] = 0
    return other


def timed(dense, sparse, x, **options):
    """Seconds, lines of progress, longest silence, and the certificate."""
    processor = time.process_time()
    moments = [time.monotonic()]
    found = sc.certify(
        dense,
        sparse,
        around=x,
        radius=1 / 255,
        progress=lambda line: moments.append(time.monotonic()),
        generator=torch.Generator().manual_seed(0),
        **options,
    )
    moments.append(time.monotonic())
    silence = max(b - a for a, b in pairwise(moments))
    processor = time.process_time() - processor
    return moments[-1] - moments[0], processor, len(moments) - 2, silence, found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, nargs="*", default=[20, 60])
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--no-middle", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    dense = resnet18().eval()
    x = torch.rand(1, 3, 224, 224, generator=generator)
    sparse = cut(dense, 0.2)
    # The first capture of a process loads the tracer: that is not a cost of this network.
    sc.capture(torch.nn.Linear(2, 2), torch.zeros(1, 2))
    for label, model in (("first", dense), ("second", sparse)):
        start = time.process_time()
        sc.capture(model, x)
        print(f"{label} capture {time.process_time() - start:.2f} s of processor")
    print(
        "| search | seconds= | wall (s) | processor (s) | lines | longest silence (s)"
        " | found | bound |"
    )
    print("| --- " * 8 + "|", flush=True)
    runs = [] if args.no_middle else [("middle only", {"restarts": 0})]
    runs += [("4 restarts", {"seconds": limit}) for limit in args.seconds]
    runs += [("4 restarts", {})] if args.whole else []
    for label, options in runs:
        wall, processor, lines, silence, found = timed(dense, sparse, x, **options)
        limit = options.get("seconds", "none")
        print(
            f"| {label} | {limit} | {wall:.1f} | {processor:.1f} | {lines} | {silence:.1f} |"
            f" {found.lower_bound:.4g} | {found.bound:.4g} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
