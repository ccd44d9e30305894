"""Cut a detector shaped like YOLO: split, concatenate, upsample, predict at two scales.

Run it with `python examples/cut_detector.py`. It takes some ten seconds on one core.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import secateurs as sc


def conv(inside: int, width: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(inside, width, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(width), nn.SiLU())


class C2f(nn.Module):
    """Half of the channels pass by, the other half goes through a block; all are joined."""

    def __init__(self, inside: int, width: int) -> None:
        super().__init__()
        self.first, self.last = conv(inside, width, 1), conv(width * 3 // 2, width, 1)
        self.block = nn.Sequential(conv(width // 2, width // 2), conv(width // 2, width // 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.first(x).chunk(2, 1)
        return self.last(torch.cat([a, b, b + self.block(b)], 1))


class Detector(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem, self.fine = conv(1, 16), C2f(16, 32)
        self.down, self.coarse = conv(32, 64, 3, 2), C2f(64, 64)
        self.neck = C2f(64 + 32, 32)
        self.heads = nn.ModuleList([nn.Conv2d(32, classes, 1), nn.Conv2d(64, classes, 1)])

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        fine = self.fine(self.stem(x))
        coarse = self.coarse(self.down(fine))
        joined = self.neck(torch.cat([F.interpolate(coarse, scale_factor=2), fine], 1))
        return [head(y) for head, y in zip(self.heads, (joined, coarse), strict=True)]


def main(epochs: int = 4) -> nn.Module:
    """Train every cell to name the digit, cut half of the multiplications, compact."""
    torch.manual_seed(0)
    images, y = map(torch.tensor, load_digits(return_X_y=True))
    x, example = images.float().view(-1, 1, 8, 8) / 16, torch.zeros(1, 1, 8, 8)
    model = Detector()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            sum(F.cross_entropy(m.mean((2, 3)), y[batch]) for m in model(x[batch])).backward()
            optimizer.step()
    model.eval()
    print(sc.prune_channels_(model, example, macs=0.5))
    small = sc.compact(model, example)
    before, after = small.compaction.parameters
    print(
        f"{before:,} parameters became {after:,}, outputs differ by {small.compaction.rounding:.0e}"
    )
    return small


if __name__ == "__main__":
    main()
