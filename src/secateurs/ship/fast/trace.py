"""A model as the operators it calls, in order, with its own way of being called and its own
structure of outputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from secateurs.errors import (
    ArgumentError,
    CaptureError,
    ParameterError,
    UnsupportedOperation,
)
from secateurs.graph import Example
from secateurs.graph.example import check_example
from secateurs.graph.renaming import rename_in_place
from secateurs.misfits import without_values
from secateurs.parameters import check_model

BATCH = 2  # traced with two samples, so that a dimension of one is never taken for the batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """Operators with arguments in which an fx.Node stands for an earlier result."""

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
    check_example(example)
    if isinstance(example, Mapping):
        found: tuple[tuple[Any, ...], dict[str, Any]] = ((), dict(example))
    else:
        found = ((example,) if isinstance(example, Tensor) else tuple(example), {})
    tensors = [*found[0], *found[1].values()]
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise CaptureError(
                f"the example holds a {type(tensor).__name__}; give tensors only."
            )
        if tensor.ndim == 0 or tensor.shape[0] == 0:
            raise CaptureError(
                f"an example of shape {tuple(tensor.shape)} has no sample; "
                "give a batch of at least one."
            )
    if not tensors:
        raise CaptureError(
            "the example is empty; give the tensors the model is called with."
        )
    return found


def check(model: nn.Module) -> None:
    """Refuse what no fast path can run: training mode, tensors without values, complex numbers,
    other devices.
    """
    check_model(model)
    if model.training:
        raise ArgumentError(
            f"{type(model).__name__} is in training mode: call model.eval() first."
        )
    bad = []
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if problem := without_values(tensor):
            bad.append(f"{name} {problem}")
        elif tensor.is_complex():
            bad.append(f"{name} is {tensor.dtype}, not real")
        elif tensor.device.type != "cpu":
            bad.append(
                f"{name} is on {tensor.device}; the fast path runs on the processor: model.cpu()"
            )
    if bad:
        raise ParameterError(f"{'; '.join(bad[:6])}.")


def trace(model: nn.Module, example: Example) -> Traced:
    """The operators a model calls on two samples like the example's first; the model stays
    untouched.
    """
    args, kwargs = arguments(example)
    two = [
        t[:1].detach().expand(BATCH, *t.shape[1:]).clone()
        for t in (*args, *kwargs.values())
    ]
    args, kwargs = (
        tuple(two[: len(args)]),
        dict(zip(kwargs, two[len(args) :], strict=True)),
    )
    program = _export(model, args, kwargs)
    renamed = rename_in_place(program.graph_module)
    if renamed is None:
        # Decomposing replaces writes through views by
        # operators without them, where it can.
        program = program.run_decompositions({})
        renamed = rename_in_place(program.graph_module)
    if renamed is None:
        raise UnsupportedOperation(
            f"{type(model).__name__} changes values in place through views."
        )
    inputs, constants = _placeholders(program)
    structure = program.call_spec.out_spec
    # Buffers that the model writes come first; the user's outputs are the last ones.
    outputs = renamed.outputs[len(renamed.outputs) - structure.num_leaves :]
    nodes = [node for node in renamed.order if node.op == "call_function"]
    return Traced(
        nodes=nodes,
        arguments=renamed.packed,
        inputs=inputs,
        constants=constants,
        outputs=outputs,
        structure=structure,
    )


def _export(
    model: nn.Module, args: Sequence[Tensor], kwargs: Mapping[str, Tensor]
) -> Any:
    """With a batch of any size where the model's code allows that, else of two."""
    auto = {0: torch.export.Dim.AUTO}
    dynamic: Any = (
        dict.fromkeys(kwargs, auto) if kwargs else tuple(auto for _ in args)
    )
    problem: Exception | None = None
    for shapes in (dynamic, None):
        try:
            # A dropout may draw as it is traced: the user's
            # random numbers stay where they were.
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                return torch.export.export(
                    model,
                    tuple(args),
                    dict(kwargs),
                    dynamic_shapes=shapes,
                    strict=False,
                )
        except Exception as error:  # the tracer raises what it likes
            problem = error
    # The tracer's messages run over pages, and begin with what is wrong.
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
    name = (
        kind.rsplit(".", 1)[-1]
        if isinstance(kind, str)
        else getattr(kind, "__name__", "")
    )
    return f"{path or 'the model itself'} ({name})"
