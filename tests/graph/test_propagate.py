"""The captured graph computes what the model computes, in float64, for any batch."""

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.graph import evaluate


def randomise(model: nn.Module) -> nn.Module:
    """Non-trivial running statistics, scales and shifts, so that a forgotten one shows."""
    for module in model.modules():
        if (
            isinstance(module, nn.modules.batchnorm._BatchNorm)
            and module.running_mean is not None
        ):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            if module.weight is not None:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
    return model.double().eval()


def agreement(
    model: nn.Module, *inputs: torch.Tensor, output: str | None = None
) -> float:
    """Largest relative difference between the graph and the model on these inputs."""
    model = randomise(model)
    graph = sc.capture(model, inputs, output=output)
    with torch.no_grad():
        theirs = model(*[x.double() for x in inputs])
        for key in graph.output_name.split(".") if graph.output_name else ():
            theirs = theirs[int(key)] if key.isdigit() else theirs[key]
        ours = evaluate(graph, [x.double() for x in inputs], graph.state(model))
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-300))


@pytest.mark.parametrize("batch", [1, 3])
def test_a_convolutional_net(batch):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.LazyLinear(5),
    )
    model(torch.randn(2, 3, 8, 8))
    assert agreement(model, torch.randn(batch, 3, 8, 8)) < 1e-12
