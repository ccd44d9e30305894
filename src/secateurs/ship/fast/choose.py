"""How each convolution runs: every way worth trying is timed on this machine, at the size of the
layer, and the fastest is remembered in a file by shape and machine. So are the times of a whole
network in its forms.

The file is next to the compiled kernels in the cache folder (`SECATEURS_CACHE`, else
`~/.cache/secateurs`) and has their name, which stands for processor, compiler and kernels, with the
ending `.ways.json`. It holds digests of layers' shapes and densities, and no weights. Deleting it
costs only a new timing. `SECATEURS_TUNING=0` neither reads nor writes it.

Only the user's own file is read, if nobody else can write to it. A way that it names is used only
if it is among those that would be timed, so no file can make a kernel read beyond its data.
"""

import hashlib
import json
import logging
import math
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from secateurs.base import native
from secateurs.base.json_object import json_object
from secateurs.base.progress import Progress, silent
from secateurs.base.safefile import replacing
from secateurs.errors import SecateursError, ShipError
from secateurs.ship.fast import convolve, plan
from secateurs.ship.fast.compiled import KernelLibrary
from secateurs.ship.fast.convolve import Choice
from secateurs.ship.fast.operations import Conv, Planes, Segment

_log = logging.getLogger("secateurs.ship")
ROUNDS = 5
SWITCH = "SECATEURS_TUNING"
MOST_WAYS = 8192  # in the file; the oldest are dropped
MOST_TIMES = 2048  # of networks, and of layers beside torch's own
_LARGEST = 2**21  # bytes

FormTimes: TypeAlias = dict[int, dict[str, float]]
"""Seconds of a call of each form of a network, by the number of samples."""


@dataclass(slots=True, kw_only=True)
class RememberedWays:
    """The fastest ways found by earlier builds, and those that this build adds.

    path: None remembers nothing.
    """

    path: Path | None
    known: dict[str, list[Any]] = field(default_factory=dict)
    added: dict[str, list[Any]] = field(default_factory=dict)
    times: dict[str, FormTimes] = field(default_factory=dict)
    new_times: dict[str, FormTimes] = field(default_factory=dict)
    used: int = 0

    def find(self, key: object, ways: Sequence[Choice]) -> Choice | None:
        """The way that was fastest for such a layer, if it is one of these."""
        entry = self.known.get(_digest(key))
        found = next((way for way in ways if _entry(way) == entry), None)
        self.used += found is not None
        return found

    def note(self, key: object, way: Choice) -> None:
        """Note that this way was fastest for such a layer."""
        self.added[_digest(key)] = _entry(way)

    def find_times(self, key: object, names: set[str]) -> FormTimes | None:
        """How long the forms of such a network took, if they were these."""
        found = self.times.get(_digest(key), {})
        return found if found and all(set(took) == names for took in found.values()) else None

    def note_times(self, key: object, seconds: FormTimes) -> None:
        """Note how long the forms of such a network take."""
        self.new_times[_digest(key)] = seconds

    def save(self) -> None:
        """Add new entries to the file; those added by another process in the meantime stay."""
        if self.path is None or not (self.added or self.new_times):
            return
        ways, times = _read(self.path)
        kept = list({**ways, **self.added}.items())[-MOST_WAYS:]
        timed = list({**times, **self.new_times}.items())[-MOST_TIMES:]
        lines = [",\n".join(f'"{k}": {json.dumps(v)}' for k, v in part) for part in (kept, timed)]
        text = f'{{"code": "{_code()}", "ways": {{\n{lines[0]}\n}}, "times": {{\n{lines[1]}\n}}}}\n'
        try:
            with replacing(self.path, error=ShipError, folders=False, private=True) as part:
                part.write_text(text, encoding="utf-8")
        except SecateursError as problem:
            _log.info("the timings of layers are not remembered: %s", problem)


