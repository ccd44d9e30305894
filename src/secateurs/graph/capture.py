"""Reads a model into a graph: example, export, reader, and a check of the result."""

from torch import nn

from secateurs.graph import lowering
from secateurs.graph.checking.programs import CHECKED, program_key
from secateurs.graph.checking.spot_check import spot_check
from secateurs.graph.example import Example, call_of, check_parameters
from secateurs.graph.export import export
from secateurs.graph.ir import Graph, unwrapped
from secateurs.graph.quantized import refuse_quantized
from secateurs.graph.reader import Reader
from secateurs.parameters import check_model

__all__ = ["Example", "capture", "lowering"]


def capture(
    model: nn.Module, example: Example, *, output: str | int | None = None
) -> Graph:
    """The model as a graph of six primitives; the model, its mode, gradients, buffers and the RNG
    stay untouched.

    The graph is compared with the model itself on a random input; a difference is an error, so that
    a misread model never gives a number. A program that was compared already in this process, call
    for call and literal for literal, is not compared again.

    Args:
        model: any module, in evaluation mode where that matters (batch norm, dropout). What
            `torch.compile` and DataParallel wrap is unwrapped.
        example: an input of the right shape; see `Example`. Batch size does not matter.
        output: which output to analyse when the model returns several: a key, a field, a position,
            or a dotted path of these. By default `logits` or `out` if there is one, else the first
            tensor; `Graph.output_name` says which it was.

    Raises:
        UnsupportedOperation: every operator without a rule, with the module that uses it.
        CaptureError: the model does not run on the example, has no such output, or its graph does
            not compute what it computes.
        ParameterError: lazy, meta, complex or integer parameters.
    """
    model = unwrapped(model)
    check_model(model)
    # Before tracing, whose own message would name packed operators and not the layer.
    refuse_quantized(model)
    check_parameters(model)
    call = call_of(example, model)
    exported = export(model, call)
    # Of the program, not of the model: weights may differ, the reading cannot.
    key = program_key(exported, model, call, output)
    graph = Reader(model, exported, output).graph()
    if key not in CHECKED and spot_check(model, call, graph):
        CHECKED.remember(key)
    return graph
