"""One small rule per operator. Importing this package registers them all."""

from secateurs.graph.lowering import (
    activation,
    arithmetic,
    conv,
    linear,
    norm,
    order,
    pool,
    reduction,
    resize,
    shape,
)

__all__ = [
    "activation",
    "arithmetic",
    "conv",
    "linear",
    "norm",
    "order",
    "pool",
    "reduction",
    "resize",
    "shape",
]
