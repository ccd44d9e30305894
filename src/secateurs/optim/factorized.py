"""Deep weight factorization as an optimizer: change one line, and the trained model comes out sparse.

The model stays a plain model. Its weights are products of factors that live here, so forward and backward pass,
state_dict keys, compilation, mixed precision, export and one gradient all-reduce are those of the dense model.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.optim import batched, checks, fused, guards, steering
from secateurs.optim.base import FactorizedOptimizer
from secateurs.optim.controller import Control
from secateurs.optim.factors import Rule, others, root
from secateurs.optim.guards import Plan
from secateurs.optim.routes import Route
from secateurs.optim.schedules import Schedule
from secateurs.optim.schedules import schedule as schedule_of
from secateurs.parameters import Pick

TINY = torch.finfo(torch.float32).tiny


class FactorizedSGD(FactorizedOptimizer):
    """SGD on the factors of every weight: w = ω₁⊙…⊙ω_D with penalty (λ/D) Σ‖ω_d‖², the smooth form of λ‖w‖_{2/D}^{2/D}.

    With g = ∂L/∂w from the ordinary backward pass, factor d receives g ⊙ Π_{k≠d}ω_k + (2λ/D) ω_d, momentum acts per
    factor, and the product is written into the weight: exactly SGD on explicit factors (eq. 3 and 5 of the paper).

    Args:
        params: `model.parameters()`, `model.named_parameters()` (then masks carry names) or groups; a group may have
            its own lr, depth (None = not factorized), strength, init, sigma, groups, shared, lean.
        lr: learning rate; large ones make it sparse (0.15 to 0.5 for a LeNet), annealed to 0 by a scheduler.
        momentum, nesterov: as in `torch.optim.SGD`.
        depth: D ≥ 2; 3 is a good start.
        strength: λ; see `optim.forecast` for what a run can reach.
        decoupled: shrink the factors beside the momentum; the default adds 2λ/D·ω to the gradient, as SGD does.
        init: "dwf", "varmatch", "vanilla", "root", "gaussian" draw or take the start; "pretrained" keeps the weights.
        sigma: σ_w of the weights; by default 1/√fan_in per parameter.
        zeros: what "pretrained" does about zeros, "revive" or "frozen".
        groups, shared: a factor shared per "neuron", "channel", "kernel" or "block:M", and how many of the D.
        lean: one signed number and one momentum per weight, for balanced starts; any real depth.
        freeze: weights whose factors all lie below freeze^(1/D) become exactly 0 for good; the default only catches
            products that underflow. 1e-12 speeds late training up and changes nothing that counts.
        steps, schedule: length of the run and how λ moves over it ("ramp-hold-relax", or a function of the progress).
        target_sparsity: steer λ to reach this share of zeros at the end (needs steps).
        fused: None uses the compiled step where it applies, False never.
        nonfinite: "skip" a step with a NaN gradient (see `.skipped`), or "raise".
        where: which of the named parameters are factorized: a glob, a predicate `(name, parameter) -> bool`, or several
            (any may match); "!glob" leaves out. The others are trained by plain SGD, as groups with depth=None.
        generator: where the start is drawn from.

    >>> model = nn.Linear(20, 5)
    >>> optimizer = FactorizedSGD(model.parameters(), lr=0.1, depth=3, strength=1e-3)
    >>> model(torch.randn(8, 20)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.collapse_(model).report.total.total
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
        depth: float | None = 3,
        strength: float = 1e-4,
        decoupled: bool = False,
        init: str = "dwf",
        sigma: float | None = None,
        match_variance: bool = False,
        zeros: str | None = None,
        groups: str | None = None,
        shared: int = 1,
        lean: bool = False,
        freeze: float = TINY,
        steps: int | None = None,
        schedule: str | Schedule | None = None,
        target_sparsity: float | None = None,
        fused: bool | None = None,
        nonfinite: str = "skip",
        where: Pick = None,
        generator: torch.Generator | None = None,
    ) -> None:
        defaults: dict[str, Any] = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "decoupled": decoupled,
            "depth": depth,
        }
        defaults |= {"strength": strength, "init": init, "sigma": sigma, "match_variance": match_variance}
        defaults |= {"zeros": zeros, "groups": groups, "shared": shared, "lean": lean, "freeze": freeze}
        plan = _plan(steps, schedule, target_sparsity, nonfinite, fused)
        super().__init__(params, defaults, plan, generator, where)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move the factors along the gradients and write the new weights. Closures are refused."""
        checks.no_closure(closure)
        found = guards.gradients(self)
        route = self._find_route(found)
        if not route.finite(found):
            guards.skip(self, found)
            return
        steering.say_forecast(self)
        steering.steer(self)
        route.step_(found, steering.rules(self), self.taken % batched.FLUSH_EVERY == 0)
        self.finish()

    def _find_route(self, found: guards.Found) -> Route:
        """The route of the step before, if nothing has changed place since."""
        if self._route is None or not self._route.holds(self, found):
            self._route = Route(self, found, None if self.plan.fused is False else fused.kernel())
        return self._route


class Factorized(FactorizedOptimizer):
    """Any torch optimizer on the factors: `Factorized(params, base=torch.optim.AdamW, base_kwargs={"lr": 1e-3})`.

    The base optimizer holds one tensor (D, *shape) per weight. The penalty's gradient (2λ/D) ω is added before its
    step, so an adaptive base rescales it like any gradient; then minima are still those of the penalised loss, but the
    rate of shrinkage is the base's. `decoupled=True` shrinks the factors by 1 − lr·2λ/D beside the base: that is
    AdamW's weight decay on the factors, and no gradient of a penalised loss.

    Args:
        params, depth, strength, init, …: as in `FactorizedSGD`.
        base: an optimizer class; it must step without a closure.
        base_kwargs: its options. Its own weight decay is set to 0: λ is the penalty.

    >>> model = nn.Linear(20, 5)
    >>> optimizer = Factorized(model.parameters(), base=torch.optim.Adam, base_kwargs={"lr": 1e-2}, strength=1e-3)
    >>> model(torch.randn(8, 20)).square().mean().backward()
    >>> optimizer.step()
    """

    base: Optimizer

    def __init__(
        self,
        params: Any,
        *,
        base: type[Optimizer],
        base_kwargs: Mapping[str, Any] | None = None,
        depth: int | None = 3,
        strength: float = 1e-4,
        decoupled: bool = False,
        init: str = "dwf",
        sigma: float | None = None,
        match_variance: bool = False,
        zeros: str | None = None,
        freeze: float = TINY,
        steps: int | None = None,
        schedule: str | Schedule | None = None,
        target_sparsity: float | None = None,
        nonfinite: str = "skip",
        where: Pick = None,
        generator: torch.Generator | None = None,
    ) -> None:
        options = dict(base_kwargs or {})
        checks.base(base, options)
        probe = base([nn.Parameter(torch.zeros(1))], **options)  # its defaults, so that schedulers find their knobs
        if "weight_decay" in probe.defaults:
            options["weight_decay"] = 0.0
        defaults = {**probe.defaults, "decoupled": decoupled, "depth": depth, "strength": strength, "weight_decay": 0.0}
        defaults |= {"init": init, "sigma": sigma, "match_variance": match_variance, "zeros": zeros, "freeze": freeze}
        defaults |= {"lean": False, "groups": None, "shared": 1}
        plan = _plan(steps, schedule, target_sparsity, nonfinite, False)
        super().__init__(params, defaults, plan, generator, where)
        self._make_base(base, options)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Give every factor its gradient, let the base optimizer step, write the new weights."""
        checks.no_closure(closure)
        found = guards.gradients(self)
        if not guards.finite([grad for *_, grad in found]):
            guards.skip(self, found)
            return
        steering.steer(self)
        self._follow()
        rules = dict(zip(map(id, self.param_groups), steering.rules(self), strict=True))
        for group, parameter, grad in found:
            self._hand_over(parameter, grad, rules[id(group)])
        self.base.step()
        for group, parameter, _ in found:
            self._write_back(parameter, rules[id(group)])
        self.finish()

    def state_dict(self) -> dict[str, Any]:
        """Factors, and the state of the base optimizer under "base"."""
        return {**super().state_dict(), "base": self.base.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume factors and base optimizer."""
        checks.has_base(state_dict)
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "base"})
        self._make_base(type(self.base), self.base.defaults)
        self.base.load_state_dict(state_dict["base"])

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "base": self.base}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, also to the base optimizer."""
        super().add_param_group(param_group)
        if hasattr(self, "base"):
            self.base.add_param_group({"params": self._leaves(self.param_groups[-1])})

    @torch.no_grad()
    def join_(self, parameters: Sequence[tuple[dict[str, Any], nn.Parameter]]) -> None:
        """As in the base class; the base optimizer moves them too, in the order of our groups."""
        super().join_(parameters)
        for ours, theirs in zip(self.param_groups, self.base.param_groups, strict=True):
            theirs["params"] = self._leaves(ours)

    def _make_base(self, base: type[Optimizer], options: Mapping[str, Any]) -> None:
        self.base = base([{"params": self._leaves(group)} for group in self.param_groups], **options)

    def _leaves(self, group: dict[str, Any]) -> list[Tensor]:
        """What the base optimizer moves: the stacked factors, or the parameter itself where nothing is factorized."""
        return [self.state[p].get("factors", p) for p in group["params"] if p in self.state]

    def _follow(self) -> None:
        """Learning rates and other options that schedulers change in our groups reach the base optimizer."""
        for ours, theirs in zip(self.param_groups, self.base.param_groups, strict=True):
            theirs.update({key: ours[key] for key in theirs if key in ours and key not in ("params", "param_names")})
        self.base.zero_grad(set_to_none=True)

    def _hand_over(self, parameter: nn.Parameter, grad: Tensor, rule: Rule) -> None:
        factors = self.state[parameter].get("factors")
        if factors is None:
            parameter.grad = grad
            return
        factors.grad = others(factors) * grad.to(factors.dtype)
        if rule.decoupled:
            factors.mul_(1 - rule.lr * rule.decay)  # as AdamW does: shrink, then move
        else:
            factors.grad.add_(factors, alpha=rule.decay)

    def _write_back(self, parameter: nn.Parameter, rule: Rule) -> None:
        factors = self.state[parameter].get("factors")
        if factors is None:
            return
        dead = factors.abs().amax(0) < root(rule.freeze, len(factors))
        factors.masked_fill_(dead, 0)
        factors.grad = None
        parameter.copy_(factors.prod(0))


def _plan(
    steps: int | None, schedule: str | Schedule | None, target: float | None, nonfinite: str, fused: bool | None
) -> Plan:
    checks.run(steps, schedule, nonfinite)
    checks.target(target, steps)
    return Plan(
        steps=steps,
        schedule=None if schedule is None else schedule_of(schedule),
        control=None if target is None or steps is None else Control(target=target, steps=steps),
        nonfinite=nonfinite,
        fused=fused,
    )
