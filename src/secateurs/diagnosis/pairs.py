"""Two models that may be compared: same weights by name, finite values, an input that fits."""

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, ParameterError, StructureMismatch
from secateurs.parameters import Where, prunable


def pair_of(
    dense: nn.Module, sparse: nn.Module, where: Where
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The chosen weights of both models by name, or an error that says why the models cannot be
    compared.
    """
    models = {"dense": dense, "sparse": sparse}
    foreign = [
        f"{name} is a {type(m).__name__}"
        for name, m in models.items()
        if not isinstance(m, nn.Module)
    ]
    if foreign:
        raise ArgumentError(
            f"{' and '.join(foreign)}, not a module: load weights into a copy of the model first, "
            "copy.deepcopy(model).load_state_dict(weights)."
        )
    chosen = prunable(dense, where)
    other = dict(sparse.named_parameters(remove_duplicate=False))
    wrong = [
        name
        for name, p in chosen.items()
        if name not in other or other[name].shape != p.shape
    ]
    if wrong:
        raise StructureMismatch(
            f"the models differ: {', '.join(wrong[:4])} missing or of another shape in the second."
        )
    for which, model in models.items():
        bad = [
            repr(name)
            for name, p in model.named_parameters()
            if not bool(torch.isfinite(p).all())
        ]
        if bad:
            raise ParameterError(
                f"{', '.join(bad[:4])} hold NaN or infinite weights in the {which} model: mend them"
                " before measuring."
            )
    return {n: p.detach() for n, p in chosen.items()}, {
        n: other[n].detach() for n in chosen
    }


def example_for(example: Tensor, model: nn.Module) -> Tensor:
    """A floating-point input with a batch axis, where the model is."""
    if not isinstance(example, Tensor) or not example.is_floating_point():
        kind = (
            f"holds {example.dtype}"
            if isinstance(example, Tensor)
            else f"is a {type(example).__name__}"
        )
        raise ArgumentError(
            f"example {kind}; errors are measured over the unit ball of real inputs. Give one"
            " floating-point tensor (of a model of tokens, measure the part behind its embedding)."
        )
    if example.ndim < 2 or example.numel() == 0:
        raise ArgumentError(
            f"example has shape {tuple(example.shape)}: give one input with a batch axis in front."
        )
    return example.to(next(model.parameters()))
