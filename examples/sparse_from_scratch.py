"""Train a network that is sparse when training ends: one changed line, the optimizer.

Run it with `python examples/sparse_from_scratch.py`. It takes some ten seconds on one core.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import secateurs as sc


def main(epochs: int = 100, sparsity: float = 0.98) -> sc.optim.Collapsed:
    """Train on the digits of scikit-learn; return what `collapse_` says."""
    torch.manual_seed(0)
    split = train_test_split(*load_digits(return_X_y=True), test_size=360, random_state=0)
    x, new_x, y, new_y = map(torch.tensor, split)
    x, new_x = x.float() / 16, new_x.float() / 16
    # Or any torch.nn.Module.
    layers = nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)
    model = nn.Sequential(*layers)
    steps = epochs * -(-len(x) // 64)

    # The changed line. λ is steered so that this share of the weights ends at exactly zero.
    optimizer = sc.optim.FactorizedSGD(
        model.named_parameters(),
        lr=0.3,
        init="dwf",  # draw a start that suits the factors
        steps=steps,
        target_sparsity=sparsity,
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    # An ordinary loop. The model is an ordinary model all the time.
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            scheduler.step()

    result = optimizer.collapse_(model)  # what is as good as zero becomes exactly zero
    accuracy = (model(new_x).argmax(1) == new_y).float().mean()
    print(f"{result.compression:.0f} times fewer weights, test accuracy {accuracy:.1%}")
    return result


if __name__ == "__main__":
    main()
