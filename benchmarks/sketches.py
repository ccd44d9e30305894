"""Measured errors of every sketch beside Algorithm 1: `python benchmarks/sketches.py` (writes
results/sketches.csv).

Relative error E‖Xᵀw − Xᵀ(w⊙m)‖²/‖Xᵀw‖² over 400 masks; d = 1,000 coordinates, n = 200 examples,
seed 0.
"""

import csv
from pathlib import Path

import torch
from torch import Tensor

from secateurs.theory import (
    SKETCHES,
    lemma_43,
    leverage_scores,
    sketch_mask,
    sketch_probabilities,
)

MASKS = 400
FIELDS = ("data", "s", "probabilities", "method", "error", "standard_error", "exact")


def inputs(kind: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Gaussian rows and weights; or rows and weights whose sizes spread over three decades."""
    X = torch.randn(1_000, 200, generator=generator, dtype=torch.float64) / 200**0.5
    w = torch.randn(1_000, generator=generator, dtype=torch.float64)
    if kind == "heavy":
        X = (
            X
            * torch.logspace(0, -3, 1_000, dtype=torch.float64)[
                torch.randperm(1_000, generator=generator), None
            ]
        )
        w = w * torch.exp(torch.randn(1_000, generator=generator, dtype=torch.float64))
    return X, w


def measured(X: Tensor, w: Tensor, masks: Tensor) -> tuple[float, float]:
    """Mean relative error and its standard error."""
    errors = ((masks - 1) * w @ X).square().sum(1) / (X.T @ w).square().sum()
    return float(errors.mean()), float(errors.std(correction=0)) / len(errors) ** 0.5


def rows() -> list[tuple[object, ...]]:
    """One row a cell; "exact" is Lemma 4.3, which speaks of drawing with replacement."""
    found: list[tuple[object, ...]] = []
    for kind in ("gaussian", "heavy"):
        generator = torch.Generator().manual_seed(0)
        X, w = inputs(kind, generator)
        choices = {
            "‖X_k‖|w_k|": sketch_probabilities(X, w),
            "leverage": leverage_scores(X),
        }
        choices["uniform"] = torch.full((1_000,), 1e-3, dtype=torch.float64)
        for s in (50, 200, 500):
            for label, p in choices.items():
                exact = lemma_43(X, w, p, s=s) / float((X.T @ w).square().sum())
                for method in map(str, SKETCHES):
                    masks = torch.stack(
                        [sketch_mask(p, s, generator, method=method) for _ in range(MASKS)]
                    )
                    mean, error = measured(X, w, masks)
                    theory = f"{exact:.4g}" if method == "replacement" else ""
                    found.append((kind, s, label, method, f"{mean:.4g}", f"{error:.2g}", theory))
            kept = choices["‖X_k‖|w_k|"].topk(s).indices
            top = torch.zeros(1, 1_000, dtype=torch.float64).index_fill(1, kept, 1.0)
            mean = measured(X, w, top)[0]
            found.append((kind, s, "‖X_k‖|w_k|", "top-s, 0/1 (biased)", f"{mean:.4g}", "", ""))
    return found


def main() -> None:
    out = Path(__file__).with_name("results") / "sketches.csv"
    with out.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(FIELDS)
        for row in rows():
            table.writerow(row)
            print(*row, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
