"""An optimizer whose state are factors: begun, joined, killed, saved and resumed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.optim.factorized import arguments, checkpoint, options
from secateurs.optim.factorized.factors.layouts import Layout, State
from secateurs.optim.factorized.members import Group, Members, layout
from secateurs.optim.factorized.run import RunLength
from secateurs.optim.factorized.skips import Skipped, Skips
from secateurs.optim.factorized.start import start, told
from secateurs.optim.factorized.start.trained import say_redrawn, settle_
from secateurs.optim.factorized.strength.reach import reachable
from secateurs.optim.factorized.strength.warnings import SparsityWatch
from secateurs.optim.factorized.where import split
from secateurs.parameters import Pick


class Factored(Optimizer):
    """Factors are the state, and the weights of the model are their product.

    What a user calls and what a step goes through is in `FactorizedOptimizer`.
    """

    keeps_momentum = True

    def __init__(
        self,
        params: Any,
        defaults: Group,
        length: RunLength,
        *,
        nonfinite: str = "skip",
        where: Pick = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.length = length
        self.watch = SparsityWatch()
        self.skips = Skips(nonfinite=nonfinite)
        self.versions: dict[int, int] = {}
        self._started = False
        # A model in place of its parameters is a common slip, and torch's own message
        # does not say what to pass instead.
        arguments.parameters(params)
        # "taken" lives in the groups because torch saves and loads them: resuming needs
        # nothing else.
        super().__init__(split(params, where), {**defaults, "taken": 0})
        # torch's own constructor calls `add_param_group` for every group. Until
        # `_started` is set that only collects them, so that all groups are checked
        # before the first weight changes.
        self._begin_(self.param_groups, generator)
        self._started = True

    @property
    def members(self) -> Members:
        """The parameters with their groups, states and names."""
        return Members(self.param_groups, self.state, self.versions, self.shrinks)

    def factorized(self) -> Iterator[tuple[Group, nn.Parameter]]:
        """Every factorized parameter with its group."""
        return self.members.factorized()

    def names(self, model: nn.Module | None = None) -> dict[nn.Parameter, str]:
        """The name of every parameter: from the model, from `named_parameters` given at the start,
        or its number.
        """
        return self.members.names(model)

    def layout(self, group: Group, parameter: Tensor) -> Layout:
        """How the factors of this parameter are kept."""
        return layout(group, parameter)

    @property
    def taken(self) -> int:
        """Steps taken so far (skipped ones do not count)."""
        return self.members.taken

    @property
    def skipped(self) -> list[Skipped]:
        """Steps that were not taken because a gradient was NaN or infinite."""
        return self.skips.steps

    @torch.no_grad()
    def join_(self, parameters: Sequence[tuple[Group, nn.Parameter]]) -> None:
        """Begin to train parameters that were frozen at the start. Every step does this for those
        with a gradient.

        Their function is kept: balanced factors of the weights as they are. Zeros are treated as
        the group's `zeros=` says; by default they stay zero, except that a parameter of nothing but
        zeros (a fresh bias) gets factors with a product of ±1.19e-7, or it would never move.
        """
        drawn = start.as_they_are(self.members, parameters)
        self._take_(drawn)
        told.say_joined(drawn, self.names())

    @torch.no_grad()
    def refresh_(self) -> None:
        """Write the product of the factors into every weight, after factors were changed by
        hand.
        """
        for group, parameter in self.factorized():
            parameter.copy_(self.members.weight(group, parameter))
            self.versions[id(parameter)] = parameter._version

    # ------------------------------------------------------------------ saving and loading

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume: factors and momenta bit for bit in their own dtype, weights as their product.

        Parameters are matched by their names where both optimizers were given `named_parameters`,
        else by position. Refused, with nothing changed, when names, depth, layout or shapes differ,
        when a number is missing or not finite, when the saved run was steered to a target and this
        one is not, and when factors saved for one parameter are the weights another has.
        """
        state_dict = checkpoint.in_our_order(self.param_groups, state_dict)
        # torch checks group sizes only and would load half a state before it fails.
        checkpoint.check(self.members, self.length.control, state_dict)
        # torch casts every state tensor to the dtype of its weight, so float32 factors
        # of bfloat16 weights come back rounded. `restore_` puts back what was saved.
        super().load_state_dict(dict(state_dict))
        checkpoint.restore_(self, state_dict)
        self.refresh_()

    def __getstate__(self) -> dict[str, Any]:
        # Versions are kept by id, and a copy has other tensors: it begins with none.
        own = {"length": self.length, "watch": self.watch, "skips": self.skips}
        return {**super().__getstate__(), **own, "_started": True, "versions": {}}

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; its parameters are factorized at once. On an error the optimizer is as
        before.
        """
        super().add_param_group(param_group)
        if not self._started:
            return
        try:
            # No generator: a group added later draws from torch's global one, as
            # torch's layers do.
            self._begin_(self.param_groups[-1:], None)
        except Exception:
            # A group that is refused must not stay half inside: its parameters would
            # never move.
            for parameter in self.param_groups.pop()["params"]:
                self.state.pop(parameter, None)
            raise

    # ------------------------------------------------------------------ where optimizers differ

    def check(self, groups: list[Group]) -> None:
        """Options and parameters of groups that are about to be factorized."""
        options.check(groups, self.names(), self.defaults)

    def shrinks(self, group: Group) -> bool:
        """Whether dead weights of this group shrink as `forecast` says."""
        return group["depth"] is not None

    def put_(self, group: Group, parameter: nn.Parameter, state: State) -> None:
        """Take this as the state of a parameter, in place of the one it had."""
        self.state[parameter] = state

    def kill_(self, group: Group, parameter: nn.Parameter, dead: Tensor) -> None:
        """Zero these weights of one parameter and their factors."""
        layout(group, parameter).kill_(self.state[parameter], dead)
        parameter.masked_fill_(dead, 0)
        self.versions[id(parameter)] = parameter._version

    # ------------------------------------------------------------------ helpers

    @torch.no_grad()
    def _begin_(self, groups: list[Group], generator: torch.Generator | None) -> None:
        """Check these groups, then factorize their parameters."""
        # Everything that may raise stands before `_take_`, the first line that changes
        # a weight.
        open_start = settle_(groups)
        self.check(groups)
        say_redrawn(open_start, self.names())
        reachable(self.members, self.length)
        self._take_(start.fresh(self.members, groups, generator))
        told.say_ungrouped(groups, self.names())
        # Last, since it copies what the lines above have made on rank 0.
        told.broadcast_(self.members)

    def _take_(self, drawn: start.Drawn) -> None:
        """Make these factors the state of their parameters, and their product the weights."""
        for group, parameter, factors in drawn:
            kept = layout(group, parameter)
            momentum = self.keeps_momentum and bool(group.get("momentum", 0.0))
            state = kept.start(factors, momentum)
            self.put_(group, parameter, state)
            # Roots round. Even init="pretrained" writes the product, so that weight and
            # factors agree bit for bit, which `drift` relies on.
            if group["depth"] is not None:
                parameter.copy_(kept.weight(state))
            self.versions[id(parameter)] = parameter._version
