"""One parameter in a step of the base: its factors get their gradient, its weight the product."""

from dataclasses import dataclass

from torch import Tensor, nn

from secateurs.bits import clear_where_
from secateurs.optim.factorized.factors.maths import Rule, others, product, root


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A parameter that the base is about to move.

    Attributes:
        parameter: The weight.
        factors: Its stacked factors, which the base holds; None where it is not factorized.
        rule: The numbers of this step.
        climbs: Whether the base climbs the loss (`maximize=True`).
    """

    parameter: nn.Parameter
    factors: Tensor | None
    rule: Rule
    climbs: bool

    def hand_over_(self, grad: Tensor) -> Tensor | None:
        """Give the factors their gradient; returns which weights are dead."""
        factors, rule = self.factors, self.rule
        if factors is None:
            self.parameter.grad = grad
            return None
        factors.grad = others(factors).mul_(grad)
        if rule.decoupled:
            factors.mul_(1 - rule.lr * rule.decay)  # as AdamW does: shrink, then move
        else:  # a base that climbs the loss turns the sign of all it is given
            factors.grad.add_(
                factors, alpha=-rule.decay if self.climbs else rule.decay
            )
        # Dead means all factors zero. One zero factor alone still has a gradient and
        # may come back.
        dead: Tensor = factors.abs().amax(0) == 0
        return dead

    def write_back_(self, dead: Tensor | None) -> Tensor | None:
        """New weights; returns which are dead now.

        What was dead stays so, though the base may have moved it: by momentum, or by dividing by 0.
        """
        factors = self.factors
        if factors is None or dead is None:
            return None
        dead = dead | (factors.abs().amax(0) < root(self.rule.freeze, len(factors)))
        clear_where_(factors, dead)
        # Gradients of factors are D times the size of the weight: they are not kept
        # between steps.
        factors.grad = None
        self.parameter.copy_(product(factors))
        return dead
