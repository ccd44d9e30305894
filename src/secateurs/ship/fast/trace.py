"""A model as the operators it calls, in order, with its own call signature and its own structure of
outputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from secateurs.base.parameters import check_model, refuse_scripted, unworkable, without_values
from secateurs.errors import (
    ArgumentError,
    CaptureError,
    ParameterError,
    UnsupportedOperation,
)
from secateurs.graph import Example
from secateurs.graph.export import (
    TRACING,
    Call,
    Renamed,
    arguments_of,
    nodes_in,
    outputs_of,
    rename_in_place,
    without_stacks,
)
from secateurs.graph.plain import plain_program
from secateurs.graph.replay import fill_caches
from secateurs.graph.spot_check import SpotRun, answers_in_turn
from secateurs.graph.untouched import keeping, quietly

BATCH = 2  # traced with two samples, so that a dimension of one is never taken for the batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """Operators whose arguments refer to earlier results by fx.Nodes."""

    nodes: list[fx.Node]
    arguments: dict[str, tuple[Any, Any]]
    inputs: list[fx.Node]
    constants: dict[str, Tensor]
    outputs: list[Any]
    structure: Any  # of the outputs


def arguments(example: Example) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """How a model is called with this example.

    >>> arguments(torch.zeros(1, 3))[0][0].shape
    torch.Size([1, 3])
    """
    found = arguments_of(example, integers=True)
    if not any(found):
        raise CaptureError("the example is empty; give the tensors the model is called with.")
    return found


def random_call(
    args: tuple[Tensor, ...], kwargs: dict[str, Tensor], batch: int
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """The arguments of a call with this many random samples, the same every time."""
    draw = torch.Generator().manual_seed(batch)
    like = {name: _drawn(value, batch, draw) for name, value in kwargs.items()}
    return tuple(_drawn(value, batch, draw) for value in args), like


def _drawn(tensor: Tensor, batch: int, draw: torch.Generator) -> Tensor:
    """Normal numbers for floats; integers may be tokens, so the example's own are repeated."""
    if not tensor.is_floating_point():
        return tensor[:1].expand(batch, *tensor.shape[1:]).contiguous()
    drawn = torch.randn((batch, *tensor.shape[1:]), generator=draw)
    return drawn.to(dtype=tensor.dtype, device=tensor.device)


def check(model: nn.Module, *, gpu: bool = False) -> None:
    """Refuse models that the fast path cannot run: training mode, tensors without values, complex
    numbers, other devices.

    gpu: a model that lies on one GPU as a whole is accepted, too.
    """
    check_model(model)
    refuse_scripted(model)
    if model.training:
        raise ArgumentError(f"{type(model).__name__} is in training mode: call model.eval() first.")
    bad: list[str] = []
    devices = devices_of(model)
    gpu = gpu and len(devices) == 1 and next(iter(devices)).type == "cuda"
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if problem := without_values(tensor) or unworkable(tensor):
            bad.append(f"{name} {problem}")
        elif tensor.is_complex():
            bad.append(f"{name} is {tensor.dtype}, not real")
        elif tensor.device.type != "cpu" and not gpu:
            bad.append(
                f"{name} is on {tensor.device}; the fast path runs on the processor: model.cpu()"
            )
    if bad:
        raise ParameterError(f"{'; '.join(bad[:6])}.")


def devices_of(model: nn.Module) -> set[torch.device]:
    """The devices on which its parameters and buffers lie."""
    return {tensor.device for tensor in (*model.parameters(), *model.buffers())}


def trace(model: nn.Module, example: Example) -> Traced:
    """The operators that a model calls on two samples like the example's first; the model stays
    untouched.
    """
    args, kwargs = arguments(example)
    two = [t[:1].detach().expand(BATCH, *t.shape[1:]).clone() for t in (*args, *kwargs.values())]
    args, kwargs = (
        tuple(two[: len(args)]),
        dict(zip(kwargs, two[len(args) :], strict=True)),
    )
    fill_caches(model, args, kwargs)
    with keeping(model), quietly():
        program = _export(model, args, kwargs)
        program = plain_program(program, two, type(model).__name__)
    refuse_other(model, program, args, kwargs)
    renamed = rename_in_place(program.graph_module)
    if renamed is None:
        # Decomposing replaces writes through views by operators without them, if possible.
        with quietly():
            program = program.run_decompositions({})
        renamed = rename_in_place(program.graph_module)
    if renamed is None:
        raise UnsupportedOperation(f"{type(model).__name__} changes values in place through views.")
    inputs, constants = _placeholders(program)
    structure = program.call_spec.out_spec
    # Buffers that the model writes come first; the user's outputs are the last ones.
    outputs = renamed.outputs[len(renamed.outputs) - structure.num_leaves :]
    _refuse_memory(model, program, renamed, outputs)
    nodes = [node for node in renamed.order if node.op == "call_function"]
    return Traced(
        nodes=nodes,
        arguments=renamed.packed,
        inputs=inputs,
        constants=constants,
        outputs=outputs,
        structure=structure,
    )


