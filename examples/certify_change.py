"""Certify what pruning changed: a bound for every input of a ball, beside what search found.

Run it with `python examples/certify_change.py`. It takes some ten seconds on one core.
"""

from copy import deepcopy

import torch

import secateurs as sc
import secateurs_lab as lab
from secateurs.base.random import generator


def main(epochs: int = 10, images: int = 8) -> sc.proof.Certificate:
    """Train, prune a copy, compare the two networks; return the certificate."""
    data = lab.data.load("digits")
    dense = lab.models.build("lenet-300-100", size=8, generator=generator(0, "init"))
    lab.train.fit_(
        dense,
        data,
        optimizer=torch.optim.AdamW(dense.parameters(), lr=1e-3),
        length=f"{epochs}ep",
        generator=generator(0, "train"),
        verbose=False,
    )
    sparse = deepcopy(dense)
    sc.prune_(sparse, "magnitude", sparsity=0.5)
    dense, sparse = dense.eval(), sparse.eval()

    # Proven: for all inputs that differ from one of these images by at most 0.01 per pixel.
    some = data.test_x[:images]
    proof = sc.certify(dense, sparse, around=some, radius=0.01)
    print(f"outputs differ by at most {proof.bound:.3f} ({proof.method})")
    print(f"search found a difference of {proof.lower_bound:.3f}")
    print(f"{proof.certified_share(some):.0%} of the images provably keep their class")
    for method, reason in proof.skipped.items():
        print(f"skipped {method}: {reason}")

    # Counted: what the whole test set says about fresh images of the same kind.
    print(sc.certify(dense, sparse, data=data.test_x).statistical)
    return proof


if __name__ == "__main__":
    main()