@dataclass(slots=True, kw_only=True)
class Timed:
    """Picks the fastest way; layers of the same shape and nearly the same density share the answer,
    also with earlier builds.
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
            # Densities in steps of 5 %, with nearly empty layers apart: one timing serves a whole
            # step.
            round(20 * density),
            density < 0.02,
        )

    def _fastest(self, conv: Conv, group: int, found: list[Choice]) -> Choice:
        if len(found) == 1:
            return found[0]
        # In two stages, first the best layout by its likely best choice, then the best choice in
        # it: timing every pair would take several times as long.
        firsts = list({choice.layout: choice for choice in reversed(found)}.values())
        layout = self._best(conv, group, firsts).layout if len(firsts) > 1 else firsts[0].layout
        return self._best(conv, group, [choice for choice in found if choice.layout == layout])

    def ways(self, conv: Conv, group: int) -> list[Choice]:
        """The ways to be timed."""
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
        """Seconds of one layer on its own, for one group."""
        enters = [("x", conv.source)] + (
            [("a", conv.added)] if conv.added and conv.added != conv.source else []
        )
        segment = Segment(
            operations=[conv],
            enters=tuple(enters),
            # Marked as read, since dot products leave out values that are not read.
            leaves=(("y", conv.to),),
            dims={},
            planes=self.planes,
        )
        made = plan.build(segment, self.dtype, group, lambda *_: choice)
        # The layer comes before the store and is timed alone.
        return self.library.time(made.ops[-2], self.dtype, made.numbers, group, ROUNDS)


def untimed(library: KernelLibrary, dtype: torch.dtype, planes: dict[str, Planes]) -> plan.Chooser:
    """The likely best way, without timing: for tests, and if building must be quick."""
    timed = Timed(library=library, dtype=dtype, planes=planes)

    def choose(conv: Conv, group: int) -> Choice:
        found = timed.ways(conv, group)
        special = [choice for choice in found if choice.layout in ("near", "matrix")]
        if special:
            return special[0]
        wanted = "columns" if group * planes[conv.to][1] * planes[conv.to][2] < 128 else "rows"
        return next((choice for choice in found if choice.layout == wanted), found[0])

    return choose


def choose_ways(
    convs: list[Conv],
    groups: tuple[int, ...],
    choose: plan.Chooser,
    say: Progress = silent,
) -> dict[tuple[str, int], Choice]:
    """How every convolution runs in groups of every size."""
    chosen = {}
    for done, conv in enumerate(convs):
        say(f"timing layer {done + 1} of {len(convs)}")
        for group in groups:
            chosen[conv.to, group] = choose(conv, group)
    return chosen


# The timings of earlier builds, as a file.


def remembered_ways(library: KernelLibrary) -> RememberedWays:
    """The remembered timings of layers with these kernels."""
    compiled = Path(str(library.library._name))
    if os.environ.get(SWITCH, "1") == "0" or not compiled.is_absolute():
        return RememberedWays(path=None)
    path = compiled.with_suffix(".ways.json")
    known, times = _read(path)
    return RememberedWays(path=path, known=known, times=times)


def _read(path: Path) -> tuple[dict[str, list[Any]], dict[str, FormTimes]]:
    """The ways and the times in a file; none if it is not ours, damaged, or of another version."""
    try:
        status = path.lstat()
        if not (stat.S_ISREG(status.st_mode) and native.only_ours(status)):
            _log.info("%s is ignored: others can write to it", path)
            return {}, {}
        if status.st_size > _LARGEST:
            return {}, {}
        fields = json_object(path.read_bytes(), str(path), ShipError)
    except FileNotFoundError:
        return {}, {}
    except (OSError, SecateursError) as problem:
        _log.info("%s is ignored: %s", path, problem)
        return {}, {}
    ways, times = fields.get("ways"), fields.get("times", {})
    if fields.get("code") != _code() or not (isinstance(ways, dict) and isinstance(times, dict)):
        return {}, {}
    return (
        {key: entry for key, entry in ways.items() if _is_digest(key) and _is_entry(entry)},
        {
            key: {int(batch): took for batch, took in entry.items()}
            for key, entry in times.items()
            if _is_digest(key) and _are_times(entry)
        },
    )


def _entry(way: Choice) -> list[Any]:
    return [way.layout, way.tile, way.block, way.parts]


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, list)
        and [type(one) for one in entry] == [str, int, int, int]
        and entry[0].isalpha()
    )


def _are_times(entry: object) -> bool:
    return isinstance(entry, dict) and all(
        batch.isdecimal()
        and len(batch) < 9
        and isinstance(took, dict)
        and all(type(seconds) is float and 0 < seconds < math.inf for seconds in took.values())
        for batch, took in entry.items()
    )


def _is_digest(key: str) -> bool:
    return len(key) == 24 and set(key) <= set("0123456789abcdef")


def _digest(key: object) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()[:24]


def _code() -> str:
    """What times depend on: our code, and torch, whose own layers are among the forms."""
    return f"{_own_code()} torch {torch.__version__}"


@cache
def _own_code() -> str:
    """A digest of the code that determines which ways there are and how they are timed."""
    text = "".join(
        Path(__file__).with_name(name).read_text(encoding="utf-8")
        for name in ("accelerated.py", "choose.py", "convolve.py", "layers.py", "plan.py")
    )
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has finished its work; otherwise only the time to queue it would be
    measured.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
