"""Generalisation bounds through the path norm: Theorem 5.1 and the other rows of its comparison."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.table import Table
from torch import Tensor, nn

from secateurs.base.printing import Printed
from secateurs.errors import ArgumentError, DomainError
from secateurs.graph import Affine, Graph, Pool, capture, propagate
from secateurs.paths.enumeration import Depth
from secateurs.paths.layered import MatrixLayer, layers_of
from secateurs.paths.mass import alone_reasons
from secateurs.paths.norms import log2_path_norm
from secateurs.theory.covering import theorem_g2_factor
from secateurs.theory.description import description_length
from secateurs.theory.partition import Partition, partition

# When a row of the paper's Table 3 does not apply, in words.


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Sizes and norms of a network, and the properties of its samples, which the rows of Table 3
    take."""

    depth: int
    inputs: int
    outputs: int
    parameters: int
    largest_pool: int
    pool_kinds: int
    biases: bool
    layers: tuple[MatrixLayer, ...] | None
    partition: Partition
    log2_norm: float
    samples: int
    input_bound: float
    loss_lipschitz: float

    @property
    def log2_rate(self) -> float:
        """log₂ of L·B/√n."""
        # Everything is a logarithm: path norms of deep networks overflow float64.
        size = math.log2(self.loss_lipschitz) + math.log2(self.input_bound)
        return size - math.log2(self.samples) / 2


def outside_definitions(f: Facts) -> str:
    """Theorem 5.1 with the network's own number of parameters: definitions A.2, G.3 and G.4."""
    found = f.partition
    if found.obstacles:
        return "; ".join(found.obstacles)
    # Edges of fixed weight (skip connections, pools) are coordinates that #params does not count.
    if theorem_g2_factor(found) > printed_factor(f):
        return (
            f"its {found.coordinates} coordinates, fixed weights counted, are too many for "
            f"{f.parameters} parameters"
        )
    return ""


def printed_factor(f: Facts) -> float:
    """The factor that the paper states beside L·B/√n and the path norm."""
    # The paper's 240√2 is a slip for 384√2 ≈ 543.06, which 544 rounds up (docs/errata.md).
    return 544 * f.partition.width * math.sqrt(f.parameters)


def unknown_activations(f: Facts) -> str:
    """Only activations that definition A.2 knows."""
    return "; ".join(f.partition.unknown)


def too_few_inputs(f: Facts) -> str:
    """The logarithm of a size of one is zero, and no bound."""
    if f.inputs >= 2:
        return ""
    return f"needs at least 2 inputs, this one has {f.inputs}: ln 1 = 0 bounds nothing"


def not_plain(f: Facts, *, depth: int | None = None) -> str:
    """Layered, fully connected, no bias, one output."""
    if f.layers is None:
        return "needs a layered fully connected network"
    if depth is not None and len(f.layers) != depth:
        return f"needs depth {depth}, this one has {len(f.layers)}"
    return _lean(f)


def _lean(f: Facts) -> str:
    if f.biases:
        return "needs a network without biases"
    return "" if f.outputs == 1 else f"needs one output, this one has {f.outputs}"


def first_of(*reasons: str) -> str:
    """The first reason that is not empty, or ''."""
    return next((reason for reason in reasons if reason), "")


def not_without_bias(f: Facts) -> str:
    """What keeps a network from being a DAG without biases and pools."""
    pooled = "needs a network without pooling" if f.largest_pool > 1 else ""
    return first_of(unknown_activations(f), pooled, _lean(f), too_few_inputs(f))


def not_with_pools(f: Facts) -> str:
    """What keeps a network from being a DAG with biases and pools."""
    if f.inputs * f.outputs > 1:
        return unknown_activations(f)
    return first_of(
        unknown_activations(f),
        "needs more than one input or output: ln 1 = 0 bounds nothing",
    )


# Base-2 logarithms of the sizes in the comparison: path norms overflow float64.


def log2_product(f: Facts) -> float:
    """log₂ Π_d ‖M_d‖_{1,∞}, the largest ℓ¹ norm of a row of each layer."""
    norms = [float(layer.weight.abs().sum(dim=1).max()) for layer in f.layers or ()]
    # A layer of zeros makes the product 0: its logarithm is −∞, where log2 would raise.
    return sum(math.log2(norm) if norm > 0 else -math.inf for norm in norms)


def half_log2(value: float) -> float:
    """log₂ of a root; −∞ for zero."""
    return math.log2(value) / 2 if value > 0 else -math.inf


