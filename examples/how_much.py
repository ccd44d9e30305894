"""How much can I prune? Three answers: measured, certified on balls, and promised by theorem.

Run it with `python examples/how_much.py`. It takes some ten seconds on one core.
"""

from copy import deepcopy

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import secateurs as sc


def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    return float((model(x).argmax(1) == y).float().mean())


def main(epochs: int = 10, bound: float = 1.0) -> float:
    """Train, then ask three times; return the largest sparsity that loses under a point."""
    torch.manual_seed(0)
    split = train_test_split(*load_digits(return_X_y=True), test_size=360, random_state=0)
    x, new_x, y, new_y = map(torch.tensor, split)
    x, new_x = x.float() / 16, new_x.float() / 16
    layers = nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    dense, best = accuracy(model, new_x, new_y), 0.0

    # 1. Measured: prune copies, without any training afterwards.
    for sparsity in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95):
        copy = deepcopy(model)
        sc.prune_(copy, "magnitude", sparsity=sparsity)
        kept = accuracy(copy, new_x, new_y)
        best = sparsity if kept >= dense - 0.01 else best
        print(f"{sparsity:.0%} zeros: test accuracy {kept:.1%} (dense {dense:.1%})")

    # 2. Certified: the most zeros whose effect on these balls provably stays below a bound.
    copy = deepcopy(model).eval()
    print(sc.prune_to_bound_(copy, new_x[:2], bound=bound, radius=0.01, tolerance=0.02))

    # 3. Promised: for networks whose weights are as a theorem assumes, before any training.
    print(sc.theory.plan([784, 1024, 1024, 10], alpha=0.5, delta=0.01))
    return best


if __name__ == "__main__":
    main()
