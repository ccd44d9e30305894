"""Under which names a model, perhaps wrapped, has its parameters, and masks that fit them."""

from collections.abc import Iterable, Iterator, Sequence

from torch import nn

from secateurs.errors import ParameterError
from secateurs.registry import unknown


def owned(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, nn.Module]]:
    """Every parameter once, under its first name, with the module that holds it."""
    for parameter, uses in used(model):
        name, owner = uses[0]
        yield name, parameter, owner


def aliases(model: nn.Module) -> dict[str, str]:
    """Every other name of a tied parameter, mapped to the name it is listed under."""
    first: dict[int, str] = {}
    names = (
        (name, parameter)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    )
    return {
        name: first[id(p)]
        for name, p in names
        if first.setdefault(id(p), name) != name
    }


def absent(name: str, known: Iterable[str]) -> str:
    """The sentence for a mask of a parameter that the model lacks; numbers are those of a nameless
    optimizer.
    """
    names = list(known)
    if name.isdigit() and not any(other.isdigit() for other in names):
        return (
            f"there is no parameter {name!r}: masks are numbered where the optimizer was given"
            " parameters without names. Pass the model, collapse_(model), or give the optimizer"
            " model.named_parameters()"
        )
    return unknown("parameter", name, names).rstrip(".")


def named(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Parameter]:
    """The parameters of these names; a name the model lacks is refused with its nearest names."""
    known = dict(model.named_parameters(remove_duplicate=False))
    missing = [name for name in names if name not in known]
    if missing:
        raise ParameterError(
            "; ".join(unknown("parameter", name, known) for name in missing[:3])
        )
    return {name: known[name] for name in names}


def used(model: nn.Module) -> list[tuple[nn.Parameter, list[tuple[str, nn.Module]]]]:
    """Every parameter with all its names and the modules that hold it, in the model's order."""
    found: dict[int, tuple[nn.Parameter, list[tuple[str, nn.Module]]]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        # Module by module and not through named_parameters, which tells a name but not
        # who holds it.
        for leaf, parameter in module._parameters.items():
            if parameter is not None:
                name = f"{path}.{leaf}" if path else leaf
                found.setdefault(id(parameter), (parameter, []))[1].append(
                    (name, module)
                )
    return list(found.values())
