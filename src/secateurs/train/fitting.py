"""Whether the tensors of a file fit a model; everything wrong in one error."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from secateurs.errors import DataError
from secateurs.parameters import aliases


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The tensors of a file by name, and the text its writer left with them."""

    tensors: dict[str, Tensor]
    notes: dict[str, str]


def check_fit(model: nn.Module, held: Checkpoint, path: str | Path) -> None:
    """Raise one error that lists whatever keeps these tensors out of the model; the model may be on
    the meta device.
    """
    tied = aliases(model)
    problems = _problems(
        wanted(model),
        # A file may hold a tied weight under each of its names.
        {name: value for name, value in held.tensors.items() if name not in tied},
    )
    if problems:
        raise DataError(
            f"{path} does not fit {type(model).__name__}: {'; '.join(problems)}."
        )


def wanted(model: nn.Module) -> dict[str, Tensor]:
    tied = aliases(model)
    return {
        name: value for name, value in model.state_dict().items() if name not in tied
    }


def _problems(wanted: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> list[str]:
    missing = [name for name in wanted if name not in held]
    unexpected = [name for name in held if name not in wanted]
    problems = [_listed("missing", missing), _listed("unexpected", unexpected)]
    for name in wanted.keys() & held.keys():
        ours, theirs = wanted[name], held[name]
        if ours.shape != theirs.shape:
            problems.append(
                f"{name!r} is {list(theirs.shape)} in the file and {list(ours.shape)} in the model"
            )
        # Another float width is converted; integers in place of floats are another
        # model.
        elif ours.is_floating_point() != theirs.is_floating_point():
            problems.append(
                f"{name!r} is {theirs.dtype} in the file and {ours.dtype} in the model"
            )
    return sorted(problem for problem in problems if problem)


def _listed(what: str, names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{what} {', '.join(map(repr, names[:5]))}{more}" if names else ""
