"""Path norms in any range, by exponents: as a number, as a logarithm, and as a penalty to train
with.
"""

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias, overload

import torch
from torch import Tensor, nn

from secateurs.base.copies import evaluating
from secateurs.base.parameters import check_model
from secateurs.errors import ArgumentError, DomainError, ParameterError
from secateurs.graph import Example, Graph, affines, capture, propagate
from secateurs.graph.primitives import State
from secateurs.paths.mass import (
    ZERO,
    NormFlow,
    Scaled,
    alone_reasons,
    constant_inputs,
    graph_of,
    rescale,
    two_to,
    upper_bound_reasons,
)

# A path norm as a number, with its logarithm and what was assumed.


class PathNorm(float):
    """‖Φ‖_q as a float (inf if float64 overflows), with its logarithm, its parts and what was
    assumed.

    Attributes:
        log2: Its base-2 logarithm, finite at any depth (−inf for a norm of zero).
        q: The exponent of the norm.
        per_output: log2 of the norm of the paths that end in each output neuron.
        inputs, biases: The norms of the paths that start in an input, and in a bias; with
            `split=True`.
        is_upper_bound: A leaky relu was bounded by max(1, |slope|).
        assumptions: What was assumed, in words.
    """

    log2: float
    q: float
    per_output: Tensor
    inputs: "PathNorm | None"
    biases: "PathNorm | None"
    is_upper_bound: bool
    assumptions: tuple[str, ...]

    def __new__(
        cls,
        mass: Scaled,
        *,
        q: float,
        bounded: tuple[str, ...],
        assumptions: tuple[str, ...] = (),
    ) -> "PathNorm":
        self = super().__new__(
            # For q = 1 the float itself, without a detour through a logarithm that
            # loses digits.
            cls,
            total(mass) if q == 1 else exp2(float(mass.log2_sum()) / q),
        )
        self.log2, self.q = float(mass.log2_sum()) / q, q
        self.per_output = (
            (torch.log2(mass.value) + (0 if mass.exponent == ZERO else mass.exponent)) / q
        )[0]
        self.inputs = self.biases = None
        self.is_upper_bound = bool(bounded)
        self.assumptions = (*bounded, *assumptions)
        return self


def total(mass: Scaled) -> float:
    """The sum of all entries as a float; inf where it overflows."""
    return float(mass.value.sum()) * two_to(mass.exponent)


def exp2(log2: float) -> float:
    """2^log2 as a float; inf where it overflows."""
    return math.inf if log2 >= 1024 else 2.0**log2


# Path norms: ‖Φ(θ)‖_q in one forward pass, at any depth.

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
        raise ArgumentError(f"q = {q} is not in [1, ∞); give a finite q of at least 1.")
    graph = graph_of(model, example, output)
    norm = _norm(graph, graph.state(model), q, "all")
    if split:
        norm.inputs = _norm(graph, graph.state(model), q, "inputs")
        norm.biases = _norm(graph, graph.state(model), q, "biases")
    return torch.exp2(norm.per_output) if per_output else norm


def log2_path_norm(
    model: nn.Module,
    example: Example | Graph,
    *,
    q: float = 1,
    output: str | int | None = None,
) -> float:
    """log₂ ‖Φ(θ)‖_q, finite where the norm itself overflows float64; −inf for a norm of zero."""
    return path_norm(model, example, q=q, output=output).log2


def path_norm_penalty(model: nn.Module, example: Example | Graph, *, q: float = 1) -> Tensor:
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
    graph = example if isinstance(example, Graph) else _capture_in_eval(model, example)
    return _log_sum(graph, graph.state(model), q, "all") / q


def factor_path_penalty(
    model: nn.Module, example: Example | Graph, factors: Mapping[str, Tensor]
) -> Tensor:
    """ln (1/D) Σ_d ‖Φ(ω_d)‖₂² over the paths from the inputs, where each weight is a product of D
    factors, w = ω_1 ⊙ ⋯ ⊙ ω_D: add μ times it to a training loss.

    It is never below ln ‖Φ(w)‖_{2/D}^{2/D}, and equal where the factors are balanced (the means of
    each path): a smooth penalty, blind to rescaling, that makes *paths* sparse as weight decay on
    factors makes weights sparse. Batch norms enter as they are: fold them first.

    Args:
        model: Holds the products. Its biases play no part: the paths start at inputs.
        example: An example input, or a captured graph.
        factors: By name of the weight, (D, *shape); all weights with two dimensions and more. D is
            at least one, and the same for all.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> names = "0.weight", "2.weight"
    >>> balanced = {n: model.get_parameter(n).abs().sqrt().expand(2, -1, -1) for n in names}
    >>> penalty = factor_path_penalty(model, torch.zeros(1, 2), balanced)
    >>> norm = path_norm(model, torch.zeros(1, 2), split=True).inputs
    >>> abs(float(penalty) - math.log(norm)) < 1e-6
    True
    """
    depth = _check_factors(model, factors)
    graph = example if isinstance(example, Graph) else _capture_in_eval(model, example)
    state = graph.state(model)
    logs = [
        _log_sum(graph, {**state, **{n: f[d].double() for n, f in factors.items()}}, 2, "inputs")
        for d in range(depth)
    ]
    return torch.stack(logs).logsumexp(0) - math.log(depth)


