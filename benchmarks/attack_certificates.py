"""Attacks certificates, captures and rewriting functions with random and with published networks.

    python benchmarks/attack_certificates.py [--seeds 1000] [--out benchmarks/results]

Seven parts, each a section of the table; `--parts random twins signs` chooses. A seed
of `random` is one network, two changes of it and 24 boxes for each. Published networks need
pytorchcv and transformers. Exits with 1 where anything lies above a bound.
"""

import argparse
import platform
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from attack.balls import attack_balls
from attack.cases import Tally, attack_seed, attack_twins
from attack.rewriting import REWRITES, attack_rewrite
from attack.splitting import attack_signs, attack_split
from attack.third_party import PYTORCHCV, TRANSFORMERS, attack_capture

PARTS = ("random", "twins", "balls", "splitting", "signs", "rewriting", "published")


def attempts(part, seeds):
    """The calls that make one part."""
    if part == "random":
        return [(attack_seed, (seed,)) for seed in range(seeds)]
    if part == "twins":
        return [(attack_twins, (10_000 + seed,)) for seed in range(seeds)]
    if part == "balls":
        return [(attack_balls, (seed,)) for seed in range(seeds)]
    if part == "splitting":
        return [(attack_split, (seed,)) for seed in range(seeds)]
    if part == "signs":
        return [(attack_signs, (seed,)) for seed in range(seeds)]
    if part == "rewriting":
        each = max(300, seeds // 3)
        return [(attack_rewrite, (name, seed)) for name in REWRITES for seed in range(each)]
    names = [*PYTORCHCV, *(f"transformers:{name}" for name in TRANSFORMERS)]
    return [(attack_capture, (name,)) for name in names]


def run(part, seeds, write):
    """All of one part; the table is written now and then, so that nothing is lost."""
    tally, start = Tally(), time.process_time()
    calls = attempts(part, seeds)
    for number, (attack, arguments) in enumerate(calls):
        tally += attack(*arguments)
        if number % 50 == 49 or number + 1 == len(calls):
            done = f"{number + 1} of {len(calls)} attempts"
            print(part, done, len(tally.violations), flush=True)
            write(part, tally, time.process_time() - start, done)
    return tally


def section(part, tally, seconds, done):
    """One part of the table."""
    lines = [f"# {part}", "", f"{done}, {seconds:.0f} s of processor time.", ""]
    lines += ["| what | how often |", "| --- | ---: |"]
    lines += [f"| {name} | {count:,} |" for name, count in rows(tally.counts)]
    lines += [f"| **violations** | **{len(tally.violations)}** |"]
    lines += [f"| errors that are not a refusal | {len(tally.errors)} |", ""]
    found = [*tally.violations, *tally.errors]
    return "\n".join([*lines, *(f"* {text}" for text in found[:40]), ""])


def rows(counts: Counter):
    """What matters first, then by name."""
    first = ("cases", "points", "method × box", "twins", "captured and equal")
    order = {name: number for number, name in enumerate(first)}
    return sorted(counts.items(), key=lambda item: (order.get(item[0], 99), item[0]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    bad = 0
    command = f"python benchmarks/attack_certificates.py --seeds {options.seeds}"
    head = (
        f"<!-- {command} --parts {{}}; one thread, torch {torch.__version__}, Python"
        f" {platform.python_version()}, 2 shared cores AMD EPYC (AVX-512), CPU -->\n"
    )

    def write(part, tally, seconds, done):
        text = head.format(part) + section(part, tally, seconds, done)
        (options.out / f"attack-{part}.md").write_text(text, encoding="utf-8")

    for part in options.parts:
        bad += len(run(part, options.seeds, write).violations)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