def log2_pools(f: Facts) -> float:
    """log₂ √(D·ln(PK) + ln(d_in·d_out))."""
    # Without a pool there are no kinds: the 1 makes the logarithm 0, and the term
    # vanishes.
    pools = f.depth * math.log(max(1, f.pool_kinds) * f.largest_pool)
    return half_log2(pools + math.log(f.inputs * f.outputs))


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundRule:
    """A row: when it applies ('' or the reason why not) and log₂ of its factor beside L·B/√n."""

    name: str
    reference: str
    formula: str
    obstacle: Callable[[Facts], str]
    log2_factor: Callable[[Facts], float]
    constant: bool = False


# The two rows with known constants come first; the others hold up to a constant that
# the paper does not state.
RULES = (
    BoundRule(
        name="theorem 5.1",
        reference="Gonon et al. 2024 (this theory)",
        formula="544·LB/√n·max(D, d_out)·√#params·‖Φ‖₁",
        obstacle=outside_definitions,
        log2_factor=lambda f: math.log2(printed_factor(f)) + f.log2_norm,
        constant=True,
    ),
    BoundRule(
        name="theorem G.2, kinds of neurons",
        reference="Gonon et al. 2024, Theorem G.2 for the partition found in the graph [ours]",
        formula="LB/√n·24√2·(2√(P ln 2) + 2√(H ln 2) + 24M·J·√(P − H))·‖Φ‖₁",
        obstacle=unknown_activations,
        log2_factor=lambda f: math.log2(theorem_g2_factor(f.partition)) + f.log2_norm,
        constant=True,
    ),
    BoundRule(
        name="linear regression",
        reference="Kakade et al. 2008, eq. (5)",
        formula="LB/√n·‖Φ‖₁·√ln d_in",
        obstacle=lambda f: first_of(not_plain(f, depth=1), too_few_inputs(f)),
        log2_factor=lambda f: half_log2(math.log(f.inputs)) + f.log2_norm,
    ),
    BoundRule(
        name="two layers",
        reference="E et al. 2022, Theorem 6",
        formula="LB/√n·‖Φ‖₁·√ln d_in",
        obstacle=lambda f: first_of(not_plain(f, depth=2), too_few_inputs(f)),
        log2_factor=lambda f: half_log2(math.log(f.inputs)) + f.log2_norm,
    ),
    BoundRule(
        name="DAG without bias",
        reference="Neyshabur et al. 2015, Corollary 7",
        formula="LB/√n·‖Φ‖₁·2^D·√ln d_in",
        obstacle=not_without_bias,
        log2_factor=lambda f: f.depth + half_log2(math.log(f.inputs)) + f.log2_norm,
    ),
    BoundRule(
        name="layered, product of norms",
        reference="Golowich et al. 2018, Theorem 3.2",
        formula="LB/√n·Π‖M_d‖_{1,∞}·√(D + ln d_in)",
        obstacle=not_plain,
        log2_factor=lambda f: half_log2(f.depth + math.log(f.inputs)) + log2_product(f),
    ),
    BoundRule(
        name="layered, path norm",
        reference="Barron and Klusowski 2019, Corollary 2",
        formula="LB/√n·‖Φ‖₁·√(D + ln d_in)",
        obstacle=not_plain,
        log2_factor=lambda f: half_log2(f.depth + math.log(f.inputs)) + f.log2_norm,
    ),
    BoundRule(
        name="DAG with biases and pools",
        reference="Gonon et al. 2024a",
        formula="LB/√n·‖Φ‖₁·√(D·ln(PK) + ln(d_in·d_out))",
        obstacle=not_with_pools,
        log2_factor=lambda f: log2_pools(f) + f.log2_norm,
    ),
)


# What the rows of the comparison are computed from, read from one network.


def facts_of(
    graph: Graph,
    model: nn.Module,
    samples: int,
    input_bound: float,
    loss_lipschitz: float,
) -> Facts:
    """Read from the graph and from what the caller says about the data and the loss."""
    with torch.no_grad():
        layers = layers_of(graph, graph.state(model))
    pools = [node for node in graph.nodes if isinstance(node, Pool)]
    sizes = [_window(graph, node) for node in pools]
    return Facts(
        depth=propagate(graph, Depth(), [None] * len(graph.inputs), None),
        inputs=sum(math.prod(node.shape) for node in graph.inputs),
        outputs=math.prod(graph.by_name[graph.output].shape),
        parameters=sum(math.prod(shape) for shape in graph.parameters.values()),
        # K of the paper is the largest window, and P counts the different k of its
        # k-max-pools.
        largest_pool=max(sizes, default=1),
        pool_kinds=len({node.rank for node in pools}),
        biases=any(isinstance(node, Affine) and node.bias is not None for node in graph.nodes),
        layers=None if layers is None else tuple(layers),
        partition=partition(model, graph),
        log2_norm=log2_path_norm(model, graph),
        samples=samples,
        input_bound=input_bound,
        loss_lipschitz=loss_lipschitz,
    )


