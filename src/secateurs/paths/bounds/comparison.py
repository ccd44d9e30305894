"""The rows of the paper's Table 3: when each applies, and the logarithm of what it says."""

import math
from collections.abc import Callable
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A row: when it applies ('' or the reason why not) and log₂ of its factor beside L·B/√n."""

    name: str
    reference: str
    formula: str
    obstacle: Callable[[Facts], str]
    log2_factor: Callable[[Facts], float]
    constant: bool = False


def _definitions(f: Facts) -> str:
    """Theorem 5.1 with the network's own number of parameters: definitions A.2, G.3 and G.4."""
    found = f.partition
    if found.obstacles:
        return "; ".join(found.obstacles)
    # Edges of fixed weight (skip connections, pools) are coordinates that #params does not count.
    if theorem_g2_factor(found) > _printed_factor(f):
        return (
            f"its {found.coordinates} coordinates, fixed weights counted, are too many for "
            f"{f.parameters} parameters"
        )
    return ""


def _printed_factor(f: Facts) -> float:
    # Print's 240√2 is a slip for 384√2 ≈ 543.06, which 544 rounds up (docs/errata.md).
    return 544 * f.partition.width * math.sqrt(f.parameters)


def _known(f: Facts) -> str:
    """Only activations that definition A.2 knows."""
    return "; ".join(f.partition.unknown)


def _sizes(f: Facts, least: int = 2) -> str:
    """The logarithm of a size of one is zero, and no bound."""
    if f.inputs >= least:
        return ""
    return f"needs at least {least} inputs, this one has {f.inputs}: ln 1 = 0 bounds nothing"


def _plain(f: Facts, *, depth: int | None = None) -> str:
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


def _first(*reasons: str) -> str:
    return next((reason for reason in reasons if reason), "")


def _no_bias_dag(f: Facts) -> str:
    pooled = "needs a network without pooling" if f.largest_pool > 1 else ""
    return _first(_known(f), pooled, _lean(f), _sizes(f))


def _with_pools(f: Facts) -> str:
    if f.inputs * f.outputs > 1:
        return _known(f)
    return _first(
        _known(f), "needs more than one input or output: ln 1 = 0 bounds nothing"
    )


def _log2_product(f: Facts) -> float:
    """log₂ Π_d ‖M_d‖_{1,∞}, the largest ℓ¹ norm of a row of each layer."""
    norms = [float(layer.weight.abs().sum(dim=1).max()) for layer in f.layers or ()]
    # A layer of zeros makes the product 0: its logarithm is −∞, where log2 would raise.
    return sum(math.log2(norm) if norm > 0 else -math.inf for norm in norms)


def _half_log2(value: float) -> float:
    return math.log2(value) / 2 if value > 0 else -math.inf


def _log2_pools(f: Facts) -> float:
    """log₂ √(D·ln(PK) + ln(d_in·d_out))."""
    # Without a pool there are no kinds: the 1 makes the logarithm 0, and the term
    # vanishes.
    pools = f.depth * math.log(max(1, f.pool_kinds) * f.largest_pool)
    return _half_log2(pools + math.log(f.inputs * f.outputs))


# The two rows with known constants come first; the others hold up to a constant that
# print does not state.
RULES = (
    Rule(
        name="theorem 5.1",
        reference="Gonon et al. 2024 (this theory)",
        formula="544·LB/√n·max(D, d_out)·√#params·‖Φ‖₁",
        obstacle=_definitions,
        log2_factor=lambda f: math.log2(_printed_factor(f)) + f.log2_norm,
        constant=True,
    ),
    Rule(
        name="theorem G.2, kinds of neurons",
        reference="Gonon et al. 2024, Theorem G.2 for the partition found in the graph [ours]",
        formula="LB/√n·24√2·(2√(P ln 2) + 2√(H ln 2) + 24M·J·√(P − H))·‖Φ‖₁",
        obstacle=_known,
        log2_factor=lambda f: math.log2(theorem_g2_factor(f.partition)) + f.log2_norm,
        constant=True,
    ),
    Rule(
        name="linear regression",
        reference="Kakade et al. 2008, eq. (5)",
        formula="LB/√n·‖Φ‖₁·√ln d_in",
        obstacle=lambda f: _first(_plain(f, depth=1), _sizes(f)),
        log2_factor=lambda f: _half_log2(math.log(f.inputs)) + f.log2_norm,
    ),
    Rule(
        name="two layers",
        reference="E et al. 2022, Theorem 6",
        formula="LB/√n·‖Φ‖₁·√ln d_in",
        obstacle=lambda f: _first(_plain(f, depth=2), _sizes(f)),
        log2_factor=lambda f: _half_log2(math.log(f.inputs)) + f.log2_norm,
    ),
    Rule(
        name="DAG without bias",
        reference="Neyshabur et al. 2015, Corollary 7",
        formula="LB/√n·‖Φ‖₁·2^D·√ln d_in",
        obstacle=_no_bias_dag,
        log2_factor=lambda f: f.depth + _half_log2(math.log(f.inputs)) + f.log2_norm,
    ),
    Rule(
        name="layered, product of norms",
        reference="Golowich et al. 2018, Theorem 3.2",
        formula="LB/√n·Π‖M_d‖_{1,∞}·√(D + ln d_in)",
        obstacle=_plain,
        log2_factor=lambda f: (
            _half_log2(f.depth + math.log(f.inputs)) + _log2_product(f)
        ),
    ),
    Rule(
        name="layered, path norm",
        reference="Barron and Klusowski 2019, Corollary 2",
        formula="LB/√n·‖Φ‖₁·√(D + ln d_in)",
        obstacle=_plain,
        log2_factor=lambda f: _half_log2(f.depth + math.log(f.inputs)) + f.log2_norm,
    ),
    Rule(
        name="DAG with biases and pools",
        reference="Gonon et al. 2024a",
        formula="LB/√n·‖Φ‖₁·√(D·ln(PK) + ln(d_in·d_out))",
        obstacle=_with_pools,
        log2_factor=lambda f: _log2_pools(f) + f.log2_norm,
    ),
)
