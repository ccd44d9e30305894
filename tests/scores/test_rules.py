"""What rules have in common: batches count by their size."""

import torch

import secateurs as sc
from scores.two_layers import check, half_square, two_layers


def test_batches_count_by_their_size():
    """Mean over all examples: a list of uneven batches is the concatenated batch. Taylor squares
    per batch.
    """
    net = two_layers()
    x, y = (
        torch.randn(5, 2, dtype=torch.float64),
        torch.randn(5, 1, dtype=torch.float64),
    )
    parts = [(x[:2], y[:2]), (x[2:], y[2:])]
    for name in ("snip", "grasp", "wanda"):
        loader = [list(part) for part in parts]  # a DataLoader makes lists of [x, y]
        whole, split = (sc.score(net, name, batch=b, loss=half_square) for b in ((x, y), loader))
        check(split, whole["0.weight"].tolist(), whole["2.weight"].tolist())
    first, second = (sc.score(net, "taylor", batch=b, loss=half_square)["0.weight"] for b in parts)
    together = sc.score(net, "taylor", batch=parts, loss=half_square)["0.weight"]
    torch.testing.assert_close(together, (2 * first + 3 * second) / 5)
