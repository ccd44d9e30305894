"""The captured graph computes what the model computes; every flow keeps the laws of flows."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import secateurs as sc
from graph import laws
from graph.flows import CASES, VALUES, Case, every_flow, setting
from secateurs.graph import Evaluate, evaluate
from secateurs.paths.mass import NormFlow
from secateurs.proof.interval import Interval
from tiny_networks import KINDS


def randomise(model: nn.Module) -> nn.Module:
    """Non-trivial running statistics, scales and shifts, so that a forgotten one shows."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            if module.weight is not None:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
    return model.double().eval()


def agreement(model: nn.Module, *inputs: torch.Tensor, output: str | None = None) -> float:
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


def test_every_flow_has_a_case():
    assert every_flow() - set(CASES) == set(), "add an entry to tests/graph/flows.py"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flow", CASES, ids=lambda flow: flow.__name__)
def test_a_flow_keeps_the_laws(flow, kind):
    case, network = CASES[flow], setting(kind)
    getattr(laws, case.law)(case, network)
    laws.assert_repeatable(case, network)
    laws.assert_leaves_alone_what_it_is_given(case, network)


def test_a_flow_that_writes_into_a_value_is_found_out():
    class Careless(Evaluate):
        def activation(self, node, x):
            return x.relu_()

    case = Case(make=lambda s: Careless(), **VALUES)
    with pytest.raises(AssertionError, match="'activation'} wrote into"):
        laws.assert_leaves_alone_what_it_is_given(case, setting("residual"))


@pytest.mark.parametrize("law", ["bounds_outputs", "bounds_differences_on_balls"])
def test_a_bound_that_is_too_small_is_found_out(law):
    flow = NormFlow if law == "bounds_outputs" else Interval
    case = CASES[flow]
    small = replace(case, read=lambda flow, value: case.read(flow, value) * 0.01)
    with pytest.raises(AssertionError, match="above the bound"):
        getattr(laws, law)(small, setting("fully connected"))
