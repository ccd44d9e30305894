"""A model as the chain the theorems speak of: linear maps, and functions of known Lipschitz
constant between them.

An `nn.Sequential` of torch's own modules is walked; any other module is captured as a graph,
which must be one path.
"""

import math
from collections.abc import Sequence

import torch
from torch import nn

from secateurs.errors import ParameterError, TheoryError
from secateurs.misfits import not_real
from secateurs.theory.planning.chains.chain_of_convs import entry_size
from secateurs.theory.planning.chains.module_steps import leaves_of, module_step
from secateurs.theory.planning.chains.node_steps import captured_steps
from secateurs.theory.planning.chains.steps import (
    GIVE_WIDTHS,
    Layer,
    Obstacle,
    Passage,
    Step,
)


def steps_of(model: nn.Module, size: tuple[int, int] | None = None) -> list[Step]:
    """The steps in the order in which they are applied, or an error that names everything in the
    way. `size`: height and width of the input, for a model with convolutions.
    """
    _check_real(model)
    leaves = list(leaves_of(model))
    own = [
        f"{type(leaf).__name__} ({name})"
        for name, leaf in leaves
        # torch's own modules have a table of constants, smooth activations among them,
        # which a graph of primitives does not cover.
        if not type(leaf).__module__.startswith("torch.")
    ]
    if own and has_convolutions(model) and size is None:
        entry_size(None)  # says what is missing
    found = (
        captured_steps(model, size)
        if own
        else [module_step(name, leaf) for name, leaf in leaves]
    )
    obstacles = [step.text for step in found if isinstance(step, Obstacle)]
    steps = [step for step in found if not isinstance(step, Obstacle)]
    obstacles += _shared([step for step in steps if isinstance(step, Layer)])
    if obstacles:
        raise TheoryError(
            "the theorems cover one chain of layers with functions of known Lipschitz constant"
            f" between them; this model has: {'; '.join(dict.fromkeys(obstacles))}. {GIVE_WIDTHS}"
        )
    _check_values(steps)
    return steps


def has_convolutions(model: nn.Module) -> bool:
    """Whether any layer is a 2-D convolution."""
    return any(isinstance(module, nn.Conv2d) for module in model.modules())


def _shared(layers: list[Layer]) -> list[str]:
    """Weights used by two layers: entries of different layers are assumed independent, and would be
    pruned at once.
    """
    names: dict[int, list[str]] = {}
    for layer in layers:
        # By memory, not by name: tied weights may hang under two names.
        names.setdefault(layer.weight.data_ptr(), []).append(layer.name)
    return [
        f"one weight in {len(n)} places ({', '.join(n)})"
        for n in names.values()
        if len(n) > 1
    ]


def _check_values(steps: Sequence[Step]) -> None:
    bad = [
        f"{step.name or 'the model'!s}: {why}"
        for step in steps
        if (why := _flaw(step))
    ]
    if bad:
        raise ParameterError(
            f"{'; '.join(bad)}. No bound follows from such weights; load or train others."
        )


def _flaw(step: Step) -> str:
    if isinstance(step, Passage):
        return "" if math.isfinite(step.lipschitz) else "NaN or infinite parameters"
    for name, value in (("weight", step.weight), ("bias", step.bias)):
        if value is not None and not bool(torch.isfinite(value).all()):
            return f"NaN or infinite values in {name}"
    return ""


def _check_real(model: nn.Module) -> None:
    bad = [
        f"{name!r} {problem}"
        for name, parameter in model.named_parameters()
        if (problem := not_real(parameter))
    ]
    if bad:
        raise ParameterError(f"{'; '.join(bad[:4])}.")
