"""Certify what pruning changed: a bound for every input of a ball, beside what search found.

Run it with `python examples/certify_change.py`. It takes some ten seconds on one core.
"""

from copy import deepcopy

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import secateurs as sc


def main(epochs: int = 10, images: int = 8) -> sc.proof.Certificate:
    """Train, prune a copy, compare the two networks; return the certificate."""
    torch.manual_seed(0)
    split = train_test_split(*load_digits(return_X_y=True), test_size=360, random_state=0)
    x, new_x, y, _ = map(torch.tensor, split)
    x, new_x = x.float() / 16, new_x.float() / 16
    layers = nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)
    dense = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(dense.parameters(), lr=1e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(dense(x[batch]), y[batch]).backward()
            optimizer.step()
    sparse = deepcopy(dense)
    sc.prune_(sparse, "magnitude", sparsity=0.5)
    dense, sparse = dense.eval(), sparse.eval()

    # Proven: for all inputs that differ from one of these images by at most 0.01 per pixel.
    some = new_x[:images]
    proof = sc.certify(dense, sparse, around=some, radius=0.01)
    print(f"outputs differ by at most {proof.bound:.3f} ({proof.method})")
    print(f"search found a difference of {proof.lower_bound:.3f}")
    print(f"{proof.certified_share(some):.0%} of the images provably keep their class")
    for method, reason in proof.skipped.items():
        print(f"skipped {method}: {reason}")

    # Counted: what the whole test set says about fresh images of the same kind.
    print(sc.proof.statistical(dense, sparse, data=new_x))
    return proof


if __name__ == "__main__":
    main()
