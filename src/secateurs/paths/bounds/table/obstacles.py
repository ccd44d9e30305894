"""When a row of the paper's Table 3 does not apply, in words."""

import math
from dataclasses import dataclass

from secateurs.paths.bounds.covering import theorem_g2_factor
from secateurs.paths.bounds.layered import Layer
from secateurs.paths.bounds.partition import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the rows are made of."""

    depth: int
    inputs: int
    outputs: int
    parameters: int
    largest_pool: int
    pool_kinds: int
    biases: bool
    layers: tuple[Layer, ...] | None
    partition: Partition
    log2_norm: float
    samples: int
    input_bound: float
    loss_lipschitz: float

    @property
    def log2_rate(self) -> float:
        """log₂ of L·B/√n."""
        # Everything is a logarithm: path norms of deep networks overflow float64.
        size = math.log2(self.loss_lipschitz) + math.log2(self.input_bound)
        return size - math.log2(self.samples) / 2


def outside_definitions(f: Facts) -> str:
    """Theorem 5.1 with the network's own number of parameters: definitions A.2, G.3 and G.4."""
    found = f.partition
    if found.obstacles:
        return "; ".join(found.obstacles)
    # Edges of fixed weight (skip connections, pools) are coordinates that #params does not count.
    if theorem_g2_factor(found) > printed_factor(f):
        return (
            f"its {found.coordinates} coordinates, fixed weights counted, are too many for "
            f"{f.parameters} parameters"
        )
    return ""


def printed_factor(f: Facts) -> float:
    """The factor that print states beside L·B/√n and the path norm."""
    # Print's 240√2 is a slip for 384√2 ≈ 543.06, which 544 rounds up (docs/errata.md).
    return 544 * f.partition.width * math.sqrt(f.parameters)


def unknown_activations(f: Facts) -> str:
    """Only activations that definition A.2 knows."""
    return "; ".join(f.partition.unknown)


def too_few_inputs(f: Facts, least: int = 2) -> str:
    """The logarithm of a size of one is zero, and no bound."""
    if f.inputs >= least:
        return ""
    return f"needs at least {least} inputs, this one has {f.inputs}: ln 1 = 0 bounds nothing"


def not_plain(f: Facts, *, depth: int | None = None) -> str:
    """Layered, fully connected, no bias, one output."""
    if f.layers is None:
        return "needs a layered fully connected network"
    if depth is not None and len(f.layers) != depth:
        return f"needs depth {depth}, this one has {len(f.layers)}"
    return _lean(f)


def _lean(f: Facts) -> str:
    if f.biases:
        return "needs a network without biases"
    return "" if f.outputs == 1 else f"needs one output, this one has {f.outputs}"


def first_of(*reasons: str) -> str:
    """The first reason that is one, or ''."""
    return next((reason for reason in reasons if reason), "")


def not_without_bias(f: Facts) -> str:
    """What keeps a network from being a DAG without biases and pools."""
    pooled = "needs a network without pooling" if f.largest_pool > 1 else ""
    return first_of(unknown_activations(f), pooled, _lean(f), too_few_inputs(f))


def not_with_pools(f: Facts) -> str:
    """What keeps a network from being a DAG with biases and pools."""
    if f.inputs * f.outputs > 1:
        return unknown_activations(f)
    return first_of(
        unknown_activations(f),
        "needs more than one input or output: ln 1 = 0 bounds nothing",
    )
