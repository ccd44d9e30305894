"""Channels of a trained network rescaled at random, which leaves its function as it is."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from secateurs.models.resnet import BasicBlock
from secateurs.random import generator
from secateurs.study.reproduce.path_pruning.protocol import Trained
from secateurs.study.reproduce.path_pruning.settings import PathSettings


def rescaled(trained: Trained, settings: PathSettings) -> nn.Module:
    """A copy of the trained network whose blocks are rescaled at random, as in the listing of
    Appendix D.

    Channel c of a block's first convolution, and the running mean and bias of its batch norm, times
    λ; what reads it in the second convolution, over λ. The factors are powers of two: the function
    stays the same.
    """
    model = deepcopy(trained.model)
    draws = generator(settings.seed, "paths/rescale")
    with torch.no_grad():
        for block in model.modules():
            if isinstance(block, BasicBlock):
                _rescale_(block, torch.tensor(settings.factors), draws)
    return model


def _rescale_(block: BasicBlock, factors: Tensor, draws: torch.Generator) -> None:
    norm = block.bn1
    scale = factors[
        torch.randint(len(factors), (norm.num_features,), generator=draws)
    ].to(block.conv1.weight.device)
    # Factors are powers of two, so nothing is rounded.
    block.conv1.weight.mul_(scale[:, None, None, None])
    # Lined up from the right: these are the input channels of the second convolution.
    block.conv2.weight.div_(scale[:, None, None])
    # Mean and bias, but not the variance: the norm's
    # output is then λ times what it was.
    norm.bias.mul_(scale)
    if norm.running_mean is not None:
        norm.running_mean.mul_(scale)
