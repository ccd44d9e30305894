"""Deep weight factorization as an optimizer: change one line, and the trained model comes out
sparse.

The model stays a plain model. Its weights are products of factors that live here, so forward and
backward pass, state_dict keys, compilation, mixed precision, export and one gradient all-reduce are
those of the dense model.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch

from secateurs.base.where import Pick
from secateurs.optim.factorized import options
from secateurs.optim.factorized.compiled import PreStepCheck
from secateurs.optim.factorized.maths import TINY
from secateurs.optim.factorized.optimizer import (
    FactorizedOptimizer,
    Gradients,
    call_closure,
    names_of_nonfinite,
)
from secateurs.optim.factorized.schedules import Schedule
from secateurs.optim.factorized.step import FLUSH_EVERY, Route


class FactorizedSGD(FactorizedOptimizer):
    """SGD on the factors of every weight: w = ω₁⊙…⊙ω_D with penalty (λ/D) Σ‖ω_d‖², the smooth form
    of λ‖w‖_{2/D}^{2/D}.

    The start is drawn anew by default, which is right for a fresh model. To fine-tune, pass
    `init="pretrained"`: the weights stay as they are. Without `init=`, weights that look trained
    are redrawn too, and a warning of the logger "secateurs.optim" says so.

    With g = ∂L/∂w from the ordinary backward pass, factor d receives g ⊙ Π_{k≠d}ω_k + (2λ/D) ω_d,
    momentum acts per factor, and the product is written into the weight: exactly SGD on explicit
    factors (eq. 3 and 5 of the paper).

    Args:
        params: `model.parameters()`, `model.named_parameters()` (then masks carry names) or groups;
            a group may have its own lr, depth (None = not factorized), strength, init, sigma.
        lr: learning rate; large ones make it sparse (0.15 to 0.5 for a LeNet), annealed to 0 by a
            scheduler.
        momentum, nesterov: as in `torch.optim.SGD`.
        depth: D ≥ 2; 3 is a good start.
        strength: λ; see `optim.forecast` for what a run can reach.
        decoupled: shrink the factors beside the momentum; the default adds 2λ/D·ω to the gradient,
            as SGD does.
        init: "pretrained" keeps the weights; "dwf", "dwf-wide", "dwf-as-printed", "varmatch",
            "vanilla", "root" draw the start. None is "dwf" and warns where the weights
            look trained.
        sigma: σ_w of the weights; by default 1/√fan_in per parameter.
        zeros: what "pretrained" does about zeros, "revive" or "frozen".
        freeze: weights whose factors all lie below freeze^(1/D) become exactly 0 for good; the
            default only catches products that underflow. 1e-12 speeds late training up and changes
            nothing that counts.
        steps, schedule: length of the run and how λ moves over it ("ramp-hold-relax", or a function
            of the progress).
        target_sparsity: steer λ to reach this share of zeros at the end (needs steps).
        fused: None uses the compiled step where it applies, on a GPU one kernel of Triton's; False
            neither.
        nonfinite: "skip" a step with a NaN gradient (see `.skipped`), or "raise".
        where: which of the named parameters are factorized: a glob, a predicate `(name, parameter)
            -> bool`, or several (any may match); "!glob" leaves out. The others are trained by
            plain SGD, as groups with depth=None.
        generator: where the start is drawn from.

    >>> model = torch.nn.Linear(20, 5)
    >>> optimizer = FactorizedSGD(model.parameters(), lr=0.1, depth=3, strength=1e-3)
    >>> model(torch.randn(8, 20)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.collapse_(model).total
    105
    """

    _route: Route | None = None

    def __init__(
        self,
        params: Any,
        lr: float = 0.15,
        *,
        momentum: float = 0.9,
        nesterov: bool = False,
        depth: int | None = 3,
        strength: float = 1e-4,
        decoupled: bool = False,
        init: str | None = None,
        sigma: float | None = None,
        match_variance: bool = False,
        zeros: str | None = None,
        freeze: float = TINY,
        steps: int | None = None,
        schedule: str | Schedule | None = None,
        target_sparsity: float | None = None,
        fused: bool | None = None,
        nonfinite: str = "skip",
        where: Pick = None,
        generator: torch.Generator | None = None,
        **others: object,
    ) -> None:
        # **others is there to be refused by name: a misspelt option would otherwise
        # raise a TypeError that cannot tell that weight_decay= is called strength=
        # here.
        options.refuse_others(others, signature(FactorizedSGD).parameters)
        self.fused = fused
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "nesterov": nesterov,
                "depth": depth,
                "strength": strength,
                "decoupled": decoupled,
                "init": init,
                "sigma": sigma,
                "match_variance": match_variance,
                "zeros": zeros,
                "freeze": freeze,
            },
            steps=steps,
            schedule=schedule,
            target_sparsity=target_sparsity,
            fused=fused,
            nonfinite=nonfinite,
            where=where,
            generator=generator,
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the factors along the gradients and write the new weights.

        A closure is called once, before, with gradients on; its loss is returned.
        """
        loss = call_closure(closure)
        self.settle_()
        found = self._gather_gradients()
        route = self._find_route(found)
        hear = route.hear if route.later is not None and self._can_settle_later() else None
        if hear is None and self._is_broken(route, found):
            names = names_of_nonfinite(self.names(), found)
            self.skips.skip(self.members, [(group, p) for group, p, _ in found], names)
            return loss
        # After the check of the gradients: a skipped step must not move the controller of a target.
        rules = self._next_rules()
        move_ = route.step_ if hear is None else route.look_and_step_
        move_(found, rules, self.taken % FLUSH_EVERY == 0)
        self._finish(rules, found, hear)
        return loss

    def _is_broken(self, route: Route, found: Gradients) -> bool:
        """Whether a gradient holds a NaN or an infinity, anywhere."""
        # One pass over the gradients looks for NaN and brings them into the cache,
        # where the step then finds them.
        seen = route.check(found)
        broken, drifted = self._agree(seen == PreStepCheck.BROKEN, seen == PreStepCheck.DRIFTED)
        # Changes through `.data` do not move torch's version counters. The sample in
        # `check` sees them, and only then is every weight compared.
        if drifted and not broken:
            self._follow_changes_(every=True)
            self._agree()
        return broken

    def __getstate__(self) -> dict[str, Any]:
        # The route stays behind: it holds the addresses of this optimizer's tensors.
        return {**super().__getstate__(), "fused": self.fused}

    def _find_route(self, found: Gradients) -> Route:
        """The route of the step before, if nothing has changed place since."""
        if self._route is None or not self._route.holds(self.members, found):
            self._route = Route(self.members, found, self.fused is not False)
        return self._route
