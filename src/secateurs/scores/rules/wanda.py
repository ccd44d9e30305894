"""Wanda: the weight times the size of what it multiplies."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.errors import ParameterError
from secateurs.scores.batches import call
from secateurs.scores.gradients import set_mode, wide
from secateurs.scores.task import Mode, Task, score_rule

LINEAR_IN_THE_WEIGHT: tuple[type[nn.Module], ...] = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
"""The layers whose weights meet known inputs."""


@score_rule("wanda", needs=("batch",))
def wanda(task: Task, *, mode: Mode | None = None) -> dict[str, Tensor]:
    """|w_ij| · ‖x_j‖₂, x_j the numbers that w_ij multiplies, over all examples (and positions) of
    the data.

    For linear layers and convolutions (grouped, strided, padded, transposed): an op that is linear
    in its weight has ‖x_j‖² = ∂/∂w_ij of the sum of op(x²; w), so each entry of a kernel gets its
    own norm. Other weights (recurrent ones, the fused projections of `nn.MultiheadAttention`) are
    refused by name. Targets are ignored; evaluation mode by default. Conventions: "paper" is the
    formula; "reference" divides ‖x_j‖ by √(number of examples), as the published code does. The
    published method compares within an output row: `scope="row"` is the way to use it.
    Reference: Sun et al. 2024, eq. 1.
    """
    set_mode(task, mode, default="eval")
    squares: dict[str, Tensor] = {}
    examples = 0
    with torch.no_grad(), _watched(task, squares):
        for batch in task.batches():
            examples += batch.size
            call(task.model, batch.inputs)
    _refuse_unseen(task, squares)
    count = max(examples, 1) if task.convention == "reference" else 1
    return {
        name: (squares[name] / count).sqrt_().mul_(p.detach().abs()).to(wide(p))
        for name, p in task.parameters.items()
    }


@contextmanager
def _watched(task: Task, squares: dict[str, Tensor]) -> Iterator[None]:
    """Add up what the weights meet while the model runs, a tied weight wherever it is used."""
    names = {id(parameter): name for name, parameter in task.parameters.items()}
    handles = []
    for module in task.model.modules():
        name = names.get(id(module._parameters.get("weight")))
        if name is not None and isinstance(module, LINEAR_IN_THE_WEIGHT):
            handles.append(module.register_forward_pre_hook(_adder(name, squares)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _adder(
    name: str, squares: dict[str, Tensor]
) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def add(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        base = next(kind for kind in LINEAR_IN_THE_WEIGHT if isinstance(module, kind))
        with torch.enable_grad():
            output = base.forward(module, inputs[0].detach().square(), *inputs[1:])
            (met,) = torch.autograd.grad(output.sum(), [module.get_parameter("weight")])
        squares[name] = squares[name] + met if name in squares else met.to(wide(met))

    return add


def _refuse_unseen(task: Task, squares: dict[str, Tensor]) -> None:
    lost = [name for name in task.parameters if name not in squares]
    if lost:
        raise ParameterError(
            f"score 'wanda' knows no input of {', '.join(map(repr, lost[:8]))}: only weights of"
            " linear layers and convolutions that run on the data have one. Leave the others out"
            " with where=."
        )
