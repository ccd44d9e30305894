"""Random: the baseline that any score has to beat."""

import torch
from torch import Tensor

from secateurs.base.random import uniform
from secateurs.scores.task import Task, score_rule


@score_rule("random", runs=False)
def random(task: Task) -> dict[str, Tensor]:
    """A uniform number on (0, 1] for each weight, drawn in the order of the parameters.

    Single precision: two of n scores agree with probability about n²/2²⁵, which the tie rule of
    selection settles. Weights cut by a mask draw too, so that the numbers do not depend on the
    mask.
    """
    return {name: _draw(parameter, task.generator) for name, parameter in task.parameters.items()}


def _draw(parameter: Tensor, generator: torch.Generator | None) -> Tensor:
    # From [0, 1) to (0, 1]: a score of 0 would look like a weight that is cut.
    return 1 - uniform(parameter, generator=generator, dtype=torch.float32)
