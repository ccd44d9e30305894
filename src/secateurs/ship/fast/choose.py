"""How each convolution runs: every way that is worth trying is timed on this machine, on the
layer's own size.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

from secateurs.ship.fast import convolve, plan
from secateurs.ship.fast.compiled import KernelLibrary
from secateurs.ship.fast.convolve import Choice
from secateurs.ship.fast.operations import Conv, Planes, Segment
from secateurs.ship.fast.remembered import RememberedWays

ROUNDS = 5


@dataclass(slots=True, kw_only=True)
class Timed:
    """Picks the fastest way; layers of one shape and nearly one density share the answer, also with
    earlier builds.
    """

    library: KernelLibrary
    dtype: torch.dtype
    planes: dict[str, Planes]
    remembered: RememberedWays = field(default_factory=lambda: RememberedWays(path=None))
    known: dict[object, Choice] = field(default_factory=dict)
    seconds: dict[tuple[str, int], float] = field(default_factory=dict)

    def __call__(self, conv: Conv, group: int) -> Choice:
        """The choice for one layer."""
        key = self._key(conv, group)
        if key not in self.known:
            ways, named = self.ways(conv, group), (str(self.dtype), key)
            found = self.remembered.find(named, ways)
            if found is None:
                found = self._fastest(conv, group, ways)
                self.remembered.note(named, found)
            self.known[key] = found
        return self.known[key]

    def _key(self, conv: Conv, group: int) -> object:
        density = np.count_nonzero(conv.weight) / conv.weight.size
        geometry = (
            conv.weight.shape,
            conv.stride,
            conv.padding,
            conv.dilation,
            conv.groups,
        )
        return (
            self.planes[conv.source],
            self.planes[conv.to],
            geometry,
            group,
            # Densities in steps of 5 %, and nearly empty layers apart: within a step
            # one timing serves.
            round(20 * density),
            density < 0.02,
        )

    def _fastest(self, conv: Conv, group: int, found: list[Choice]) -> Choice:
        if len(found) == 1:
            return found[0]
        # In two stages, the best layout by its likely best choice and then the best
        # choice in it: timing every pair would take several times as long.
        firsts = list({choice.layout: choice for choice in reversed(found)}.values())
        layout = self._best(conv, group, firsts).layout if len(firsts) > 1 else firsts[0].layout
        return self._best(conv, group, [choice for choice in found if choice.layout == layout])

    def ways(self, conv: Conv, group: int) -> list[Choice]:
        """What is timed."""
        source, to = self.planes[conv.source], self.planes[conv.to]
        lanes = self.library.lanes[self.dtype]
        registers = self.library.registers
        return [
            *convolve.candidates(conv, source, to, group, lanes, registers),
            *convolve.near_candidates(conv, to, group),
            *convolve.matrix_candidates(conv, to, group, lanes, registers),
            *convolve.winograd_candidates(conv, to, group, registers),
        ]

    def _best(self, conv: Conv, group: int, choices: list[Choice]) -> Choice:
        times = [self.time(conv, group, choice) for choice in choices]
        return choices[int(np.argmin(times))]

    def time(self, conv: Conv, group: int, choice: Choice) -> float:
        """Seconds of one layer alone, for one group."""
        enters = [("x", conv.source)] + (
            [("a", conv.added)] if conv.added and conv.added != conv.source else []
        )
        segment = Segment(
            operations=[conv],
            enters=tuple(enters),
            # Read by somebody: dot products leave out what nobody reads.
            leaves=(("y", conv.to),),
            dims={},
            planes=self.planes,
        )
        made = plan.build(segment, self.dtype, group, lambda *_: choice)
        # The layer stands before the store: it is timed alone.
        return self.library.time(made.ops[-2], self.dtype, made.numbers, group, ROUNDS)


def untimed(
    library: KernelLibrary, dtype: torch.dtype, planes: dict[str, Planes]
) -> "plan.Chooser":
    """The likely best way, without timing: for tests, and where building must be quick."""
    timed = Timed(library=library, dtype=dtype, planes=planes)

    def choose(conv: Conv, group: int) -> Choice:
        found = timed.ways(conv, group)
        special = [choice for choice in found if choice.layout in ("near", "matrix")]
        if special:
            return special[0]
        wanted = "columns" if group * planes[conv.to][1] * planes[conv.to][2] < 128 else "rows"
        return next((choice for choice in found if choice.layout == wanted), found[0])

    return choose
