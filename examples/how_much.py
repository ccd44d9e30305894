"""How much can I prune? Three answers: measured, certified on balls, and promised by theorem.

Run it with `python examples/how_much.py`. It takes some ten seconds on one core.
"""

from copy import deepcopy

import torch

import secateurs as sc
import secateurs_lab as lab
from secateurs.base.random import generator


def main(epochs: int = 10, bound: float = 1.0) -> float:
    """Train, then ask three times; return the largest sparsity that loses under a point."""
    data = lab.data.load("digits")
    model = lab.models.build("lenet-300-100", size=8, generator=generator(0, "init"))
    lab.train.fit_(
        model,
        data,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        length=f"{epochs}ep",
        generator=generator(0, "train"),
        verbose=False,
    )
    dense, best = lab.train.evaluate(model, data).accuracy, 0.0

    # 1. Measured: prune copies, without any training afterwards.
    for sparsity in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95):
        copy = deepcopy(model)
        sc.prune_(copy, "magnitude", sparsity=sparsity)
        accuracy = lab.train.evaluate(copy, data).accuracy
        best = sparsity if accuracy >= dense - 0.01 else best
        print(f"{sparsity:.0%} zeros: test accuracy {accuracy:.1%} (dense {dense:.1%})")

    # 2. Certified: the most zeros whose effect on these balls provably stays below a bound.
    copy = deepcopy(model).eval()
    print(sc.prune_to_bound_(copy, data.test_x[:2], bound=bound, radius=0.01, tolerance=0.02))

    # 3. Promised: for networks whose weights are as a theorem assumes, before any training.
    print(sc.theory.plan([784, 1024, 1024, 10], alpha=0.5, delta=0.01))
    return best


if __name__ == "__main__":
    main()
