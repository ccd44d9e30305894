"""The Φ-cost: how much path norm a weight carries. Invariant under rescaling of hidden neurons; no
data needed.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from secateurs.errors import ArgumentError
from secateurs.scores.task import Task, score_rule

if TYPE_CHECKING:
    from secateurs.graph import Example, Graph

# Weak, so that a graph is freed with its private copy.
_GRAPHS: "WeakKeyDictionary[nn.Module, Graph]" = WeakKeyDictionary()


def capture_once(task: Task) -> None:
    """Read the private copy once; all rounds share its graph."""
    # Batch norm must be the affine map of its running statistics.
    task.model.eval()
    # Imported here: reading a model is a large part of the package, and only this score needs it.
    from secateurs.graph import Opaque, capture

    example = _example(task)
    # No weight stands behind a softmax, sigmoid or tanh at the end: paths end in front of it.
    graph = capture(task.model, example, ending=True)
    if any(isinstance(node, Opaque) for node in graph.nodes):
        graph = capture(task.model, example)  # which refuses them by name
    _GRAPHS[task.model] = graph


def graph_of_copy(task: Task) -> "Graph":
    """The graph of the private copy."""
    if task.model not in _GRAPHS:
        capture_once(task)
    return _GRAPHS[task.model]


@score_rule("path", needs=("example",), prepare=capture_once)
def path(task: Task, *, relative: bool = True) -> dict[str, Tensor]:
    """Φ-cost: |θ| ⊙ ∂‖Φ(θ)‖₁/∂|θ|, what zeroing a weight takes from the path norm.

    By default the share of the whole path norm, which is finite at any depth and has the same
    order; with `relative=False` the cost itself. Batch norm is folded by its running statistics,
    whatever mode the model is in. On a linear network it is SynFlow; on others it is SynFlow with
    biases counted, batch norm folded and max-pools summed. Scores are the same after any rescaling
    of hidden neurons that leaves the network's function alone.

    Only networks of the six primitives are covered; others raise `UnsupportedOperation`. A softmax,
    sigmoid or tanh at the end has no weights, and paths end in front of it. Reference: Gonon et al.
    2024, Section 4 (Φ-layerwise with scope="layer", Φ-global with scope="global").
    """
    from secateurs.paths import path_costs

    costs = path_costs(task.model, graph_of_copy(task), relative=relative)
    if costs.exponent:
        raise ArgumentError("the path costs overflow float64; ask for relative=True.")
    return {name: costs[name] for name in task.parameters}


def _example(task: Task) -> "Example":
    example = task.example
    if isinstance(example, Tensor):
        return example
    return dict(example) if isinstance(example, Mapping) else tuple(example or ())
