"""Reads a model into a graph by `torch.export`. The only file that knows the tracing technology."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from secateurs.errors import CaptureError, ParameterError, UnsupportedOperation
from secateurs.graph import lowering
from secateurs.graph.ir import Graph, Input, Node, Place
from secateurs.graph.lower import LOWERINGS, Builder, Gap, Many, Unknown, Value
from secateurs.graph.renaming import Renamed, rename_in_place
from secateurs.graph.sources import Computed, Named, Role, Source
from secateurs.parameters import aliases

Example: TypeAlias = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
"""What the model is called with: a tensor, a sequence of positional tensors, or keyword tensors.
The first dimension of each is the batch; only the first sample's shape matters, never the values.
"""

__all__ = ["Example", "capture", "lowering"]


def capture(model: nn.Module, example: Example, *, output: str | int | None = None) -> Graph:
    """The model as a graph of six primitives; the model, its mode, gradients, buffers and the RNG
    stay untouched.

    Args:
        model: any module, in evaluation mode where that matters (batch norm, dropout).
        example: an input of the right shape; see `Example`. Batch size does not matter.
        output: which output to analyse when the model returns several: a key, a field, a position,
            or a dotted path of these. By default `logits` or `out` if there is one, else the first
            tensor; `Graph.output_name` says which it was.

    Raises:
        UnsupportedOperation: every operator without a rule, with the module that uses it.
        CaptureError: the model does not run on the example, or has no such output.
        ParameterError: lazy, meta, complex or integer parameters.
    """
    _check_parameters(model)
    args, kwargs = _example(example, next(model.parameters(), None))
    exported = _export(model, args, kwargs)
    return _Reader(model, exported, output).graph()


def _check_parameters(model: nn.Module) -> None:
    bad = []
    for name, parameter in model.named_parameters():
        if is_lazy(parameter) or parameter.is_meta:
            bad.append(f"{name} has no values yet (lazy or meta)")
        elif not parameter.is_floating_point():
            bad.append(f"{name} is {parameter.dtype}, not real floating-point")
    if bad:
        raise ParameterError(f"{'; '.join(bad[:6])}. Paths need real floating-point parameters.")


def _example(example: Example, like: Tensor | None) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    kwargs = dict(example) if isinstance(example, Mapping) else {}
    args: tuple[Tensor, ...] = ()
    if not isinstance(example, Mapping):
        args = (example,) if isinstance(example, Tensor) else tuple(example)
    for tensor in (*args, *kwargs.values()):
        if not isinstance(tensor, Tensor):
            raise CaptureError(f"the example holds a {type(tensor).__name__}; give tensors only.")
        if tensor.ndim == 0 or tensor.shape[0] == 0:
            raise CaptureError(
                f"an example of shape {tuple(tensor.shape)} has no sample; give a batch of at least"
                " one."
            )
        if not tensor.is_floating_point():
            raise UnsupportedOperation(
                f"the example is {tensor.dtype}; paths start at real-valued inputs. Analyse what"
                " follows it."
            )

    def first(t: Tensor) -> Tensor:  # only the shape matters: the model's own dtype and device
        return t[:1].detach() if like is None else t[:1].detach().to(like)

    return tuple(first(t) for t in args), {k: first(t) for k, t in kwargs.items()}


@dataclass(slots=True)
class _Exported:
    program: Any
    leaves: list[str]


class _Tracee(nn.Module):
    """The model with its outputs flattened to a tuple of tensors, whatever structure it returns."""

    def __init__(self, model: nn.Module, leaves: list[str]) -> None:
        super().__init__()
        self.model = model
        self.training = model.training
        self._leaves = leaves

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        found = list(_flatten(self.model(*args, **kwargs), ""))
        self._leaves[:] = [name for name, _ in found]
        return tuple(tensor for _, tensor in found)


def _flatten(out: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of an output with their dotted paths."""
    if isinstance(out, Tensor):
        yield path, out
        return
    items: list[tuple[Any, Any]] = []
    if isinstance(out, Mapping):
        items = list(out.items())
    elif is_dataclass(out) and not isinstance(out, type):
        items = [(field.name, getattr(out, field.name)) for field in fields(out)]
    elif isinstance(out, tuple) and hasattr(out, "_fields"):
        items = list(zip(out._fields, out, strict=True))
    elif isinstance(out, list | tuple):
        items = list(enumerate(out))
    for key, value in items:
        yield from _flatten(value, f"{path}.{key}" if path else str(key))


