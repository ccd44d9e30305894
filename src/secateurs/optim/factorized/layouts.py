"""How the factors of one parameter are kept, and moved: stacked, lean (balanced), shared in groups,
or not at all.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import Parameter

from secateurs.base.registry import Registry
from secateurs.errors import ArgumentError, PatternError
from secateurs.optim.factorized import maths
from secateurs.optim.factorized.maths import (
    StepRule,
    is_balanced,
    minimal_penalty,
    misalignment,
    root,
    without_denormals,
)

# What the optimizer needs of a way to keep the factors of one parameter.

State: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """(1/D) Σ‖ω‖² of the factors that are kept, in two parts: the least of any factors of this
    weight, and M(ω) ≥ 0.
    """

    least: float
    misalignment: float


class FactorLayout(Protocol):
    """What the optimizer needs of a way to keep factors."""

    def start(self, factors: Tensor, momentum: bool) -> State:
        """The state of a parameter that starts with these stacked factors."""

    def weight(self, state: State) -> Tensor:
        """The weight that the state stands for."""

    def stacked(self, state: State) -> Tensor:
        """All D factors, each in the shape of the weight."""

    def put_(self, state: State, factors: Tensor) -> None:
        """Write these factors, stacked as `stacked` gives them, into the state."""

    def penalties(self, state: State) -> Penalties:
        """What the factors cost, without λ."""

    def step_(self, weight: Tensor, grad: Tensor, state: State, rule: StepRule) -> None:
        """Move the state of one parameter, and its weight."""

    def kill_(self, state: State, dead: Tensor) -> None:
        """Set the factors of these weights to zero, which they never leave again (Lemma 4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacked:
    """D factors and D momenta per weight, each one tensor (D, *shape)."""

    depth: int

    def start(self, factors: Tensor, momentum: bool) -> State:
        """Factors as given, momenta zero."""
        # Balanced factors of a weight in channels_last would share its layout: the fast ways need
        # plain memory.
        factors = factors.contiguous()
        return {
            "factors": factors,
            **({"momentum": torch.zeros_like(factors)} if momentum else {}),
        }

    def weight(self, state: State) -> Tensor:
        """Π ω_d."""
        return maths.product(state["factors"])

    def stacked(self, state: State) -> Tensor:
        """The tensor that is stored."""
        factors: Tensor = state["factors"]
        return factors

    def put_(self, state: State, factors: Tensor) -> None:
        """Any factors."""
        state["factors"].copy_(factors)

    def penalties(self, state: State) -> Penalties:
        """‖w‖_{2/D}^{2/D} and M(ω) (Lemma 1)."""
        factors = state["factors"].double()
        least = minimal_penalty(maths.product(factors), self.depth)
        return Penalties(least=float(least), misalignment=float(misalignment(factors)))

    def step_(self, weight: Tensor, grad: Tensor, state: State, rule: StepRule) -> None:
        """The reference, written back. `step.Route` has faster ways for nearly all parameters; this
        one takes any device and any place in memory.
        """
        factors: Tensor = state["factors"]
        momenta: Tensor = state.get("momentum", torch.zeros_like(factors))
        moved = maths.step(factors, momenta, grad.to(factors.dtype), rule)
        for tensor, new in zip((factors, momenta, weight), moved, strict=True):
            tensor.copy_(new)

    def kill_(self, state: State, dead: Tensor) -> None:
        """Factors and momenta to zero."""
        for tensor in state.values():
            tensor.masked_fill_(dead, 0)


def move_(state: State, key: str, momentum_key: str, grad: Tensor, rule: StepRule) -> None:
    """One step of SGD on a tensor of factors and its momentum, in place.

    What falls below the smallest normal number becomes zero: arithmetic on denormals is many times
    slower, and decay would keep making them.
    """
    values, momentum = state[key], state.get(momentum_key)
    move = grad if rule.decoupled else grad + rule.decay * values
    if momentum is not None:
        momentum.mul_(rule.momentum).add_(move)
        torch.hardshrink(momentum, torch.finfo(momentum.dtype).tiny, out=momentum)
        move = move + rule.momentum * momentum if rule.nesterov else momentum
    if rule.decoupled:
        values.mul_(1 - rule.lr * rule.decay)
    values.sub_(move, alpha=rule.lr)
    # hardshrink keeps what is above the limit bit for bit; a comparison and a fill take
    # three passes.
    torch.hardshrink(values, torch.finfo(values.dtype).tiny, out=values)


# Balanced factors kept as one signed number: a step, and the weight.


def lean_step(
    state: Tensor, momentum: Tensor, grad: Tensor, rule: StepRule, depth: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One step for balanced factors kept as one signed number: v = sign(w)·|w|^(1/D), any real
    depth D > 1.

    Balanced factors move alike (Lemma 4), so v carries them all: its gradient is g·|v|^(D−1) +
    (2λ/D) v and w = sign(v)|v|^D. When v crosses zero all D factors change sign: for even D the
    weight keeps its sign and v is reflected; for fractional D, where gradient flow would not cross,
    v stops at zero.
    """
    move = grad * state.abs().pow(depth - 1)
    if not rule.decoupled:
        move = move + rule.decay * state
    if rule.momentum:
        momentum = without_denormals(rule.momentum * momentum + move)
        move = move + rule.momentum * momentum if rule.nesterov else momentum
    kept = state * (1 - rule.lr * rule.decay) if rule.decoupled else state
    moved = without_denormals(kept - rule.lr * move)
    moved, momentum = _cross(state, moved, momentum, depth)
    dead = moved.abs() < root(rule.freeze, depth)
    moved, momentum = moved.masked_fill(dead, 0), momentum.masked_fill(dead, 0)
    return moved, momentum, lean_weight(moved, depth)


def lean_weight(state: Tensor, depth: float) -> Tensor:
    """The weight of a lean state, sign(v)|v|^D."""
    return without_denormals(torch.copysign(state.abs().pow(depth), state))


def _cross(before: Tensor, after: Tensor, momentum: Tensor, depth: float) -> tuple[Tensor, Tensor]:
    # An odd power carries the sign of v into the weight, so nothing is left to do.
    if depth == int(depth) and int(depth) % 2:
        return after, momentum
    crossed = before * after < 0
    if depth != int(depth):
        return after.masked_fill(crossed, 0), momentum.masked_fill(crossed, 0)
    return torch.where(crossed, -after, after), torch.where(crossed, -momentum, momentum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lean:
    """Balanced factors as one signed number v = sign(w)|w|^(1/D) per weight, and one momentum; any
    depth above 1.
    """

    depth: float

    def start(self, factors: Tensor, momentum: bool) -> State:
        """The balanced factors of the product: only inits that balance (root, pretrained) are kept
        exactly.
        """
        weight = maths.product(factors)
        # pow of a negative number to 1/D is NaN, so the sign is taken off and put back.
        root = torch.copysign(weight.abs().pow(1 / self.depth), weight)
        return {
            "root": root,
            **({"momentum": torch.zeros_like(root)} if momentum else {}),
        }

    def weight(self, state: State) -> Tensor:
        """sign(v)|v|^D."""
        return lean_weight(state["root"], self.depth)

    def stacked(self, state: State) -> Tensor:
        """Balanced factors; for a fractional depth the two numbers |v|^(D/2)."""
        # A fractional number of factors cannot be stacked; two of them say the same.
        whole = int(self.depth) if self.depth == int(self.depth) else 2
        return maths.balanced(self.weight(state), whole)

    def put_(self, state: State, factors: Tensor) -> None:
        """Balanced factors only."""
        # One number per weight cannot tell factors of different size apart: writing them would
        # silently lose something.
        if not is_balanced(factors):
            raise ArgumentError(
                "lean=True keeps balanced factors only: all factors of a weight have one "
                "magnitude. Nothing was changed."
            )
        weight = maths.product(factors)
        state["root"].copy_(torch.copysign(weight.abs().pow(1 / self.depth), weight))

    def penalties(self, state: State) -> Penalties:
        """Σ v², and nothing above it: the factors are balanced."""
        return Penalties(least=float(state["root"].double().square().sum()), misalignment=0.0)

    def step_(self, weight: Tensor, grad: Tensor, state: State, rule: StepRule) -> None:
        """`lean_step`, written back."""
        root: Tensor = state["root"]
        momentum: Tensor = state.get("momentum", torch.zeros_like(root))
        moved = lean_step(root, momentum, grad.to(root.dtype), rule, self.depth)
        for tensor, new in zip((root, momentum, weight), moved, strict=True):
            tensor.copy_(new)

    def kill_(self, state: State, dead: Tensor) -> None:
        """v and its momentum to zero."""
        for tensor in state.values():
            tensor.masked_fill_(dead, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """Not factorized: ordinary SGD with the group's learning rate and momentum, no penalty."""

    def start(self, factors: Tensor, momentum: bool) -> State:
        """Only a momentum; `factors` is the weight itself with a leading dimension of 1."""
        return {"momentum": torch.zeros_like(factors[0])} if momentum else {}

    def weight(self, state: State) -> Tensor:
        """Plain parameters have no factors."""
        raise NotImplementedError

    def stacked(self, state: State) -> Tensor:
        """Plain parameters have no factors."""
        raise NotImplementedError

    def put_(self, state: State, factors: Tensor) -> None:
        """Plain parameters have no factors."""
        raise NotImplementedError

    def penalties(self, state: State) -> Penalties:
        """None."""
        return Penalties(least=0.0, misalignment=0.0)

    def step_(self, weight: Tensor, grad: Tensor, state: State, rule: StepRule) -> None:
        """w ← w − lr·(momentum buffer)."""
        move = grad
        if "momentum" in state:
            buffer = state["momentum"].mul_(rule.momentum).add_(grad)
            move = grad.to(buffer.dtype) + rule.momentum * buffer if rule.nesterov else buffer
        # The momentum may be wider than the weight (float32 beside bfloat16).
        weight.sub_(move.to(weight.dtype), alpha=rule.lr)

    def kill_(self, state: State, dead: Tensor) -> None:
        """Nothing to do."""


# Shared factors: one factor for a whole neuron, channel, kernel or block makes whole groups
# vanish, smoothly.
#
# Write w = u_g ⊙ … ⊙ ω with s of the D factors shared within a group g and e = D − s of them one
# per weight. The penalty (λ/D)(Σ‖ω‖² + Σ‖u‖²) then has the minimal value λ Σ_g ‖w_g‖_{2/e}^{2/D}:
# for e = 1 a group lasso raised to 2/D, for e ≥ 2 sparse within the groups as well. (The paper
# leaves groups open; `minimal_penalty` is tested against descent.)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """A weight seen in the shape `view`; entries that differ only along `axes` form one group."""

    view: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a shared factor: that of the view, 1 along the axes."""
        return tuple(1 if axis in self.axes else size for axis, size in enumerate(self.view))

    def spread(self, shared: Tensor, like: Tensor) -> Tensor:
        """A shared factor as a tensor of the weight's shape."""
        return shared.reshape(self.shape).expand(self.view).reshape(like.shape)

    def total(self, values: Tensor) -> Tensor:
        """Sums over each group."""
        return values.reshape(self.view).sum(self.axes, keepdim=True)

    def largest(self, values: Tensor) -> Tensor:
        """Maxima over each group."""
        return values.reshape(self.view).amax(self.axes, keepdim=True)


GroupRule: TypeAlias = Callable[[tuple[int, ...]], Grouping | None]
"""From the shape of a weight to its groups; None where there are none of this kind."""
GROUPINGS: Registry[GroupRule] = Registry("grouping")


def grouping(name: str, shape: tuple[int, ...]) -> Grouping | None:
    """The grouping of this name for a weight of this shape; None where it has no such groups, so
    that each entry stays on its own: vectors, weights without a spatial kernel, input sizes that M
    does not divide, weights without entries.

    Names: "neuron" (everything into one output), "channel" (everything out of one input), "kernel"
    (the spatial kernel of one input-output pair), "block:M" (M neighbours along the input, the
    blocks of an N:M pattern).

    >>> grouping("neuron", (300, 784)).shape
    (300, 1)
    >>> grouping("block:4", (10, 8)).shape
    (10, 2, 1)
    """
    name, _, size = name.partition(":")
    rule, width = GROUPINGS[name], _block_size(name, size)
    # A bias has one entry per neuron: grouping it would change nothing.
    if len(shape) < 2 or 0 in shape:
        return None
    return _blocks(shape, width) if name == "block" else rule(shape)


def without_groups(kind: str, parameters: Iterable[Parameter]) -> list[Parameter]:
    """The matrices and kernels among these parameters that have no groups of this kind."""
    return [
        p for p in parameters if p.ndim > 1 and p.numel() and grouping(kind, tuple(p.shape)) is None
    ]


@GROUPINGS.register("neuron")
def neuron(shape: tuple[int, ...]) -> Grouping:
    """All weights into one output unit (a row, a filter)."""
    return Grouping(view=shape, axes=tuple(range(1, len(shape))))


@GROUPINGS.register("channel")
def channel(shape: tuple[int, ...]) -> Grouping:
    """All weights out of one input (a column, an input channel, a pixel)."""
    return Grouping(view=shape, axes=(0, *range(2, len(shape))))


@GROUPINGS.register("kernel")
def kernel(shape: tuple[int, ...]) -> Grouping | None:
    """The spatial kernel between one input and one output channel; a linear layer has none."""
    if len(shape) < 3:
        return None
    return Grouping(view=shape, axes=tuple(range(2, len(shape))))


@GROUPINGS.register("block")
def block(shape: tuple[int, ...]) -> Grouping | None:
    """Four neighbours along the input dimension, or as many as the name says ("block:8")."""
    return _blocks(shape, 4)


def _blocks(shape: tuple[int, ...], size: int) -> Grouping | None:
    if shape[1] % size:
        return None
    view = (shape[0], shape[1] // size, size, *shape[2:])
    return Grouping(view=view, axes=(2,))


def minimal_group_penalty(
    weight: Tensor, group: Grouping, *, depth: int, shared: int = 1
) -> Tensor:
    """Least penalty of any factors of this weight when `shared` of the D factors are per group: Σ_g
    ‖w_g‖_{2/e}^{2/D}.

    Per group: balancing the e single factors leaves Σ_i |w_i/u|^{2/e}·e + s u² with u the balanced
    shared factor; its minimum over u is D (Σ_i|w_i|^{2/e})^{e/D}.
    """
    single = depth - shared
    return group.total(weight.abs().pow(2 / single)).pow(single / depth).sum()


def group_misalignment(own: Tensor, shared: Tensor, group: Grouping, *, depth: int) -> Tensor:
    """(1/D)(Σ‖ω‖² + Σ‖u‖²) above its least value, ≥ 0; group by group, so that the rounding of
    large groups does not hide small ones.

    `own`: the single factors, stacked (e, *shape); `shared`: the s factors per group, stacked (s,
    *group.shape).
    """
    weight = own.prod(0) * group.spread(shared.prod(0), own[0])
    penalty = (group.total(own.square().sum(0)) + shared.square().sum(0)) / depth
    least = group.total(weight.abs().pow(2 / len(own))).pow(len(own) / depth)
    return (penalty - least).clamp_min(0).sum()


def _block_size(name: str, text: str) -> int:
    if text and name != "block":
        raise PatternError(
            f"grouping '{name}:{text}': only blocks have a size, as in 'block:4'. Use '{name}'."
        )
    if text and not (text.isdigit() and int(text) > 0):
        raise PatternError(
            f"block size {text!r} in grouping 'block:{text}' is not a positive whole number."
        )
    return int(text or 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """`shared` of the D factors have one entry per group, the others one per weight."""

    depth: int
    shared: int
    group: Grouping

    def start(self, factors: Tensor, momentum: bool) -> State:
        """Shared factors start at the root mean square of their group; the first single factor
        takes the rest.
        """
        own = factors[self.shared :].clone()
        # The mean is taken over real entries: the total of ones counts them, whatever
        # shape a group has.
        common = [
            self.group.total(f.square()) / self.group.total(torch.ones_like(f))
            for f in factors[: self.shared]
        ]
        shared = torch.stack([mean.sqrt() for mean in common])
        # Dividing what was drawn by what is now shared keeps the weight as it was
        # drawn. 1e-30 guards groups that were drawn as nothing but zeros.
        rest = maths.product(factors[: self.shared]) / self._spread(shared, own[0]).prod(
            0
        ).clamp_min(1e-30)
        own[0].mul_(rest)
        state = {"factors": own, "shared": shared}
        if momentum:
            state |= {
                "momentum": torch.zeros_like(own),
                "shared_momentum": torch.zeros_like(shared),
            }
        return state

    def weight(self, state: State) -> Tensor:
        """Product of single and shared factors."""
        return maths.product(self.stacked(state))

    def stacked(self, state: State) -> Tensor:
        """All D factors in the shape of the weight, the shared ones first."""
        own = state["factors"]
        return torch.cat([self._spread(state["shared"], own[0]), own])

    def put_(self, state: State, factors: Tensor) -> None:
        """The first `shared` must be one number per group."""
        # Equal largest and smallest: the same number everywhere in the group, compared
        # exactly.
        ends = [(self.group.largest(f), -self.group.largest(-f)) for f in factors[: self.shared]]
        if not all(torch.equal(high, low) for high, low in ends):
            raise ArgumentError(
                f"the first {self.shared} factors are shared, each with one number per group. "
                "Nothing was changed."
            )
        state["shared"].copy_(torch.stack([high for high, _ in ends]))
        state["factors"].copy_(factors[self.shared :])

    def penalties(self, state: State) -> Penalties:
        """Σ_g ‖w_g‖_{2/e}^{2/D}, and what single and shared factors, each counted once, have above
        it.
        """
        own, shared = state["factors"].double(), state["shared"].double()
        weight = maths.product(torch.cat([self._spread(shared, own[0]), own]))
        least = minimal_group_penalty(weight, self.group, depth=self.depth, shared=self.shared)
        above = group_misalignment(own, shared, self.group, depth=self.depth)
        return Penalties(least=float(least), misalignment=float(above))

    def step_(self, weight: Tensor, grad: Tensor, state: State, rule: StepRule) -> None:
        """The gradient of a shared factor is the sum over its group; everything else as for single
        factors.
        """
        # All gradients are taken before the first factor moves, as autograd would.
        single = maths.others(self.stacked(state)) * grad.to(state["factors"].dtype)
        summed = torch.stack([self.group.total(part) for part in single[: self.shared]])
        move_(state, "factors", "momentum", single[self.shared :], rule)
        move_(state, "shared", "shared_momentum", summed, rule)
        self._bury_(state, rule)
        weight.copy_(self.weight(state))

    def kill_(self, state: State, dead: Tensor) -> None:
        """Single factors to zero; a shared factor goes when its whole group is dead."""
        for key in ("factors", "momentum"):
            if key in state:
                state[key].masked_fill_(dead, 0)
        empty = self.group.largest((~dead).to(torch.uint8)) == 0
        for key in ("shared", "shared_momentum"):
            if key in state:
                state[key].masked_fill_(empty, 0)

    def _spread(self, shared: Tensor, like: Tensor) -> Tensor:
        return torch.stack([self.group.spread(part, like) for part in shared])

    def _bury_(self, state: State, rule: StepRule) -> None:
        """A group whose shared factors or whose single factors all lie below the threshold is dead
        as a whole.
        """
        threshold = maths.root(rule.freeze, self.depth)
        own = self.group.largest(state["factors"].abs().amax(0)) < threshold
        # Both must be small. A shared factor of zero still has a gradient while its own
        # factors live.
        gone = own & (state["shared"].abs().amax(0) < threshold)
        if bool(gone.any()):
            self.kill_(state, self.group.spread(gone, state["factors"][0]))
