"""Whether a layer without weights matters: only if no path is left around it."""

from collections.abc import Callable, Sequence

from torch import nn

from secateurs.graph import Example, Graph
from secateurs.naming import renamed
from secateurs.parameters import Params
from secateurs.paths.channels.liveness import liveness
from secateurs.paths.norms.feeding import graph_of


@renamed(x="example")
def lost_layers(
    example: Example | Graph, *, masks: Params | None = None
) -> Callable[[nn.Module, Sequence[str]], dict[str, str]]:
    """For `secateurs.sparsity(model, judge=lost_layers(x))`: says of every collapsed layer whether
    it matters.

    A layer without weights matters only if no path is left from an input to the output; otherwise
    paths lead around it, and what it emits is a constant.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> _ = model[0].weight.data.zero_()
    >>> lost_layers(torch.zeros(1, 2))(model, ["0.weight"])
    {'0.weight': 'matters: the output no longer depends on the input'}
    """

    def judge(model: nn.Module, names: Sequence[str]) -> dict[str, str]:
        graph = graph_of(model, example)
        collapsed = liveness(model, graph, masks=masks).collapsed
        fatal = "matters: the output no longer depends on the input"
        spared = "does not matter: other paths lead from the input to the output"
        unused = "does not matter: the output does not use it"
        used = {name for name in names if name in graph.parameters}
        return {
            name: (fatal if collapsed else spared) if name in used else unused
            for name in names
        }

    return judge
