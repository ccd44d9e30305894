"""Under which names a model, perhaps wrapped, has the parameters of masks, and what stands in the
way of holding them.
"""

from collections.abc import Iterable, Mapping
from itertools import product

from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.misfits import mask_misfit
from secateurs.optim.holding.optimizers import family
from secateurs.parameters import Params, absent

_WRAPPERS = ("", "module.", "_orig_mod.", "ema_model.")
"""DDP and AveragedModel, torch.compile, ema-pytorch; two of them may lie around each other."""


def prefix_of(model: nn.Module, names: Iterable[str]) -> str:
    """What a wrapper has put in front of the names of the masks, if anything."""
    known = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    fit = (p for p in prefixes() if all(p + name in known for name in names))
    # The empty prefix comes first, so a submodule that is really called "module" is not
    # unwrapped.
    return next(fit, "")


def misfits(
    names: Mapping[str, str], masks: Params, known: Mapping[str, Tensor]
) -> list[str]:
    problems = [absent(name, known) for name in names.values() if name not in known]
    for name, mask in masks.items():
        # A mask of an unknown parameter is compared with itself: only its kind can be wrong.
        like = known.get(names[name], mask)
        if problem := mask_misfit(mask, getattr(like, "shape", ())):
            problems.append(f"{name!r} {problem}")
    return problems or ([] if masks else ["there are no masks"])


def unheld(
    names: Mapping[str, str], known: Mapping[str, nn.Parameter], optimizer: Optimizer
) -> list[str]:
    """Masked parameters that are trained, but not by this optimizer: nothing would hold their
    zeros.
    """
    trained = trained_by(family(optimizer))
    return [
        f"{name!r} is not among the parameters of this {type(optimizer).__name__}: add it there, "
        "or leave its mask out and hold it with the optimizer that trains it"
        for name, found in names.items()
        if id(known[found]) not in trained and known[found].requires_grad
    ]


def trained_by(optimizers: Iterable[Optimizer]) -> set[int]:
    """The parameters of optimizers, by id."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return {id(p) for group in groups for p in group["params"]}


def prefixes() -> list[str]:
    """What wrappers may have put in front of names."""
    return [first + second for first, second in product(_WRAPPERS, _WRAPPERS)]
