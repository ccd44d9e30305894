"""VGG-16 and VGG-19 with batch norm (Simonyan & Zisserman 2014), for 32×32 images and larger."""

import torch.nn.functional as F
from torch import Tensor, nn

from secateurs.models.base import architecture

POOL = 0
WIDTHS = (64, 128, 256, 512, 512)


def _plan(*counts: int) -> list[int]:
    """So many convolutions of each width, a pool after each width."""
    stages = zip(WIDTHS, counts, strict=True)
    return [step for width, count in stages for step in (*[width] * count, POOL)]


PLAN_16 = _plan(2, 2, 3, 3, 3)
PLAN_19 = _plan(2, 2, 4, 4, 4)


class VGG(nn.Module):
    """3×3 convolutions with batch norm and ReLU, max-pooled five times, then `hidden` linear layers
    of 512 units.

    Images larger than 32×32 are averaged to one pixel before the linear layers.
    """

    def __init__(
        self, plan: list[int], in_channels: int, classes: int, hidden: int
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = in_channels
        for width in plan:
            if width != POOL:
                layers.append(_ConvNormReLU(channels, width))
                channels = width
            else:
                layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.hidden = nn.ModuleList(
            nn.Linear(channels, channels) for _ in range(hidden)
        )
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.features(x), 1).flatten(1)
        for layer in self.hidden:
            x = F.relu(layer(x))
        logits: Tensor = self.classifier(x)
        return logits


class _ConvNormReLU(nn.Module):
    """One convolutional step of VGG; the bias before batch norm is kept, as in the published
    counts.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.bn = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


@architecture(
    "vgg-16", "13 convolutions with batch norm, 3 linear layers (CIFAR)", smallest=32
)
def vgg_16(in_channels: int, classes: int, size: int, hidden: int = 2) -> VGG:
    """VGG-16 as in the weight-factorization paper; `hidden=0` is the version with one linear
    layer.
    """
    return VGG(PLAN_16, in_channels, classes, hidden)


@architecture(
    "vgg-19",
    "16 convolutions with batch norm, one hidden linear layer of 512 (CIFAR)",
    smallest=32,
)
def vgg_19(in_channels: int, classes: int, size: int, hidden: int = 1) -> VGG:
    """VGG-19 as in the weight-factorization paper; `hidden=0` is the version of SynFlow and the
    sketching paper.
    """
    return VGG(PLAN_19, in_channels, classes, hidden)
