"""Wanda: the weight times the size of what it multiplies."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.base.convolved import CONVOLUTIONS, TRANSPOSED, Arguments, Convolving
from secateurs.base.interrupts import Uninterrupted
from secateurs.errors import ParameterError
from secateurs.scores.scorer import set_mode
from secateurs.scores.task import Mode, Task, call, score_rule, wide_dtype


@score_rule("wanda", needs=("batch",))
def wanda(task: Task, *, mode: Mode | None = None) -> dict[str, Tensor]:
    """|w_ij| · ‖x_j‖₂, x_j the numbers that w_ij multiplies, over all examples (and positions) of
    the data.

    For linear layers, the `Conv1D` of GPT-2 and convolutions (grouped, strided, padded,
    transposed): an op that is linear in its weight has ‖x_j‖² = ∂/∂w_ij of the sum of op(x²; w), so
    each entry of a kernel gets its own norm. Other weights (recurrent ones, the fused projections
    of `nn.MultiheadAttention`) are
    refused by name. Targets are ignored; evaluation mode by default. Conventions: "paper" is the
    formula; "reference" divides ‖x_j‖ by √(number of examples), as the published code does. The
    published method compares within an output row: `scope="row"` is the way to use it.
    Reference: Sun et al. 2024, eq. 1.
    """
    set_mode(task, mode, default="eval")
    squares, examples = input_squares(task)
    count = max(examples, 1) if task.convention == "reference" else 1
    return {
        name: ((squares[name] / count).sqrt_() * p.detach().abs()).to(wide_dtype(p))
        for name, p in task.parameters.items()
    }


def input_squares(task: Task, *, idle: bool = False) -> tuple[dict[str, Tensor], int]:
    """Σ x² over the data of what each weight multiplies, in a shape that fits the weight, and the
    number of examples. With `idle`, layers that do not run are left out of it, not refused.
    """
    squares: dict[str, Tensor] = {}
    examples = 0
    with torch.no_grad(), _watched(task, squares):
        for batch in task.batches():
            examples += batch.size
            call(task.model, batch.inputs)
    lost = [name for name in task.parameters if name not in squares]
    if idle and lost:
        known = {
            id(module._parameters.get("weight"))
            for module in task.model.modules()
            if _knows_inputs(module)
        }
        lost = [name for name in lost if id(task.parameters[name]) not in known]
    _refuse_unseen(lost)
    return squares, examples


@contextmanager
def _watched(task: Task, squares: dict[str, Tensor]) -> Iterator[None]:
    """Add up the inputs that the weights meet while the model runs; those of a tied weight wherever
    it is used.
    """
    names = {id(parameter): name for name, parameter in task.parameters.items()}

    def convolved(name: str, function: Callable[..., Tensor], given: Arguments) -> None:
        _add(squares, name, _by_gradient(function, given))

    handles = []
    try:
        with Uninterrupted():
            for module in task.model.modules():
                # `_parameters`, not the attribute: under a parametrisation that would compute a
                # new tensor.
                name = names.get(id(module._parameters.get("weight")))
                if name is not None and lies_along(module):
                    adder = _adder(name, squares)
                    handles.append(module.register_forward_pre_hook(adder, with_kwargs=True))
        with Convolving(task.parameters, convolved):
            yield
    finally:
        with Uninterrupted():
            for handle in handles:
                handle.remove()


def _add(squares: dict[str, Tensor], name: str, met: Tensor) -> None:
    squares[name] = squares[name] + met if name in squares else met


def _knows_inputs(module: nn.Module) -> bool:
    return bool(lies_along(module)) or isinstance(module, CONVOLUTIONS + TRANSPOSED)


def lies_along(module: nn.Module) -> str:
    """Which dimension of a matrix holds its inputs; empty for any other layer."""
    if isinstance(module, nn.Linear):
        return "columns"
    # transformers is not a dependency: its layer is known by its name and by what it keeps.
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        return "rows"
    return ""


def _adder(
    name: str, squares: dict[str, Tensor]
) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
    def add(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        # A layer may be called by keyword: layer(input=x).
        inputs = signature(module.forward).bind(*args, **named).args
        met = _by_column(inputs[0])
        _add(squares, name, met[:, None] if lies_along(module) == "rows" else met)

    return add


def _by_column(x: Tensor) -> Tensor:
    """Σ x² of every input feature. All outputs meet the same inputs, so one row says it all.

    In single precision at least: the squares of half-precision activations overflow.
    """
    flat = x.detach().reshape(-1, x.shape[-1])
    return flat.to(wide_dtype(flat)).square().sum(0)


def _by_gradient(function: Callable[..., Tensor], given: Arguments) -> Tensor:
    """Σ x² for every entry of a kernel: the gradient of the sum of op(x²; w)."""
    x, weight = given["input"].detach(), given["weight"].detach().requires_grad_()
    with torch.enable_grad():
        output = function(**{**given, "input": x.square(), "weight": weight})
        (met,) = torch.autograd.grad(output.sum(), [weight])
    return met.to(wide_dtype(met))


def _refuse_unseen(lost: list[str]) -> None:
    if lost:
        raise ParameterError(
            f"score 'wanda' has no input for {', '.join(map(repr, lost[:8]))}: only weights of"
            " linear layers and convolutions that run on the data have one. Leave the others out"
            " with where=."
        )
