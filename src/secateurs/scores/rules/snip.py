"""SNIP: how much the loss reacts to the mask of a weight."""

from torch import Tensor

from secateurs.scores.scorer import mean_gradient, normalise, set_mode
from secateurs.scores.task import Mode, Task, score_rule


@score_rule("snip", needs=("batch", "loss"))
def snip(task: Task, *, mode: Mode | None = None) -> dict[str, Tensor]:
    """|w ⊙ ∂L/∂w|, the reaction of the loss to the mask: ∂L(m ⊙ w)/∂m at m = 1.

    L is the mean over all examples of all batches, so batches add up before the absolute value.
    `mode` is the mode the model runs in. Conventions: "paper" keeps the user's mode and leaves the
    sum as it is; "reference" runs in evaluation mode and divides by the sum over all weights. With
    a probe (`secateurs.scores.probe`) for a batch this is the unsupervised SNIP. Reference: Lee et
    al. 2019, eq. 5–6; Bar & Giryes 2023, section 6.
    """
    reference = task.convention == "reference"
    set_mode(task, mode, default="eval" if reference else "keep")
    gradient = mean_gradient(task)
    scores = {
        # In place: the gradient is ours, and nothing reads it again.
        name: g.mul_(p.detach()).abs_()
        for (name, p), g in zip(task.parameters.items(), gradient, strict=True)
    }
    return normalise(scores) if reference else scores
