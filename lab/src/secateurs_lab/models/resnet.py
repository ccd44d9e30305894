"""Residual networks for small images (He et al. 2016): 3×3 first convolution, no first max-pool."""

import torch.nn.functional as F
from torch import Tensor, nn

from secateurs_lab.models.base import architecture


class ResNet(nn.Module):
    """A 3×3 convolution, stages of basic blocks, global average pooling, one linear layer.

    `stages` lists (width, blocks); every stage but the first halves the image. Shortcuts that
    change the shape are 1×1 convolutions with batch norm, as in the pruning papers (He's option B).
    """

    def __init__(self, stages: list[tuple[int, int]], in_channels: int, classes: int) -> None:
        super().__init__()
        channels = stages[0][0]
        # No bias before a batch norm, which would subtract it again.
        self.conv = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(channels)
        blocks = []
        for stage, (width, count) in enumerate(stages):
            for block in range(count):
                blocks.append(BasicBlock(channels, width, stride=2 if stage and not block else 1))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn(self.conv(x))))
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with batch norm, added to the shortcut, then ReLU."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        # An empty Sequential passes its input on.
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != out_channels:
            self.shortcut.append(nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


@architecture("resnet-18", "residual, stages 64-128-256-512 of 2 blocks, 3×3 first convolution")
def resnet_18(in_channels: int, classes: int, size: int, width: int = 64) -> ResNet:
    """ResNet-18 for small images."""
    return ResNet(
        [(width, 2), (2 * width, 2), (4 * width, 2), (8 * width, 2)],
        in_channels,
        classes,
    )


@architecture("resnet-20", "residual, stages 16-32-64 of 3 blocks (CIFAR)")
def resnet_20(in_channels: int, classes: int, size: int, width: int = 16) -> ResNet:
    """ResNet-20 with projection shortcuts, as in the lottery-ticket, SynFlow and sketching
    papers.
    """
    return ResNet([(width, 3), (2 * width, 3), (4 * width, 3)], in_channels, classes)


@architecture(
    "resnet-34",
    "residual, stages 64-128-256-512 of 3, 4, 6, 3 blocks, 3×3 first convolution",
)
def resnet_34(in_channels: int, classes: int, size: int, width: int = 64) -> ResNet:
    """ResNet-34 for small images."""
    return ResNet(
        [(width, 3), (2 * width, 4), (4 * width, 6), (8 * width, 3)],
        in_channels,
        classes,
    )


@architecture("wrn-20-32", "ResNet-20 of twice the width, stages 32-64-128 (CIFAR)")
def wrn_20_32(in_channels: int, classes: int, size: int) -> ResNet:
    """The "WideResNet-20-32" of the sketching paper: ResNet-20 with 32 channels in the first
    stage.
    """
    return resnet_20(in_channels, classes, size, width=32)


# Wide residual networks with pre-activation (Zagoruyko & Komodakis 2016).


class WideResNet(nn.Module):
    """WRN-depth-widen: three stages of (depth − 4)/6 pre-activation blocks of 16, 32 and 64 times
    `widen` channels.
    """

    def __init__(self, depth: int, widen: int, in_channels: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        blocks, channels = [], 16
        for stage, width in enumerate((16 * widen, 32 * widen, 64 * widen)):
            for block in range((depth - 4) // 6):
                blocks.append(
                    PreActivationBlock(channels, width, stride=2 if stage and not block else 1)
                )
                channels = width
        self.blocks = nn.Sequential(*blocks)
        # The blocks end without a norm and a ReLU, so the last ones are here.
        self.bn = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.blocks(self.conv(x))))
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


class PreActivationBlock(nn.Module):
    """Batch norm and ReLU before each of two 3×3 convolutions; a shortcut that changes the shape is
    a 1×1 convolution of the activated input.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        same = stride == 1 and in_channels == out_channels
        self.shortcut = (
            None if same else nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        out: Tensor = self.conv2(F.relu(self.bn2(self.conv1(active))))
        # No ReLU after the sum: the next block starts with its own.
        return out + (x if self.shortcut is None else self.shortcut(active))


@architecture(
    "wrn-16-8",
    "wide residual, pre-activation, stages 128-256-512 of 2 blocks (CIFAR)",
)
def wrn_16_8(in_channels: int, classes: int, size: int) -> WideResNet:
    """WRN-16-8."""
    return WideResNet(16, 8, in_channels, classes)