def _window(graph: Graph, node: Pool) -> int:
    # Sums of ones count the entries of each window. Windows that reach into the padding
    # hold fewer, so the largest decides.
    return int(
        node.total(torch.ones(graph.by_name[node.inputs[0]].shape, dtype=torch.float64)).max()
    )


# The rows of the comparison of generalisation bounds, and how they are shown.


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralizationBound:
    """One row. `log2` is the bound's base-2 logarithm, finite where `value` overflows; None where
    it does not apply.

    constant: whether the universal constant is known (and included) or the row holds up to one.
    """

    name: str
    reference: str
    formula: str
    applies: bool
    reason: str
    value: float | None
    log2: float | None
    constant: bool
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralizationBounds(Printed):
    """All rows of the comparison for one network, with what was assumed."""

    rows: tuple[GeneralizationBound, ...]
    facts: Facts
    assumptions: tuple[str, ...]

    def __getitem__(self, name: str) -> GeneralizationBound:
        for row in self.rows:
            if row.name == name:
                return row
        raise ArgumentError(
            f"there is no row {name!r}; there are {', '.join(row.name for row in self.rows)}."
        )

    def __rich__(self) -> Table:
        table = Table(title="Generalisation bounds", caption="; ".join(self.assumptions))
        for column in ("row", "formula", "value", "in words"):
            table.add_column(column)
        for row in self.rows:
            table.add_row(
                row.name,
                row.formula,
                _bound_text(row),
                row.verdict if row.applies else row.reason,
            )
        return table


def _bound_text(row: GeneralizationBound) -> str:
    if row.value is None or row.log2 is None:
        return "—"
    return f"{row.value:.3g}" if math.isfinite(row.value) else f"2^{row.log2:.0f}"


def verdict_of(log2: float, facts: Facts, constant: bool, loss_range: float) -> str:
    """A sentence on what a bound of this size says about a loss of this range."""
    # Below the overflow of 2.0**log2; beyond it, a power of two says as much.
    size = f"{2.0**log2:.3g}" if log2 < 1000 else f"2^{log2:.0f}"
    over = log2 - math.log2(loss_range)
    if not constant:
        # A rate times an unknown constant proves nothing about this network, however small the rate
        # is.
        limit = f"{2.0**-over:.3g}" if over < 1000 else f"2^{-over:.0f}"
        return (
            f"undecided: {size} times a constant that the paper does not state; it says something"
            f" only where that constant is below {limit}"
        )
    if over <= 0:
        return f"says something: the gap between test and training loss is at most {size}"
    # The bound falls as 1/√n: how many samples would bring it down to the loss's range?
    needed = math.log10(2) * 2 * over + math.log10(facts.samples)
    return (
        f"vacuous: {size}, yet the loss never exceeds {loss_range:g}; about 1e{needed:.0f} samples"
        " would help"
    )


