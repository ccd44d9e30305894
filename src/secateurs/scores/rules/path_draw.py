"""The keep probabilities that change the paths of a network the least. Invariant under rescaling of
hidden neurons; no data needed.
"""

import torch
from torch import Tensor

from secateurs.scores.rules.path import capture_once, graph_of_copy
from secateurs.scores.task import Task, score_rule


@score_rule("path-draw", needs=("example",), prepare=capture_once)
def path_draw(task: Task) -> dict[str, Tensor]:
    """The p with the smallest E‖Φ(θ) − Φ(m ⊙ θ ⊘ p)‖₂² of all random masks m that keep each entry
    with its own p and as many as asked on average.

    It is not ranked but drawn from: `how="systematic", scope="proportional"` keeps each entry with
    just this probability. How much stays is known in `prune_` and recipes; `score` alone gives the
    p of a single entry kept, and `secateurs.paths.keep_probabilities` those of any density. Ours,
    of Gonon et al. 2024 (paths) and Bar & Giryes 2023 (draws); the proof is in
    `secateurs.paths.draws`.
    """
    # Imported here: reading a model is a large part of the package.
    from secateurs.paths.draws import optimal

    graph, keep = graph_of_copy(task), 1 if task.keep is None else task.keep
    found = optimal(graph, graph.state(task.model), list(task.parameters), keep=keep)
    return {
        name: found[name] if name in found else torch.zeros_like(p, dtype=torch.float64)
        for name, p in task.parameters.items()
    }
