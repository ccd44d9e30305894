"""Reads a model into a graph: example, export, reader, and a check of the result."""

import hashlib
from dataclasses import replace

from torch import nn

from secateurs.base.parameters import check_model, refuse_scripted, unwrap
from secateurs.errors import UnsupportedOperation
from secateurs.graph import lowering
from secateurs.graph.export import Call, Example, call_of, check_parameters, export
from secateurs.graph.ir import Graph, kind_of, tensors_of
from secateurs.graph.reading import ProgramReader
from secateurs.graph.replay import (
    COMPARED,
    REMEMBERED,
    fill_caches,
    own_copy,
    program_key,
    raw,
    recorded_key,
    replay_key,
)
from secateurs.graph.spot_check import compare
from secateurs.graph.untouched import keeping

__all__ = ["Example", "capture", "lowering"]


def capture(
    model: nn.Module,
    example: Example,
    *,
    output: str | int | None = None,
    opaque: bool = False,
    ending: bool = False,
) -> Graph:
    """The model as a graph of six primitives; the model and all it holds (its mode, gradients,
    buffers, attributes, containers) and the states of random numbers stay as they are.

    The graph is compared with the model itself on random inputs, alone and two at a time, with and
    without recording gradients, one call after the other; a difference is an error, so that a
    misread model never gives a number. Where the samples of a batch act on each other, the graph
    says so (`Graph.alone`). A model is compared once in each state of its attributes; changes in
    what `forward` reads outside the model, and only when it is not traced, are not noticed.

    Nor is a program traced twice: the model runs once without values, and if its calls to torch are
    exactly those of an earlier trace, the graph of that trace is returned. Whatever changes what
    `forward` does, an attribute, a hook, a global, an index computed from a weight, leads to a
    fresh trace.

    Args:
        model: any module, in evaluation mode where that matters (batch norm, dropout). What
            `torch.compile` and DataParallel wrap is unwrapped.
        example: an input of the right shape; see `Example`. Batch size does not matter.
        output: which output to analyse when the model returns several: a key, a field, a position,
            or a dotted path of these. By default `logits` or `out` if there is one, else the first
            tensor; `Graph.output_name` says which it was.
        opaque: read what no primitive describes (products of activations, attention, layer norms,
            token ids) as `Opaque` nodes instead of refusing it; for analyses of channels only.
        ending: let a softmax, log-softmax, sigmoid or tanh come last: the graph ends in front of
            it, and `Graph.ending` is that map. A hardswish may be anywhere, as an `Opaque` node.
            For callers that carry bounds through both.

    Raises:
        UnsupportedOperation: every operator without a rule, with the module that uses it.
        CaptureError: the model does not run on the example, has no such output, or its graph does
            not compute what it computes.
        ParameterError: lazy, meta, complex or integer parameters.
    """
    model = unwrap(model)
    check_model(model)
    refuse_scripted(model)
    _refuse_quantized(model)
    check_parameters(model)
    call = call_of(example, model, integers=opaque)
    covered = "all" if opaque else "last" if ending else "primitives"
    fill_caches(model, call.args, call.kwargs)
    with keeping(model) as held:
        done = recorded_key(model, call, output, covered=covered)
    known = REMEMBERED.graph(done, tensors_of(model))
    graph, program = known or _trace(model, call, output, covered)
    key = f"{program} {_decided_indices(graph)} {held}"
    seen = COMPARED.seen(model, key)
    if seen is None:
        seen = compare(model, call, graph)
        COMPARED.remember(model, key, seen)
    # Computed again: a model that changes itself as it runs was perhaps traced in another state.
    if not known and done == replay_key(model, call, output, covered=covered):
        REMEMBERED.remember(done, graph, program)
    graph = replace(graph, alone=seen.alone)
    # Only now: the model was compared with all of its graph.
    return graph.without_ending() if covered == "last" else graph


# Layers that `torch.ao.quantization` has replaced keep their weights as integers, and round their
# inputs as they run, by a step taken from the largest value of the whole batch: the output for one
# input depends on the others and is not piecewise linear, so no graph computes it.

_ROOMS = (
    "torch.ao.nn.quantized",
    "torch.nn.quantized",
    "torch.ao.nn.intrinsic.quant",
)


def _refuse_quantized(model: nn.Module) -> None:
    """Raise if the model has quantised layers; the message says what can be done instead."""
    names = quantized_layers(model)
    if names:
        shown = ", ".join(repr(name) for name in names[:4])
        raise UnsupportedOperation(
            f"{kind_of(model)} has {len(names)} quantised layer(s): {shown}. They"
            " round their inputs as they run, by a step taken from the whole batch, which no graph"
            " of real numbers does. Use secateurs.graph.dequantized(model) for what their weights"
            " changed, or sc.proof.statistical(dense, quantized, data=inputs) for what the model"
            " itself does on inputs."
        )


def quantized_layers(model: nn.Module) -> list[str]:
    """The names of the layers that compute on integers.

    >>> quantized_layers(nn.Sequential(nn.Linear(2, 2)))
    []
    """
    return [name for name, m in model.named_modules() if works_on_integers(m)]


def works_on_integers(module: nn.Module) -> bool:
    """Whether this layer works on integers, judged by the module that defines its class."""
    kinds = type(module).__mro__
    # Packed parameters are the inside of a layer that is listed already.
    packed = type(module).__name__.endswith("PackedParams")
    return not packed and any(kind.__module__.startswith(_ROOMS) for kind in kinds)


def _decided_indices(graph: Graph) -> str:
    """The indices that a graph was read with: its program does not hold them."""
    digest = hashlib.sha256()
    for _, value in graph.decided:
        digest.update(raw(value))
    return digest.hexdigest() if graph.decided else ""


def _trace(
    model: nn.Module, call: Call, output: str | int | None, covered: str
) -> tuple[Graph, str]:
    """The graph of a fresh trace, and the key of its program."""
    exported = export(model, call)
    # The key comes first: reading resolves what is changed in place in the program itself.
    key = f"{covered} {program_key(exported, model, call, output)}"
    reader = ProgramReader(
        model, exported, output, opaque=covered == "all", ending=covered == "last"
    )
    graph = reader.graph()
    # Up to here, constants of the code are the user's own tensors.
    return own_copy(graph), key
