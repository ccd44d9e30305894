"""Magnitude: |w|."""

from torch import Tensor

from secateurs.scores.task import Task, score_rule


@score_rule("magnitude", runs=False)
def magnitude(task: Task) -> dict[str, Tensor]:
    """|w|, the size of the weight itself."""
    return {name: parameter.detach().abs() for name, parameter in task.parameters.items()}
