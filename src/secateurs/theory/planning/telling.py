"""What a plan tells of each layer, of the law, and of what stands in the way."""

import math
from collections.abc import Sequence

from secateurs.theory.guarantee import Guarantee, Needed
from secateurs.theory.planning.chains.chain import Chain
from secateurs.theory.planning.report import PlannedLayer
from secateurs.theory.planning.schemes import Asked
from secateurs.theory.planning.search import Part


def needed_widths(
    theorem: Asked,
    printed: Guarantee | None,
    exponent: float,
    epsilon: float | None,
    delta: float,
) -> Needed | None:
    """The width that print asks for: for ε, or for an error below the norm of the network."""
    if printed is None:
        return None
    # Without ε the least one can ask for: an error below what a constant would have.
    goal = printed.trivial if epsilon is None else epsilon
    return theorem.needed(exponent, goal, delta) if 0 < goal < math.inf else None


def planned_layers(
    chain: Chain, here: Guarantee, parts: Sequence[Part]
) -> tuple[PlannedLayer, ...]:
    """The rows of the plan, one for each layer."""
    shares = [part.share for part in parts]
    # Linear layers behind convolutions lose nothing.
    kept = len(chain.names) - 1 - len(shares)
    return tuple(
        PlannedLayer(
            name=name,
            shape=(rows, columns),
            removed=layer.removed,
            sparsity=share,
            norm=layer.norm,
            change=layer.change,
            contribution=layer.contribution,
            failure=layer.failure,
        )
        for name, rows, columns, layer, share in zip(
            chain.names,
            chain.widths[1:],
            chain.widths[:-1],
            here.layers,
            (0.0, *shares, *[0.0] * kept),
            strict=True,
        )
    )


def misfits_of(chain: Chain, law: str) -> tuple[str, ...]:
    """The layers whose entries do not look like the law."""
    found = (
        (name, fit.misfit(law))
        for name, fit in zip(chain.names, chain.fits, strict=False)
    )
    return tuple(f"{name}: {text}" for name, text in found if text is not None)


def binding_of(
    found: Guarantee, epsilon: float | None, layers: Sequence[PlannedLayer]
) -> str:
    """What stands in the way of the goal, in words; "none" where nothing does."""
    if found.failed:
        return str(found.failed[0])
    if found.probability <= 0:
        return f"probability: {found.probability:.4g} <= 0"
    most = max(layers, key=lambda layer: layer.contribution)
    where = f", of which {most.name} adds {most.contribution:.4g}"
    if not found.error < found.trivial:
        return f"error against a constant: {found.error:.4g} >= {found.trivial:.4g}{where}"
    if epsilon is not None and found.error > epsilon:
        return f"error: {found.error:.4g} > epsilon = {epsilon:.4g}{where}"
    return "none"
