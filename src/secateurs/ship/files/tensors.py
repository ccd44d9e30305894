"""The tensors of a model for a file: each once, with its other names, and nothing that has no bits
to store."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateurs.errors import ParameterError
from secateurs.graph.ir import unwrapped
from secateurs.misfits import without_values
from secateurs.parameters import check_model
from secateurs.ship.files.coding.words import NAMES
from secateurs.ship.files.container import MOST
from secateurs.ship.files.honest import is_shape, name_problem, short


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """`tensors` under their first names, in the model's order; `ties` maps every other name to the
    first."""

    tensors: dict[str, Tensor]
    ties: dict[str, str]


def stored_tensors(model: nn.Module | Mapping[str, Tensor]) -> Stored:
    """What a file of this model holds: parameters and persistent buffers; everything wrong with
    them in one error."""
    if isinstance(model, nn.Module):
        # The names of the plain model: a file made in a distributed run loads outside of it.
        model = unwrapped(model).state_dict(keep_vars=True)
    if not isinstance(model, Mapping):
        check_model(model)
    named = dict(model)
    problems = [
        f"{short(name)} {text}"
        for name, value in named.items()
        if (text := _problem(name, value))
    ]
    if len(named) > MOST:
        problems.append(f"there are {len(named)} tensors; a file holds {MOST}")
    if problems:
        raise ParameterError(
            f"{len(problems)} tensor(s) cannot be saved: {'; '.join(problems[:8])}."
        )
    first: dict[object, str] = {}
    ties = {
        name: first[_identity(name, value)]
        for name, value in named.items()
        if first.setdefault(_identity(name, value), name) != name
    }
    return Stored(
        tensors={n: v.detach() for n, v in named.items() if n not in ties}, ties=ties
    )


def _identity(name: str, value: Tensor) -> object:
    """Equal for two names of one tensor; two tensors without entries are never one."""
    if not value.numel():
        return name
    return (
        value.device,
        # The address is not enough: a view of a part begins where the whole does.
        value.data_ptr(),
        value.shape,
        value.stride(),
        value.dtype,
        value.is_conj(),
        value.is_neg(),
    )


def _problem(name: object, value: object) -> str:
    if text := name_problem(name):
        return text
    if not isinstance(value, Tensor):
        return f"is a {type(value).__name__}, not a tensor: leave it out, or turn it into a buffer"
    if problem := without_values(value):
        return problem
    if value.layout is not torch.strided or value.is_quantized:
        return f"is {value.dtype} of layout {value.layout}: make it dense and plain first"
    if value.dtype not in NAMES:
        return f"has dtype {value.dtype}, which files do not know"
    return (
        ""
        if is_shape(list(value.shape))
        else f"has shape {tuple(value.shape)}, which files do not know"
    )
