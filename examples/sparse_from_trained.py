"""Make a trained model sparse: score, cut, and train on with the zeros held at zero.

Run it with `python examples/sparse_from_trained.py`. It takes some ten seconds on one core.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import secateurs as sc


def train(model, optimizer, x, y, epochs: int) -> None:
    """A loop of your own. Nothing in it knows about sparsity."""
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()


def accuracy(model, x, y) -> float:
    return float((model(x).argmax(1) == y).float().mean())


def main(epochs: int = 20, sparsity: float = 0.9) -> sc.prune.Pruned:
    """Train, prune, fine-tune; return the pruning."""
    torch.manual_seed(0)
    split = train_test_split(*load_digits(return_X_y=True), test_size=360, random_state=0)
    x, new_x, y, new_y = map(torch.tensor, split)
    x, new_x = x.float() / 16, new_x.float() / 16
    layers = nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train(model, optimizer, x, y, epochs)
    dense = accuracy(model, new_x, new_y)

    pruned = sc.prune_(model, "magnitude", sparsity=sparsity)
    cut = accuracy(model, new_x, new_y)

    # Momentum would bring the zeros back. `hold` keeps weights and momentum at zero.
    with sc.hold(model, pruned.masks, optimizer):
        train(model, optimizer, x, y, epochs // 2)
    tuned = accuracy(model, new_x, new_y)

    print(f"dense {dense:.1%}, cut {cut:.1%}, tuned {tuned:.1%}")
    print(f"{sc.sparsity_report(model, masks=pruned.masks).total.sparsity:.1%} zeros")
    sc.save_sparse(model, "pruned.safetensors")  # the zeros take no room in the file
    return pruned


if __name__ == "__main__":
    main()
