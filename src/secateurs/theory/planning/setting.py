"""What `plan` assumes of a network: ranges, constants and law, read off it or given."""

import math

from secateurs.errors import ArgumentError
from secateurs.theory.checks import check_positive
from secateurs.theory.planning.chains.chain import Chain
from secateurs.theory.planning.scheme import Setting
from secateurs.theory.pruning.tails.layer import Law


def setting_of_chain(
    chain: Chain,
    scale: float | None,
    lipschitz: float | None,
    constant: float,
    law: Law | None,
) -> Setting:
    """The network and what is assumed of it; constants that contradict the model are refused."""
    # What the model itself shows: a smaller constant given by hand would be wrong.
    read = math.prod(b.lipschitz for b in chain.between or ())
    if scale is not None:
        check_positive(scale=scale)
    if lipschitz is not None:
        check_positive(lipschitz=lipschitz)
        if lipschitz < read * (1 - 1e-9):
            raise ArgumentError(
                f"lipschitz = {lipschitz:g} is less than {read:g}, the product of the constants of"
                " this model's activations and norms. Leave it out, or give the widths."
            )
    still = [
        name for name, k in zip(chain.names, chain.scales, strict=True) if k == 0
    ]
    if still and scale is None:
        raise ArgumentError(
            f"all weights of {', '.join(still)} are zero: no range can be read off it; give scale=."
        )
    assumed: Law = law or ("uniform" if chain.between is None else "bounded")
    # Entries with a range have that of the largest one; others the deviation of the entries.
    ranged = assumed in ("uniform", "bounded") or not chain.deviations
    own = chain.scales if ranged else chain.deviations
    return Setting(
        chain=chain,
        scales=own if scale is None else (scale,) * len(chain.scales),
        # What the user's constant adds beyond the one that was read.
        reach=1.0 if lipschitz is None or read == 0 else lipschitz / read,
        constant=constant,
        law=assumed,
    )
