"""The settings of one protocol of the paths paper, and its methods."""

from dataclasses import dataclass

METHODS = {
    "magnitude-layerwise": ("magnitude", "layer"),
    "path-layerwise": ("path", "layer"),
    "path-global": ("path", "global"),
}


RESNET_18 = ((64, 2), (128, 2), (256, 2), (512, 2))


RESNET_8 = ((8, 1), (16, 1), (32, 1))
"""Stages of a residual network: (width, blocks)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSettings:
    """One protocol, whole. Layerwise methods prune p % of each convolution and p/2 % of the last
    linear layer.

    Attributes:
        tested: How many test images; None for all.
        examples: How many training images; the share `validation` of them, the last ones, chooses
        the epoch.
        drops: After which epochs the rate falls to a tenth.
        rewind: Epochs after which the dense network is remembered.
        factors: What a hidden channel may be multiplied by.
    """

    data: str = "fashion-mnist"
    stages: tuple[tuple[int, int], ...] = RESNET_8
    examples: int | None = 4096
    tested: int | None = 5000
    validation: float = 0.1
    epochs: int = 12
    drops: tuple[int, ...] = (4, 8, 11)
    rewind: int = 1
    batch: int = 128
    rate: float = 0.1
    momentum: float = 0.9
    decay: float = 1e-4
    augment: bool = False
    percents: tuple[int, ...] = (10, 20, 40, 60, 80)
    factors: tuple[float, ...] = (1, 128, 4096)
    seed: int = 0
