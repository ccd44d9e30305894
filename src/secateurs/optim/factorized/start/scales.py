"""Scales of norms, told from weights: drawn with random signs they would mute their layers."""

from torch import Tensor

ZERO_SCALE = (
    "%r, a scale of nothing but zeros, is drawn like a weight, since factors of a zero never move:"
    " zeros='revive' starts it at 1.19e-7, 'frozen' keeps it at 0, where= leaves it out"
)


def is_scale(parameter: Tensor, name: str) -> bool:
    """The scale of a norm (or a PReLU): drawn like a weight, with random signs, it would mute the
    layer.

    Told by its values, which are equal and not zero, or by the name `weight` of a vector, where
    none is negative.
    """
    if parameter.ndim > 1 or not parameter.numel():
        return False
    constant = bool((parameter == parameter.flatten()[0]).all()) and bool(
        (parameter != 0).all()
    )
    return constant or (
        name.rpartition(".")[2] == "weight" and bool((parameter >= 0).all())
    )
