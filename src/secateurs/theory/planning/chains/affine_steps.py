"""An affine node of a captured graph as a step: a layer, or a passage of known constant."""

from collections.abc import Iterable

from torch import nn

from secateurs.graph import Affine, State
from secateurs.theory.planning.chains.steps import Layer, Obstacle, Passage, Step
from secateurs.theory.planning.chains.windows import averaging_constant


def convolution_of(node: Affine, model: nn.Module) -> nn.Conv2d | None:
    """The module behind a node, if it is a convolution that pads inside its operation."""
    if not node.place.module:
        return None
    module = model.get_submodule(node.place.module)
    plain = type(module) is nn.Conv2d and module.padding_mode == "zeros"
    return module if plain and isinstance(module, nn.Conv2d) else None


def affine_step(
    node: Affine, shape: tuple[int, ...], state: State, trained: Iterable[str]
) -> Step | Obstacle:
    """A layer where the node has weights to prune, else a passage of known constant."""
    weight, bias, axes = (
        node.weight_in(state),
        node.bias_in(state),
        node.operation.axes,
    )
    # A diagonal map stretches by its largest entry.
    if weight is None or (axes is not None and axes.diagonal):
        constant = 1.0 if weight is None else float(weight.detach().abs().max())
        return Passage(
            name=node.place.module,
            lipschitz=constant,
            apply=lambda x: node.apply(x, weight, bias).detach(),
        )
    # Fixed weights, such as an average pool: nothing to prune, only a constant to know.
    if node.weight is not None and not set(node.weight.names) & set(trained):
        fixed = averaging_constant(node, shape, weight)
        return Passage(
            name=node.place.module,
            lipschitz=fixed,
            apply=lambda x: node.apply(x, weight, bias).detach(),
        )
    if axes is None or weight.ndim != 2 or len(node.shape) != 2:
        return Obstacle(text=f"{node.place} on {node.shape}")
    direct = None if node.weight is None else node.weight.direct
    name = (direct or node.place.module).removesuffix(".weight")
    return Layer(
        name=name, weight=weight if axes.weight_out == 0 else weight.T, bias=bias
    )
