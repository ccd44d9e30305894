"""What `torch.export` is given and what it returns: calls and parameters checked, the model traced,
in-place operators renamed, and everything that no input reaches computed at once.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from secateurs.base.parameters import check_model, not_real
from secateurs.errors import CaptureError, ParameterError, UnsupportedOperation, first_line
from secateurs.graph.ir import kind_of
from secateurs.graph.operators import is_floating, runnable
from secateurs.graph.plain import inline_regions, plain_program
from secateurs.graph.primitives import Computed, Role, Source
from secateurs.graph.untouched import keeping, quietly, untouched

# The arguments a model is called with while it is read, and checks of them and of its parameters.

Example: TypeAlias = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
"""What the model is called with: a tensor, a sequence of positional tensors, or keyword tensors.
The first dimension of each is the batch; only the first sample's shape matters, never the values.
"""


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one call of the model, each a batch of one."""

    args: tuple[Tensor, ...]
    kwargs: dict[str, Tensor] = field(default_factory=dict)
    whole: "Call | None" = field(default=None, compare=False, repr=False)
    """The example as it was given, for messages."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All arguments in order."""
        return (*self.args, *self.kwargs.values())

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Their shapes."""
        return [tuple(t.shape) for t in self.tensors]

    def replaced(self, tensors: Sequence[Tensor]) -> "Call":
        """The same call with other tensors."""
        positional = len(self.args)
        named = dict(zip(self.kwargs, tensors[positional:], strict=True))
        return Call(tuple(tensors[:positional]), named)


def call_of(example: Example, model: nn.Module, *, integers: bool = False) -> Call:
    """One sample of the example, in the model's own dtype and on its device.

    integers: whether tensors of integers and flags are taken, too (token ids, attention masks).
    """
    check_model(model)
    args, named = arguments_of(example, integers=integers)
    # Device and dtype of the model: an example on the CPU serves a model on any device.
    like = next(model.parameters(), None)

    def first(t: Tensor) -> Tensor:
        # Slicing, not indexing, keeps the batch dimension. One sample: rules are
        # written for a batch of one, and `vmap` adds the rest.
        if like is None:
            return t[:1].detach()
        # Ids stay integers: in the model's dtype they would not be an index.
        moved = like if t.is_floating_point() else like.device
        return t[:1].detach().to(moved)

    whole = Call(args, named)
    return Call(tuple(map(first, args)), {k: first(t) for k, t in named.items()}, whole)


def arguments_of(
    example: Example, *, integers: bool
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """The positional and the keyword arguments of an example, checked."""
    _check_example(example)
    named = dict(example) if isinstance(example, Mapping) else {}
    args: tuple[Tensor, ...] = ()
    if not isinstance(example, Mapping):
        args = (example,) if isinstance(example, Tensor) else tuple(example)
    for tensor in (*args, *named.values()):
        _check_tensor(tensor, integers=integers)
    return args, named


def check_parameters(model: nn.Module) -> None:
    """Refuse parameters that have no real floating-point values."""
    check_model(model)
    bad = [
        f"{name!r} {problem}"
        for name, parameter in model.named_parameters()
        if (problem := not_real(parameter))
    ]
    if bad:
        raise ParameterError(f"{'; '.join(bad[:6])}.")


def _check_example(example: object) -> None:
    """Refuse what is not an example; a module here is most likely the model itself."""
    if isinstance(example, nn.Module):
        raise CaptureError(
            f"the example is a {type(example).__name__}: the model comes first, then an example of"
            " its input."
        )
    if not isinstance(example, Tensor | Mapping | tuple | list):
        raise CaptureError(
            f"the example is a {type(example).__name__}: give a tensor, a tuple of tensors or a"
            " dict of them, as the model is called."
        )


def _check_tensor(tensor: object, *, integers: bool) -> None:
    """Refuse what is no tensor of an example, or has no first sample."""
    if not isinstance(tensor, Tensor):
        raise CaptureError(f"the example holds a {type(tensor).__name__}; give tensors only.")
    if tensor.ndim == 0:
        raise CaptureError(
            "the example holds a single number, a tensor of shape (), and the first dimension of"
            " every tensor is taken for the batch: give the number once for each sample,"
            f" torch.tensor([{tensor}]) for one."
        )
    if tensor.shape[0] == 0:
        raise CaptureError(
            f"an example of shape {tuple(tensor.shape)} has no sample; give a batch of at least"
            " one."
        )
    if not integers and not tensor.is_floating_point():
        raise UnsupportedOperation(
            f"the example is {tensor.dtype}; paths start at real-valued inputs. Analyse what"
            " follows it."
        )


# All tensors of what a model returns, by their dotted paths.


def outputs_of(result: Any) -> dict[str, Tensor]:
    """The tensors a model returned, by their dotted paths."""
    return dict(flatten(result, ""))


def flatten(out: Any, path: str) -> Iterator[tuple[str, Tensor]]:
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
        yield from flatten(value, f"{path}.{key}" if path else str(key))


# Why a model cannot be traced: the reasons distinguished, each with a way out.


def explain(model: nn.Module, call: Call, error: Exception) -> None:
    """Raise a clearer error when the model does not even run on the example."""
    own = _failure(model, call)
    if own is None:
        return
    whole = None if _needs_a_batch(model) else call.whole
    if whole is not None and _failure(model, whole) is None:
        raise CaptureError(
            f"{kind_of(model)} runs on the example, but not on its first sample alone, of shape"
            f" {call.shapes}: {first_line(own)}. The first dimension of every tensor is taken for"
            " the batch: where it counts nodes or edges of a graph, or is anything else, give the"
            " example one more dimension in front, and a module around the model that drops it."
        ) from error
    raise CaptureError(
        f"{kind_of(model)} does not run on an example of shape {call.shapes}:"
        f" {first_line(own)}. {_advice(model)}"
    ) from error


def _failure(model: nn.Module, call: Call) -> Exception | None:
    """What this call raises, if anything: the model is run only for its error message."""
    try:
        with torch.no_grad(), untouched(model):
            model(*call.args, **call.kwargs)
    except Exception as own:
        return own
    return None


# What the tracer raises where a Python branch or a shape needs a value: names of error classes,
# because they live in private modules that move between releases.
_DATA_DEPENDENT = (
    "GuardOnDataDependent",
    "DataDependent",
    "UserError",
    "DynamicOutputShape",
)


def refusal(model: nn.Module, error: Exception) -> UnsupportedOperation:
    """The error for a model that cannot be traced: data-dependent control flow, or anything else
    that stops the tracer.
    """
    name, reason = kind_of(model), first_line(error)
    kinds = [kind.__name__ for kind in type(error).__mro__]
    # Names of all base classes are compared.
    asks_for_data = any(word in kind for word in _DATA_DEPENDENT for kind in kinds)
    if asks_for_data or "data-dependent" in str(error).lower():
        return UnsupportedOperation(
            f"{name} cannot be traced: its control flow or its shapes depend on the data"
            f" ({reason}). Rewrite the branch without the data, or analyse the part before it."
            f"{cache_advice(model)}"
        )
    return UnsupportedOperation(
        f"{name} runs, but torch.export of torch {torch.__version__} cannot trace it"
        f" ({type(error).__name__}: {reason}). If the model's code is plain, this is a limit of"
        " the tracer: try another version of torch, or analyse the module's parts."
        f"{cache_advice(model)}"
    )


def cache_advice(model: nn.Module) -> str:
    """What to do about a cache of keys and values, which no tracer follows; nothing without one."""
    used = any(
        getattr(getattr(module, "config", None), "use_cache", False) for module in model.modules()
    )
    return (
        " It keeps a cache of keys and values beside its outputs: set"
        " model.config.use_cache = False."
        if used
        else ""
    )


def _needs_a_batch(model: nn.Module) -> bool:
    """Whether a batch norm in training mode refuses the one sample that is traced."""
    return any(isinstance(m, _BatchNorm) and m.training for m in model.modules())


def _advice(model: nn.Module) -> str:
    """What to do."""
    if _needs_a_batch(model):
        return "It is in training mode: call model.eval(), or give an input of the right shape."
    return "Give an input of the right shape."


@dataclass(slots=True)
class ExportedModel:
    """An exported program, and the dotted paths of the model's outputs."""

    program: Any
    leaves: list[str]


