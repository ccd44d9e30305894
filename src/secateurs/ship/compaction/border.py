"""Does a layer see the border of its map?"""

import torch

from secateurs.graph import Affine


def sees_border(node: Affine, shape: tuple[int, ...]) -> bool:
    """Whether a constant map goes in and comes out with another value near the border (or in a
    pattern).

    Tried with a kernel of random numbers on a map of ones: larger than the example's, because on a
    map of one pixel nothing differs from anything.
    """
    axes = node.operation.axes
    if len(shape) < 3 or (axes is not None and axes.x not in (1, 1 - len(shape))):
        return False
    sizes = [max(64, size) if len(shape) < 5 else max(24, size) for size in shape[2:]]
    generator = torch.Generator().manual_seed(0)
    groups = 1 if axes is None else axes.groups
    x = torch.ones(1, groups if axes is not None else 1, *sizes, dtype=torch.float64)
    kernel = () if node.weight is None else node.weight.shape
    if axes is not None:
        kernel = (groups, 1, *kernel[2:])
    weight = torch.rand(kernel, generator=generator, dtype=torch.float64) + 0.5
    try:
        y = node.operation.function(
            x, weight if axes is not None else torch.ones_like(weight)
        )
    except (RuntimeError, IndexError):
        return axes is not None
    inside = y.flatten(2)[:, :, :1] if y.ndim > 2 else y
    return (
        bool(((y.flatten(2) - inside).abs() > 1e-12 * y.abs().max()).any())
        if y.ndim > 2
        else False
    )
