"""What print says of layers in words, as numbers of ours."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from secateurs.study.reproduce.experiment import Beside, Row
from secateurs.study.reproduce.factorization.curves import at
from secateurs.study.reproduce.factorization.layers.networks import (
    Network,
    networks,
    watched,
)

FACTORIZED = ("dwf-depth-2", "dwf-depth-3", "dwf-depth-4")
EMPTY = {
    "gmp": "print: whole layers at high compression",
    "snip": "print: whole layers at high compression",
    "synflow": "print: none but skip connections of a ResNet",
    "random": "not in print",
}
SPARSE = 1 / 0.99
"""Sparsity has emerged from one zero in a hundred on."""


def beside(rows: Sequence[Row]) -> list[Beside]:
    """Figure 10, then 13, then 5a."""
    figures: list[Beside] = []
    found = networks(rows)
    for place in dict.fromkeys(x.place for x in found):
        here = [x for x in found if x.place == place]
        for method in dict.fromkeys(x.method for x in here):
            figures += _emptied([x for x in here if x.method == method])
        figures += _against_synflow(here)
        figures += _norms(here)
        figures += _deeper(here)
    for job, epochs in watched(rows).items():
        figures += _dead(job, epochs)
    return figures


def _emptied(own: Sequence[Network]) -> Iterator[Beside]:
    """How many networks lost a layer, and from which compression on."""
    title, last = f"{own[0].place}, {own[0].method}", max(map(_compression, own))
    note = EMPTY.get(own[0].method, "print: none")
    lost = [x for x in own if x.empty and not x.gone]
    if dead := sum(x.gone for x in own):
        note += f"; of {dead} more nothing is left"
    what = f"{title}: networks with an empty layer, of {len(own)} up to {last:.0f}×"
    yield Beside(what=what, ours=(float(len(lost)),), note=note)
    if lost:
        one = min(lost, key=_compression)
        what = f"{title}: smallest compression with an empty layer"
        empty = f"empty: {', '.join(one.empty)}"
        yield Beside(what=what, ours=(_compression(one),), note=empty)


def _against_synflow(here: Sequence[Network]) -> Iterator[Beside]:
    """First and last layer: what DWF leaves over what SynFlow leaves at the same compression."""
    compared = [x for x in here if x.method == "synflow"]
    for method in FACTORIZED:
        own = [x for x in here if x.method == method]
        for layer, name in ((0, "first"), (-1, "last")):
            # Shares fall with compression as a power: logarithms are near to a line.
            curve = sorted(
                (_compression(x), math.log(x.share(layer)))
                for x in compared
                if x.share(layer)
            )
            logs = [
                math.log(x.share(layer)) - there
                for x in own
                if x.share(layer)
                and (there := at(curve, _compression(x))) is not None
            ]
            if logs:
                what = f"{here[0].place}, {method}: left of the {name} layer, over SynFlow's"
                note = f"geometric mean over {len(logs)} λ; print: below 1"
                ours = (math.exp(sum(logs) / len(logs)),)
                yield Beside(what=what, ours=ours, note=note)


def _norms(here: Sequence[Network]) -> Iterator[Beside]:
    """Print: the norm grows with λ up to the λ that makes zeros, and falls from there on."""
    for method in FACTORIZED:
        own = _by_strength(x for x in here if x.method == method)
        # A peak has something on both sides.
        if len(own) < 3:
            continue
        title = f"{own[0].place}, {method}"
        peak = max(own, key=lambda x: x.figure("norm"))
        yield Beside(
            what=f"{title}: λ of the largest norm",
            ours=(peak.figure("strength"),),
            note=f"of {len(own)} λ; norm {peak.figure('norm'):.4g}",
        )
        sparse = [x for x in own if _compression(x) > SPARSE]
        if sparse:
            yield Beside(
                what=f"{title}: smallest λ with zeros",
                ours=(sparse[0].figure("strength"),),
                note="print: where the norm is largest, on small networks",
            )
            yield Beside(
                what=f"{title}: norm at the largest compression",
                ours=(max(own, key=_compression).figure("norm"),),
                note="print: goes to zero",
            )


def _deeper(here: Sequence[Network]) -> Iterator[Beside]:
    """Print: at one λ, depth 4 is sparser than depth 3, and that sparser than depth 2."""
    for shallow, deep in pairwise(FACTORIZED):
        ratios = [
            _compression(b) / _compression(a)
            for a in here
            for b in here
            if (a.method, b.method) == (shallow, deep)
            and a.figure("strength") == b.figure("strength")
            and a.first["seed"] == b.first["seed"]
            # Two dense networks tell nothing, nor does one of which nothing is left.
            and min(_compression(a), _compression(b)) > SPARSE
            and not (a.gone or b.gone)
        ]
        if ratios:
            yield Beside(
                what=f"{here[0].place}, {deep}: least compression over {shallow}'s, at one λ",
                ours=(min(ratios),),
                note=f"over {len(ratios)} λ; print: above 1",
            )


def _dead(job: str, epochs: Sequence[Network]) -> Iterator[Beside]:
    """Figure 5a: weights that never move, those that are zero, and the accuracy."""
    start, end = epochs[0], epochs[-1]
    yield Beside(
        what=f"{job}: accuracy after epoch {end.first['epoch']}",
        ours=(end.figure("accuracy"),),
    )
    for network in (start, end):
        below = 100 * (1 - network.part("kept"))
        yield Beside(
            what=f"{job}: % of weights below 1.19e-7 after epoch {network.first['epoch']}",
            ours=(below,),
        )
    yield Beside(
        what=f"{job}: % of weights that have not moved by epoch {end.first['epoch']}",
        ours=(100 * end.part("still"),),
    )


def _by_strength(own: Iterable[Network]) -> list[Network]:
    return sorted(own, key=lambda x: x.figure("strength"))


def _compression(network: Network) -> float:
    return network.figure("compression")
