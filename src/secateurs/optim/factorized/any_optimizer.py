"""Any torch optimizer on the factors: Adam, AdamW, RMSprop, … where `FactorizedSGD` is SGD."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from secateurs.optim.factorized import arguments, checkpoint
from secateurs.optim.factorized.bases import kinds
from secateurs.optim.factorized.bases import state as base_state
from secateurs.optim.factorized.bases.refusals import check_groups
from secateurs.optim.factorized.bases.step import Move
from secateurs.optim.factorized.factors.foreach import FLUSH_EVERY
from secateurs.optim.factorized.factors.layouts import State
from secateurs.optim.factorized.factors.maths import TINY, Rule
from secateurs.optim.factorized.gradients import finite
from secateurs.optim.factorized.members import Group
from secateurs.optim.factorized.optimizer import FactorizedOptimizer
from secateurs.optim.factorized.run import Factorization, RunLength
from secateurs.optim.factorized.strength.schedules import Schedule
from secateurs.parameters import Pick


class Factorized(FactorizedOptimizer):
    """Any torch optimizer on the factors: `Factorized(params, base=torch.optim.AdamW,
    base_kwargs={"lr": 1e-3})`.

    The start is drawn anew by default; `init="pretrained"` keeps the weights of a trained model.

    The base optimizer holds one tensor (D, *shape) per weight. The penalty's gradient (2λ/D) ω is
    added before its step, so an adaptive base rescales it like any gradient; then minima are still
    those of the penalised loss, but the rate of shrinkage is the base's. `decoupled=True` shrinks
    the factors by 1 − lr·2λ/D beside the base: that is AdamW's weight decay on the factors, and no
    gradient of a penalised loss.

    Weights whose factors are all zero stay zero for good, whatever the base remembers of them.
    Memory is D factors and what the base keeps for D numbers per weight.

    Args:
        params, depth, strength, init, …: as in `FactorizedSGD`; groups may have options of the
            base, too.
        base: an optimizer class; it must step without a closure and move dense tensors of any
            shape.
        base_kwargs: its options. Its own weight decay is set to 0: λ is the penalty. With
            `maximize=True` the loss is climbed, and the penalty still shrinks the factors.
        steps: length of the run; with it forecasts are made where the shrinkage formula holds: with
            SGD as the base, or decoupled.

    >>> model = nn.Linear(20, 5)
    >>> adam = dict(base=torch.optim.Adam, base_kwargs={"lr": 1e-2})
    >>> optimizer = Factorized(model.parameters(), **adam, strength=1e-3)
    >>> model(torch.randn(8, 20)).square().mean().backward()
    >>> optimizer.step()
    """

    base: Optimizer
    keeps_momentum = False  # the base does

    def __init__(
        self,
        params: Any,
        *,
        base: type[Optimizer],
        base_kwargs: Mapping[str, Any] | None = None,
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
        nonfinite: str = "skip",
        where: Pick = None,
        generator: torch.Generator | None = None,
    ) -> None:
        # Known before the groups are made: its options are among the defaults of every
        # group.
        self.kind = kinds.kind(base, base_kwargs or {})
        arguments.run(steps, schedule, nonfinite)
        length = RunLength.of(steps, schedule, target_sparsity)
        what = Factorization(
            depth=depth,
            strength=strength,
            decoupled=decoupled,
            init=init,
            sigma=sigma,
            match_variance=match_variance,
            zeros=zeros,
            freeze=freeze,
        )
        defaults = {**self.kind.defaults, **what.options()}
        super().__init__(
            params,
            defaults,
            length,
            nonfinite=nonfinite,
            where=where,
            generator=generator,
        )
        self.base = self._build(self.state)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Give every factor its gradient, let the base optimizer step, write the new weights.

        A closure is called once, before, with gradients on; its loss is returned.
        """
        loss = arguments.called(closure)
        found = self._gradients()
        # Looked at before anything moves. An Adam that has once seen a NaN keeps it in
        # its averages.
        if not finite([grad for *_, grad in found]):
            self.skips.skip(self.members, found)
            return loss
        now = self._rules()
        # Groups are dictionaries and have no hash, so they are looked up by identity.
        rules = dict(zip(map(id, self.param_groups), now, strict=True))
        self._follow()
        moves = [
            self._move(group, parameter, rules[id(group)])
            for group, parameter, _ in found
        ]
        dead = [
            move.hand_over_(grad)
            for move, (*_, grad) in zip(moves, found, strict=True)
        ]
        self.base.step()
        for move, gone in zip(moves, dead, strict=True):
            self._forget(move.factors, move.write_back_(gone))
        self._finish(now)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Factors, and the state of the base optimizer under "base"."""
        return {
            **super().state_dict(),
            "base": self.base.state_dict(),
            "base_class": type(self.base).__name__,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume factors and base optimizer, bit for bit. Refused, with nothing changed, for
        another class of base.
        """
        checkpoint.like_a_state(state_dict)
        base_state.check_saved(self.base, state_dict)
        state_dict = checkpoint.in_our_order(self.param_groups, state_dict)
        own = checkpoint.factors_only(state_dict)
        checkpoint.check(self.members, self.length.control, own)
        # The base holds references to these tensors. torch's loading would replace them
        # by new ones, and the base would go on moving tensors that nobody reads.
        held = dict(self.state)
        # Loading into the base itself could fail half way. A trial of the same shape
        # fails first.
        base_state.try_load(
            self._build(checkpoint.joined(self, own) | held),
            self.base,
            state_dict["base"],
        )
        super().load_state_dict(own)
        # The base moves the tensors that it was given.
        checkpoint.back_into_(self, held)
        self._point_()
        self.base.load_state_dict(state_dict["base"])
        checkpoint.restore_(self.base, state_dict["base"])

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "base": self.base, "kind": self.kind}

    def add_param_group(self, param_group: Group) -> None:
        """Add a group, also to the base optimizer."""
        super().add_param_group(param_group)
        if not self._started:
            return
        group = self.param_groups[-1]
        leaves = _leaves(group, self.state)
        self.base.add_param_group({"params": leaves, **self.kind.knobs(group)})
        # Some bases fill their state when they are made (Adagrad), and
        # `add_param_group` does not.
        for leaf in leaves:
            base_state.renew_(self.base, self.kind, group, leaf)

    # ------------------------------------------------------------------ what differs from the other
    # optimizers

    def check(self, groups: list[Group]) -> None:
        """Options and parameters of groups that are about to be factorized."""
        check_groups(groups)
        super().check(groups)

    def put_(self, group: Group, parameter: nn.Parameter, state: State) -> None:
        """Take these factors; the base goes on with the tensor it has, and remembers nothing of the
        old ones.
        """
        held = self.state.get(parameter, {}).get("factors")
        # The tensor is written into, never replaced: the base moves the one it was
        # given.
        if held is None:
            super().put_(group, parameter, state)
        else:
            held.copy_(state["factors"])
        if self._started:
            self._point_()
            base_state.renew_(
                self.base,
                self.kind,
                group,
                state.get("factors", parameter) if held is None else held,
            )

    def kill_(self, group: Group, parameter: nn.Parameter, dead: Tensor) -> None:
        """Zero these weights of one parameter, their factors, and what the base remembers of
        them.
        """
        super().kill_(group, parameter, dead)
        base_state.clear_(self.base, self.state[parameter]["factors"], dead)

    def shrinks(self, group: Group) -> bool:
        """An adaptive base rescales the penalty like any gradient: the formula knows nothing of
        it.
        """
        return bool(group["decoupled"]) or (
            issubclass(self.kind.cls, SGD) and not group.get("dampening")
        )

    # ------------------------------------------------------------------ helpers

    def _build(self, states: Mapping[Tensor, State]) -> Optimizer:
        return self.kind.build(
            (group, _leaves(group, states)) for group in self.param_groups
        )

    def _point_(self) -> None:
        """Parameters may have joined: the base moves theirs, too, in the order of our groups."""
        # Not strict: while a group is added, ours has it and the base does not yet.
        for ours, theirs in zip(
            self.param_groups, self.base.param_groups, strict=False
        ):
            theirs["params"] = _leaves(ours, self.state)

    def _follow(self) -> None:
        """Learning rates and other options that schedulers change in our groups reach the base
        optimizer.
        """
        for ours, theirs in zip(
            self.param_groups, self.base.param_groups, strict=True
        ):
            theirs.update(self.kind.knobs(ours))
        self.base.zero_grad(set_to_none=True)

    def _move(self, group: Group, parameter: nn.Parameter, rule: Rule) -> Move:
        return Move(
            parameter=parameter,
            factors=self.state[parameter].get("factors"),
            rule=rule,
            climbs=bool(group.get("maximize")),
        )

    def _forget(self, factors: Tensor | None, dead: Tensor | None) -> None:
        """Clear what the base remembers of the dead, now and then only: it costs a pass over every
        tensor of the base's state, and dead weights are put back in each step anyway.
        """
        if factors is None or dead is None or self.taken % FLUSH_EVERY:
            return
        base_state.clear_(self.base, factors, dead)


def _leaves(group: Group, states: Mapping[Tensor, State]) -> list[Tensor]:
    """What the base optimizer moves: the stacked factors, or the parameter itself where nothing is
    factorized.
    """
    return [states[p].get("factors", p) for p in group["params"] if p in states]
