"""One small rule per operator. Importing this package registers them all.

A new rule goes into the file of its kind: `activation`, `arithmetic` (sums, products, extremes),
`linear`, `conv`, `norm`, `pool`, `reduction` (sums, k-th largest), `shape` (entries that move).
A line in `tests/graph/every_operator.py` puts it under the laws of all rules. What paths do not
cover is read for its channels alone, by a rule in `opaque`: its docstring says which of two rules
is asked.
"""

from secateurs.graph.lowering import (
    activation,
    arithmetic,
    conv,
    linear,
    norm,
    opaque,
    pool,
    reduction,
    shape,
)

__all__ = [
    "activation",
    "arithmetic",
    "conv",
    "linear",
    "norm",
    "opaque",
    "pool",
    "reduction",
    "shape",
]
