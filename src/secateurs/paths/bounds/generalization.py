"""Generalisation bounds through the path norm: Theorem 5.1 and the other rows of its comparison."""

import math

from torch import Tensor, nn

from secateurs.errors import ArgumentError, DomainError
from secateurs.graph import capture
from secateurs.naming import renamed
from secateurs.paths.bounds.comparison import RULES, Rule
from secateurs.paths.bounds.table.facts import facts_of
from secateurs.paths.bounds.table.obstacles import Facts
from secateurs.paths.bounds.table.rows import (
    GeneralizationBound,
    GeneralizationBounds,
)
from secateurs.paths.bounds.table.verdict import verdict_of
from secateurs.paths.norms.feeding import alone_reasons


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
        rows=tuple(_row(rule, facts, loss_range) for rule in RULES),
        facts=facts,
        assumptions=(
            f"‖x‖_∞ ≤ {facts.input_bound:g}, the loss is {loss_lipschitz:g}-Lipschitz in the output"
            " (checked by you)",
            "the path norm of every network the training could return is at most this one's",
            *alone_reasons(graph),
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
        else verdict_of(log2, facts, rule.constant, loss_range),
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
