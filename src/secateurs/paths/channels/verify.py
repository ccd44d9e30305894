"""Rewriting a model and checking that its function stayed; what went wrong is taken back."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn

from secateurs.errors import TheoryError
from secateurs.graph import Example, Graph, evaluate
from secateurs.graph.checking.answers import answers
from secateurs.graph.example import Call, call_of
from secateurs.graph.wrapper import kind_of
from secateurs.parameters import aliases

_FEW, _MANY, _LARGE = 2, 32, 1_000_000
"""Random inputs that are compared: many where they are cheap, since a neuron that is off on all of
them hides its change. Models of so many numbers get few.
"""


@contextmanager
def unchanged(
    model: nn.Module, x: Example | Graph, graph: Graph, name: str
) -> Iterator[None]:
    """Compare all outputs before and after, in float64 on random inputs; on a difference put every
    parameter and buffer back and raise.
    """
    calls = _calls(model, x, graph)
    # Clones, not references: the rewriting is in place.
    saved = {key: tensor.clone() for key, tensor in _tensors(model).items()}
    before = _answers(model, graph, calls)
    try:
        yield
        _compare(model, before, _answers(model, graph, calls), name)
    # An interrupt in the middle would leave a half-scaled model, so it is taken back
    # too.
    except BaseException:
        for key, tensor in _tensors(model).items():
            tensor.copy_(saved[key])
        raise


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor under each of its names: the first name of a tie need not stay the first."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def _calls(model: nn.Module, x: Example | Graph, graph: Graph) -> list[Call]:
    """Random inputs in float64; of a graph given, the positions of its inputs."""
    # The same inputs before and after, whatever the global generator does.
    generator = torch.Generator().manual_seed(0)
    samples = _FEW if sum(p.numel() for p in model.parameters()) > _LARGE else _MANY
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    like = (
        Call(tuple(torch.zeros(node.shape) for node in graph.inputs))
        if isinstance(x, Graph)
        else call_of(x, model)
    )

    def drawn(t: Tensor) -> Tensor:
        return torch.randn(t.shape, generator=generator, dtype=torch.float64).to(
            device
        )

    return [like.replaced([drawn(t) for t in like.tensors]) for _ in range(samples)]


@torch.no_grad()
def _answers(
    model: nn.Module, graph: Graph, calls: list[Call]
) -> list[dict[str, Tensor]]:
    """Of the graph, and of the model itself (all its outputs) where it runs in float64."""
    state = graph.state(model)
    found = []
    for call in calls:
        outputs = {"the captured output": evaluate(graph, call.tensors, state)}
        # Keyword inputs of a graph given, or a dtype written in the code: the graph has to do.
        with suppress(Exception):
            outputs |= answers(model, call, torch.float64)
        found.append(outputs)
    return found


def _compare(
    model: nn.Module,
    before: list[dict[str, Tensor]],
    after: list[dict[str, Tensor]],
    name: str,
) -> None:
    # Each rewritten weight is rounded once in the model's own precision; over many
    # layers some thousand units add up. Real errors are of the size of the outputs.
    share = min(0.25, 4000 * _coarsest(model))
    for one, two in zip(before, after, strict=True):
        for key, value in one.items():
            scale = float(value.abs().max()) if value.numel() else 0.0
            gap = float((value - two[key]).abs().max()) if value.numel() else 0.0
            # `not … <=` refuses NaN; 1e-30 stands in for outputs that are all 0.
            if not gap <= share * max(scale, 1e-30):
                raise TheoryError(
                    f"{name} would move {key or 'the output'} of {kind_of(model)} by"
                    f" {gap:.3g} (outputs reach {scale:.3g}), so everything was put back."
                    f"{_tied(model)} Please report the model if its weights are its own."
                )


def _tied(model: nn.Module) -> str:
    tied = sorted(alias for alias, first in aliases(model).items() if alias != first)
    return f" Tied tensors, often the reason: {', '.join(tied[:4])}." if tied else ""


def _coarsest(model: nn.Module) -> float:
    return max((torch.finfo(p.dtype).eps for p in model.parameters()), default=1e-7)
