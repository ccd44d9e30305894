"""Whether one model is the other after training: the same modules, settings and parameters."""

from torch import nn

from secateurs.errors import ArgumentError


def check_same(model: nn.Module, trained: nn.Module) -> None:
    """The trained model must have the parameters of the model."""
    wanted, found = (
        {name: tuple(p.shape) for name, p in m.named_parameters()}
        for m in (model, trained)
    )
    problems = [
        f"{name!r} {shape} is missing"
        for name, shape in wanted.items()
        if name not in found
    ]
    problems += [
        f"{name!r} {shape} is not in the model"
        for name, shape in found.items()
        if name not in wanted
    ]
    problems += [
        f"{n!r} is {found[n]}, in the model {wanted[n]}"
        for n in wanted
        if found.get(n, wanted[n]) != wanted[n]
    ]
    problems += _other_modules(model, trained)
    if problems:
        more = f" and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise ArgumentError(
            "trained= is no trained version of the model:"
            f" {'; '.join(problems[:4])}{more}."
            " Give the same network after training."
        )


def _other_modules(model: nn.Module, trained: nn.Module) -> list[str]:
    """Modules of another type or with other settings: their Jacobians are of another function."""
    wanted, found = (dict(m.named_modules()) for m in (model, trained))
    pairs = [
        (n, wanted.get(n), found.get(n)) for n in dict.fromkeys([*wanted, *found])
    ]
    return [
        f"{name or 'the model'!r} is {_described(theirs)}, in the model {_described(ours)}"
        for name, ours, theirs in pairs
        if _described(ours) != _described(theirs)
    ]


_ONLY_IN_TRAINING = {"training", "inplace", "momentum", "p", "num_batches_tracked"}


def _described(module: nn.Module | None) -> str:
    """The type of a module and what it holds beside tensors and modules."""
    if module is None:
        return "missing"
    kept = {
        key: getattr(value, "__qualname__", value)
        for key, value in vars(module).items()
        if not key.startswith("_")
        # Dropout's p, say, changes nothing in evaluation mode, in which J is taken.
        and key not in _ONLY_IN_TRAINING
        and (callable(value) or isinstance(value, bool | int | float | str | tuple))
    }
    settings = ", ".join(f"{key}={value}" for key, value in sorted(kept.items()))
    return f"{type(module).__name__}({settings})"
