"""Reads a model into a graph: example, export, reader, and a check of the result."""

import hashlib
from dataclasses import replace

from torch import nn

from secateurs.graph import lowering
from secateurs.graph.checking.programs import COMPARED, program_key, raw
from secateurs.graph.checking.remembered import REMEMBERED, own
from secateurs.graph.checking.replay import recorded, replay_key
from secateurs.graph.checking.spot_check import compare
from secateurs.graph.example import Call, Example, call_of, check_parameters
from secateurs.graph.export import export
from secateurs.graph.ir import Graph, tensors_of, unwrapped
from secateurs.graph.quantized import refuse_quantized
from secateurs.graph.reader import Reader
from secateurs.graph.untouched import keeping
from secateurs.parameters import check_model

__all__ = ["Example", "capture", "lowering"]


def capture(
    model: nn.Module,
    example: Example,
    *,
    output: str | int | None = None,
    opaque: bool = False,
) -> Graph:
    """The model as a graph of six primitives; the model and all it holds (its mode, gradients,
    buffers, attributes, containers) and the states of random numbers stay as they are.

    The graph is compared with the model itself on random inputs, alone and two at a time, with and
    without recording gradients, one call after the other; a difference is an error, so that a
    misread model never gives a number. Where the samples of a batch act on each other, the graph
    says so (`Graph.alone`). A model is compared once in each state of its attributes; what
    `forward` looks at outside of the model, and only where nobody traces it, is not seen to change.

    Nor is a program traced again: the model runs once without values, and where it asks of torch
    exactly what it asked before, the graph of then is returned. Whatever changes what `forward`
    does, an attribute, a hook, a global, an index computed from a weight, leads to a fresh trace.

    Args:
        model: any module, in evaluation mode where that matters (batch norm, dropout). What
            `torch.compile` and DataParallel wrap is unwrapped.
        example: an input of the right shape; see `Example`. Batch size does not matter.
        output: which output to analyse when the model returns several: a key, a field, a position,
            or a dotted path of these. By default `logits` or `out` if there is one, else the first
            tensor; `Graph.output_name` says which it was.
        opaque: read what no primitive describes (products of activations, attention, layer norms,
            token ids) as `Opaque` nodes instead of refusing it; for analyses of channels only.

    Raises:
        UnsupportedOperation: every operator without a rule, with the module that uses it.
        CaptureError: the model does not run on the example, has no such output, or its graph does
            not compute what it computes.
        ParameterError: lazy, meta, complex or integer parameters.
    """
    model = unwrapped(model)
    check_model(model)
    refuse_quantized(model)
    check_parameters(model)
    call = call_of(example, model, integers=opaque)
    with keeping(model) as held:
        done = recorded(model, call, output, opaque=opaque)
    known = REMEMBERED.graph(done, tensors_of(model))
    graph, program = known or _traced(model, call, output, opaque=opaque)
    key = f"{program} {_decided(graph)} {held}"
    seen = COMPARED.seen(model, key)
    if seen is None:
        seen = compare(model, call, graph)
        COMPARED.remember(model, key, seen)
    # Asked again: a model that changes itself as it runs was perhaps traced in another state.
    if not known and done == replay_key(model, call, output, opaque=opaque):
        REMEMBERED.remember(done, graph, program)
    return replace(graph, alone=seen.alone)


def _decided(graph: Graph) -> str:
    """The indices that a graph was read with: its program does not hold them."""
    digest = hashlib.sha256()
    for _, value in graph.decided:
        digest.update(raw(value))
    return digest.hexdigest() if graph.decided else ""


def _traced(
    model: nn.Module, call: Call, output: str | int | None, *, opaque: bool
) -> tuple[Graph, str]:
    """The graph of a fresh trace, and the key of its program."""
    exported = export(model, call)
    # The key comes first: reading resolves what is changed in place in the program itself.
    key = f"{opaque} {program_key(exported, model, call, output)}"
    graph = Reader(model, exported, output, opaque=opaque).graph()
    # Constants of the code are the user's own tensors up to here.
    return own(graph), key
