"""The builder that lowering rules write with: nodes in order, constants, places."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from secateurs.graph.operators import Value
from secateurs.graph.primitives import (
    Activation,
    Add,
    Affine,
    Axes,
    Bilinear,
    Computed,
    Named,
    Node,
    Opaque,
    Place,
    Pool,
    Source,
    State,
    Structural,
    elementwise,
)


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The common shape of tensors that are combined elementwise."""
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


_NO_BILINEAR = Bilinear(label="identity", function=lambda x, weight: x)


@dataclass(slots=True, kw_only=True)
class Builder:
    """Collects nodes in order: the only way in which rules write a graph.

    `opaque` says that operations without a formula are allowed, for analyses of channels alone.
    """

    tensors: State
    opaque: bool = False
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Tensor] = field(default_factory=dict)
    decided: list[tuple[Source, Tensor]] = field(default_factory=list)
    place: Place = field(default_factory=lambda: Place(module="", kind="", operation=""))

    def constant(self, value: Tensor | float | int) -> Named:
        """A source for a number or tensor written in the model's code."""
        # A number becomes float64: 0.1 in float32 would be another number.
        tensor = torch.as_tensor(
            value, dtype=None if isinstance(value, Tensor) else torch.float64
        ).detach()
        name = f"constant.{len(self.constants)}"
        self.constants[name] = tensor
        return Named(name, tuple(tensor.shape), floating=tensor.is_floating_point())

    def reciprocal(self, divisor: Tensor | float) -> Source:
        """1/divisor: a constant where it has finitely many digits, else computed, so that an
        analysis sees that it is rounded.
        """
        value = torch.as_tensor(divisor, dtype=torch.float64)
        if bool((torch.frexp(value)[0].abs() == 0.5).all()):
            return self.constant(value.reciprocal())
        source = self.constant(value)
        return elementwise("1/", torch.reciprocal, source, roles={source.name: "other"})

    def literal(self, source: Source) -> Tensor:
        """The value of a source as it is now, such as an index.

        Values computed from floating-point tensors are recorded: these tensors may change, and the
        value with them, while the graph is otherwise the same.
        """
        value = source({**self.tensors, **self.constants}).detach().clone()
        named = [self.tensors[name] for name in source.names if name in self.tensors]
        if any(tensor.is_floating_point() for tensor in named):
            self.decided.append((source, value))
        return value

    def affine(
        self,
        x: "Value | None",
        operation: Bilinear = _NO_BILINEAR,
        weight: Source | None = None,
        bias: Source | None = None,
        *,
        bias_scaled_by: tuple[str, ...] | None = None,
    ) -> Value:
        """y = operation(x, weight) + bias."""
        if weight is not None and not weight.floating:
            weight = _floating(weight)
        if bias is not None and not bias.floating:
            bias = _floating(bias)
        # A plain parameter as bias scales with itself; everything else has to be stated by the
        # rule.
        if bias_scaled_by is None and bias is not None and bias.direct is not None:
            bias_scaled_by = (bias.direct,)
        parts = {
            "operation": operation,
            "weight": weight,
            "bias": bias,
            "bias_scaled_by": bias_scaled_by,
        }
        shape = _affine_shape(x, operation, weight, bias)
        return self._append(Affine, [x] if x is not None else [], shape, **parts)

    def scale(
        self,
        x: Value,
        weight: Source | float,
        *,
        bias: Source | None = None,
        **options: Any,
    ) -> Value:
        """y = weight · x + bias, elementwise with broadcasting."""
        source = weight if isinstance(weight, Source) else self.constant(float(weight))
        shape = broadcast(x.shape, source.shape)
        operation = Bilinear(
            label="scale",
            function=torch.mul,
            axes=_scale_axes(x.shape, source.shape, shape),
        )
        return self.affine(x, operation, source, bias, **options)

    def activation(self, x: Value, *, slope: float) -> Value:
        """relu (slope 0) or leaky relu."""
        return self._append(Activation, [x], x.shape, slope=float(slope))

    def pool(
        self,
        x: Value,
        *,
        maximum: Callable[[Tensor], Tensor],
        total: Callable[[Tensor], Tensor],
        detail: str = "",
        rank: int = 1,
        chosen: Callable[[Tensor], Tensor] | None = None,
    ) -> Value:
        """Maximum over windows, and the sum over the same windows.

        With `rank` k > 1 `chosen` is the k-th largest of a window, which the node computes.
        """
        return self._append(
            Pool,
            [x],
            tuple(total(x.meta()).shape),
            maximum=maximum,
            total=total,
            detail=detail,
            rank=rank,
            chosen=chosen,
        )

    def structural(
        self, function: Callable[..., Tensor], *xs: "Value | Source", detail: str = ""
    ) -> Value:
        """Copies and reorders; a constant among the inputs becomes a neuron without antecedents."""
        # A neuron that has a bias and no antecedents: paths may start in it.
        values = [_neuron(self, x) for x in xs]
        shape = tuple(function(*[v.meta() for v in values]).shape)
        return self._append(Structural, values, shape, function=function, detail=detail)

    def opaque_node(
        self,
        function: Callable[..., Tensor],
        *xs: "Value | Source",
        shape: Sequence[int],
        carried: Sequence[Sequence[int | None]] | None = None,
        **facts: Any,
    ) -> Value:
        """A function outside of the six primitives; see `Opaque` for the facts.

        Without `carried` every entry is mixed with every other one.
        """
        dims = [[None] * len(x.shape) for x in xs] if carried is None else carried
        # Ids and flags among the constants are read now: as a neuron they would be real numbers.
        fixed = {
            i: self.literal(x) for i, x in enumerate(xs) if isinstance(x, Source) and not x.floating
        }
        if fixed and facts.get("zeros"):
            facts["zeros"] = tuple(
                sum(j not in fixed for j in range(i)) for i in facts["zeros"] if i not in fixed
            )
        open_ = [i for i in range(len(xs)) if i not in fixed]
        values = [_neuron(self, xs[i]) for i in open_]
        return self._append(
            Opaque,
            values,
            tuple(shape),
            function=_with_fixed_inputs(function, len(xs), fixed),
            carried=tuple(tuple(dims[i]) for i in open_),
            **facts,
        )

    def add(self, xs: Sequence[Value], signs: Sequence[int]) -> Value:
        """Σ sign · x; the values are expanded to one shape first."""
        shape = broadcast(*[x.shape for x in xs])
        # Expanding is a copy of values, and a flow has to know which neurons are
        # copied.
        same = [x if x.shape == shape else self.expand(x, tuple(shape)) for x in xs]
        return self._append(Add, same, tuple(shape), signs=tuple(signs))

    def expand(self, x: Value, shape: tuple[int, ...]) -> Value:
        """Repeat along dimensions of size one."""
        return self.structural(lambda t: t.expand(shape), x, detail=f"expand {shape}")

    def _append(
        self,
        kind: type[Any],
        xs: Sequence[Value],
        shape: tuple[int, ...],
        **fields: Any,
    ) -> Value:
        name = f"v{len(self.nodes)}"
        inputs = tuple(x.name for x in xs)
        self.nodes.append(
            kind(
                name=name,
                shape=tuple(shape),
                place=self.place,
                inputs=inputs,
                **fields,
            )
        )
        return Value(name, tuple(shape))


