"""Cut half of the channels out of a residual network as timm builds them, and change no output.

Run it with `python examples/cut_resnet.py`. It takes some ten seconds on one core.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import secateurs as sc


class Block(nn.Module):
    def __init__(self, inside: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.downsample = nn.Identity()
        if stride > 1:
            self.downsample = nn.Conv2d(inside, width, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + self.downsample(x)).relu()


class ResNet(nn.Sequential):
    def __init__(self, width: int = 16) -> None:
        stem = nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()
        blocks = Block(width, width), Block(width, 2 * width, 2), Block(2 * width, 2 * width)
        head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10)
        super().__init__(*stem, *blocks, *head)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x, y, epochs: int) -> float:
    """A loop of your own on all but the last 360 images; the accuracy on those."""
    for _ in range(epochs):
        for batch in torch.randperm(len(x) - 360).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model.train()(x[batch]), y[batch]).backward()
            optimizer.step()
    return float((model.eval()(x[-360:]).argmax(1) == y[-360:]).float().mean())


def main(epochs: int = 10) -> nn.Module:
    """Train, cut, fine-tune with the channels held at zero, compact, save and load."""
    torch.manual_seed(0)
    images, y = map(torch.tensor, load_digits(return_X_y=True))
    x, example = images.float().view(-1, 1, 8, 8) / 16, torch.zeros(1, 1, 8, 8)
    model = ResNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    dense = train(model, optimizer, x, y, epochs)

    pruned = sc.prune_channels_(model, example, channels=0.5)  # skip connections included
    with sc.hold(model, pruned.masks, optimizer):
        tuned = train(model, optimizer, x, y, epochs)
    small = sc.compact(model, example)  # the same outputs

    print(f"dense {dense:.1%}, cut and tuned {tuned:.1%}")
    before, after = small.compaction.parameters
    print(f"{before:,} parameters became {after:,}")
    sc.save_sparse(small, "resnet.safetensors")
    return sc.load_sparse("resnet.safetensors", into=ResNet(), narrow=True)


if __name__ == "__main__":
    main()
