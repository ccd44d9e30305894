"""Whole domains of five tables: the smallest margin at which a pruned network answers as the dense.

    python benchmarks/whole_domains.py shuttle pima letters satellite spam --tables FOLDER

FOLDER holds Shuttle.rda, PimaIndiansDiabetes.rda, LetterRecognition.rda and Satellite.rda of R's
package mlbench, and spam.rda of kernlab (Debian: r-cran-mlbench, r-cran-kernlab); PyPI's rdata
reads them. Inputs are scaled to [0, 1] by their ranges in the whole table, and the domain is that
box. Four fifths of the rows train. Two dense networks each: `plain` by cross-entropy, `certified`
by `certified_loss` against the pruning that follows. 80 % of the weights go by magnitude; what is
left learns the outputs of the dense network, on training rows and on points of the box. Rows that
are in --out are not measured again.
"""

import argparse
import copy
import csv
import time
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import secateurs as sc
from secateurs.proof import certified_gap, certified_loss, masked

TABLES = {
    # File, column of the class, width of both hidden layers, epochs.
    "shuttle": ("Shuttle", "Class", 16, 15),
    "pima": ("PimaIndiansDiabetes", "diabetes", 16, 300),
    "letters": ("LetterRecognition", "lettr", 48, 30),
    "satellite": ("Satellite", "classes", 16, 60),
    "spam": ("spam", "type", 16, 60),
}

FIELDS = (
    *("table", "training", "inputs", "classes", "width", "sparsity", "dense", "pruned", "agree"),
    *("proven", "refuted", "rows", "rows_refuted", "volume_open", "parts", "seconds", "processor"),
)
"""`rows`: share of the test rows at which the dense network leads by more than is proven, and
`rows_refuted` by more than is refuted: no method could show more. `processor`: seconds of all
cores.
"""

RADIUS, SHARE = 0.2, 0.5  # of the certified training
SPARSITY = 0.8


def read_table(folder: Path, name: str) -> tuple[Tensor, Tensor]:
    """Inputs in [0, 1], and classes as numbers."""
    import rdata

    file, column, *_ = TABLES[name]
    table = rdata.read_rda(folder / f"{file}.rda")[file]
    classes = torch.tensor(table[column].astype("category").cat.codes.to_numpy().copy())
    x = torch.tensor(table.drop(columns=[column]).astype(float).to_numpy().copy())
    low, high = x.amin(dim=0), x.amax(dim=0)
    x = (x - low) / (high - low).clamp(min=1e-9)
    return x.float().clamp(0, 1), classes.long()


def train(name: str, training: str, x: Tensor, y: Tensor, generator: torch.Generator) -> nn.Module:
    """The dense network."""
    *_, width, epochs = TABLES[name]
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Linear(x.shape[1], width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, int(y.max()) + 1),
    ).eval()
    graph = sc.capture(model, x[:1])
    steps = epochs * -(-len(x) // 256)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-3)
    plan = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    done = 0
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(256):
            done += 1
            loss = F.cross_entropy(model(x[rows]), y[rows])
            if training == "certified":
                # Radius, sparsity and weight of the bound grow over the first half.
                grown = min(1.0, 2 * done / steps)
                change = masked(SPARSITY * grown, jitter=0.1)
                gap = certified_gap(
                    *(model, graph, x[rows]),
                    radius=RADIUS * grown,
                    change=change,
                    generator=generator,
                )
                loss = certified_loss(model(x[rows]), y[rows], gap, share=SHARE * grown)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            plan.step()
    return model


def prune(name: str, dense: nn.Module, x: Tensor, generator: torch.Generator) -> nn.Module:
    """The sparse network."""
    epochs = TABLES[name][3]
    model = copy.deepcopy(dense)
    pruned = sc.prune_(model, "magnitude", sparsity=SPARSITY)
    steps = epochs * -(-len(x) // 256)
    optimizer = torch.optim.Adam(model.parameters())
    plan = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    with sc.hold(model, pruned.masks, optimizer):
        for _ in range(epochs):
            for rows in torch.randperm(len(x), generator=generator).split(256):
                anywhere = torch.rand(256, x.shape[1], generator=generator)
                batch = torch.cat([x[rows], anywhere])
                optimizer.zero_grad()
                (model(batch) - dense(batch).detach()).square().mean().backward()
                optimizer.step()
                plan.step()
    return model


def measure(name: str, training: str, folder: Path, limit: float) -> tuple[object, ...]:
    """One row."""
    x, y = read_table(folder, name)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(x), generator=generator)
    first, rest = order[: 4 * len(x) // 5], order[4 * len(x) // 5 :]
    dense = train(name, training, x[first], y[first], generator)
    sparse = prune(name, dense, x[first], generator)
    with torch.no_grad():
        f, g = dense(x[rest]), sparse(x[rest])
    lead = f.topk(2, dim=1).values
    lead = lead[:, 0] - lead[:, 1]
    right = [float((one.argmax(dim=1) == y[rest]).float().mean()) for one in (f, g)]
    agree = float((f.argmax(dim=1) == g.argmax(dim=1)).float().mean())
    n, begin, used = x.shape[1], time.monotonic(), time.process_time()
    ends = torch.zeros(1, n), torch.ones(1, n)
    found = sc.smallest_margin(dense, sparse, box=ends, seconds=limit, generator=generator)
    taken = time.monotonic() - begin, time.process_time() - used
    print(f"{name}, {training}: {found}\n{found.open.table(5)}")
    over = (float((lead > margin).float().mean()) for margin in (found.proven, found.refuted))
    return (
        *(name, training, n, f.shape[1], TABLES[name][2], SPARSITY),
        *(f"{v:.4f}" for v in (*right, agree)),
        *(f"{v:.5g}" for v in (found.proven, found.refuted)),
        *(f"{v:.4f}" for v in over),
        f"{float(found.open.shares.sum()):.3g}",
        *(found.parts, *(f"{t:.1f}" for t in taken)),
    )


def main() -> None:
    """Measure what is not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", choices=list(TABLES))
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--training", nargs="+", default=["plain", "certified"])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/whole_domains.csv"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if not args.out.exists():
        args.out.write_text(",".join(FIELDS) + "\n", encoding="utf-8")
    with args.out.open(encoding="utf-8", newline="") as file:
        known = {(row["table"], row["training"]) for row in csv.DictReader(file)}
    for name, training in product(args.names, args.training):
        if (name, training) in known:
            continue
        row = measure(name, training, args.tables, args.seconds)
        print(dict(zip(FIELDS, row, strict=True)), flush=True)
        with args.out.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(row)


if __name__ == "__main__":
    main()