def _check_factors(model: nn.Module, factors: Mapping[str, Tensor]) -> int:
    """How many factors each weight has: at least one, and all as many."""
    weights = {name: p for name, p in model.named_parameters() if p.ndim > 1}
    depths = {len(f) for f in factors.values() if f.ndim}
    shapes = {name: tuple(f.shape) for name, f in factors.items()}
    wrong = [
        f"{name!r} has {f'shape {shapes[name]}' if name in shapes else 'none'}"
        for name, p in weights.items()
        if name not in shapes or shapes[name][1:] != tuple(p.shape) or not shapes[name][0]
    ]
    wrong += [f"{name!r} is no such weight" for name in factors.keys() - weights.keys()]
    if wrong or len(depths) != 1:
        raise ArgumentError(
            "factors= needs (D, *shape) for every weight of two dimensions and more, with one D of"
            f" at least 1: {'; '.join(wrong) or f'D is {sorted(depths)}'}."
        )
    return depths.pop()


def _log_sum(graph: Graph, state: State, q: float, part: Part) -> Tensor:
    """ln of the sum over the paths of |Φ|^q."""
    scaled = _as_scaled(graph, state, q, part)
    if scaled.exponent == ZERO:
        raise ParameterError(
            "the path norm is zero: no path carries weight, so it has no logarithm. Unprune a"
            " layer."
        )
    # From base 2 to base e; the exponent outside of the mantissa has no gradient.
    return scaled.log2_sum() * math.log(2)


def _as_scaled(graph: Graph, state: State, q: float, part: Part) -> Scaled:
    fed = constant_inputs(graph, state, 0.0 if part == "biases" else 1.0)
    return propagate(graph, NormFlow(q, biases=part != "inputs"), fed, state)


@torch.no_grad()
def _norm(graph: Graph, state: State, q: float, part: Part) -> PathNorm:
    scaled = _as_scaled(graph, state, q, part)
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


def _capture_in_eval(model: nn.Module, x: Example) -> Graph:
    check_model(model)
    with evaluating(model):
        return capture(model, x)


# Parameters whose costs are upper bounds, or known to first order only.


def repeated_parameters(graph: Graph) -> tuple[str, ...]:
    """Parameters used by two nodes of which one can be reached from the other."""
    users: dict[str, list[str]] = {}
    for node in affines(graph):
        # A set: a node that reads a parameter in its weight and in its bias counts
        # once.
        for name in {n for s in (node.weight, node.bias) if s is not None for n in s.names} & set(
            graph.parameters
        ):
            users.setdefault(name, []).append(node.name)
    several = {name: nodes for name, nodes in users.items() if len(nodes) > 1}
    return tuple(
        name for name in graph.parameters if name in several and _in_sequence(graph, several[name])
    )


def _in_sequence(graph: Graph, nodes: list[str]) -> bool:
    wanted = set(nodes)
    return any((_descendants(graph, name) & wanted) for name in nodes)


def _descendants(graph: Graph, name: str) -> set[str]:
    found: set[str] = set()
    stack = [name]
    while stack:
        for reader in graph.consumers[stack.pop()]:
            if reader not in found:
                found.add(reader)
                stack.append(reader)
    return found


def first_order_names(graph: Graph) -> tuple[str, ...]:
    """Parameters that enter through a function that is not a product."""
    names = [
        name
        for node in affines(graph)
        for source in (node.weight, node.bias)
        if source is not None
        for name, role in source.roles.items()
        if role == "other" and name in graph.parameters
    ]
    return tuple(dict.fromkeys(names))


def on_one_scale(
    shapes: Mapping[str, torch.Size],
    shares: dict[str, Scaled],
    total: Scaled,
    *,
    relative: bool,
) -> tuple[dict[str, Tensor], int]:
    """Plain tensors under one common exponent, 0 wherever float64 can hold them."""
    whole = rescale(total.value.sum(), total.exponent)
    divisor = float(whole.value) if relative and whole.exponent != ZERO else 1.0
    offset = whole.exponent if relative and whole.exponent != ZERO else 0
    top = max(
        (s.exponent - offset for s in shares.values() if s.exponent != ZERO),
        default=0,
    )
    # float64 holds 2^±1022: below 700 there is room for the mantissas and for sums.
    common = 0 if abs(top) < 700 else top
    costs: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        share = shares.pop(name, None)
        if share is None:
            costs[name] = torch.zeros(shape, dtype=torch.float64)
        else:
            # In place: a second copy of every weight in float64 would double the
            # memory.
            factor = two_to(max(share.exponent - offset - common, -2000)) / divisor
            # Usually 1: then the weights are not read again.
            costs[name] = share.value if factor == 1 else share.value.mul_(factor)
    return costs, common
