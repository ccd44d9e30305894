"""Make a trained model sparse: score, cut, and train on with the zeros held at zero.

Run it with `python examples/sparse_from_trained.py`. It takes some ten seconds on one core.
"""

import torch
import torch.nn.functional as F

import secateurs as sc
import secateurs_lab as lab
from secateurs.base.random import generator


def train(model, data, optimizer, epochs: int, seed: str) -> float:
    """A loop of your own. Nothing in it knows about sparsity."""
    draw = generator(0, seed)
    for _ in range(epochs):
        for x, y in data.batches(64, generator=draw):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return lab.train.evaluate(model, data).accuracy


def main(epochs: int = 20, sparsity: float = 0.9) -> sc.prune.Pruned:
    """Train, prune, fine-tune; return the pruning."""
    data = lab.data.load("digits")
    model = lab.models.build("lenet-300-100", size=8, generator=generator(0, "init"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    dense = train(model, data, optimizer, epochs, "dense")

    pruned = sc.prune_(model, "magnitude", sparsity=sparsity)
    cut = lab.train.evaluate(model, data).accuracy

    # Momentum would bring the zeros back. `hold` keeps weights and momentum at zero.
    with sc.hold(model, pruned.masks, optimizer):
        tuned = train(model, data, optimizer, epochs // 2, "tune")

    print(f"dense {dense:.1%}, cut {cut:.1%}, tuned {tuned:.1%}")
    print(f"{sc.sparsity_report(model, masks=pruned.masks).total.sparsity:.1%} zeros")
    sc.save_sparse(model, "pruned.safetensors")  # the zeros take no room in the file
    return pruned


if __name__ == "__main__":
    main()