def _export(model: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> _Exported:
    leaves: list[str] = []
    try:
        with torch.no_grad(), torch.random.fork_rng():
            program = torch.export.export(_Tracee(model, leaves), args, kwargs, strict=False)
    except Exception as error:
        _explain(model, args, kwargs, error)
        raise UnsupportedOperation(
            f"{type(model).__name__} cannot be traced: its control flow or its shapes depend on the"
            f" data ({_first_line(error)}). Rewrite the branch without the data, or analyse the"
            " part before it."
        ) from error
    return _Exported(program, leaves)


def _explain(
    model: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], error: Exception
) -> None:
    """Raise a clearer error when the model does not even run on the example."""
    try:
        with torch.no_grad(), torch.random.fork_rng():
            deepcopy(model)(*args, **kwargs)
    except Exception as own:
        shapes = [tuple(t.shape) for t in (*args, *kwargs.values())]
        raise CaptureError(
            f"{type(model).__name__} does not run on an example of shape {shapes}:"
            f" {_first_line(own)}. Give an input of the right shape."
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


class _Reader:
    """Interprets the exported operators: lowers what depends on the input, keeps the rest as
    sources.
    """

    def __init__(self, model: nn.Module, exported: _Exported, output: str | int | None) -> None:
        self.model, self.program, self.leaves = model, exported.program, exported.leaves
        self.graph_module: fx.GraphModule = self.program.graph_module
        self.wanted = output
        self.gaps: dict[str, None] = {}
        self.env: dict[str, Any] = {}
        self.inputs: list[Input] = []
        self.parameters: dict[str, tuple[int, ...]] = {}
        self.buffers: dict[str, tuple[int, ...]] = {}

    def graph(self) -> Graph:
        """Lower the operators the chosen output depends on."""
        renamed = self._renamed()
        position, output_name = self._choose()
        result = renamed.outputs[position]
        self.build = Builder(tensors=self._tensors())
        self._placeholders()
        for node in renamed.needed(result):
            self._visit(node, renamed)
        value = self.env[result.name]
        self._refuse_gaps()
        if isinstance(value, Source):
            value = self.build.affine(None, bias=value)
        return self._assemble(value, output_name)

    def _renamed(self) -> Renamed:
        """In-place operators resolved; functionalised by the tracer only where views alias."""
        renamed = rename_in_place(self.graph_module)
        if renamed is None:
            self.program = self.program.run_decompositions({})
            self.graph_module = self.program.graph_module
            renamed = rename_in_place(self.graph_module)
        if renamed is None:
            raise UnsupportedOperation(
                f"{type(self.model).__name__} changes values in place through views."
            )
        skipped = len(renamed.outputs) - len(
            self.leaves
        )  # functionalised buffer updates come first
        renamed.outputs = renamed.outputs[skipped:]
        return renamed

    def _choose(self) -> tuple[int, str]:
        if not self.leaves:
            raise CaptureError(f"{type(self.model).__name__} returns no tensor.")
        if self.wanted is not None:
            name = str(self.wanted)
            if name not in self.leaves:
                raise CaptureError(
                    f"there is no output {name!r}; the model returns {', '.join(self.leaves)}."
                )
            return self.leaves.index(name), name
        for favourite in ("logits", "out"):
            if favourite in self.leaves:
                return self.leaves.index(favourite), favourite
        return 0, self.leaves[0]

    def _tensors(self) -> dict[str, Tensor]:
        own: dict[str, Tensor] = dict(self.model.named_buffers(remove_duplicate=False))
        own.update(self.model.named_parameters(remove_duplicate=False))
        return own

    def _placeholders(self) -> None:
        first = aliases(self.model)
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        for node in self.graph_module.graph.nodes:
            if node.op != "placeholder":
                continue
            spec = specs[node.name]
            target = (spec.target or "").removeprefix("model.")
            if spec.kind is InputKind.USER_INPUT:
                self._input(node)
            elif spec.kind is InputKind.PARAMETER:
                self.env[node.name] = self._named(first.get(target, target), node, self.parameters)
            elif spec.kind is InputKind.BUFFER:
                self.env[node.name] = self._named(target, node, self.buffers)
            else:
                self.env[node.name] = self.build.constant(self.program.constants[spec.target])

    def _input(self, node: fx.Node) -> None:
        shape = tuple(node.meta["val"].shape)
        place = Place(module="", kind=type(self.model).__name__, operation="input")
        item = Input(name=node.name, shape=shape, place=place, index=len(self.inputs))
        self.inputs.append(item)
        self.env[node.name] = Value(node.name, shape)

    def _named(self, name: str, node: fx.Node, table: dict[str, tuple[int, ...]]) -> Named:
        value = node.meta["val"]
        table[name] = tuple(value.shape)
        return Named(name, tuple(value.shape), floating=value.is_floating_point())

    def _visit(self, node: fx.Node, renamed: Renamed) -> None:
        if node.op == "placeholder" or node.op == "get_attr":
            return
        args, kwargs = self._arguments(renamed.arguments(node))
        leaves = pytree.tree_leaves((args, kwargs))
        if any(isinstance(leaf, Unknown) for leaf in leaves):
            self.env[node.name] = Unknown()
        elif node.target is operator.getitem:
            self.env[node.name] = self._item(node, args)
        elif any(isinstance(leaf, Value | Many) for leaf in leaves):
            self.env[node.name] = self._lower(node, args, kwargs)
        else:
            self.env[node.name] = self._static(node, args, kwargs)

    def _arguments(self, packed: tuple[Any, Any]) -> tuple[Any, Any]:
        def look(leaf: Any) -> Any:
            return self.env.get(leaf.name, leaf) if isinstance(leaf, fx.Node) else leaf

        args, kwargs = fx.node.map_aggregate(packed, look)
        return args, kwargs

    def _item(self, node: fx.Node, args: Any) -> Any:
        source, index = args
        try:
            if isinstance(source, Many):
                self.build.place = self._place(node)
                return source.pick(index)
            return source[index]
        except Gap as gap:
            return self._gap(node, str(gap))

    def _lower(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        self.build.place = self._place(node)
        if _is_shape_only(node.target):
            return self._shape_only(node, args, kwargs)
        rule_key = _functional(node.target)
        if rule_key not in LOWERINGS:
            return self._gap(node, "")
        if not _real(node.meta.get("val")):
            return self._gap(node, "its result is not real floating-point")
        try:
            return self._checked(node, LOWERINGS[rule_key](self.build, *args, **kwargs))
        except Gap as gap:
            return self._gap(node, str(gap))
        except (
            TypeError,
            AttributeError,
        ) as error:  # a tensor in a position the rule does not expect
            return self._gap(node, f"this combination of arguments is not covered ({error})")

    def _checked(self, node: fx.Node, value: Any) -> Any:
        expected = node.meta.get("val")
        if (
            isinstance(value, Value)
            and isinstance(expected, Tensor)
            and value.shape != tuple(expected.shape)
        ):
            raise Gap(
                f"the rule gives shape {value.shape} where the model has {tuple(expected.shape)}"
            )
        return value

    def _static(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """An operator on parameters, buffers and constants only: run as it is, when asked for."""
        expected = node.meta.get("val")
        if not isinstance(expected, Tensor):
            return _StaticMany(node, args, kwargs)
        if node.target in _SAME and isinstance(args[0], Source):
            return args[0]
        return _computed(node.target, args, kwargs, expected)

    def _shape_only(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """zeros_like and its relatives: only the shape of the activation matters."""
        bare = pytree.tree_map(
            lambda a: torch.zeros(a.shape) if isinstance(a, Value) else a, (args, kwargs)
        )
        return self.build.constant(node.target(*bare[0], **bare[1]).to(torch.float64))  # type: ignore[operator]

    def _gap(self, node: fx.Node, reason: str) -> Any:
        """Note the gap and go on with a value of the right shape, so that later gaps are found
        too.
        """
        place = self._place(node)
        self.gaps[f"{place}: {reason}" if reason else str(place)] = None
        return _stand_in(node.name, node.meta.get("val"))

    def _refuse_gaps(self) -> None:
        if self.gaps:
            raise UnsupportedOperation(
                f"{type(self.model).__name__} uses {len(self.gaps)} operation(s) that paths do not"
                f" cover: {'; '.join(self.gaps)}. Replace them, or register a rule with"
                " secateurs.graph.lowers."
            )

    def _place(self, node: fx.Node) -> Place:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path, kind = stack[-1] if stack else ("", "")
        kind = kind if isinstance(kind, str) else kind.__name__
        module = path.removeprefix("model").removeprefix(".")
        return Place(module=module, kind=kind.rsplit(".", 1)[-1], operation=str(node.target))

    def _assemble(self, value: Value, output_name: str) -> Graph:
        """Keep what the output depends on; all inputs stay, so that callers feed what the model
        takes.
        """
        by_name = {node.name: node for node in self.build.nodes}
        needed: set[str] = set()
        stack = [value.name]
        while stack:
            name = stack.pop()
            if name not in needed:
                needed.add(name)
                stack.extend(by_name[name].inputs if name in by_name else ())
        nodes: tuple[Node, ...] = (*self.inputs, *(n for n in self.build.nodes if n.name in needed))
        read = {n for node in nodes for s in _sources(node) for n in s.names}
        return Graph(
            nodes=nodes,
            inputs=tuple(self.inputs),
            output=value.name,
            output_name=output_name,
            parameters={n: s for n, s in self.parameters.items() if n in read},
            buffers={n: s for n, s in self.buffers.items() if n in read},
            constants={n: t for n, t in self.build.constants.items() if n in read},
        )


class _StaticMany:
    """Several results of an operator on constants, picked by position."""

    def __init__(self, node: fx.Node, args: Any, kwargs: Any) -> None:
        self.node, self.args, self.kwargs = node, args, kwargs

    def __getitem__(self, index: int) -> Source:
        expected = self.node.meta["val"][index]
        target: Any = self.node.target
        return _computed(
            lambda *a, **k: target(*a, **k)[index],
            self.args,
            self.kwargs,
            expected,
            label=str(target),
        )


def _computed(target: Any, args: Any, kwargs: Any, expected: Tensor, label: str = "") -> Computed:
    schema = getattr(target, "_schema", None)
    changes = schema is not None and schema.is_mutable

    def function(call_args: Any, call_kwargs: Any) -> Tensor:
        if changes:  # never the model's own tensor
            call_args = [call_args[0].clone(), *call_args[1:]]
        result: Tensor = target(*call_args, **call_kwargs)
        return result

    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Source)]
    return Computed(
        function,
        list(args),
        _without_dtype(kwargs),
        label=label or str(target),
        shape=tuple(expected.shape),
        roles=_static_roles(target, leaves),
        floating=expected.is_floating_point(),
    )


def _without_dtype(kwargs: Any) -> dict[str, Any]:
    """Constants are computed in the dtype of the analysis, not in the model's."""
    return {
        k: v for k, v in kwargs.items() if not (isinstance(v, torch.dtype) and v.is_floating_point)
    }


def _static_roles(target: Any, sources: list[Source]) -> dict[str, Role]:
    """Which named tensors are still plain factors after this operator; cautious where unsure."""
    names = [name for source in sources for name in source.names]
    linear = target in _FACTOR_KEEPING and len(names) == len(set(names))
    roles: dict[str, Role] = {}
    for source in sources:
        for name, role in source.roles.items():
            roles[name] = "factor" if linear and role == "factor" else "other"
    return roles


def _stand_in(name: str, expected: Any) -> Any:
    if isinstance(expected, tuple | list):
        return Many(lambda i: _stand_in(name, expected[i]))
    if isinstance(expected, Tensor) and expected.is_floating_point():
        return Value(name, tuple(expected.shape))
    return Unknown()


def _functional(target: Any) -> Any:
    """The out-of-place operator of an in-place one; other targets as they are."""
    schema = getattr(target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return target
    packet = getattr(torch.ops.aten, schema.name.split("::")[1].removesuffix("_"), None)
    return getattr(packet, target._overloadname, target) if packet is not None else target


def _real(expected: Any) -> bool:
    tensors = [t for t in pytree.tree_leaves(expected) if isinstance(t, Tensor)]
    return not tensors or tensors[0].is_floating_point()


def _is_shape_only(target: Any) -> bool:
    return target in _SHAPE_ONLY


def _sources(node: Node) -> list[Source]:
    return [
        s for s in (getattr(node, "weight", None), getattr(node, "bias", None)) if s is not None
    ]


aten = torch.ops.aten
_SHAPE_ONLY = {
    *(
        aten.zeros_like.default,
        aten.ones_like.default,
        aten.full_like.default,
        aten.new_zeros.default,
    ),
    *(aten.new_ones.default, aten.new_full.default),
}
_SAME = {
    *(
        aten.detach.default,
        aten.detach_.default,
        aten.alias.default,
        aten.clone.default,
        aten.contiguous.default,
    ),
    *(aten.lift_fresh_copy.default, aten.lift_fresh.default),
}
_FACTOR_KEEPING = {
    *(
        aten.view.default,
        aten.reshape.default,
        aten.permute.default,
        aten.transpose.int,
        aten.t.default,
    ),
    *(
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.clone.default,
        aten.contiguous.default,
        aten.detach.default,
    ),
    *(
        aten.neg.default,
        aten.mul.Tensor,
        aten.alias.default,
        aten.flatten.using_ints,
        aten.slice.Tensor,
    ),
    *(
        aten.select.int,
        aten.cat.default,
        aten.stack.default,
        aten.flip.default,
        aten.lift_fresh_copy.default,
    ),
}
