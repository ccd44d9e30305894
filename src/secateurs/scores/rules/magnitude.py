"""Magnitude: |w|."""

from torch import Tensor

from secateurs.scores.task import Finite, Task, score_rule


@score_rule("magnitude", runs=False)
def magnitude(task: Task) -> dict[str, Tensor]:
    """|w|, the size of the weight itself."""
    # Weights that are not finite have been refused.
    return Finite((name, p.detach().abs()) for name, p in task.parameters.items())
