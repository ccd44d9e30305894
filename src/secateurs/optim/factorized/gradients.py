"""What is looked at before a step: gradients that are sparse or not finite, weights that somebody
else has changed.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from secateurs.errors import ParameterError, TrainingError
from secateurs.optim.factorized.members import Group, Members, Pairs

_log = logging.getLogger("secateurs.optim")


Found: TypeAlias = list[tuple[Group, nn.Parameter, Tensor]]
"""The parameters that have a gradient, with their groups."""

Zeroed: TypeAlias = list[tuple[Group, nn.Parameter, Tensor]]
"""Parameters in which somebody has set weights to zero, and which weights."""


def gradients(members: Members) -> Found:
    """The gradients of this step; a sparse one is an error."""
    found = [
        (group, p, grad)
        for group in members.groups
        for p in group["params"]
        if (grad := p.grad) is not None
    ]
    sparse = [p for _, p, grad in found if grad.layout is not torch.strided]
    if sparse:
        named = _listed(members.names(), sparse)
        raise ParameterError(
            f"sparse gradients of {named}: set sparse=False, or leave them out."
        )
    return found


def late(members: Members, found: Found) -> Pairs:
    """Parameters that were frozen at the start and have a gradient now."""
    return [(group, p) for group, p, _ in found if p not in members.state]


def finite(grads: Sequence[Tensor]) -> bool:
    """Whether no gradient holds a NaN or an infinity.

    A sum is one pass, where `isfinite` writes and reads again; only where the sum overflows are the
    entries looked at.
    """
    if all(grad.is_cpu for grad in grads):
        fine = all(math.isfinite(grad.sum().item()) for grad in grads)
    else:
        # On a device: one launch, and one wait.
        norms = torch._foreach_norm(list(grads))
        fine = bool(torch.stack([norm.float() for norm in norms]).isfinite().all())
    # A sum of large finite numbers may overflow: that is no reason to skip the step.
    return fine or all(bool(grad.isfinite().all()) for grad in grads)


def whole(members: Members, names: Mapping[nn.Parameter, str]) -> None:
    """Weights that are not finite never become so again: neither a step nor a collapse means
    anything then.
    """
    broken = [
        p
        for _, p in members.every()
        if p.numel() and not bool(p.detach().isfinite().all())
    ]
    if broken:
        raise TrainingError(
            f"the weights of {_listed(names, broken)} are not finite after {members.taken} steps:"
            " the run has diverged. Load a state from before, or start again with a smaller lr"
            " (optim.largest_stable_lr finds one)."
        )


def drift(members: Members, *, every: bool = False) -> Zeroed:
    """Weights that somebody else has changed would silently be overwritten by the product of the
    factors: an error.

    New zeros are understood (`hold`, `apply_`, any pruning); they are returned, and their factors
    have to become zero. Looked at are the parameters whose version torch has counted up, which it
    does not for changes through `.data`; or, with `every`, all of them.
    """
    known, zeroed, drifted = members.versions, [], []
    for group, parameter in members.factorized():
        version = parameter._version
        if every or known.get(id(parameter), version) != version:
            ours = members.weight(group, parameter).to(parameter.dtype)
            changed = ours != parameter
            # Anything but zero was written by somebody who does not know of the
            # factors.
            if bool(parameter[changed].any()):
                drifted.append(parameter)
            else:
                zeroed.append((group, parameter, changed))
    if drifted:
        raise TrainingError(
            "weights were changed outside of the optimizer, whose factors would undo it:"
            f" {_listed(members.names(), drifted)}. Call adopt_() to take the new weights, or"
            " refresh_() to restore the old ones."
        )
    return zeroed


def _listed(
    names: Mapping[nn.Parameter, str], parameters: Sequence[nn.Parameter]
) -> str:
    return ", ".join(names[p] for p in parameters)
