"""A certificate that stops training: cut and train in turn, as long as a proof says enough.

Run it with `python examples/stop_at_certificate.py`. It takes some ten seconds on one core.
"""

from copy import deepcopy

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import secateurs as sc


def train(model, optimizer, x, loss, target, epochs):
    """An ordinary loop."""
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            loss(model(x[batch]), target[batch]).backward()
            optimizer.step()


def main(epochs: int = 10, images: int = 32, share: float = 0.9) -> float:
    """Train, then cut by a fifth and follow the dense network, until fewer than `share` of the
    images provably keep their class within 0.01 per pixel; return the sparsity before.
    """
    torch.manual_seed(0)
    split = train_test_split(*load_digits(return_X_y=True), test_size=360, random_state=0)
    x, new_x, y, new_y = map(torch.tensor, split)
    x, new_x = x.float() / 16, new_x.float() / 16
    layers = nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
    dense = nn.Sequential(*layers)
    train(dense, torch.optim.AdamW(dense.parameters(), lr=3e-3), x, F.cross_entropy, y, epochs)
    answers, some = dense(x).detach(), new_x[:images]

    reached = {}
    for between in (0, epochs):
        sparse, sparsity, proven = dense, 0.0, 1.0
        while proven >= share:
            model, cut = sparse, sparsity
            # Each time a fifth of the weights that are left, as in iterative pruning.
            sparsity = 1 - 0.8 * (1 - cut)
            sparse = deepcopy(model)
            optimizer = torch.optim.AdamW(sparse.parameters(), lr=1e-3)
            masks = sc.prune_(sparse, "magnitude", sparsity=sparsity).masks
            with sc.hold(sparse, masks, optimizer):
                train(sparse, optimizer, x, F.mse_loss, answers, between)
            proof = sc.certify(dense, sparse, around=some, radius=0.01)
            proven = proof.certified_share(some)
        right = float((model(new_x).argmax(1) == new_y).float().mean())
        print(f"{between} epochs between two cuts: the proof says stop at {cut:.0%} zeros")
        print(f"({right:.1%} right; at {sparsity:.0%} only {proven:.0%} provably keep their class)")
        reached[between] = cut
    return reached[epochs]


if __name__ == "__main__":
    main()
