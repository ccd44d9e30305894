"""J(θ)θ of a network: the column norms of the Jacobian of all outputs on all inputs, never held
whole.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, TheoryError
from secateurs.parameters import named
from secateurs.stateless import call_with
from secateurs.theory.sketching.inputs import finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Linearised:
    """θ, the column norms ‖J_(k)‖ and ‖Jθ‖², flat over the chosen parameters."""

    theta: Tensor
    columns: Tensor
    energy: float
    shapes: dict[str, torch.Size]

    @property
    def scores(self) -> Tensor:
        return self.columns * self.theta.abs()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What to call a model in errors, and how to run it."""

    name: str
    chunk_size: int
    dtype: torch.dtype


def linearise(
    model: nn.Module, names: Sequence[str], x: Tensor, run: Run
) -> Linearised:
    """Of the parameters of these names; modules run in evaluation mode on copies, nothing of the
    model changes.
    """
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if value.is_floating_point() and value.numel():
            finite(f"{run.name} {name!r}", value.detach())
    chosen = {
        name: parameter.detach().to(run.dtype)
        for name, parameter in named(model, names).items()
    }
    theta = torch.cat([value.flatten() for value in chosen.values()]).double()
    squares, energy = torch.zeros_like(theta), 0.0
    for rows in _jacobian_rows(model, chosen, x, run):
        # Only sums of squares are kept: J itself has outputs × parameters entries.
        squares += rows.square().sum(0)
        energy += float((rows @ theta).square().sum())
    if not math.isfinite(energy + float(squares.sum())):
        raise TheoryError(
            f"the Jacobian of {run.name} on x overflows or is NaN: no expectation can be formed."
        )
    shapes = {name: value.shape for name, value in chosen.items()}
    return Linearised(
        theta=theta, columns=squares.sqrt(), energy=energy, shapes=shapes
    )


def _jacobian_rows(
    model: nn.Module, chosen: Mapping[str, Tensor], x: Tensor, run: Run
) -> Iterator[Tensor]:
    """Rows of J, a few outputs at a time."""
    modes = {module: module.training for module in model.modules()}
    state = {
        name: _copy(value, run.dtype)
        for name, value in (*model.named_parameters(), *model.named_buffers())
    }
    # Token ids stay integers.
    inputs = finite("x", x).to(run.dtype) if x.is_floating_point() else x

    def output(parameters: Mapping[str, Tensor]) -> Tensor:
        result = call_with(model, {**state, **parameters}, (inputs,))
        if not isinstance(result, Tensor):
            raise ArgumentError(
                f"{run.name} returns a {type(result).__name__}: wrap it so that it returns one"
                " tensor."
            )
        return result.flatten()

    model.eval()
    try:
        values, pull = _pull_back(output, chosen, x, run)
        # One unit vector per output; the chunk bounds how many rows of J exist at once.
        basis = torch.eye(values.numel(), dtype=values.dtype, device=values.device)
        for part in torch.split(basis, run.chunk_size):
            (grads,) = torch.func.vmap(pull)(part)
            yield torch.cat([grads[name].flatten(1) for name in chosen], 1).double()
    finally:
        for module, training in modes.items():
            module.training = training


def _pull_back(
    output: Callable[[Mapping[str, Tensor]], Tensor],
    chosen: Mapping[str, Tensor],
    x: Tensor,
    run: Run,
) -> tuple[Tensor, Callable[[Tensor], tuple[dict[str, Tensor]]]]:
    try:
        values, pull = torch.func.vjp(output, dict(chosen))[:2]
    except RuntimeError as error:
        raise TheoryError(
            f"{run.name} does not run on x of shape {tuple(x.shape)} in {run.dtype}: {error} Give"
            " inputs that fit; for a module that makes tensors of its own precision, pass"
            " dtype=torch.float32."
        ) from error
    return values, pull


def _copy(value: Tensor, dtype: torch.dtype) -> Tensor:
    return (
        value.detach().to(dtype, copy=True)
        if value.is_floating_point()
        else value.detach().clone()
    )
