"""Cut half of the channels out of a residual network as timm builds them, and change no output.

Run it with `python examples/cut_resnet.py`. It takes some ten seconds on one core.
"""

import torch
from torch import nn

import secateurs as sc
import secateurs_lab as lab
from secateurs.base.random import generator


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


def main(epochs: int = 10) -> nn.Module:
    """Train, cut, fine-tune with the channels held at zero, compact, save and load."""
    data, example = lab.data.load("digits"), torch.zeros(1, 1, 8, 8)
    torch.manual_seed(0)
    model = ResNet()
    rest = {"verbose": False, "generator": generator(0, "train")}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    lab.train.fit_(model, data, optimizer=optimizer, length=f"{epochs}ep", **rest)
    dense = lab.train.evaluate(model.eval(), data).accuracy

    pruned = sc.prune_channels_(model, example, channels=0.5)  # skip connections included
    with sc.hold(model, pruned.masks, optimizer):
        lab.train.fit_(model, data, optimizer=optimizer, length=f"{epochs}ep", **rest)
    small = sc.compact(model.eval(), example)  # the same outputs

    accuracy = lab.train.evaluate(small, data).accuracy
    print(f"dense {dense:.1%}, cut and tuned {accuracy:.1%}")
    before, after = small.compaction.parameters
    print(f"{before:,} parameters became {after:,}")
    sc.save_sparse(small, "resnet.safetensors")
    return sc.load_sparse("resnet.safetensors", into=ResNet(), narrow=True)


if __name__ == "__main__":
    main()
