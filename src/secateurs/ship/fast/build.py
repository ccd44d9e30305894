"""From a traced model to a fast module: parts, groups of images, a way to run for every layer."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np
import torch
from rich.table import Table
from torch import Tensor, nn

from secateurs.errors import UnsupportedOperation
from secateurs.graph import Example
from secateurs.graph.export import Call, outputs_of
from secateurs.graph.spot_check import SpotRun, answers_in_turn
from secateurs.printing import Printed
from secateurs.ship.fast import plan
from secateurs.ship.fast import read as rules
from secateurs.ship.fast.choose import RememberedWays, Timed, remembered_ways, untimed
from secateurs.ship.fast.compiled import KernelLibrary, Program
from secateurs.ship.fast.convolve import Choice
from secateurs.ship.fast.module import Compiled, FastModule, InTorch, Runner, in_torch
from secateurs.ship.fast.operations import Conv, Outside, Part, Segment, Steps, parts, work
from secateurs.ship.fast.plan import Chooser
from secateurs.ship.fast.read import read
from secateurs.ship.fast.trace import apart_by, arguments, random_call, trace

# The report of `accelerate`: how each layer runs, what stays in torch, what was gained.


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """How one layer runs."""

    place: str
    density: float
    macs: int  # multiplications with non-zero weights, for one image
    ways: tuple[str, ...]  # for each group size


@dataclass(frozen=True, slots=True, kw_only=True)
class FastReport(Printed):
    """How the layers of a fast module run, and what it gained.

    Attributes:
        seconds: Per batch size, 1 and up to 64, the median of interleaved calls of the "model", of
            the "compact" one if channels were dead, of the "fast" program, and of the "layers"
            compiled inside the model's modules, with `threads` threads; empty if not timed.
        outside: The operators that stay in torch, with place and reason.
        remembered: How many timings of layers were taken from earlier builds on this machine.
    """

    layers: tuple[Layer, ...]
    groups: tuple[int, ...]
    outside: tuple[str, ...]
    seconds: dict[int, dict[str, float]]
    threads: int
    built_in: float
    remembered: int = 0

    @property
    def macs(self) -> int:
        """Multiplications with non-zero weights for one image."""
        return sum(layer.macs for layer in self.layers)

    def __rich__(self) -> Table:
        gains = ", ".join(
            f"batch {n}: {took['model'] / (took.get('fast') or took['layers']):.2f}×"
            for n, took in self.seconds.items()
        )
        table = Table(
            title=f"fast path, {self.macs / 1e6:.1f} MMAC an image; {gains or 'not timed'}"
        )
        for name in (
            "layer",
            "density",
            "MMAC",
            *([f"group of {g}" for g in self.groups] or ["way"]),
        ):
            table.add_column(name)
        for layer in self.layers:
            table.add_row(
                layer.place,
                f"{layer.density:.3f}",
                f"{layer.macs / 1e6:.2f}",
                *layer.ways,
            )
        for line in self.outside:
            table.add_row(line, "", "", *["in torch"] * max(1, len(self.groups)))
        return table


Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is done, how much of it is done, and how much there is."""

# Bytes of planes that a thread works on: groups are as large as that allows. They have to stay in
# the third cache: eight images of a MobileNet at 224 × 224 took 66.5 ms as one group (54 MB), 58.4
# in pairs (13 MB), 56.2 one by one.
MEMORY = 16 * 2**20
GROUPS = (8, 4, 2)
FEATURE_GROUP = 128  # networks without images: the batch fills the vectors
# Numbers read and multiplied that are worth a thread. Starting one costs some 40 µs on a quiet
# machine and several times that on a busy one. A million each was too little there: a LeNet at 2 %
# density took 0.18 ms for 256 images in one thread, 0.35 in two (the best of 60).
WORTH_A_THREAD = 4_000_000

# `rules` is imported for its side effect: its files register the operators.
__all__ = ["Progress", "built", "rules"]


def built(
    model: nn.Module,
    example: Example,
    kernels: KernelLibrary,
    dtype: torch.dtype,
    *,
    timed: bool,
    progress: Progress,
) -> FastModule:
    """The fast module of a model."""
    start = time.perf_counter()
    steps = read(trace(model, example), dtype)
    found = parts(steps)
    guess = untimed(kernels, dtype, steps.planes)
    remembered = remembered_ways(kernels) if timed else RememberedWays(path=None)
    timing = Timed(library=kernels, dtype=dtype, planes=steps.planes, remembered=remembered)
    choose = timing if timed else guess
    # With guessed ways, so that layers are timed only for the group sizes in use.
    groups = groups_of([p for p in found if isinstance(p, Segment)], dtype, guess)
    chosen = choose_ways(_convs(found), groups, choose, progress)
    remembered.save()
    # The ways just chosen are looked up, so that program and report agree.
    runners: list[Runner] = []
    for part in found:
        if isinstance(part, Outside):
            runners.append(InTorch(step=part))
            continue
        program = program_of(part, groups, kernels, dtype, lambda conv, g: chosen[conv.to, g])
        runners.append(Compiled(segment=part, program=program, dtype=dtype))
    report = FastReport(
        layers=tuple(_layer(conv, steps, groups, chosen) for conv in _convs(found)),
        groups=groups,
        outside=tuple(
            f"{s.target} at {s.place or 'the model itself'}: {s.why}" for s in in_torch(found)
        ),
        seconds={},
        threads=torch.get_num_threads(),
        built_in=time.perf_counter() - start,
        remembered=remembered.used,
    )
    fast = FastModule(model, steps, runners, dtype, report)
    _check_batches(model, fast, example)
    return fast


