"""Any torch optimizer on the factors: Adam, AdamW, RMSprop, … where `FactorizedSGD` is SGD."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from secateurs.base.bits import clear_where_
from secateurs.base.registry import unknown
from secateurs.base.sharding import joined, local
from secateurs.base.where import Pick
from secateurs.errors import ArgumentError, TrainingError
from secateurs.optim.factorized import checkpoint, options
from secateurs.optim.factorized.layouts import State
from secateurs.optim.factorized.maths import TINY, StepRule, root
from secateurs.optim.factorized.members import Group
from secateurs.optim.factorized.optimizer import (
    FactorizedOptimizer,
    are_finite,
    call_closure,
    names_of_nonfinite,
)
from secateurs.optim.factorized.schedules import Schedule
from secateurs.optim.factorized.step import (
    FLUSH_EVERY,
    all_gradients,
    as_laid,
    clear_dead_,
    largest_of,
    rows_of,
    write_products_,
)

# What a base optimizer cannot be: classes and options that cannot move factors.

REFUSED = {
    "SparseAdam": (
        "it takes sparse gradients only, and those of factors are dense. Use torch.optim.Adam"
    ),
    "Muon": (
        "it moves matrices only, and the factors of a matrix are one tensor of three dimensions."
        " Use torch.optim.AdamW, or leave Muon's matrices to an optimizer of their own"
    ),
}


def check_decay(groups: Iterable[Group]) -> None:
    """The decay of factors is the penalty's alone."""
    for group in groups:
        if group["depth"] is not None and group.get("weight_decay"):
            raise ArgumentError(
                f"Factorized does not take weight_decay={group['weight_decay']!r} in a parameter"
                " group: the decay of factors is strength=, and weight_decay= is for groups with"
                " depth=None."
            )


def check_class(cls: type[Optimizer]) -> None:
    name = cls.__name__
    for refused, reason in REFUSED.items():
        # Older torch has no Muon; () is a subclass test that nothing passes.
        if issubclass(cls, getattr(torch.optim, refused, ())):
            raise ArgumentError(f"base={name} cannot move factors: {reason}.")
    # From the signature, not from a list of names: optimizers of other packages may need a closure,
    # too.
    _, *rest = inspect.signature(cls.step).parameters.values()
    if any(
        p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        for p in rest
    ):
        raise ArgumentError(
            f"base={name} cannot move factors: its step needs a closure, which would see weights"
            " between two steps. Use a base that steps once per gradient, such as"
            " torch.optim.AdamW."
        )