TRACING = threading.RLock()
"""torch.export patches torch itself while it traces, so only one thread may."""


def export(model: nn.Module, call: Call) -> ExportedModel:
    """The program of one call; the model and all it holds stay as they are."""
    leaves: list[str] = []
    try:
        with TRACING, torch.no_grad(), keeping(model), quietly():
            tracee = _tracee(model, leaves)
            # Not strict: the strict tracer reads bytecode and refuses much plain
            # Python.
            with without_stacks():
                program = torch.export.export(tracee, call.args, call.kwargs, strict=False)
            program = plain_program(program, call.tensors, kind_of(model))
    except UnsupportedOperation:
        raise
    except Exception as error:
        explain(model, call, error)
        raise refusal(model, error) from error
    return ExportedModel(program, leaves)


@contextmanager
def without_stacks() -> Iterator[None]:
    """No line of the user's code is kept beside each operator: a fifth of the time of a trace.

    Places in messages come from the modules, which are kept. Older versions of torch lack this
    switch.
    """
    from torch.fx import config

    switch = "do_not_emit_stack_traces"
    before = getattr(config, switch, None)
    if before is None:
        yield
        return
    setattr(config, switch, True)
    try:
        yield
    finally:
        setattr(config, switch, before)


def _tracee(model: nn.Module, leaves: list[str]) -> nn.Module:
    """The model with its outputs flattened to a tuple of tensors, whatever structure it returns.

    `leaves` is a closure's, not an attribute: torch 2.6 counts every attribute of the module it
    exports.
    """

    class Tracee(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.training = model.training

        def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
            found = list(flatten(self.model(*args, **kwargs), ""))
            # In place, since the caller holds this list; whole, since the tracer may
            # run the forward pass more than once.
            leaves[:] = [name for name, _ in found]
            return tuple(tensor for _, tensor in found)

    return Tracee()


# Which operators change a value in place, and which may return a view of an argument.

aten = torch.ops.aten
# Operators that return their first argument itself in evaluation mode, or where the dtype is the
# same already, though their schemas do not say so.
_DROPOUTS = {
    aten.dropout.default,
    aten.feature_dropout.default,
    aten.alpha_dropout.default,
    aten.feature_alpha_dropout.default,
}
# Another name for the whole of their argument: same memory, shape and values.
_NAMES = {aten.detach.default, aten.alias.default}
# Operators that may return a view of an argument without saying so.
_SILENT_ALIASES = {
    *_DROPOUTS,
    aten.type_as.default,
    aten.einsum.default,
    aten._unsafe_view.default,
    aten.broadcast_tensors.default,
    aten.atleast_1d.default,
    aten.atleast_2d.default,
    aten.atleast_3d.default,
    aten.meshgrid.default,
    aten.meshgrid.indexing,
    aten.cartesian_prod.default,
    aten.unsafe_chunk.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
    aten._reshape_alias.default,
    aten.pin_memory.default,
    aten.to_dense.default,
    aten.rrelu.default,
}


def skip_identities(module: fx.GraphModule) -> None:
    """Let the readers of an eval-mode dropout read its argument: it is the same memory."""
    _skip(module, _is_identity)


def skip_names(module: fx.GraphModule) -> None:
    """Let the readers of a detached value read the value itself: it is the same memory."""
    _skip(module, lambda node: node.target in _NAMES)


def _skip(module: fx.GraphModule, skipped: Callable[[fx.Node], bool]) -> None:
    for inner in module.modules():
        if isinstance(inner, fx.GraphModule):
            for node in list(inner.graph.nodes):
                if skipped(node):
                    node.replace_all_uses_with(node.args[0])
                    inner.graph.erase_node(node)


def _is_identity(node: fx.Node) -> bool:
    """A dropout that drops nothing: identity(x), and a change of it in place is a change of x."""
    # Only an explicit False: anything else may drop entries.
    return node.target in _DROPOUTS and node.args[2] is False


def hidden_aliases(module: fx.GraphModule) -> list[str]:
    """Operators left in the graph that may return their argument itself without saying so."""
    inner = (m for m in module.modules() if isinstance(m, fx.GraphModule))
    nodes = (node for graph_module in inner for node in graph_module.graph.nodes)
    return sorted({str(node.target) for node in nodes if node.target in _SILENT_ALIASES})


def changed_value(node: fx.Node, packed: Any) -> fx.Node | None:
    """The value an operator changes in place."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return None
    target = packed[0][0]
    return target if isinstance(target, fx.Node) else None


def aliased_value(node: fx.Node, packed: Any) -> fx.Node | None:
    """The value an operator may return a view of."""
    if node.op != "call_function":
        return None
    # The first tensor is the one that views and in-place operators refer to.
    first = next(iter(nodes_in(packed)), None)
    schema = getattr(node.target, "_schema", None)
    # Getitem of a split, an einsum.
    if schema is None or node.target in _SILENT_ALIASES:
        return first
    may_alias = any(r.alias_info is not None for r in schema.returns)
    return first if may_alias else None


def nodes_in(packed: Any) -> list[fx.Node]:
    """The operators among packed arguments."""
    found: list[fx.Node] = []
    fx.node.map_aggregate(packed, lambda a: found.append(a) if isinstance(a, fx.Node) else None)
    return found


# In-place operators as new values: after `y = x.add_(z)`, whoever reads `x` later reads `y`.
#
# That is exact as long as no other name for the same memory is read afterwards. Where one is,
# `None` is returned and the tracer's own functionalisation (slower) has to be used.


@dataclass(slots=True)
class Renamed:
    """The operators of a graph, inlined, with arguments that respect in-place changes."""

    order: list[fx.Node]
    packed: dict[str, tuple[Any, Any]]
    outputs: list[Any]

    def arguments(self, node: fx.Node) -> tuple[Any, Any]:
        """The arguments after renaming."""
        return self.packed[node.name]

    def needed(self, result: Any) -> Iterator[fx.Node]:
        """The operators the result depends on, in order."""
        wanted: set[str] = set()
        stack = [result.name]
        while stack:
            name = stack.pop()
            if name not in wanted:
                wanted.add(name)
                stack.extend(node.name for node in nodes_in(self.packed.get(name, ())))
        return (node for node in self.order if node.name in wanted)


def resolve_in_place(program: ExportedProgram, model: str) -> tuple[ExportedProgram, Renamed]:
    """The program with its in-place operators resolved.

    Renaming is tried first, because the tracer's own functionalisation is slower and trusts the
    operators' schemas, some of which hide an alias.
    """
    skip_identities(program.graph_module)
    renamed = rename_in_place(program.graph_module)
    if renamed is None:
        # A change through a second name of the whole value (an embedding that rescales itself
        # detaches its table first) is a change of the value, and renaming can follow it.
        skip_names(program.graph_module)
        renamed = rename_in_place(program.graph_module)
    if renamed is not None:
        return program, renamed
    hidden = hidden_aliases(program.graph_module)
    if hidden:
        raise UnsupportedOperation(
            f"{model} changes values in place, and {', '.join(hidden)} may"
            " return its input itself, so which value is read where is unknown. Write the"
            " change out of place: y = f(x) instead of f_(x)."
        )
    functional = _functional(program, model)
    renamed = rename_in_place(functional.graph_module)
    if renamed is None:
        raise UnsupportedOperation(f"{model} changes values in place through views.")
    return functional, renamed


def _functional(program: ExportedProgram, model: str) -> ExportedProgram:
    try:
        with quietly():
            functional: ExportedProgram = program.run_decompositions({})
    # Tracers of some versions refuse changed parameters, with internal errors.
    except (AssertionError, RuntimeError) as error:
        raise UnsupportedOperation(
            f"{model} changes values in place in a way that torch {torch.__version__} cannot"
            " write out of place. Write y = f(x) instead of f_(x), or try another torch."
        ) from error
    return functional


def rename_in_place(module: fx.GraphModule) -> Renamed | None:
    """Resolve in-place operators by renaming; None where views of a changed value are read
    afterwards.
    """
    order, packed, outputs = inline_regions(module, {})
    current: dict[str, fx.Node] = {}
    memory: dict[str, str] = {}
    stale: set[str] = set()
    for node in order:
        args = fx.node.map_aggregate(
            packed[node.name], lambda a: current.get(getattr(a, "name", ""), a)
        )
        # Another name of changed memory is read: renaming would hand it the old value.
        if any(read.name in stale for read in nodes_in(args)):
            return None
        packed[node.name] = args
        target = changed_value(node, args)
        if target is not None:
            # Every other name of the same memory shows the change as well.
            stale |= {name for name, root in memory.items() if root == _root(memory, target)} - {
                target.name
            }
            stale |= {_root(memory, target)} - {target.name}
            _redirect(current, target, node)
        source = target or aliased_value(node, args)
        memory[node.name] = _root(memory, source) if source is not None else node.name
        # The result of the change itself is up to date.
        stale.discard(node.name)
    final = [current.get(getattr(o, "name", ""), o) for o in outputs]
    return (
        None
        if any(getattr(o, "name", "") in stale for o in final)
        else Renamed(order, packed, final)
    )


def _redirect(current: dict[str, fx.Node], old: fx.Node, new: fx.Node) -> None:
    # Chains: what was renamed before to the old value now means the new one.
    for name, node in list(current.items()):
        if node.name == old.name:
            current[name] = new
    current[old.name] = new


def _root(memory: dict[str, str], node: fx.Node) -> str:
    return memory.get(node.name, node.name)


# Operators on parameters, buffers and constants only: kept as sources, computed when asked for.

SAME = {
    aten.detach.default,
    aten.detach_.default,
    aten.alias.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.lift_fresh_copy.default,
    aten.lift_fresh.default,
}
FACTOR_KEEPING = {
    aten.view.default,
    aten.reshape.default,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.clone.default,
    aten.contiguous.default,
    aten.detach.default,
    aten.neg.default,
    aten.mul.Tensor,
    aten.alias.default,
    aten.flatten.using_ints,
    aten.slice.Tensor,
    aten.select.int,
    aten.cat.default,
    aten.stack.default,
    aten.flip.default,
    aten.lift_fresh_copy.default,
}


class StaticMany:
    """Several results of an operator on constants, picked by position."""

    def __init__(self, node: fx.Node, args: Any, kwargs: Any) -> None:
        self.node, self.args, self.kwargs = node, args, kwargs

    def __getitem__(self, index: int) -> Source:
        return computed_source(self.node, self.args, self.kwargs, index)


def computed_source(node: fx.Node, args: Any, kwargs: Any, index: int | None = None) -> Computed:
    """The operator's result (or one of its results) as a source."""
    target: Any = runnable(node.target, node)
    expected = node.meta["val"] if index is None else node.meta["val"][index]
    dtypes = [a for a in (*args, *kwargs.values()) if _floating_dtype(a)]
    narrow = next((d for d in dtypes if _narrows(node, d)), None)
    run = _runner(target, index, narrow, floating=expected.is_floating_point())
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Source)]
    return Computed(
        run,
        list(args),
        dict(kwargs),
        # The operator's own name: two graphs are compared by these texts.
        label=f"{node.target}{'' if index is None else [index]}",
        shape=tuple(expected.shape),
        roles=_static_roles(node.target, leaves),
        floating=expected.is_floating_point(),
    )