def _neuron(build: Builder, x: "Value | Source") -> Value:
    """A value; a constant becomes a neuron without antecedents."""
    return x if isinstance(x, Value) else build.affine(None, bias=x)


def _with_fixed_inputs(
    function: Callable[..., Tensor], count: int, fixed: dict[int, Tensor]
) -> Callable[..., Tensor]:
    """The function of the inputs that are left when some are fixed."""
    if not fixed:
        return function

    def rest(*xs: Tensor) -> Tensor:
        given = iter(xs)
        return function(*[fixed[i] if i in fixed else next(given) for i in range(count)])

    return rest


def _affine_shape(
    x: Value | None, operation: Bilinear, weight: Source | None, bias: Source | None
) -> tuple[int, ...]:
    if x is None:
        return tuple(bias.shape) if bias is not None else ()
    y = operation.function(x.meta(), weight.meta()) if weight is not None else x.meta()
    if bias is None or operation.bias_shape is not None:
        return tuple(y.shape)
    return broadcast(y.shape, bias.shape)


def _floating(source: Source) -> Source:
    """An integer or boolean tensor used as a weight."""
    return Computed(
        lambda value: value.to(torch.float64),
        source,
        label="float",
        shape=source.shape,
        roles=source.roles,
    )


def _scale_axes(x: tuple[int, ...], weight: tuple[int, ...], y: Sequence[int]) -> Axes | None:
    # Broadcast over x, one input reaches several outputs: no longer entry by entry.
    return Axes(diagonal=True) if tuple(x) == tuple(y) else None
