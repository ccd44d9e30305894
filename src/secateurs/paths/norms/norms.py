"""Path norms: ‖Φ(θ)‖_q in one forward pass, at any depth."""

import math
from typing import Literal, TypeAlias, overload

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, DomainError, ParameterError
from secateurs.graph import Example, Graph, capture, propagate
from secateurs.graph.sources import State
from secateurs.naming import renamed
from secateurs.parameters import check_model
from secateurs.paths.norms.feeding import (
    alone_reasons,
    constant_inputs,
    graph_of,
    upper_bound_reasons,
)
from secateurs.paths.norms.flows.norm import NormFlow
from secateurs.paths.norms.result import PathNorm
from secateurs.paths.norms.scaled import ZERO, Scaled

Part: TypeAlias = Literal["all", "inputs", "biases"]


@overload
def path_norm(
    model: nn.Module,
    example: Example | Graph,
    *,
    q: float = 1,
    per_output: Literal[False] = False,
    split: bool = False,
    output: str | int | None = None,
) -> PathNorm: ...


@overload
def path_norm(
    model: nn.Module,
    example: Example | Graph,
    *,
    q: float = 1,
    per_output: Literal[True],
    split: bool = False,
    output: str | int | None = None,
) -> Tensor: ...


@renamed(x="example")
def path_norm(
    model: nn.Module,
    example: Example | Graph,
    *,
    q: float = 1,
    per_output: bool = False,
    split: bool = False,
    output: str | int | None = None,
) -> PathNorm | Tensor:
    """‖Φ(θ)‖_q = (Σ over paths p of |Φ_p(θ)|^q)^(1/q), in float64.

    Args:
        model: a network of the six primitives (docs/paths.md), in evaluation mode.
        example: an example input, of which only the shape matters, or a captured graph.
        q: any q ≥ 1.
        per_output: return a tensor, one norm per output neuron, instead.
        split: fill `inputs` and `biases`, the norms of the paths that start there (two more
            passes).
        output: which output of the model; see `capture`.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    >>> _ = model[0].weight.data.copy_(torch.tensor([[1.0, -2.0], [0.0, 3.0]]))
    >>> _ = model[2].weight.data.copy_(torch.tensor([[-1.0, 0.5]]))
    >>> float(path_norm(model, torch.zeros(1, 2)))
    4.5

    Reference: Gonon et al. 2024, Definition A.1; "Path-metrics, pruning, and generalization",
    Theorem A.1.
    """
    # `not q >= 1` refuses NaN as well.
    if not q >= 1 or math.isinf(q):
        raise ArgumentError(
            f"q = {q} is not in [1, ∞); give a finite q of at least 1."
        )
    graph = graph_of(model, example, output)
    norm = _norm(graph, graph.state(model), q, "all")
    if split:
        norm.inputs = _norm(graph, graph.state(model), q, "inputs")
        norm.biases = _norm(graph, graph.state(model), q, "biases")
    return torch.exp2(norm.per_output) if per_output else norm


@renamed(x="example")
def log2_path_norm(
    model: nn.Module,
    example: Example | Graph,
    *,
    q: float = 1,
    output: str | int | None = None,
) -> float:
    """log₂ ‖Φ(θ)‖_q, finite where the norm itself overflows float64; −inf for a norm of zero."""
    return path_norm(model, example, q=q, output=output).log2


@renamed(x="example")
def path_norm_penalty(
    model: nn.Module, example: Example | Graph, *, q: float = 1
) -> Tensor:
    """ln ‖Φ(θ)‖_q as a differentiable scalar: add μ times it to a training loss.

    The logarithm makes it free of the network's scale. Batch norm enters by its running statistics,
    also while the model trains: given an example, the model is captured in evaluation mode and put
    back. In a training loop capture once, `graph = secateurs.capture(model.eval(), x)`, and pass
    the graph: one forward pass per call.

    >>> from torch import nn
    >>> model = nn.Linear(2, 1, bias=False)
    >>> path_norm_penalty(model, torch.zeros(1, 2)).backward()
    >>> bool((model.weight.grad * model.weight > 0).all())
    True
    """
    graph = (
        example if isinstance(example, Graph) else _captured_in_eval(model, example)
    )
    scaled = _scaled(graph, graph.state(model), q, "all")
    if scaled.exponent == ZERO:
        raise ParameterError(
            "the path norm is zero: no path carries weight, so it has no logarithm. Unprune a"
            " layer."
        )
    # From base 2 to base e; the exponent outside of the mantissa has no gradient.
    return scaled.log2_sum() * (math.log(2) / q)


def _scaled(graph: Graph, state: State, q: float, part: Part) -> Scaled:
    fed = constant_inputs(graph, state, 0.0 if part == "biases" else 1.0)
    return propagate(graph, NormFlow(q, biases=part != "inputs"), fed, state)


@torch.no_grad()
def _norm(graph: Graph, state: State, q: float, part: Part) -> PathNorm:
    scaled = _scaled(graph, state, q, part)
    # Exponents are common to a tensor: entries further apart than a float64 reaches are
    # lost.
    if not bool(torch.isfinite(scaled.value).all()):
        raise DomainError(
            "the path norm is not finite: two weights of one sum differ by more than 2^2000."
        )
    return PathNorm(
        scaled,
        q=q,
        bounded=upper_bound_reasons(graph),
        assumptions=alone_reasons(graph),
    )


def _captured_in_eval(model: nn.Module, x: Example) -> Graph:
    check_model(model)
    modes = {module: module.training for module in model.modules()}
    try:
        return capture(model.eval(), x)
    finally:
        for module, training in modes.items():
            module.training = training