def _refuse_memory(
    model: nn.Module, program: Any, renamed: Renamed, outputs: Sequence[Any]
) -> None:
    """Refuse outputs that depend on what an earlier call wrote, since a program keeps nothing."""
    signature = program.graph_signature
    buffers = {**signature.inputs_to_buffers, **signature.inputs_to_parameters}
    moved = {*signature.buffers_to_mutate.values()}
    written = {name for name, target in buffers.items() if target in moved}
    for node in program.graph_module.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        first = node.args[0] if node.args else None
        if schema is not None and schema.is_mutable and isinstance(first, fx.Node):
            written |= {first.name} & {*buffers}
    read = {
        before.name
        for output in outputs
        if isinstance(output, fx.Node)
        for node in renamed.needed(output)
        for before in nodes_in(renamed.packed.get(node.name, ()))
    }
    if kept := sorted(buffers[name] for name in written & read):
        raise UnsupportedOperation(
            f"{type(model).__name__} writes into {', '.join(kept[:4])} at every call, and its "
            "output depends on it. A program keeps nothing between calls: leave the writing out "
            "in evaluation."
        )


def refuse_other(
    model: nn.Module,
    program: Any,
    args: tuple[Tensor, ...],
    kwargs: dict[str, Tensor],
) -> None:
    """Refuse a program that does not compute what the model does when it is not traced, with and
    without gradients.
    """
    call = Call(*random_call(args, kwargs, BATCH))
    runs = [
        *(SpotRun(call=call, gradients=gradients) for gradients in (False, True)),
        SpotRun(call=call, gradients=False, inference=True),
    ]
    with torch.no_grad():
        given = program.module()(*call.args, **call.kwargs)
    ours = [t.double() for t in outputs_of(given).values()]
    for theirs in answers_in_turn(model, runs, None):
        if isinstance(theirs, Exception):
            continue  # it runs without gradients only
        apart = max(map(apart_by, theirs.values(), ours), default=0.0)
        # Both run the same kernels on the same numbers.
        if not apart <= 1e-3:
            raise CaptureError(
                f"the program traced from {type(model).__name__} does not compute what the model"
                f" computes when it is called, with gradients or without: on a random input they"
                f" differ by {apart:.3g} of the largest output. Let forward depend on neither the"
                " tracer nor torch.is_grad_enabled(), nor on what earlier calls have left."
            )


def apart_by(ours: Tensor, theirs: Tensor) -> float:
    """max |a − b| / max |a|; infinite if shapes differ, or which entries are finite."""
    if ours.shape != theirs.shape:
        return float("inf")
    if not ours.numel() or torch.equal(ours, theirs):
        return 0.0
    finite = ours.isfinite()
    if not torch.equal(finite, theirs.isfinite()):
        return float("inf")
    one, two = ours[finite], theirs[finite]
    scale = float(one.abs().max()) if one.numel() else 0.0
    gap = float((one - two).abs().max()) if one.numel() else 0.0
    return gap / scale if scale else float(gap > 0)


def _export(model: nn.Module, args: Sequence[Tensor], kwargs: Mapping[str, Tensor]) -> Any:
    """Export with a batch of any size if the model's code allows that, else of two."""
    auto = {0: torch.export.Dim.AUTO}
    dynamic: Any = dict.fromkeys(kwargs, auto) if kwargs else tuple(auto for _ in args)
    problem: Exception | None = None
    for shapes in (dynamic, None):
        try:
            with TRACING, torch.no_grad(), without_stacks():
                return torch.export.export(
                    model,
                    tuple(args),
                    dict(kwargs),
                    dynamic_shapes=shapes,
                    strict=False,
                )
        except Exception as error:  # the tracer raises errors of any kind
            problem = error
    # The tracer's messages run to pages, and begin with what is wrong.
    first = (str(problem).strip().splitlines() or [type(problem).__name__])[0][:300]
    raise CaptureError(
        f"{type(model).__name__} cannot be traced on inputs of shape "
        f"{[tuple(t.shape) for t in args]}: {first}"
    ) from problem


def _placeholders(program: Any) -> tuple[list[fx.Node], dict[str, Tensor]]:
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    inputs: list[fx.Node] = []
    constants: dict[str, Tensor] = {}
    for node in program.graph_module.graph.nodes:
        if node.op != "placeholder":
            continue
        spec = specs[node.name]
        if spec.kind is InputKind.USER_INPUT:
            inputs.append(node)
        elif spec.target in program.state_dict:
            constants[node.name] = program.state_dict[spec.target].detach()
        else:
            constants[node.name] = program.constants[spec.target]
    return inputs, constants


def plain(value: Any) -> Any:
    """Arguments with the tracer's symbolic sizes replaced by those it saw."""
    return pytree.tree_map(lambda v: _hint(v), value)


def _hint(value: Any) -> Any:
    return value.node.hint if isinstance(value, torch.SymInt) else value


def place(node: fx.Node) -> str:
    """Where an operator is called, such as `layer1.conv (Conv2d)`."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if not stack:
        return ""
    path, kind = stack[-1]
    name = kind.rsplit(".", 1)[-1] if isinstance(kind, str) else getattr(kind, "__name__", "")
    return f"{path or 'the model itself'} ({name})"
