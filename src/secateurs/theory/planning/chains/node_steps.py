"""The steps of any other module, from its captured graph."""

import math
from copy import deepcopy
from itertools import pairwise

import torch
from torch import Tensor, nn

from secateurs.errors import CaptureError, TheoryError
from secateurs.graph import Activation, Affine, Node, Pool, State, Structural, capture
from secateurs.theory.planning.chains.affine_steps import affine_step, convolution_of
from secateurs.theory.planning.chains.module_steps import module_step
from secateurs.theory.planning.chains.steps import (
    GIVE_WIDTHS,
    Obstacle,
    Passage,
    Step,
)
from secateurs.theory.planning.chains.windows import pool_constant


def captured_steps(
    model: nn.Module, size: tuple[int, int] | None
) -> list[Step | Obstacle]:
    """The steps of a model read as a graph, node by node."""
    kinds = nn.Conv2d if size else nn.Linear
    first = next(
        (module for module in model.modules() if isinstance(module, kinds)), None
    )
    if first is None:
        raise TheoryError(
            f"{type(model).__name__} has no linear layer from which its input could be told."
            f" {GIVE_WIDTHS}"
        )
    still = deepcopy(model).eval().cpu()
    try:
        graph = capture(still, _example(first, size))
    except CaptureError as error:
        raise TheoryError(
            f"{type(model).__name__} cannot be read as a chain of linear layers: {error} Or write"
            f" it as an nn.Sequential, for which more activations are known. {GIVE_WIDTHS}"
        ) from error
    state = graph.state(still)
    return [
        _node_step(node, before, state, still)
        for before, node in pairwise(graph.nodes)
    ]


def _example(first: nn.Module, size: tuple[int, int] | None) -> Tensor:
    """Zeros that the first layer takes."""
    if isinstance(first, nn.Conv2d) and size:
        return torch.zeros(1, first.in_channels, *size)
    return torch.zeros(1, int(first.in_features))  # type: ignore[arg-type]


def _node_step(
    node: Node, before: Node, state: State, model: nn.Module
) -> Step | Obstacle:
    # One path: each node reads the one just before it and nothing else.
    if node.inputs != (before.name,):
        return Obstacle(text=f"{node.place}, where paths part or meet")
    if isinstance(node, Activation):
        return Passage(
            name=node.place.module,
            lipschitz=max(1.0, abs(node.slope)),
            apply=node.apply,
        )
    if isinstance(node, Structural) and _rearranges(node, before.shape):
        return Passage(name=node.place.module, lipschitz=1.0, apply=node.function)
    if isinstance(node, Pool):
        constant = pool_constant(node, before.shape)
        return Passage(name=node.place.module, lipschitz=constant, apply=node.apply)
    if isinstance(node, Affine):
        conv = convolution_of(node, model)
        if conv is not None:
            return module_step(node.place.module, conv)
        return affine_step(node, before.shape, state, dict(model.named_parameters()))
    return Obstacle(text=str(node.place))


def _rearranges(node: Structural, shape: tuple[int, ...]) -> bool:
    """Every value goes to one place: norms stay. Seen on values that differ."""
    # From 1 on: a 0 could not be told from padding.
    numbers = torch.arange(1.0, math.prod(shape) + 1, dtype=torch.float64)
    return torch.equal(
        node.function(numbers.view(shape)).flatten().sort().values, numbers
    )
