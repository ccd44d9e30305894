"""Chains of layers: LeNet-300-100 and LeNet-5 (LeCun et al. 1998), and VGG-16 and VGG-19 with batch
norm (Simonyan & Zisserman 2014) for 32×32 images and larger."""

import torch.nn.functional as F
from torch import Tensor, nn

from secateurs_lab.models.base import architecture

POOL = 0
WIDTHS = (64, 128, 256, 512, 512)


def _plan(*counts: int) -> list[int]:
    """The given number of convolutions of each width, with a pool after each width."""
    stages = zip(WIDTHS, counts, strict=True)
    return [step for width, count in stages for step in (*[width] * count, POOL)]


PLAN_16 = _plan(2, 2, 3, 3, 3)
PLAN_19 = _plan(2, 2, 4, 4, 4)


class VGG(nn.Module):
    """3×3 convolutions with batch norm and ReLU, max-pooled five times, then `hidden` linear layers
    of 512 units.

    Images larger than 32×32 are averaged to one pixel before the linear layers.
    """

    def __init__(self, plan: list[int], in_channels: int, classes: int, hidden: int) -> None:
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
        self.hidden = nn.ModuleList(nn.Linear(channels, channels) for _ in range(hidden))
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


@architecture("vgg-16", "13 convolutions with batch norm, 3 linear layers (CIFAR)", smallest=32)
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


# LeNet-300-100 and LeNet-5 (LeCun et al. 1998), with ReLU as in the sparse-training papers.


class LeNet300100(nn.Module):
    """Two hidden layers of 300 and 100 units with ReLU: 784-300-100-10 on MNIST."""

    def __init__(self, in_features: int, classes: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(in_features, 300)
        self.fc2 = nn.Linear(300, 100)
        self.fc3 = nn.Linear(100, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.fc1(x.flatten(1)))
        x = F.relu(self.fc2(x))
        logits: Tensor = self.fc3(x)
        return logits


class LeNet5(nn.Module):
    """Convolutions of 6 and 16 kernels 5×5, each with batch norm, ReLU and 2×2 average pooling;
    then 120, 84, classes.

    The first convolution pads by two pixels, so that 28×28 images are accepted like the 32×32 ones
    of the original (16·5·5 = 400 features, 61,706 parameters; 44 more with batch norm).
    """

    def __init__(self, in_channels: int, classes: int, size: int, batch_norm: bool = True) -> None:
        super().__init__()
        side = (size // 2 - 4) // 2  # padded convolution, pool, plain convolution, pool
        self.conv1 = nn.Conv2d(in_channels, 6, 5, padding=2)
        # Identity keeps names and forward pass the same with and without batch norm.
        self.bn1 = nn.BatchNorm2d(6) if batch_norm else nn.Identity()
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.bn2 = nn.BatchNorm2d(16) if batch_norm else nn.Identity()
        self.fc1 = nn.Linear(16 * side * side, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.avg_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        x = F.relu(self.fc2(x))
        logits: Tensor = self.fc3(x)
        return logits


@architecture(
    "lenet-300-100",
    "fully connected 784-300-100-10 with ReLU (MNIST family)",
    in_channels=1,
    size=28,
)
def lenet_300_100(in_channels: int, classes: int, size: int) -> LeNet300100:
    """LeNet-300-100 for square images."""
    return LeNet300100(in_channels * size * size, classes)


@architecture(
    "lenet-5",
    "conv 6 and 16 of 5×5 with batch norm, then 120-84-10",
    in_channels=1,
    size=28,
    smallest=12,
)
def lenet_5(in_channels: int, classes: int, size: int, batch_norm: bool = True) -> LeNet5:
    """LeNet-5, with batch norm as in the weight-factorization paper, or without."""
    return LeNet5(in_channels, classes, size, batch_norm)
