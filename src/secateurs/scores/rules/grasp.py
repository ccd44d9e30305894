"""GraSP: how much of the gradient's norm a weight carries."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from secateurs.errors import ArgumentError
from secateurs.scores.scorer import gradient_of, mean_gradient, normalise, set_mode
from secateurs.scores.task import Mode, Task, losses, score_rule

TEMPERATURE = 200.0
"""What the reference code divides the outputs by before the loss."""


@score_rule("grasp", needs=("batch", "loss"))
def grasp(
    task: Task, *, temperature: float | None = None, mode: Mode | None = None
) -> dict[str, Tensor]:
    """+w ⊙ (H·g), with g = ∂L/∂w and H = ∂²L/∂w² of the chosen parameters, L the mean over all
    examples.

    **Sign**: removing w changes ½‖g‖² by −w ⊙ Hg to first order. GraSP prints S = −w ⊙ Hg and cuts
    its largest entries (which raises the norm, or lowers it least); large = keep is therefore +w ⊙
    Hg. Scores may be negative: top-k takes them as they are; a random draw proportional to them has
    to refuse or shift them.

    Conventions: "paper" has temperature 1, the user's mode and no normalisation; "reference"
    divides the outputs by 200 before the loss, runs in evaluation mode and divides the scores by
    |their sum| + 10⁻¹⁰. H never exists: Hg is the gradient of ⟨g, stopped g⟩. Batches add up in g
    and in Hg. Reference: Wang et al. 2020, eq. 8.
    """
    reference = task.convention == "reference"
    temperature = (TEMPERATURE if reference else 1.0) if temperature is None else temperature
    if not temperature > 0:
        raise ArgumentError(
            f"temperature is {temperature}; it divides the outputs and must be positive."
        )
    set_mode(task, mode, default="eval" if reference else "keep")
    # All data first: H·g needs the gradient of the whole mean, not of each batch.
    gradient = mean_gradient(task, temperature=temperature)
    curvature = _hessian_times(task, gradient, temperature)
    pairs = zip(task.parameters.items(), curvature, strict=True)
    scores = {name: hg.mul_(parameter.detach()) for (name, parameter), hg in pairs}
    return normalise(scores) if reference else scores


def _hessian_times(task: Task, vector: list[Tensor], temperature: float) -> list[Tensor]:
    """H·vector for the mean loss over all examples."""
    parameters = list(task.parameters.values())
    total = [torch.zeros_like(v) for v in vector]
    examples = 0
    with _twice_differentiable(task.model):
        for size, loss in losses(task, temperature=temperature):
            examples += size
            # ⟨g, v⟩ with v held fixed has the gradient H·v.
            gradient = gradient_of(loss, parameters, create_graph=True)
            product = torch.stack(
                [(g * v).sum() for g, v in zip(gradient, vector, strict=True)]
            ).sum()
            # Constant where the loss is linear in every weight: then Hg = 0.
            if product.requires_grad:
                for sum_, row in zip(total, gradient_of(product, parameters), strict=True):
                    sum_.add_(row, alpha=size)
    return [sum_.div_(examples) for sum_ in total]


@contextmanager
def _twice_differentiable(model: nn.Module) -> Iterator[None]:
    """Fused attention and cuDNN's recurrent kernels have no second derivative; the plain ones
    do.
    """
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    with (
        sdpa_kernel(SDPBackend.MATH),
        torch.backends.cudnn.flags(enabled=False) if recurrent else nullcontext(),
    ):
        yield
