"""The networks of the literature are taken unmodified, and their graphs compute what they
compute.
"""

import pytest
import torch

import secateurs as sc
from architectures import ZOO, build
from secateurs.graph import evaluate

# Of the same blocks as a smaller one, and many of them.
DEEP = ("resnet152", "vgg19-bn")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in DEEP else n for n in ZOO]
)
def test_the_graph_computes_the_models_own_output(name):
    model, inputs = build(name)
    graph = sc.capture(model, inputs)
    with torch.no_grad():
        theirs = model(*inputs)
        theirs = theirs if isinstance(theirs, torch.Tensor) else theirs[graph.output_name]
        ours = evaluate(graph, inputs, graph.state(model))
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max()) <= 1e-12 * float(theirs.abs().max())


@pytest.mark.parametrize(
    "name", ["googlenet", "resnet18", "unet-nearest", "huggingface-resnet", "tied"]
)
def test_every_parameter_the_output_uses_is_in_the_graph(name):
    """Checked by gradients: what moves the output has a name in the graph, tied parameters under
    their first.
    """
    model, inputs = build(name)
    graph = sc.capture(model, inputs)
    out = model(*inputs)
    (out if isinstance(out, torch.Tensor) else out[graph.output_name]).sum().backward()
    moving = {
        n for n, p in model.named_parameters() if p.grad is not None and bool((p.grad != 0).any())
    }
    assert moving <= set(graph.parameters) <= {n for n, _ in model.named_parameters()}
