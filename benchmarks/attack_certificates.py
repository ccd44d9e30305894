"""Attacks certificates, captures and rewriting functions with random and with published networks.

    python benchmarks/attack_certificates.py [--seeds 1000] [--out benchmarks/results/attack.csv]

Eight parts; `--parts random twins signs` chooses, and the rows of the others stay in the file. A
seed of `random` is one network, two changes of it and 24 boxes for each. Published networks need
pytorchcv and transformers. Exits with 1 where anything lies above a bound.
"""

import argparse
import csv
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from attack.balls import attack_balls
from attack.cases import Tally, attack_seed, attack_twins
from attack.endings import attack_ending
from attack.rewriting import REWRITES, attack_rewrite
from attack.splitting import attack_signs, attack_split
from attack.third_party import PYTORCHCV, TRANSFORMERS, attack_capture

PARTS = ("random", "twins", "balls", "endings", "splitting", "signs", "rewriting", "published")


def attempts(part, seeds):
    """The calls that make one part."""
    if part == "random":
        return [(attack_seed, (seed,)) for seed in range(seeds)]
    if part == "twins":
        return [(attack_twins, (10_000 + seed,)) for seed in range(seeds)]
    if part == "balls":
        return [(attack_balls, (seed,)) for seed in range(seeds)]
    if part == "endings":
        return [(attack_ending, (seed,)) for seed in range(seeds)]
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
            done = f"{number + 1} of {len(calls)}"
            print(part, done, len(tally.violations), flush=True)
            write(part, tally, time.process_time() - start, done)
    return tally


def save(out, part, tally, seconds, done):
    """The counts of one part in place of its earlier ones."""
    kept = []
    if out.exists():
        with out.open(newline="", encoding="utf-8") as file:
            kept = [row for row in list(csv.reader(file))[1:] if row[0] != part]
    counts = [("attempts", done), ("seconds of the processor", f"{seconds:.0f}")]
    counts += rows(tally.counts)
    counts += [("violations", len(tally.violations)), ("errors", len(tally.errors))]
    counts += [(text, 1) for text in (*tally.violations, *tally.errors)[:40]]
    with out.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("part", "what", "count"))
        table.writerows(kept)
        table.writerows((part, *count) for count in counts)


def rows(counts: Counter):
    """What matters first, then by name."""
    first = ("cases", "certificates", "points", "method × box", "twins", "captured and equal")
    order = {name: number for number, name in enumerate(first)}
    return sorted(counts.items(), key=lambda item: (order.get(item[0], 99), item[0]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/attack.csv"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    bad = 0

    def write(*found):
        save(options.out, *found)

    for part in options.parts:
        bad += len(run(part, options.seeds, write).violations)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