def _check_batches(model: nn.Module, fast: FastModule, example: Example) -> None:
    """Refuse a program that was read for two samples and works for no other number.

    A loop over the samples is unrolled during tracing: for three samples it would leave one out.
    The tracer does not notice: it calls the size of the batch free all the same.
    """
    args, kwargs = arguments(example)
    for batch in (1, 3):
        call = Call(*random_call(args, kwargs, batch))
        wanted = answers_in_turn(model, [SpotRun(call=call, gradients=False)], None)[0]
        if isinstance(wanted, Exception):
            continue  # the model accepts no such batch, so nothing can differ
        apart = _apart(model, fast, call, list(wanted.values()))
        if not apart <= _SHARE:
            outside = fast.report.outside[:1]
            stays = "".join(f", and part of it stays in torch ({o})" for o in outside)
            raise UnsupportedOperation(
                f"{type(model).__name__} does something else for each batch size"
                f"{stays}: at {batch} sample(s) its program differs"
                f" by {apart:.3g} of the largest output. Write what it does sample by sample as"
                " operators on the whole batch, without the size of the batch as a number."
            )


_SHARE = 1e-3
"""Programs differ from torch by rounding alone: 1e-6 is usual in single precision."""


def _apart(model: nn.Module, fast: FastModule, call: Call, wanted: list[Tensor]) -> float:
    try:
        with torch.inference_mode():
            given = fast(*call.args, **call.kwargs)
    except (RuntimeError, IndexError, ValueError):
        return float("inf")
    found = [t.double() for t in outputs_of(given).values()]
    if len(found) != len(wanted):
        return float("inf")
    apart = max(map(apart_by, wanted, found), default=0.0)
    if apart <= _SHARE or apart == float("inf"):
        return apart
    # Outputs may cancel to far less than their terms; then the model itself is as far off.
    exact = answers_in_turn(model, [SpotRun(call=call, gradients=False)], torch.float64)[0]
    if isinstance(exact, Exception):
        return apart
    truth = list(exact.values())
    own, ours = (max(map(apart_by, truth, some)) for some in (wanted, found))
    return 0.0 if ours <= 100 * own else ours


def _convs(found: list[Part]) -> list[Conv]:
    return [
        op
        for part in found
        if isinstance(part, Segment)
        for op in part.operations
        if isinstance(op, Conv)
    ]


def groups_of(segments: list[Segment], dtype: torch.dtype, guess: Chooser) -> tuple[int, ...]:
    """How many images are processed at once: as many as memory allows, one for the remainder."""
    if _features(segments):
        return (FEATURE_GROUP, 16, 1)
    for group in GROUPS:
        if all(
            plan.build(s, dtype, group, guess).numbers * dtype.itemsize <= MEMORY for s in segments
        ):
            return (group, 1)
    return (1,)


def _features(segments: list[Segment]) -> bool:
    """Whether every computed value is one number per image."""
    return all(s.planes[op.to][1:] == (1, 1) for s in segments for op in s.operations)


def choose_ways(
    convs: list[Conv], groups: tuple[int, ...], choose: Chooser, progress: Progress | None = None
) -> dict[tuple[str, int], Choice]:
    """How every convolution runs in groups of every size."""
    chosen = {}
    for done, conv in enumerate(convs):
        if progress:
            progress("timing layers", done, len(convs))
        for group in groups:
            chosen[conv.to, group] = choose(conv, group)
    if progress:
        progress("timing layers", len(convs), len(convs))
    return chosen


def program_of(
    segment: Segment,
    groups: tuple[int, ...],
    kernels: KernelLibrary,
    dtype: torch.dtype,
    choose: Chooser,
) -> Program:
    """A segment ready to run, for groups of these sizes."""
    program = Program(kernels, dtype, least=-(-WORTH_A_THREAD // _products(segment)))
    for group in groups:
        made = plan.build(segment, dtype, group, choose)
        program.plan(made.ops, made.memory, group, made.numbers, features=_features([segment]))
    return program


def _products(segment: Segment) -> int:
    """The cost of one image: the numbers read and written for all values, and the products."""
    values = [*(value for _, value in segment.enters), *(op.to for op in segment.operations)]
    numbers = sum(prod(segment.planes[name]) for name in values)
    return max(1, numbers + sum(work(op, segment.planes) for op in segment.operations))


def _layer(
    conv: Conv,
    steps: Steps,
    groups: tuple[int, ...],
    chosen: dict[tuple[str, int], Choice],
) -> Layer:
    return Layer(
        place=conv.place,
        density=np.count_nonzero(conv.weight) / conv.weight.size,
        macs=work(conv, steps.planes),
        ways=tuple(str(chosen[conv.to, group]) for group in groups),
    )
