"""Generalisation bounds through the path norm: Theorem 5.1 and the other rows of its comparison."""

import math
from dataclasses import dataclass

import torch
from rich.table import Table
from torch import Tensor, nn

from secateurs.errors import ArgumentError, DomainError
from secateurs.graph import Affine, Graph, Pool, capture, propagate
from secateurs.naming import renamed
from secateurs.paths.bounds.comparison import RULES, Facts, Rule
from secateurs.paths.bounds.layered import layers_of
from secateurs.paths.bounds.partition import partition
from secateurs.paths.norms.flows.depth import Depth
from secateurs.paths.norms.norms import log2_path_norm
from secateurs.printing import Printed


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
        table = Table(
            title="Generalisation bounds", caption="; ".join(self.assumptions)
        )
        for column in ("row", "formula", "value", "in words"):
            table.add_column(column)
        for row in self.rows:
            table.add_row(
                row.name,
                row.formula,
                _shown(row),
                row.verdict if row.applies else row.reason,
            )
        return table


@renamed(x="example")
def generalization_bounds(
    model: nn.Module,
    example: Tensor,
    *,
    samples: int,
    input_bound: float,
    loss_lipschitz: float,
    loss_range: float = 1.0,
) -> GeneralizationBounds:
    """Theorem 5.1 for this network, E gen ≤ 544·(L·B/√n)·max(D, d_out)·√#params·‖Φ(θ)‖₁, beside the
    other known bounds.

    Each row checks on the graph whether it applies and says why not. Theorem 5.1 itself rests on
    definitions A.2, G.3 and G.4: no zero padding whose border neurons have fewer antecedents, no
    weight in two layers, no leaky ReLU. Where they fail, "theorem G.2, kinds of neurons" gives what
    still holds: the theorem for the coarsest partition of the neurons that the definitions allow,
    with #params counted over its kinds. Each row also says in plain words when its number tells
    nothing, the rule for trained networks: no such bound looks at the data beyond B.

    Args:
        example: one input, for its shape.
        samples: n, the training samples.
        input_bound: B with ‖x‖_∞ ≤ B; below 1 it counts as 1.
        loss_lipschitz: L of the loss in the network's output (Euclidean norm).
        loss_range: the largest value the loss can take; a bound above it is vacuous.

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
    facts = _facts(graph, model, samples, max(1.0, input_bound), loss_lipschitz)
    return GeneralizationBounds(
        rows=tuple(_row(rule, facts, loss_range) for rule in RULES),
        facts=facts,
        assumptions=(
            f"‖x‖_∞ ≤ {facts.input_bound:g}, the loss is {loss_lipschitz:g}-Lipschitz in the output"
            " (checked by you)",
            "the path norm of every network the training could return is at most this one's",
        ),
    )


def _row(rule: Rule, facts: Facts, loss_range: float) -> GeneralizationBound:
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
        verdict=""
        if log2 is None
        else _verdict(log2, facts, rule.constant, loss_range),
    )


def _verdict(log2: float, facts: Facts, constant: bool, loss_range: float) -> str:
    # Short of where 2.0**log2 overflows; beyond, a power of two tells as much.
    size = f"{2.0**log2:.3g}" if log2 < 1000 else f"2^{log2:.0f}"
    over = log2 - math.log2(loss_range)
    if not constant:
        # A rate times an unknown number proves nothing about this network, however small it is.
        limit = f"{2.0**-over:.3g}" if over < 1000 else f"2^{-over:.0f}"
        return (
            f"undecided: {size} times a constant that print does not state; it says something only"
            f" where that constant is below {limit}"
        )
    if over <= 0:
        return f"says something: the gap between test and training loss is at most {size}"
    # The bound falls as 1/√n: how many samples would bring it down to the loss's range?
    needed = math.log10(2) * 2 * over + math.log10(facts.samples)
    return (
        f"vacuous: {size}, yet the loss never exceeds {loss_range:g}; about 1e{needed:.0f} samples"
        " would help"
    )


def _facts(
    graph: Graph,
    model: nn.Module,
    samples: int,
    input_bound: float,
    loss_lipschitz: float,
) -> Facts:
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
        biases=any(
            isinstance(node, Affine) and node.bias is not None for node in graph.nodes
        ),
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
        node.total(
            torch.ones(graph.by_name[node.inputs[0]].shape, dtype=torch.float64)
        ).max()
    )


def _check(
    samples: int, input_bound: float, loss_lipschitz: float, loss_range: float
) -> None:
    if samples < 1:
        raise ArgumentError(
            f"samples={samples!r}: the number of training samples is at least 1."
        )
    if not 0 <= input_bound < math.inf:
        raise DomainError(
            f"input_bound={input_bound!r}: give a finite bound of |x|, say the largest pixel."
        )
    wrong = [
        f"{k}={v!r}"
        for k, v in (("loss_lipschitz", loss_lipschitz), ("loss_range", loss_range))
        # `not v > 0` refuses a NaN, `v <= 0` would let it pass.
        if not v > 0
    ]
    if wrong:
        raise ArgumentError(f"{', '.join(wrong)}: must be positive.")


def _shown(row: GeneralizationBound) -> str:
    if row.value is None or row.log2 is None:
        return "—"
    return f"{row.value:.3g}" if math.isfinite(row.value) else f"2^{row.log2:.0f}"