def _runner(
    target: Any, index: int | None, narrow: torch.dtype | None, *, floating: bool
) -> Callable[[Any, Any], Tensor]:
    """The call itself, in float64 throughout, except for roundings that the model asks for."""
    schema = getattr(target, "_schema", None)
    changes = schema is not None and schema.is_mutable

    def function(call_args: Any, call_kwargs: Any) -> Tensor:
        # Made from no floating tensor: in the model a float32, here a constant among float64.
        made = floating and not any(map(is_floating, pytree.tree_leaves(call_args)))
        if floating:  # 1/3 of integers would be a float32
            call_args = _without_integers(call_args)
        # Constants are computed in the dtype of the analysis, not in the one the code names.
        dtype = next((a.dtype for a in call_args if is_floating(a)), torch.float64)
        call_args = [dtype if _floating_dtype(a) else a for a in _of_one_dtype(call_args)]
        call_kwargs = {k: dtype if _floating_dtype(v) else v for k, v in call_kwargs.items()}
        # An in-place operator on parameters would write into the user's model.
        if changes:  # never the model's own tensor
            call_args = [call_args[0].clone(), *call_args[1:]]
        result = target(*call_args, **call_kwargs)
        value: Tensor = result if index is None else result[index]
        value = value.double() if made else value
        return value if narrow is None else value.to(narrow).to(value.dtype)

    return function


