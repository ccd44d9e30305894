"""LeNet-300-100 and LeNet-5 (LeCun et al. 1998), with ReLU as in the sparse-training papers."""

import torch.nn.functional as F
from torch import Tensor, nn

from secateurs.models.base import architecture


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

    The first convolution pads by two pixels, so that 28×28 images pass as the 32×32 ones of the
    original (16·5·5 = 400 features, 61,706 parameters; 44 more with batch norm).
    """

    def __init__(
        self, in_channels: int, classes: int, size: int, batch_norm: bool = True
    ) -> None:
        super().__init__()
        side = (
            size // 2 - 4
        ) // 2  # padded convolution, pool, plain convolution, pool
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
def lenet_5(
    in_channels: int, classes: int, size: int, batch_norm: bool = True
) -> LeNet5:
    """LeNet-5, with batch norm as in the weight-factorization paper or without."""
    return LeNet5(in_channels, classes, size, batch_norm)
