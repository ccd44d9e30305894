"""Train a network that is sparse when training ends: one changed line, the optimizer.

Run it with `python examples/sparse_from_scratch.py`. It takes some ten seconds on one core.
"""

import torch
import torch.nn.functional as F

import secateurs as sc
import secateurs_lab as lab
from secateurs.base.random import generator


def main(epochs: int = 100, sparsity: float = 0.98) -> sc.optim.Collapsed:
    """Train on the embedded digits; return what `collapse_` says."""
    data = lab.data.load("digits")
    # Or any torch.nn.Module.
    model = lab.models.build("lenet-300-100", size=8, generator=generator(0, "init"))
    steps = epochs * -(-len(data.train_x) // 64)

    # The changed line. λ is steered so that this share of the weights ends at exactly zero.
    optimizer = sc.optim.FactorizedSGD(
        model.named_parameters(),
        lr=0.15,
        init="dwf",  # draw a start that suits the factors
        steps=steps,
        target_sparsity=sparsity,
        generator=generator(0, "factors"),
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    # An ordinary loop. The model is an ordinary model all the time.
    draw = generator(0, "batches")
    for _ in range(epochs):
        for x, y in data.batches(64, generator=draw):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            scheduler.step()

    result = optimizer.collapse_(model)  # what is as good as zero becomes exactly zero
    accuracy = lab.train.evaluate(model, data).accuracy
    print(f"{result.compression:.0f} times fewer weights, test accuracy {accuracy:.1%}")
    return result


if __name__ == "__main__":
    main()