def generalization_bounds(
    model: nn.Module,
    example: Tensor,
    *,
    samples: int,
    input_bound: float,
    loss_lipschitz: float,
    loss_range: float = 1.0,
    data: tuple[Tensor, Tensor] | None = None,
    confidence: float = 0.95,
) -> GeneralizationBounds:
    """Theorem 5.1 for this network, E gen ≤ 544·(L·B/√n)·max(D, d_out)·√#params·‖Φ(θ)‖₁, beside the
    other known bounds.

    Each row checks on the graph whether it applies and says why not. Theorem 5.1 itself rests on
    definitions A.2, G.3 and G.4: no zero padding whose border neurons have fewer antecedents, no
    weight in two layers, no leaky ReLU. Where they fail, "theorem G.2, kinds of neurons" gives what
    still holds: the theorem for the coarsest partition of the neurons that the definitions allow,
    with #params counted over its kinds. Each row also says in plain words when its number is
    vacuous, which is usual for trained networks: no such bound uses the data beyond B.

    Args:
        example: one input, for its shape.
        samples: n, the training samples.
        input_bound: B with ‖x‖_∞ ≤ B; below 1 it counts as 1.
        loss_lipschitz: L of the loss in the network's output (Euclidean norm).
        loss_range: the largest value the loss can take; a bound above it is vacuous.
        data: all training samples and their classes, for the row "description length": what a short
            message proves of the share of wrong classes (`paths.description_length`). It is not
            vacuous if the network is very sparse.
        confidence: with which probability that row holds.

    >>> import torch
    >>> bounds = generalization_bounds(nn.Linear(3, 1, bias=False), torch.zeros(1, 3), samples=100,
    ...                                input_bound=1.0, loss_lipschitz=1.0)
    >>> bounds["theorem 5.1"].applies, bounds["theorem 5.1"].verdict.split(":")[0]
    (True, 'vacuous')

    Reference: Gonon et al. 2024, Theorem 5.1 and Table 3; the constant is 384√2 ≈ 543 rounded up
    (docs/errata.md).
    """
    _check(samples, input_bound, loss_lipschitz, loss_range)
    graph = capture(model, example)
    # A bias counts as an input of size 1, so a smaller B would not be a bound.
    facts = facts_of(graph, model, samples, max(1.0, input_bound), loss_lipschitz)
    return GeneralizationBounds(
        rows=(
            *(_row(rule, facts, loss_range) for rule in RULES),
            *(() if data is None else (_described_row(model, data, samples, confidence),)),
        ),
        facts=facts,
        assumptions=(
            f"‖x‖_∞ ≤ {facts.input_bound:g}, the loss is {loss_lipschitz:g}-Lipschitz in the output"
            " (checked by you)",
            "the path norm of every network the training could return is at most this one's",
            *alone_reasons(graph),
        ),
    )


def _row(rule: BoundRule, facts: Facts, loss_range: float) -> GeneralizationBound:
    obstacle = rule.obstacle(facts)
    log2 = None if obstacle else facts.log2_rate + rule.log2_factor(facts)
    # Python raises OverflowError from 2.0**1024 on; the logarithm keeps the size.
    value = None if log2 is None else (math.inf if log2 >= 1024 else 2.0**log2)
    return GeneralizationBound(
        name=rule.name,
        reference=rule.reference,
        formula=rule.formula,
        applies=not obstacle,
        reason=obstacle,
        value=value,
        log2=log2,
        constant=rule.constant,
        verdict="" if log2 is None else verdict_of(log2, facts, rule.constant, loss_range),
    )


def _described_row(
    model: nn.Module, data: tuple[Tensor, Tensor], samples: int, confidence: float
) -> GeneralizationBound:
    """The gap between the errors on fresh data and on these."""
    inputs, labels = data
    if len(inputs) != samples:
        raise ArgumentError(
            f"samples={samples}, but data= has {len(inputs)}: give all training samples, or leave"
            " data= out."
        )
    found = description_length(model, inputs, labels, confidence=confidence)
    gap = found.bound - found.training_error
    sure = f"of the network in {found.levels} values, with probability {confidence:g}"
    size = f"{found.bits:.0f} bits, {found.training_error:.2%} of {samples} samples wrong"
    # A classifier that always gives one class is right for one in that many samples.
    trivial = 1 - float(torch.bincount(labels).max()) / samples
    word = "says something" if found.bound < trivial else "vacuous"
    return GeneralizationBound(
        name="description length",
        reference="Blumer et al. 1987; Langford 2005 (binomial tail)",
        formula="P(Bin(n, p) ≤ wrong) ≥ (1 − confidence)·2^−bits",
        applies=True,
        reason="",
        value=gap,
        log2=math.log2(gap) if gap > 0 else -math.inf,
        constant=True,
        verdict=f"{word}: the test error {sure} is at most {found.bound:.2%} ({size})",
    )


def _check(samples: int, input_bound: float, loss_lipschitz: float, loss_range: float) -> None:
    if samples < 1:
        raise ArgumentError(f"samples={samples!r}: the number of training samples is at least 1.")
    if not 0 <= input_bound < math.inf:
        raise DomainError(
            f"input_bound={input_bound!r}: give a finite bound on |x|, such as the largest pixel "
            "value."
        )
    wrong = [
        f"{k}={v!r}"
        for k, v in (("loss_lipschitz", loss_lipschitz), ("loss_range", loss_range))
        # `not v > 0` refuses a NaN, `v <= 0` would let it pass.
        if not v > 0
    ]
    if wrong:
        raise ArgumentError(f"{', '.join(wrong)}: must be positive.")


# The rows of the Lipschitz bounds, and how they are shown.
