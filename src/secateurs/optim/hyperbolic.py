"""A hyperbolic step after each step of an optimizer: Hyperbolic Aware Minimization."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.base.prunable import Where
from secateurs.base.sharding import local, local_gradient
from secateurs.optim.attached import StepMethod, check_between


class HAM(StepMethod):
    """Hyperbolic Aware Minimization (Jacobs et al., ICLR 2026): after each step of the optimizer,

        w ← w ⊙ exp(−η (α sign(w) ⊙ ∂L/∂w + β)),

    with the gradient before that step, the signs after it, and η the learning rate of the weight's
    group. Large weights move faster than by the optimizer alone; β is a decay. In the limit of
    small rates that is dw = −(1 + α|w|) ∂L/∂w − βw, whose bias is between L₂ (α = 0) and L₁
    (α → ∞).

    It makes weights small, and none zero: use it with what cuts (`hold`, `RigL`, `ACDC`,
    `GradualPruning`). What is zero stays zero. There is no state beside the optimizer's; during a
    step the gradients are kept twice.

    Args:
        alpha, beta: As in the formula; the paper's for ImageNet by default.
        limit: The exponent is kept within ±limit, as in the authors' program, so that no weight
            overflows.
        where: Which parameters; by default the weights that `prune_` would prune.

    >>> layer = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(layer.weight, 1.0)
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    >>> ham = HAM(layer, optimizer, alpha=2.0, beta=1.0)
    >>> layer(torch.ones(1, 1)).sum().backward()  # the gradient is 1
    >>> optimizer.step()
    >>> round(layer.weight.item(), 4)  # 0.9 · exp(−0.1 · (2 + 1))
    0.6667
    """

    in_pieces = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        alpha: float = 200.0,
        beta: float = 1e-3,
        limit: float = 5.0,
        where: Where = None,
    ) -> None:
        check_between("alpha", alpha, 0.0)
        check_between("beta", beta, 0.0)
        check_between("limit", limit, 0.0)
        self.alpha, self.beta, self.limit = alpha, beta, limit
        self._gradients: dict[str, Tensor] = {}
        super().__init__(model, optimizer, where)

    def before(self) -> None:
        """Keep the gradients: some optimizers write to them (SGD with Nesterov's momentum, where it
        works on many tensors at once).
        """
        given = {
            name: grad
            for name, p in self._parameters.items()
            if (grad := local_gradient(p)) is not None
        }
        self._gradients = {name: torch.empty_like(grad) for name, grad in given.items()}
        if given:
            torch._foreach_copy_(list(self._gradients.values()), list(given.values()))

    def after(self, *, skipped: bool) -> None:
        """The hyperbolic step."""
        gradients, self._gradients = self._gradients, {}
        moved: dict[int, tuple[dict[str, Any], list[Tensor], list[Tensor]]] = {}
        for name, p, group in self.groups():
            # Nothing moves where another method has taken the gradient away for this step.
            if p.grad is None or name not in gradients or skipped:
                continue
            _, weights, grads = moved.setdefault(id(group), (group, [], []))
            weights.append(local(p))
            grads.append(gradients[name])
        for group, weights, grads in moved.values():
            # An optimizer that climbs follows the gradient; here it is the one it descends.
            alpha = -self.alpha if group.get("maximize") else self.alpha
            exponents = torch._foreach_sign(weights)
            torch._foreach_mul_(exponents, grads)
            torch._foreach_mul_(exponents, alpha)
            torch._foreach_add_(exponents, self.beta)
            torch._foreach_mul_(exponents, -group["lr"])
            torch._foreach_clamp_min_(exponents, -self.limit)
            torch._foreach_clamp_max_(exponents, self.limit)
            torch._foreach_exp_(exponents)
            torch._foreach_mul_(weights, exponents)
