"""Chains that are given by their widths alone."""

import math
from collections.abc import Iterable
from dataclasses import replace

from secateurs.errors import ArgumentError
from secateurs.theory.checks import check_whole, check_widths
from secateurs.theory.planning.chains.chain import Chain
from secateurs.theory.pruning.tails.counts import half_spectrum


def given(widths: object) -> Chain:
    """The chain of these widths, each layer with K = 1."""
    if isinstance(widths, str | bytes) or not isinstance(widths, Iterable):
        raise ArgumentError(
            f"{widths!r} is neither a model nor widths such as [784, 300, 300, 10]."
        )
    # Read once: an iterator is empty afterwards.
    found = tuple(widths)
    check_widths(found)
    names = tuple(f"layer {k}" for k in range(1, len(found)))
    return Chain(widths=found, scales=(1.0,) * len(names), names=names)


def given_convs(chain: Chain, size: tuple[int, int], kernel: int) -> Chain:
    """Circular convolutions of kernel × kernel taps that keep their maps, then a linear layer."""
    check_whole(kernel=kernel)
    if kernel > min(size):
        raise ArgumentError(
            f"kernel = {kernel} is larger than the map of {size[0]} x {size[1]}."
        )
    # One linear layer at the end, l − 1 convolutions before it.
    convs = len(chain.widths) - 2
    return replace(
        chain,
        taps=(kernel**2,) * convs,
        frequencies=(half_spectrum(size, kernel**2),) * convs,
        repeats=(1.0,) * convs,
        last_map=math.prod(size),
    )
