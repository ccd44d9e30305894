"""Norms of neurons that add up several layers."""


def into(*layers):
    """‖(θ^{→v}, b_v)‖₁ of neurons that add up these layers."""
    return sum(layer.weight.abs().flatten(1).sum(1) + layer.bias.abs() for layer in layers).detach()
