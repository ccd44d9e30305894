"""Path mass: how much of ‖Φ‖_q^q flows into, through and out of every neuron and weight.

The flow runs forward and keeps a local autograd tape per node; `Tape.pull` then runs backward. Both
directions carry exponents of their own, so that mass shares are finite at any depth. One forward,
one backward.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.graph import (
    Activation,
    Add,
    Affine,
    Graph,
    Input,
    Pool,
    State,
    Structural,
)
from secateurs.paths.norms.flows.norm import growth, spread_bias
from secateurs.paths.norms.flows.steps import Step
from secateurs.paths.norms.flows.tape import Tape, marked
from secateurs.paths.norms.scaled import ZERO, Scaled, added, aligned, power, rescaled


class MassFlow:
    """The path norm once more, recording what the backward pass needs.

    With q = 0 only marks travel, 1 where a path of non-zero weights arrives, so that nothing can
    underflow.
    """

    def __init__(
        self,
        graph: Graph,
        q: float = 1,
        *,
        keep_flow: bool = False,
        biases: bool = True,
    ) -> None:
        self.q, self.keep_flow, self.biases = q, keep_flow, biases
        self.tape = Tape(graph, marks_only=q == 0)

    def input(self, node: Input, value: Tensor) -> "Flowing":
        """|value|^q."""
        return self._record(node.name, power(value, self.q), None)

    def affine(self, node: Affine, x: "Flowing | None", params: State) -> "Flowing":
        """|W|^q x + |b|^q, with leaves for x and |W|^q."""
        raw = node.bias_in(params) if self.biases else None
        bias = None if raw is None else power(raw.detach(), self.q)
        parts = [] if bias is None else [spread_bias(node, bias)]
        if x is None:
            step = Step(result=None, leaves=(), shifts=(), names=(), bias=bias)
            return self._record(node.name, parts[0] if parts else _zeros(node), step)
        linear, step = self._linear(node, x, params, bias)
        total = _with_bias(linear, parts[0], step) if parts else linear
        return self._record(node.name, total, step)

    def activation(self, node: Activation, x: "Flowing") -> "Flowing":
        """A factor, usually 1."""
        factor = growth(node, self.q)
        if factor == 1:
            # For relu nothing is computed here, and nothing looked at on the way back.
            step = Step(result=None, leaves=(), shifts=(), names=(x.name,))
            return self._record(node.name, x.scaled, step)
        return self._local(node.name, lambda t: t * factor, [x])

    def pool(self, node: Pool, x: "Flowing") -> "Flowing":
        """The sum over each window."""
        return self._local(node.name, node.total, [x])

    def structural(self, node: Structural, xs: "Sequence[Flowing]") -> "Flowing":
        """The same reordering."""
        return self._local(node.name, node.function, xs)

    def add(self, node: Add, xs: "Sequence[Flowing]") -> "Flowing":
        """The sum."""
        return self._local(
            node.name,
            lambda *ts: torch.stack(ts).sum(0) if len(ts) > 2 else ts[0] + ts[1],
            xs,
        )

    def _linear(
        self, node: Affine, x: "Flowing", params: State, bias: Scaled | None
    ) -> tuple[Scaled, Step]:
        raw = node.weight_in(params)
        # Detached: the tape is local to this node, and the exponents between the nodes
        # are handled by hand. Nobody asks for a gradient of the input.
        leaf = x.scaled.value.detach().requires_grad_(not x.is_input)
        weight = None if raw is None else power(raw.detach(), self.q)
        factor = (
            None
            if weight is None
            # A constant has no cost: its pass backward is saved.
            else weight.value.detach().requires_grad_(_has_parameters(node))
        )
        with torch.enable_grad():
            result = (
                leaf.expand(node.shape)
                if factor is None
                else node.linear(leaf, factor)
            )
        exponent = 0 if weight is None else weight.exponent
        step = Step(
            result=result,
            leaves=(leaf,) if factor is None else (leaf, factor),
            shifts=(exponent,),
            names=(x.name,),
            weight=None
            if weight is None or factor is None
            else Scaled(factor, weight.exponent),
            bias=bias,
            x_exponent=x.scaled.exponent,
        )
        return rescaled(result.detach(), x.scaled.exponent + exponent), step

    def _local(
        self, name: str, function: Callable[..., Tensor], xs: "Sequence[Flowing]"
    ) -> "Flowing":
        values, exponent = aligned([x.scaled for x in xs])
        leaves = tuple(value.detach().requires_grad_() for value in values)
        with torch.enable_grad():
            result = function(*leaves)
        step = Step(
            result=result,
            leaves=leaves,
            shifts=(0,) * len(xs),
            names=tuple(x.name for x in xs),
        )
        return self._record(name, rescaled(result.detach(), exponent), step)

    def _record(self, name: str, scaled: Scaled, step: Step | None) -> "Flowing":
        if step is not None:
            self.tape.steps[name] = step
        if self.tape.marks_only:
            scaled = marked(scaled)
        if self.keep_flow:
            self.tape.flow_in[name] = scaled
        return Flowing(name, scaled, is_input=step is None)


@dataclass(frozen=True, slots=True)
class Flowing:
    """A value and the node it comes from."""

    name: str
    scaled: Scaled
    is_input: bool = False


def _has_parameters(node: Affine) -> bool:
    return node.weight is not None and any(
        not name.startswith("constant.") for name in node.weight.names
    )


def _with_bias(linear: Scaled, bias: Scaled, step: Step) -> Scaled:
    """linear + bias, in the memory of the linear part where that is its own.

    What the backward pass needs of a linear map are its factors, never its result. A copy of every
    value would be the second largest part of the memory, and new memory costs half of a
    millisecond per megabyte.
    """
    if bias.exponent == ZERO:
        return linear
    shared = {leaf.untyped_storage().data_ptr() for leaf in step.leaves}
    own = linear.value.untyped_storage().data_ptr() not in shared
    if (
        not own
        or linear.exponent != bias.exponent
        or not linear.value.is_contiguous()
    ):
        return added(linear, bias)
    return rescaled(linear.value.add_(bias.value), linear.exponent)


def _zeros(node: Affine) -> Scaled:
    return Scaled(torch.zeros(node.shape, dtype=torch.float64), ZERO)
