"""The rows of the paper's Table 3: when each applies, and the logarithm of what it says."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from secateurs.paths.bounds.covering import theorem_g2_factor
from secateurs.paths.bounds.table.logarithms import (
    half_log2,
    log2_pools,
    log2_product,
)
from secateurs.paths.bounds.table.obstacles import (
    Facts,
    first_of,
    not_plain,
    not_with_pools,
    not_without_bias,
    outside_definitions,
    printed_factor,
    too_few_inputs,
    unknown_activations,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A row: when it applies ('' or the reason why not) and log₂ of its factor beside L·B/√n."""

    name: str
    reference: str
    formula: str
    obstacle: Callable[[Facts], str]
    log2_factor: Callable[[Facts], float]
    constant: bool = False


# The two rows with known constants come first; the others hold up to a constant that
# print does not state.
RULES = (
    Rule(
        name="theorem 5.1",
        reference="Gonon et al. 2024 (this theory)",
        formula="544·LB/√n·max(D, d_out)·√#params·‖Φ‖₁",
        obstacle=outside_definitions,
        log2_factor=lambda f: math.log2(printed_factor(f)) + f.log2_norm,
        constant=True,
    ),
    Rule(
        name="theorem G.2, kinds of neurons",
        reference="Gonon et al. 2024, Theorem G.2 for the partition found in the graph [ours]",
        formula="LB/√n·24√2·(2√(P ln 2) + 2√(H ln 2) + 24M·J·√(P − H))·‖Φ‖₁",
        obstacle=unknown_activations,
        log2_factor=lambda f: math.log2(theorem_g2_factor(f.partition)) + f.log2_norm,
        constant=True,
    ),
    Rule(
        name="linear regression",
        reference="Kakade et al. 2008, eq. (5)",
        formula="LB/√n·‖Φ‖₁·√ln d_in",
        obstacle=lambda f: first_of(not_plain(f, depth=1), too_few_inputs(f)),
        log2_factor=lambda f: half_log2(math.log(f.inputs)) + f.log2_norm,
    ),
    Rule(
        name="two layers",
        reference="E et al. 2022, Theorem 6",
        formula="LB/√n·‖Φ‖₁·√ln d_in",
        obstacle=lambda f: first_of(not_plain(f, depth=2), too_few_inputs(f)),
        log2_factor=lambda f: half_log2(math.log(f.inputs)) + f.log2_norm,
    ),
    Rule(
        name="DAG without bias",
        reference="Neyshabur et al. 2015, Corollary 7",
        formula="LB/√n·‖Φ‖₁·2^D·√ln d_in",
        obstacle=not_without_bias,
        log2_factor=lambda f: f.depth + half_log2(math.log(f.inputs)) + f.log2_norm,
    ),
    Rule(
        name="layered, product of norms",
        reference="Golowich et al. 2018, Theorem 3.2",
        formula="LB/√n·Π‖M_d‖_{1,∞}·√(D + ln d_in)",
        obstacle=not_plain,
        log2_factor=lambda f: (
            half_log2(f.depth + math.log(f.inputs)) + log2_product(f)
        ),
    ),
    Rule(
        name="layered, path norm",
        reference="Barron and Klusowski 2019, Corollary 2",
        formula="LB/√n·‖Φ‖₁·√(D + ln d_in)",
        obstacle=not_plain,
        log2_factor=lambda f: half_log2(f.depth + math.log(f.inputs)) + f.log2_norm,
    ),
    Rule(
        name="DAG with biases and pools",
        reference="Gonon et al. 2024a",
        formula="LB/√n·‖Φ‖₁·√(D·ln(PK) + ln(d_in·d_out))",
        obstacle=not_with_pools,
        log2_factor=lambda f: log2_pools(f) + f.log2_norm,
    ),
)
