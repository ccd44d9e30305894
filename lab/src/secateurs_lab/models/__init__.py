"""The networks of the papers, plain and readable in one sitting: LeNet, VGG, ResNet and wide
ResNet.
"""

from secateurs_lab.models import (
    resnet,  # noqa: F401  (files register)
    vgg,  # noqa: F401  (files register)
)
from secateurs_lab.models.base import MODELS, Architecture, build, initialise_, skeleton
from secateurs_lab.models.resnet import ResNet, WideResNet
from secateurs_lab.models.vgg import VGG, LeNet5, LeNet300100

__all__ = [
    "MODELS",
    "VGG",
    "Architecture",
    "LeNet5",
    "LeNet300100",
    "ResNet",
    "WideResNet",
    "build",
    "initialise_",
    "skeleton",
]
