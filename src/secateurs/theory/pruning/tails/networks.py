"""The networks of Theorems 2 and 3 as chains of random layers, and how many filters are drawn."""

import math
from collections.abc import Sequence
from itertools import pairwise

from secateurs.errors import ArgumentError
from secateurs.theory.checks import check_counts
from secateurs.theory.powers import floor_power
from secateurs.theory.pruning.tails.conv_setting import ConvSetting
from secateurs.theory.pruning.tails.counts import half_spectrum
from secateurs.theory.pruning.tails.layer import RandomLayer


def linear_layers(
    widths: Sequence[int], scales: Sequence[float]
) -> list[RandomLayer]:
    """The layers of a linear chain, entries on ±K/√max."""
    return [
        RandomLayer(
            rows=rows, columns=columns, bound=scale / math.sqrt(max(rows, columns))
        )
        for (columns, rows), scale in zip(pairwise(widths), scales, strict=True)
    ]


def conv_layers(setting: ConvSetting, scale: float) -> list[RandomLayer]:
    """The l layers of Theorem 3's network, first to last."""
    d, p, q = setting.channels, setting.map_size, setting.kernel
    bound = scale / (p * math.sqrt(d))
    first, inner = (
        half_spectrum(size, q * q) for size in (setting.input_size or p, p)
    )
    return [
        RandomLayer(
            rows=d,
            columns=setting.input_channels,
            bound=bound,
            taps=q * q,
            frequencies=first,
        ),
        *[RandomLayer(rows=d, columns=d, bound=bound, taps=q * q, frequencies=inner)]
        * (setting.depth - 2),
        # The linear layer reads all positions of the maps, as one matrix.
        RandomLayer(rows=setting.outputs, columns=p * p * d, bound=bound),
    ]


def drawn_filters(
    channels: int, alpha: float | None, counts: Sequence[int] | None, layers: int
) -> list[int]:
    """⌊d^{2−α}⌋; print allows α up to almost 1, where about one filter per channel is drawn."""
    if counts is not None or alpha is None:
        return check_counts(counts, layers, alpha)
    if not 0 < alpha < 2:
        raise ArgumentError(f"alpha = {alpha:g} is not in (0, 2).")
    return [floor_power(channels, 2 - alpha)] * layers
