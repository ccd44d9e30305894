"""Taylor: the squared first-order change of the loss when a weight is removed."""

import torch
from torch import Tensor

from secateurs.scores.scorer import gradient_of, set_mode
from secateurs.scores.task import Mode, Task, losses, score_rule


@score_rule("taylor", needs=("batch", "loss"))
def taylor(task: Task, *, mode: Mode | None = None) -> dict[str, Tensor]:
    """E_b[(w ⊙ ∂L_b/∂w)²], the mean over batches, weighted by their size, of the squared
    first-order change.

    Squares are taken per batch, before the mean: with batches of one example this is w² times the
    diagonal of the empirical Fisher matrix, with a single batch it is SNIP squared. Squares need
    range: the scores are float64. Conventions: both are this formula; "paper" keeps the user's
    mode, "reference" runs in evaluation mode. Reference: Molchanov et al. 2019, eq. 8.
    """
    set_mode(task, mode, default="eval" if task.convention == "reference" else "keep")
    parameters = list(task.parameters.values())
    total = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
    examples = 0
    for size, loss in losses(task):
        examples += size
        for sum_, p, gradient in zip(total, parameters, gradient_of(loss, parameters), strict=True):
            # Widened before squaring: the square of 1e-25 is 0 in float32.
            sum_.add_(gradient.double().mul_(p.detach()).square_(), alpha=size)
    return {name: sum_.div_(examples) for name, sum_ in zip(task.parameters, total, strict=True)}