def check_options(cls: type[Optimizer], given: Mapping[str, Any]) -> None:
    _, *takes = inspect.signature(cls).parameters.values()
    names = [p.name for p in takes if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if not any(p.kind is p.VAR_KEYWORD for p in takes):
        for key in sorted(set(given) - set(names)):
            raise ArgumentError(f"base_kwargs: {unknown(f'option of {cls.__name__}', key, names)}")
    if given.get("weight_decay"):
        raise ArgumentError(
            f"base_kwargs has weight_decay={given['weight_decay']}: the penalty on the factors is"
            " strength=, with decoupled=True for a decay beside the gradient."
        )
    if given.get("differentiable"):
        raise ArgumentError(
            "base_kwargs has differentiable=True: a step on the factors is not recorded. Leave it"
            " out."
        )


def probe(cls: type[Optimizer], given: Mapping[str, Any]) -> Optimizer:
    try:
        # Three dimensions: stacked factors of a matrix have as many, and some bases
        # take matrices only.
        return cls([nn.Parameter(torch.zeros(2, 1, 1))], **given)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ArgumentError(
            f"base={cls.__name__} with base_kwargs={dict(given)} is refused by its own "
            f"constructor: {error}"
        ) from error


# Torch optimizers as the base of `Factorized`: which of them can move factors, their options, and
# their state.

OURS = {*options.FACTORIZATION, "params", "param_names", "taken", "control"}
"""Keys of our parameter groups that never reach the base, even if it has an option of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """An optimizer class with its options, known to fit; `defaults` is what its parameter groups
    carry.
    """

    cls: type[Optimizer]
    options: Mapping[str, Any]
    defaults: Mapping[str, Any]

    def build(self, groups: Iterable[tuple[Group, list[Tensor]]]) -> Optimizer:
        """The optimizer of these tensors, with the options of our groups."""
        return self.cls(
            [{"params": leaves, **self.knobs(group)} for group, leaves in groups],
            **self.options,
        )

    def knobs(self, group: Group) -> dict[str, Any]:
        """The options of the base as our group has them: schedulers and users change them there."""
        return {key: group[key] for key in self.defaults if key in group and key not in OURS}


def kind(cls: type[Optimizer], given: Mapping[str, Any]) -> Kind:
    """The class with its options (weight decay 0), or an error that says why it cannot move
    factors.
    """
    if not (isinstance(cls, type) and issubclass(cls, Optimizer)):
        made = isinstance(cls, Optimizer)
        told = f"a {type(cls).__name__} already made" if made else repr(cls)
        way = f"torch.optim.{type(cls).__name__}" if made else "torch.optim.AdamW"
        raise ArgumentError(
            f"base={told} is not an optimizer class: give one such as {way}, and its options as"
            " base_kwargs={...}."
        )
    check_class(cls)
    check_options(cls, given)
    defaults = probe(cls, given).defaults
    if "lr" not in defaults:
        raise ArgumentError(
            f"base={cls.__name__} has no lr in its defaults, which the decay and schedulers need."
        )
    # AdamW decays by default: its decay would shrink the factors in addition to ours.
    decay = {"weight_decay": 0.0} if "weight_decay" in defaults else {}
    return Kind(cls=cls, options={**given, **decay}, defaults={**defaults, **decay})


# The state of a base optimizer: saved ones checked and tried, renewed, and cleared where weights
# die.


def check_saved(base: Optimizer, saved: Mapping[str, Any]) -> None:
    """Whether a saved state comes from a `Factorized` of the same base class."""
    # Groups have the class, states what the base remembers of each parameter.
    places = [*saved["param_groups"], *saved["state"].values()]
    if not all(isinstance(place.get("base"), Mapping) for place in places):
        raise TrainingError(
            "cannot resume: the saved state has no base optimizer. Nothing was changed."
        )
    ours = type(base).__name__
    theirs = saved["param_groups"][0]["base"].get("class")
    if theirs != ours:
        raise TrainingError(
            f"cannot resume: the saved base optimizer is {theirs}, this one is {ours}. Nothing was"
            " changed; build Factorized with the saved base, or take the weights alone and call"
            " adopt_()."
        )


def try_load(trial: Optimizer, base: Optimizer, saved: Mapping[str, Any]) -> None:
    """Load the state into a trial of the base, so that an error in it is found before anything is
    written.
    """
    try:
        trial.load_state_dict(dict(saved))
    # What torch raises for a damaged state depends on where it is damaged.
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise TrainingError(
            f"cannot resume: the saved state of the base optimizer does not fit: {error}. Nothing "
            "was changed."
        ) from error
    wrong = [
        key
        for leaf, state in trial.state.items()
        for key, value in state.items()
        if isinstance(value, Tensor)
        and getattr(base.state.get(leaf, {}).get(key, value), "shape", None) != value.shape
    ]
    if wrong:
        raise TrainingError(
            f"cannot resume: {sorted(set(wrong))} of the base optimizer has another shape. Nothing "
            "was changed."
        )


def renew_(base: Optimizer, kind: Kind, group: Group, leaf: Tensor) -> None:
    """Give one tensor the state of a fresh base: none, for most; Adagrad starts with its sums."""
    fresh = kind.build([(group, [leaf])])
    base.state.pop(leaf, None)
    if leaf in fresh.state:
        base.state[leaf] = fresh.state[leaf]


def remembered(base: Optimizer, kind: Kind, group: Group, leaf: Tensor) -> dict[str, Any]:
    """What the base remembers of one tensor, with whether it has moved it yet.

    Where it has not, its state has the shapes that a step will give it, since
    torch.distributed.checkpoint loads only into what is there.
    """
    if state := base.state.get(leaf):
        return {**state, "stepped": True}
    trial = torch.zeros_like(leaf)
    trial.grad = torch.zeros_like(leaf)
    # At the base's own rate: one that a group was given may be no number, which is for a step to
    # say.
    options = {key: value for key, value in group.items() if key != "lr"}
    fresh = kind.build([(options, [trial])])
    fresh.step()
    return {**fresh.state.get(trial, {}), "stepped": False}


def state_of(base: Optimizer, leaf: Tensor) -> Iterator[Tensor]:
    """What the base stores for each factor that is here. Step counts and row statistics have no
    entry per weight.
    """
    for value in base.state.get(leaf, {}).values():
        if isinstance(value, Tensor) and value.shape == leaf.shape and value.is_floating_point():
            yield local(value)


ALONE = 1 << 14
"""Entries from which a CPU moves a parameter by itself."""


class Alike:
    """Parameters that the base is about to move, of one group, device and dtype: on a GPU each
    operation is one launch for all of them; on a CPU large ones come one by one.

    Args:
        moved: The weights and gradients.
        factors: Their stacked factors, which the base holds; none where they are not factorized.
        rule: The numbers of this step.
        climbs: Whether the base climbs the loss (`maximize=True`).
    """

    def __init__(
        self,
        moved: Sequence[tuple[nn.Parameter, Tensor]],
        factors: Sequence[Tensor],
        rule: StepRule,
        climbs: bool,
    ) -> None:
        self.moved, self.rule = moved, rule
        # Of sharded ones, the pieces that are here; the base moves them as parts of the whole.
        self.leaves, self.factors = factors, [local(own) for own in factors]
        self._sign = -1 if climbs else 1
        self._dead: Tensor | None = None

    def hand_over_(self) -> None:
        """Give the factors their gradients."""
        factors, rule = self.factors, self.rule
        if not factors:
            for parameter, grad in self.moved:
                parameter.grad = joined(grad, parameter)
            return
        first = [own[0] for own in factors]
        plain = [as_laid(g, f).to(f.dtype) for (_, g), f in zip(self.moved, first, strict=True)]
        slopes = [torch.empty_like(own) for own in factors]
        for leaf, slope in zip(self.leaves, slopes, strict=True):
            leaf.grad = joined(slope, leaf)
        torch._foreach_copy_([*chain(*rows_of(slopes))], all_gradients(rows_of(factors), plain))
        if rule.decoupled:
            torch._foreach_mul_(factors, 1 - rule.lr * rule.decay)  # as AdamW: shrink, then move
        else:  # a base that climbs the loss turns the sign of all it is given
            torch._foreach_add_(slopes, factors, alpha=self._sign * rule.decay)
        # Dead means all factors zero. One zero factor alone still has a gradient and
        # may come back.
        self._dead = largest_of(factors) == 0

    def write_back_(self, base: Optimizer, forget: bool) -> None:
        """New weights. What was dead stays dead, though the base may have moved it by momentum, or
        by dividing by 0; with `forget` it forgets what it stores of the dead.
        """
        if self._dead is None:
            return
        rows = rows_of(self.factors)
        dead = self._dead | (largest_of(self.factors) < root(self.rule.freeze, len(rows)))
        cleared = [self.factors]
        if forget:
            cleared += map(list, zip(*(state_of(base, own) for own in self.leaves), strict=True))
        clear_dead_(cleared, dead)
        write_products_([local(p) for p, _ in self.moved], rows)
        for own in self.leaves:
            # They are D times the size of the weight: they are not kept between steps.
            own.grad = None


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
        self.kind = kind(base, base_kwargs or {})
        super().__init__(
            params,
            {
                **self.kind.defaults,
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
        loss = call_closure(closure)
        found = self._gather_gradients()
        # Looked at before anything moves. An Adam that has once seen a NaN keeps it in
        # its averages.
        (broken,) = self._agree(not are_finite([grad for *_, grad in found]))
        if broken:
            names = names_of_nonfinite(self.names(), found)
            self.skips.skip(self.members, [(group, p) for group, p, _ in found], names)
            return loss
        now = self._next_rules()
        # Groups are dictionaries and have no hash, so they are looked up by identity.
        rules = dict(zip(map(id, self.param_groups), now, strict=True))
        self._follow()
        together: dict[object, list[int]] = {}
        leaves = [self.state[parameter].get("factors") for _, parameter, _ in found]
        for i, (group, parameter, _) in enumerate(found):
            own = local(parameter)
            kind = (id(group), own.device, own.dtype, leaves[i] is None)
            # On a CPU the next operation finds in the cache what the one before has written, if the
            # parameter is large; small ones cost their calls.
            alone = own.is_cpu and own.numel() > ALONE
            together.setdefault((*kind, i if alone else -1), []).append(i)
        moves = []
        for some in together.values():
            group = found[some[0]][0]
            factors = [own for own in (leaves[i] for i in some) if own is not None]
            moved = [found[i][1:] for i in some]
            moves.append(Alike(moved, factors, rules[id(group)], bool(group.get("maximize"))))
        for move in moves:
            move.hand_over_()
        self.base.step()
        # What the base stores of dead weights is cleared only now and then, since each step zeroes
        # dead weights again anyway.
        forget = self.taken % FLUSH_EVERY == 0
        for move in moves:
            move.write_back_(self.base, forget)
        self._finish(now, found)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Factors, and under "base" what the base optimizer remembers of each parameter, and of
        each group.

        Within the states of the parameters, since torch.distributed.checkpoint keeps no more than
        these and the groups.
        """
        saved = super().state_dict()
        groups, states = [], dict(saved["state"])
        for ours, theirs, packed in zip(
            self.param_groups, self.base.param_groups, saved["param_groups"], strict=True
        ):
            own = {k: v for k, v in theirs.items() if k not in ours}
            groups.append({**packed, "base": {**own, "class": type(self.base).__name__}})
            for parameter, index in zip(ours["params"], packed["params"], strict=True):
                if index in states:
                    leaf = self.state[parameter].get("factors", parameter)
                    base = remembered(self.base, self.kind, ours, leaf)
                    states[index] = {**states[index], "base": base}
        return {**saved, "state": states, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume factors and base optimizer, bit for bit. Refused, with nothing changed, for
        another class of base.
        """
        checkpoint.like_a_state(state_dict)
        check_saved(self.base, state_dict)
        super().load_state_dict(state_dict)

    def _load_(self, saved: Mapping[str, Any]) -> None:
        own, base = checkpoint.factors_only(saved), self._base_state(saved)
        # The base holds references to these tensors. torch's loading would replace them by new
        # ones, and the base would go on moving tensors that nothing reads.
        held = dict(self.state)
        # Loading into the base itself could fail half way. A trial of the same shape
        # fails first.
        try_load(self._build(checkpoint.joined(self, own) | held), self.base, base)
        super()._load_(own)
        # The base moves the tensors that it was given.
        checkpoint.back_into_(self, held)
        self._point_()
        self.base.load_state_dict(base)
        checkpoint.restore_(self.base, base)

    def _base_state(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """The state of the base optimizer, put together from what `state_dict` has distributed."""
        states = {index: state["base"] for index, state in saved["state"].items()}
        groups = [
            {
                **theirs,
                **self.kind.knobs(group),
                **{key: value for key, value in group["base"].items() if key != "class"},
                "params": [index for index in group["params"] if index in states],
            }
            for theirs, group in zip(self.base.param_groups, saved["param_groups"], strict=True)
        ]
        moved = {
            index: {key: value for key, value in state.items() if key != "stepped"}
            for index, state in states.items()
            if state.get("stepped")
        }
        return {"state": moved, "param_groups": groups}

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
            renew_(self.base, self.kind, group, leaf)

    # ------------------------------------------------------------------ what differs from the other
    # optimizers

    def check(self, groups: list[Group]) -> None:
        """Options and parameters of groups that are about to be factorized."""
        check_decay(groups)
        super().check(groups)

    def put_(self, group: Group, parameter: nn.Parameter, state: State) -> None:
        """Take these factors; the base keeps the tensor it has, and forgets the old factors."""
        held = self.state.get(parameter, {}).get("factors")
        # The tensor is written into, never replaced: the base moves the one it was
        # given.
        if held is None:
            super().put_(group, parameter, state)
        else:
            local(held).copy_(local(state["factors"]))
        if self._started:
            self._point_()
            renew_(
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
        # Or it would move them, and decay into denormal numbers.
        for value in state_of(self.base, self.state[parameter]["factors"]):
            clear_where_(value, dead)

    def shrinks(self, group: Group) -> bool:
        """An adaptive base rescales the penalty like any gradient, which the formula does not
        account for.
        """
        return bool(group["decoupled"]) or (
            issubclass(self.kind.cls, SGD) and not group.get("dampening")
        )

    # ------------------------------------------------------------------ helpers

    def _build(self, states: Mapping[Tensor, State]) -> Optimizer:
        return self.kind.build((group, _leaves(group, states)) for group in self.param_groups)

    def _point_(self) -> None:
        """Parameters may have joined: the base moves theirs, too, in the order of our groups."""
        # Not strict: while a group is added, ours has it and the base does not yet.
        for ours, theirs in zip(self.param_groups, self.base.param_groups, strict=False):
            theirs["params"] = _leaves(ours, self.state)

    def _follow(self) -> None:
        """Learning rates and other options that schedulers change in our groups reach the base
        optimizer.
        """
        for ours, theirs in zip(self.param_groups, self.base.param_groups, strict=True):
            theirs.update(self.kind.knobs(ours))
        self.base.zero_grad(set_to_none=True)


def _leaves(group: Group, states: Mapping[Tensor, State]) -> list[Tensor]:
    """What the base optimizer moves: the stacked factors, or the parameter itself where nothing is
    factorized.
    """
    return [states[p].get("factors", p) for p in group["params"] if p in states]
