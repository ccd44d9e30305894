"""Everything that can be wrong with the input of a factorized optimizer, collected and raised
once.
"""

import math
from collections.abc import Container, Iterable, Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, MaskError, ParameterError
from secateurs.misfits import mask_misfit
from secateurs.registry import unknown


def target(value: float | None, steps: int | None) -> None:
    """A target sparsity in [0, 1) needs to know how long the run is."""
    if value is None:
        return
    if not number(value) or not 0 <= value < 1:
        raise ArgumentError(
            f"target_sparsity={value!r} is outside [0, 1): it is the share of zeros, 0.99 for 99 %."
        )
    if steps is None:
        raise ArgumentError(
            "target_sparsity= needs steps=, the number of optimizer steps of the run."
        )


def run(
    steps: int | None, schedule: object, nonfinite: str, fused: object = None
) -> None:
    """Options of the run as a whole."""
    problems = []
    if steps is not None and (
        isinstance(steps, bool) or not isinstance(steps, int) or steps < 1
    ):
        problems.append(f"steps={steps!r} is not a whole number above 0")
    if not (schedule is None or isinstance(schedule, str) or callable(schedule)):
        problems.append(
            f"schedule={schedule!r} is neither a name such as 'ramp-hold-relax' nor a function of"
            " progress"
        )
    if fused not in (None, True, False):
        problems.append(
            f"fused={fused!r} is not None (where it applies), True or False"
        )
    if schedule is not None and steps is None:
        problems.append(
            "schedule= needs steps=, the number of optimizer steps of the run"
        )
    if nonfinite not in ("skip", "raise"):
        problems.append(f"nonfinite={nonfinite!r} is neither 'skip' nor 'raise'")
    if problems:
        raise ArgumentError(f"{'; '.join(problems)}.")


def parameters(params: object) -> None:
    """A model, or nothing, where its parameters are meant."""
    if isinstance(params, nn.Module):
        raise ArgumentError(
            f"params is a {type(params).__name__}: give model.named_parameters(), whose names the"
            " masks will carry."
        )
    if isinstance(params, list | tuple) and not params:
        raise ArgumentError(
            "params is empty: give model.named_parameters() of a model that has some."
        )


def others(given: Mapping[str, object], taken: Iterable[str]) -> None:
    """Options of other optimizers, and misspelt ones."""
    if not given:
        return
    name = next(iter(given))
    if name == "weight_decay":
        raise ArgumentError(
            f"weight_decay={given[name]!r}: the penalty on the factors is strength=, the only decay"
            " here; with depth=None a group is plain SGD without any."
        )
    if name in {"betas", "eps", "amsgrad", "dampening"}:
        raise ArgumentError(
            f"{name}={given[name]!r} is an option of another optimizer: use"
            f" Factorized(params, base=torch.optim.AdamW, base_kwargs={{{name!r}: ...}})."
        )
    raise ArgumentError(unknown("option of the optimizer", name, sorted(taken)))


def called(closure: object) -> Any:
    """The loss of a closure that is called once, before the step, as SGD does; None without one.

    Optimizers that evaluate several times a step, such as LBFGS, are refused as a base elsewhere.
    """
    if closure is None:
        return None
    if not callable(closure):
        raise ArgumentError(
            f"closure is a {type(closure).__name__}: give a function that computes the loss and its"
            " gradients, or call step() without one."
        )
    # `step` runs under no_grad, and the closure has to call backward.
    with torch.enable_grad():
        return closure()


def masks(
    given: Mapping[str, Tensor],
    names: Mapping[str, nn.Parameter],
    factorized: Container[nn.Parameter],
) -> None:
    """Masks must name parameters of the optimizer, have their shapes, and drop entries only of
    those with factors.
    """
    problems = []
    for name, mask in given.items():
        if name not in names:
            problems.append(unknown("parameter", name, list(names)[:12]).rstrip("."))
        elif problem := mask_misfit(mask, names[name].shape):
            problems.append(f"{name!r} {problem}")
        # A mask that keeps everything asks for nothing, so it is let pass.
        elif names[name] not in factorized and not bool(mask.all()):
            problems.append(
                f"{name!r} has no factors (excluded, or frozen): hold(model, masks, optimizer)"
                " keeps its zeros"
            )
    if problems:
        raise MaskError(f"{len(problems)} mask(s) do not fit: {'; '.join(problems)}.")


def known(name: str, names: Mapping[str, object]) -> None:
    """A parameter name must exist."""
    if name not in names:
        raise ParameterError(unknown("parameter", name, list(names)[:12]))


def factors(given: object, like: Tensor, name: str) -> None:
    """Factors that are set by hand: of the stacked shape, finite."""
    if not isinstance(given, Tensor) or given.shape != like.shape:
        shape = (
            tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        )
        raise ArgumentError(
            f"factors of {name!r} are stacked {tuple(like.shape)}, not {shape}; see factors()."
        )
    if not bool(given.isfinite().all()):
        raise ArgumentError(
            f"factors of {name!r} hold NaN or infinity. Nothing was changed."
        )


def number(value: object) -> bool:
    """Whether this is a finite real number (and not True or False)."""
    return (
        isinstance(value, Real)
        and not isinstance(value, bool)
        and math.isfinite(value)
    )
