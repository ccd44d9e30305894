"""Reads a model into a graph: example, export, reader, and a check of the result."""

from torch import nn

from secateurs.graph import lowering
from secateurs.graph.checking.programs import CHECKED, program_key
from secateurs.graph.checking.remembered import REMEMBERED, own
from secateurs.graph.checking.replay import replay_key
from secateurs.graph.checking.spot_check import spot_check
from secateurs.graph.example import Call, Example, call_of, check_parameters
from secateurs.graph.export import export
from secateurs.graph.ir import Graph, unwrapped
from secateurs.graph.quantized import refuse_quantized
from secateurs.graph.reader import Reader
from secateurs.parameters import check_model

__all__ = ["Example", "capture", "lowering"]


def capture(
    model: nn.Module,
    example: Example,
    *,
    output: str | int | None = None,
    opaque: bool = False,
) -> Graph:
    """The model as a graph of six primitives; the model, its mode, gradients, buffers and the RNG
    stay untouched.

    The graph is compared with the model itself on a random input; a difference is an error, so that
    a misread model never gives a number. A program that was compared already in this process, call
    for call and literal for literal, is not compared again. Nor is it traced again: the model runs
    once without values, and where it asks of torch exactly what it asked before, the graph of then
    is returned. Whatever changes what `forward` does, an attribute, a hook, a global, leads to a
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
    done = replay_key(model, call, output, opaque=opaque)
    known = REMEMBERED.graph(done)
    graph, program = known or _traced(model, call, output, opaque=opaque)
    if not CHECKED.covers(program, model):
        unseen = spot_check(model, call, graph)
        if unseen is not None:
            CHECKED.remember(program, unseen)
    # Asked again: a model that changes itself as it runs was perhaps traced in another state.
    if not known and done == replay_key(model, call, output, opaque=opaque):
        REMEMBERED.remember(done, graph, program)
    return graph


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
