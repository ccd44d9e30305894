"""The gradient of the loss over all the data: what SNIP, GraSP and Taylor share."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, ScoreError
from secateurs.scores.losses import losses
from secateurs.scores.task import Mode, Task


def set_mode(task: Task, mode: Mode | None, *, default: Mode) -> None:
    """Put the copy into the mode asked for; "keep" leaves each module in the user's mode."""
    mode = mode or default
    if mode not in ("keep", "train", "eval"):
        raise ArgumentError(f"mode is {mode!r}; it is 'keep', 'train' or 'eval'.")
    if mode != "keep":
        # A private copy: the user's modes are not touched.
        task.model.train(mode == "train")


def mean_gradient(task: Task, *, temperature: float = 1.0) -> list[Tensor]:
    """∂L/∂w of the mean loss over all examples: batches count by their size."""
    parameters = list(task.parameters.values())
    total = [torch.zeros_like(p, dtype=wide(p)) for p in parameters]
    examples = 0
    for size, loss in losses(task, temperature=temperature):
        examples += size
        for sum_, gradient in zip(total, gradient_of(loss, parameters), strict=True):
            # Weighted by size, or a short last batch would count too much.
            sum_.add_(gradient, alpha=size)
    return [sum_.div_(examples) for sum_ in total]


def gradient_of(
    value: Tensor,
    parameters: Sequence[nn.Parameter],
    *,
    create_graph: bool = False,
    keep_graph: bool = False,
) -> list[Tensor]:
    """The gradient, zero for a parameter the value does not depend on."""
    if not value.requires_grad:
        raise ScoreError(
            "the outputs or the loss do not depend on any chosen parameter through differentiable"
            " operations."
        )
    keep_graph = keep_graph or create_graph
    found = torch.autograd.grad(
        value,
        parameters,
        create_graph=create_graph,
        retain_graph=keep_graph,
        allow_unused=True,
    )
    return [
        # An unused parameter has gradient zero, and not none.
        torch.zeros_like(p) if g is None else g
        for p, g in zip(parameters, found, strict=True)
    ]


def own(gradients: Iterable[Tensor]) -> list[Tensor]:
    """The gradients, each in memory of its own, so that it may be written to.

    The terms of a sum are given one and the same gradient, and that of `sum()` is one number for
    all entries.
    """
    seen: set[int] = set()
    apart = []
    for gradient in gradients:
        address = gradient.untyped_storage().data_ptr()
        repeated = 0 in gradient.stride() or address in seen
        seen.add(address)
        apart.append(gradient.clone() if repeated else gradient)
    return apart


def normalised(scores: dict[str, Tensor]) -> dict[str, Tensor]:
    """Scores divided by |their sum|, as the reference codes of SNIP and GraSP do (1e-10 added as
    GraSP does).
    """
    # In float64: a sum over millions of float32 scores drifts.
    total = abs(sum(float(s.sum(dtype=torch.float64)) for s in scores.values()))
    return {name: s / (total + 1e-10) for name, s in scores.items()}


def wide(parameter: Tensor) -> torch.dtype:
    """The precision scores are kept in: at least single, products of half-precision numbers would
    vanish.
    """
    return torch.promote_types(parameter.dtype, torch.float32)
