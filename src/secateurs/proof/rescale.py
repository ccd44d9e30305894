"""Neuron-wise rescaling: what enters a hidden channel times λ, what leaves it divided by λ. The
function stays.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from secateurs.base.random import check_generator
from secateurs.errors import ArgumentError
from secateurs.graph import Example, Graph
from secateurs.graph.ir import own_name
from secateurs.proof.scaling import Rescaling, coupling, scale_, unchanged, whole


@torch.no_grad()
def rescale_random_(
    model: nn.Module,
    example: Example | Graph,
    *,
    factors: Sequence[float] = (1, 128, 4096),
    generator: torch.Generator | None = None,
) -> Rescaling:
    """Multiply every hidden channel by a random factor, in place, without changing the network's
    function.

    Through batch norm (running mean and bias are multiplied, γ and the variance stay), pools,
    dropout, reshapes and skip connections (the channels they tie share a factor). Powers of two
    keep all weights exact.

    Reference: Path-metrics, pruning, and generalization, Appendix D, which does the first
    convolution of each basic block; this does every channel that can be rescaled.
    """
    check_generator(generator)
    if not factors or any(not 0 < factor < float("inf") for factor in factors):
        raise ArgumentError(f"factors = {list(factors)}: give positive finite factors.")
    model, graph = whole(model, example, "rescale_random_")
    graph.state(model)
    found = coupling(graph)
    draws = torch.randint(len(factors), (len(found.groups),), generator=generator)
    scales = torch.tensor([float(f) for f in factors], dtype=torch.float64)[draws]
    # Group 0 meets inputs, outputs or constants.
    scales[0] = 1.0
    with unchanged(model, example, graph, "rescale_random_"):
        done = scale_(model, found, scales)
    return replace(done, changed=tuple(own_name(name, model) for name in done.changed))
