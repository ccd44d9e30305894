"""Jacobian: how much the outputs react to a weight, the sketching probability of the linearised
network.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from secateurs.base.random import uniform
from secateurs.errors import ArgumentError
from secateurs.scores.scorer import gradient_of, set_mode
from secateurs.scores.task import Mode, Task, call, logits, score_rule, wide_dtype


@score_rule("jacobian", needs=("batch",))
def jacobian(
    task: Task, *, draws: int | None = None, mode: Mode | None = None
) -> dict[str, Tensor]:
    """‖J_(i)‖·|θ_i|, with J_(i) the derivatives of all outputs of all examples to θ_i.

    These are the optimal sketching probabilities (eq. 2) of the linearised model x ↦ J θ. Exact by
    default: one backward pass per example and output; examples that do not interact may come as a
    list of batches of one example, which is as many times cheaper. `draws=k` estimates ‖J_(i)‖²
    without bias by k random sign vectors v, E (Jᵀv)_i² = ‖J_(i)‖², in k backward passes per batch.
    Targets in the batch are ignored. Evaluation mode by default, by both conventions: batch
    statistics would mix the examples. Reference: Bar & Giryes 2023, section 7.
    """
    if draws is not None and draws < 1:
        raise ArgumentError(f"draws is {draws}; give at least 1, or None for the exact norms.")
    set_mode(task, mode, default="eval")
    parameters = list(task.parameters.values())
    # In lower precision, squares of small numbers vanish.
    total = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
    for batch in task.batches():
        output = logits(call(task.model, batch.inputs)).flatten()
        for direction in _directions(output, draws, task.generator):
            for sum_, row in zip(
                total,
                gradient_of(output @ direction, parameters, keep_graph=True),
                strict=True,
            ):
                # Squares add up over outputs; over draws they are averaged.
                sum_.add_(row.double().square_(), alpha=1 / (draws or 1))
    norms = zip(task.parameters.items(), total, strict=True)
    return {
        name: norm.sqrt_().mul_(p.detach().abs()).to(wide_dtype(p)) for (name, p), norm in norms
    }


def _directions(
    output: Tensor, draws: int | None, generator: torch.Generator | None
) -> Iterator[Tensor]:
    """The unit vectors of the outputs, or this many vectors of random signs."""
    for index in range(len(output) if draws is None else draws):
        if draws is None:
            direction = torch.zeros_like(output)
            direction[index] = 1
        else:
            direction = (
                (uniform(output, generator=generator) < 0.5).to(output.dtype).mul_(2).sub_(1)
            )
        yield direction.detach()
