"""Wide residual networks with pre-activation (Zagoruyko & Komodakis 2016)."""

import torch.nn.functional as F
from torch import Tensor, nn

from secateurs.models.base import architecture


class WideResNet(nn.Module):
    """WRN-depth-widen: three stages of (depth − 4)/6 pre-activation blocks of 16, 32 and 64 times
    `widen` channels.
    """

    def __init__(
        self, depth: int, widen: int, in_channels: int, classes: int
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        blocks, channels = [], 16
        for stage, width in enumerate((16 * widen, 32 * widen, 64 * widen)):
            for block in range((depth - 4) // 6):
                blocks.append(
                    PreActivationBlock(
                        channels, width, stride=2 if stage and not block else 1
                    )
                )
                channels = width
        self.blocks = nn.Sequential(*blocks)
        # The blocks end before a norm and a ReLU, so the last ones stand here.
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
        self.conv1 = nn.Conv2d(
            in_channels, out_channels, 3, stride=stride, padding=1, bias=False
        )
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        same = stride == 1 and in_channels == out_channels
        self.shortcut = (
            None
            if same
            else nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        out: Tensor = self.conv2(F.relu(self.bn2(self.conv1(active))))
        # No ReLU after the sum: the next block begins with its own.
        return out + (x if self.shortcut is None else self.shortcut(active))


@architecture(
    "wrn-16-8",
    "wide residual, pre-activation, stages 128-256-512 of 2 blocks (CIFAR)",
)
def wrn_16_8(in_channels: int, classes: int, size: int) -> WideResNet:
    """WRN-16-8."""
    return WideResNet(16, 8, in_channels, classes)