def _without_integers(call_args: Any) -> Any:
    """Integer tensors as float64 where no floating tensor sets the precision."""
    tensors = [a for a in call_args if isinstance(a, Tensor)]
    if not tensors or any(map(is_floating, tensors)):
        return list(call_args)
    return [a.double() if isinstance(a, Tensor) else a for a in call_args]


def _of_one_dtype(call_args: Any) -> Any:
    """Constants made in the code are float64: beside them the model's tensors become so, too."""
    found = {leaf.dtype for leaf in pytree.tree_leaves(call_args) if is_floating(leaf)}
    if len(found) < 2 or torch.float64 not in found:
        return call_args
    return pytree.tree_map(lambda a: a.double() if is_floating(a) else a, call_args)


def _floating_dtype(value: Any) -> bool:
    return isinstance(value, torch.dtype) and value.is_floating_point


def _narrows(node: fx.Node, dtype: torch.dtype) -> bool:
    """Whether this conversion loses digits of what enters."""
    values = [n.meta.get("val") for n in node.all_input_nodes]
    before = [v.dtype for v in values if isinstance(v, Tensor) and v.is_floating_point()]
    return any(torch.finfo(dtype).eps > torch.finfo(b).eps for b in before)


def _static_roles(target: Any, sources: list[Source]) -> dict[str, Role]:
    """Which named tensors are still plain factors after this operator; cautious where unsure."""
    names = [name for source in sources for name in source.names]
    # A name that enters twice (w·w, w beside w) breaks the rule "one entry of one
    # tensor".
    linear = target in FACTOR_KEEPING and len(names) == len(set(names))
    roles: dict[str, Role] = {}
    for source in sources:
        for name, role in source.roles.items():
            roles[name] = "factor" if linear and role == "factor" else "other"
    return roles
