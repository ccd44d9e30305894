"""Cut a vision transformer to half of its width, train it again, export it.

Run it with `python examples/cut_vit.py`. It takes some thirty seconds on one core.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import secateurs as sc


class ViT(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, 2)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.encoder(x)[:, 0]))


def train(model: nn.Module, x, y, epochs: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(x) - 360).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model.train()(x[batch]), y[batch]).backward()
            optimizer.step()


def accuracy(model: nn.Module, x, y) -> float:
    """On the last 360 images, which nothing is trained on."""
    return float((model.eval()(x[-360:]).argmax(1) == y[-360:]).float().mean())


def main(epochs: int = 30) -> nn.Module:
    """Train, cut the stream behind the norms and the heads, train again, compact and export."""
    torch.manual_seed(0)
    images, y = map(torch.tensor, load_digits(return_X_y=True))
    x, example = images.float().view(-1, 1, 8, 8) / 16, torch.zeros(1, 1, 8, 8)
    model = ViT()
    train(model, x, y, epochs)
    dense = accuracy(model, x, y)
    before = sum(p.numel() for p in model.parameters())

    print(sc.prune_channels_(model, example, channels=0.5, exact=False))
    cut = accuracy(model, x, y)
    train(model, x, y, epochs)  # with a new optimizer: the tensors are smaller
    tuned = accuracy(model, x, y)

    small = sc.compact(model, example)
    after = sum(p.numel() for p in small.parameters())
    print(f"dense {dense:.1%}, cut {cut:.1%}, tuned {tuned:.1%}")
    print(f"{before:,} parameters became {after:,}")
    print(sc.export(small, "vit.pt2", example))
    return small


if __name__ == "__main__":
    main()
