"""SynFlow: how much of the flow through the network of absolute weights passes a weight. No data
needed.
"""

import copy
import math

import torch
from torch import Tensor, nn

from secateurs.base.random import normal
from secateurs.errors import ScoreError
from secateurs.scores.rules.product import absolute_product
from secateurs.scores.scorer import gradient_of, separate_copies, set_mode
from secateurs.scores.task import (
    Finite,
    Inputs,
    Mode,
    Task,
    call,
    floating,
    map_tensors,
    score_rule,
    wide_dtype,
)

NORMALS = 128
"""How many normal variables make one χ input (Bar & Giryes 2023, section 8)."""


def nonnegative(task: Task) -> None:
    """Make the copy non-negative: |parameters|, and |buffers| too by the reference convention."""
    with torch.no_grad():
        for parameter in task.model.parameters():
            if parameter.is_floating_point():
                parameter.abs_()
        if task.convention == "reference":
            for buffer in task.model.buffers():
                if buffer.is_floating_point():
                    buffer.abs_()


def flow_gradients(task: Task, *, mode: Mode | None = None) -> dict[str, Tensor] | None:
    """∂R/∂|w| of `synflow`; None where single precision is too little."""
    set_mode(task, mode, default="eval")
    return _single_gradients(task, map_tensors(task.example, _ones))


@score_rule("synflow", needs=("example",), prepare=nonnegative, gradients=flow_gradients)
def synflow(task: Task, *, mode: Mode | None = None) -> dict[str, Tensor]:
    """|w| ⊙ ∂R/∂|w| with R = 1ᵀf(1; |w|), the sum of all outputs for an input of ones.

    Every parameter (biases and norms too) is replaced by its absolute value; integer inputs, such
    as token ids, stay as in the example. Batch norm runs with its running statistics
    (`mode="eval"`): batch statistics would cancel the flow. Conventions: "paper" leaves the buffers
    alone; "reference" takes |running mean| and so on, as the published code does for the whole
    state dict. At initialisation the two agree.

    Deep networks overflow single precision. When R leaves 10⁻²⁰…10³⁰, and for half-precision
    models, the flow is computed in double precision; when R leaves the range there as well, all
    scores are divided by R, that is
    |w| ⊙ ∂log R/∂|w|: the same order, the same proportions.
    Reference: Tanaka et al. 2020; Bar & Giryes 2023, eq. (3).
    """
    return _flow(task, map_tensors(task.example, _ones), mode)


@score_rule("synflow-chi", needs=("example",), prepare=nonnegative)
def synflow_chi(task: Task, *, mode: Mode | None = None) -> dict[str, Tensor]:
    """SynFlow with χ-distributed inputs, ‖128 normal numbers‖₂/√128 per position, drawn anew in
    each round.

    The flow of the row norms ‖X_(i)‖ of Gaussian data: for a linear model the scores are the
    optimal sketching probabilities ‖X_(i)‖·|w_i| of eq. (2). Otherwise as `synflow`. Reference: Bar
    & Giryes 2023, eq. (4), section 8.
    """
    return _flow(
        task,
        map_tensors(task.example, lambda tensor: chi(tensor, task.generator)),
        mode,
    )


def chi(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """‖128 normal numbers‖₂/√128 in the shape of `like`; other than floating-point tensors stay."""
    if not like.is_floating_point():
        return like
    draws = normal(like.expand(NORMALS, *like.shape), generator=generator, dtype=wide_dtype(like))
    return (draws.square().sum(0) / NORMALS).sqrt().to(like.dtype)


def _ones(tensor: Tensor) -> Tensor:
    return torch.ones_like(tensor) if tensor.is_floating_point() else tensor


def _flow(task: Task, inputs: Inputs, mode: Mode | None) -> dict[str, Tensor]:
    set_mode(task, mode, default="eval")
    # Double precision costs twice the memory, so it is only paid where single fails.
    return _single_flow(task, inputs) or _double_flow(task, inputs)


def _single_flow(task: Task, inputs: Inputs) -> Finite | None:
    """The flow in the model's own precision; None where that is too little."""
    gradients = _single_gradients(task, inputs)
    return None if gradients is None else _products(task.parameters, gradients)


def _single_gradients(task: Task, inputs: Inputs) -> dict[str, Tensor] | None:
    # Half precision overflows at 65504, which a flow reaches within a few layers.
    if any(wide_dtype(p) != p.dtype for p in task.parameters.values()):
        return None
    flow = _flow_through(task.model, inputs)
    if not _comfortable(float(flow.detach())):
        return None
    return _gradients(flow, task.parameters)


def _double_flow(task: Task, inputs: Inputs) -> dict[str, Tensor]:
    twin = copy.deepcopy(task.model).double()
    known = dict(twin.named_parameters(remove_duplicate=False))
    doubled = map_tensors(
        inputs,
        lambda tensor: tensor.double() if tensor.is_floating_point() else tensor,
    )
    chosen = {name: known[name] for name in task.parameters}
    flow = _flow_through(twin, doubled)
    total = float(flow.detach())
    if not _comfortable(total) and total != 0 and math.isfinite(total):
        flow = flow / abs(total)
    scores = _products(chosen, _gradients(flow, chosen))
    if not math.isfinite(total) or scores is None:
        raise ScoreError(
            f"the flow through {type(task.model).__name__} is {total:g} in double precision: too"
            " deep or too wide for SynFlow as it stands. Scale its weights down, or use the score"
            " 'path', which carries exponents."
        )
    return {name: s.to(wide_dtype(task.parameters[name])) for name, s in scores.items()}


def _flow_through(model: nn.Module, inputs: Inputs) -> Tensor:
    """R, the sum of all outputs."""
    outputs = floating(call(model, inputs))
    return torch.stack([output.sum(dtype=wide_dtype(output)) for output in outputs]).sum()


def _gradients(flow: Tensor, parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    return dict(zip(parameters, gradient_of(flow, list(parameters.values())), strict=True))


def _products(parameters: dict[str, nn.Parameter], gradients: dict[str, Tensor]) -> Finite | None:
    """||w| ⊙ ∂R/∂|w||; None where an entry is not finite."""
    apart = separate_copies(gradients.values())
    scores = Finite()
    for (name, parameter), gradient in zip(parameters.items(), apart, strict=True):
        score = absolute_product(gradient, parameter)
        if score is None:
            return None
        scores[name] = score
    return scores


def _comfortable(total: float) -> bool:
    """Single precision then keeps every score above a 10⁻¹⁸th of the flow."""
    return 1e-20 < abs(total) < 1e30
