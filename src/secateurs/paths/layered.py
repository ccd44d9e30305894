"""Plain layered networks: affine layers with ReLU between, nothing else. Some theorems hold for
these only.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.graph import Activation, Affine, Graph, Input, State, Structural


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixLayer:
    """A full matrix and its bias (None where there is none)."""

    weight: Tensor
    bias: Tensor | None


def layers_of(graph: Graph, state: State) -> list[MatrixLayer] | None:
    """The layers of R(x) = M_L ReLU(M_{L−1} … ReLU(M_1 x)) with optional biases; None for any other
    graph.

    Flattening before the first layer is allowed. Two affine maps without a ReLU between are not a
    layered network.
    """
    layers: list[MatrixLayer] = []
    ready = True  # the next node may be an affine map
    for node in graph.nodes:
        # A value with two readers is a skip connection, or an output taken on the way.
        if any(len(graph.consumers[name]) != 1 for name in node.inputs):
            return None
        match node:
            case Input():
                continue
            # Only what keeps every entry of the input, a flattening, changes no
            # theorem.
            case Structural() if not layers and torch.Size(node.shape).numel() == _count_inputs(
                graph
            ):
                continue
            case Affine() if ready and _full(node):
                layers.append(_layer(node, state))
                ready = False
            case Activation() if not ready and node.slope == 0:
                ready = True
            case _:
                return None
    # The last node must be an affine map: a final ReLU is not in R(x).
    return layers if layers and not ready else None


def normalized(layers: list[MatrixLayer]) -> list[MatrixLayer]:
    """Algorithm 1 for the ℓ¹ norm: hidden neurons get incoming weights and bias of ℓ¹ norm 1 (or
    0), R and Φ stay.
    """
    result: list[MatrixLayer] = []
    carried: Tensor | None = None
    for index, layer in enumerate(layers):
        # λ of the layer before multiplies the columns: it undoes the division there.
        weight = layer.weight if carried is None else layer.weight * carried
        bias = torch.zeros_like(weight[:, 0]) if layer.bias is None else layer.bias
        if index == len(layers) - 1:
            # Algorithm 1 normalises hidden neurons only; the output layer carries the
            # size.
            return [*result, MatrixLayer(weight=weight, bias=bias)]
        carried = weight.abs().sum(dim=1) + bias.abs()
        # A neuron that nothing enters (λ = 0) gets zeros, where 0 · (1/0) would be NaN.
        inverse = torch.where(carried > 0, 1 / carried, torch.zeros_like(carried))
        result.append(MatrixLayer(weight=weight * inverse.unsqueeze(1), bias=bias * inverse))
    return result


def _count_inputs(graph: Graph) -> int:
    return sum(torch.Size(node.shape).numel() for node in graph.inputs)


def _full(node: Affine) -> bool:
    return (
        node.operation.label == "linear"
        # On a sequence a linear map shares its weights over positions: no full matrix.
        and len(node.shape) == 2
        and node.weight is not None
    )


def _layer(node: Affine, state: State) -> MatrixLayer:
    if node.weight is None:
        return MatrixLayer(weight=torch.zeros(0), bias=None)
    return MatrixLayer(
        weight=node.weight(state),
        bias=None if node.bias is None else node.bias(state),
    )
