"""The networks of the papers, plain and readable in one sitting: LeNet, VGG, ResNet and wide
ResNet.
"""

from secateurs.models import (
    lenet,  # noqa: F401  (files register)
    resnet,  # noqa: F401  (files register)
    vgg,  # noqa: F401  (files register)
    wide_resnet,  # noqa: F401  (files register)
)
from secateurs.models.base import MODELS, Architecture, build, skeleton
from secateurs.models.initialise import initialise_
from secateurs.models.lenet import LeNet5, LeNet300100
from secateurs.models.resnet import ResNet
from secateurs.models.vgg import VGG
from secateurs.models.wide_resnet import WideResNet

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
