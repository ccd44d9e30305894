"""Which parameters are drawn from, and with which probabilities."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from secateurs.errors import EmptySelectionError, TheoryError
from secateurs.parameters import Where, prunable
from secateurs.theory.sketching.jacobian import Linearised


def chosen_parameters(model: nn.Module, where: Where) -> Mapping[str, nn.Parameter]:
    """All trainable parameters, or those that `where` picks."""
    if where is not None:
        return prunable(model, where)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise EmptySelectionError(
            f"{type(model).__name__} has no trainable parameter: choose some by where=, or let them"
            " require gradients."
        )
    return prunable(model, lambda name, parameter, owner: parameter.requires_grad)


def check_drawn(p: Tensor, start: Linearised, end: Linearised) -> None:
    """Whatever matters to the features of the end must have a chance to be drawn."""
    lost = (p == 0) & (end.scores > 0)
    if bool(lost.any()):
        counts = {
            name: int(part.sum())
            for name, part in unflatten(lost, start.shapes).items()
        }
        raise TheoryError(
            f"{int(lost.sum())} parameters matter to the trained features and have probability 0"
            f" ({', '.join(f'{n} in {name!r}' for name, n in counts.items() if n)}): the mask is"
            " biased. Mix in uniform mass (uniform=0.1), or leave them out with where=."
        )


def mixed(scores: Tensor, uniform: float) -> Tensor:
    """Scores as probabilities, with a share of uniform mass."""
    total = float(scores.sum())
    # Refuses NaN as well as 0 and overflow.
    if not 0 < total < math.inf:
        raise TheoryError(
            f"the scores ‖J_(k)‖·|θ_k| sum to {total:g}: no probability can be formed."
        )
    return (1 - uniform) * scores / total + uniform / scores.numel()


def unflatten(flat: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Back to one tensor per parameter."""
    parts = torch.split(flat, [shape.numel() for shape in shapes.values()])
    return {
        name: part.reshape(shape)
        for part, (name, shape) in zip(parts, shapes.items(), strict=True)
    }
