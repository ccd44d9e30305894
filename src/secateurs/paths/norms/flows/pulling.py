"""Gradients through one node of the tape, and the mass of its weights and biases."""

import torch

from secateurs.graph import Affine
from secateurs.paths.norms.flows.steps import Mass, Step
from secateurs.paths.norms.scaled import Scaled, rescaled


def pull_through(step: Step, out: Scaled) -> list[tuple[str, Scaled]]:
    """The gradients for the inputs of a node without parameters."""
    # Nothing was computed, or nothing comes in: a relu hands on what it is given.
    if step.result is None:
        return [(name, out) for name in step.names]
    gradients = torch.autograd.grad(step.result, step.leaves, out.value)
    return [
        (name, rescaled(g, out.exponent))
        for name, g in zip(step.names, gradients, strict=True)
    ]


def pull_affine(
    node: Affine, step: Step, out: Scaled
) -> tuple[Mass, list[tuple[str, Scaled]]]:
    """Mass of weights and biases, and the gradient for the input."""
    bias_gradient = mass_bias = None
    if step.bias is not None:
        shape = node.spread(step.bias.value).shape
        bias_gradient = Scaled(
            # The gradient of a broadcast is a sum over what was repeated.
            out.value.sum_to_size(shape).reshape(step.bias.value.shape),
            out.exponent,
        )
        mass_bias = rescaled(
            bias_gradient.value * step.bias.value, out.exponent + step.bias.exponent
        )
    wanted = [leaf for leaf in step.leaves if leaf.requires_grad]
    if step.result is None or not wanted:
        return Mass(weight=None, bias=mass_bias, bias_gradient=bias_gradient), []
    gradients = dict(
        zip(
            map(id, wanted),
            torch.autograd.grad(step.result, wanted, out.value),
            strict=True,
        )
    )
    pulled = []
    if id(step.leaves[0]) in gradients:
        pulled.append(
            (
                step.names[0],
                rescaled(
                    gradients[id(step.leaves[0])], out.exponent + step.shifts[0]
                ),
            )
        )
    mass = None
    if step.weight is not None and id(step.weight.value) in gradients:
        # |θ|·∂/∂|θ|: the mass that flows through each weight, in place to save a copy.
        through = gradients[id(step.weight.value)].mul_(step.weight.value.detach())
        mass = Scaled(through, out.exponent + step.x_exponent + step.weight.exponent)
    return Mass(weight=mass, bias=mass_bias, bias_gradient=bias_gradient), pulled
