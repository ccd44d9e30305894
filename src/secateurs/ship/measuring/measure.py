"""`measure`: several forms of one model side by side, in turns, so that what disturbs one disturbs
all."""

import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError
from secateurs.graph import Example
from secateurs.graph.untouched import untouched
from secateurs.ship.exporting.compare import outputs_differ_by
from secateurs.ship.fast.trace import arguments, random_call
from secateurs.ship.measuring.figures import FormFigures, Latency
from secateurs.ship.measuring.forms import Form, Ready, in_both_formats, ready
from secateurs.ship.measuring.memory import peak_memory
from secateurs.ship.measuring.result import Measured

Progress: TypeAlias = Callable[[str], None]
Call: TypeAlias = "tuple[tuple[Tensor, ...], dict[str, Tensor]]"

FEWEST, MOST = 5, 2000


@torch.inference_mode()
def measure(
    forms: Mapping[str, Form],
    example: Example,
    *,
    batch_sizes: Sequence[int] = (1, 64),
    seconds: float = 2.0,
    channels_last: bool = False,
    progress: Progress | None = None,
) -> Measured:
    """Files, weights, multiplications, latency and memory of every form, compared with the first.

    Forms are called in turns on the same random inputs, with torch's number of threads; the median
    of a form stands beside the 10th and 90th percentile. Where a form is neither faster nor smaller
    than the first by more than 5 %, the table says "no gain"; faster means that the median and
    the best tenth of the calls agree, because whoever else computes moves medians.

    Args:
        forms: modules in evaluation mode, paths of .onnx or .pt2 files, or functions, by name.
        example: what the model is called with; random inputs of its shape are used.
        batch_sizes: how many samples a call has.
        seconds: about how long each batch size is measured, all forms together.
        channels_last: measure every module with images a second time in torch's channels-last
            memory format, as a form of its own. Neither format is the faster one for all widths,
            and a form should be compared with the better of the first one's two.
        progress: called with one line for each step.

    >>> from torch import nn
    >>> model = nn.Linear(20, 10).eval()
    >>> table = measure({"dense": model, "same": model}, torch.zeros(1, 20), seconds=0.1)
    >>> table.forms[1].difference, table.forms[0].macs
    (0.0, 200)
    """
    _check(forms, batch_sizes, seconds)
    forms = in_both_formats(forms) if channels_last else forms
    say = progress or (lambda text: None)
    args, kwargs = arguments(example)
    opened = {name: ready(name, form, example) for name, form in forms.items()}
    with ExitStack() as stack:
        for form in forms.values():
            if isinstance(form, nn.Module):
                stack.enter_context(untouched(form))
        return _measured(opened, batch_sizes, seconds, (args, kwargs), say)


def _measured(
    opened: Mapping[str, Ready],
    batch_sizes: Sequence[int],
    seconds: float,
    like: Call,
    say: Callable[[str], None],
) -> Measured:
    args, kwargs = like
    times: dict[str, dict[int, Latency]] = {name: {} for name in opened}
    for batch in batch_sizes:
        say(f"batch {batch}: {', '.join(opened)} in turns")
        call = random_call(args, kwargs, batch)
        for name, latency in _timed(opened, call, seconds).items():
            times[name][batch] = latency
    say("peak memory")
    largest = random_call(args, kwargs, max(batch_sizes))
    rows = [
        _figures(name, form, times[name], opened, largest)
        for name, form in opened.items()
    ]
    return Measured(
        forms=tuple(rows),
        batch_sizes=tuple(batch_sizes),
        threads=torch.get_num_threads(),
        machine=processor(),
    )


def _check(
    forms: Mapping[str, Form], batch_sizes: Sequence[int], seconds: float
) -> None:
    if not isinstance(forms, Mapping):
        raise ArgumentError(
            f"forms is a {type(forms).__name__}: give every form a name, {{'dense': model}}."
        )
    if not forms:
        raise ArgumentError(
            "there is no form to measure: give {'dense': model, ...}."
        )
    if not batch_sizes or any(type(n) is not int or n < 1 for n in batch_sizes):
        raise ArgumentError(
            f"batch_sizes={tuple(batch_sizes)!r} are not whole numbers from 1 on."
        )
    if not seconds > 0:
        raise ArgumentError(f"seconds={seconds!r}: a measurement takes time.")


def _timed(
    opened: Mapping[str, Ready], call: Call, seconds: float
) -> dict[str, Latency]:
    """Rounds in which every form is called once, each round beginning with another form."""
    names = list(opened)
    for name in names * 2:  # caches, lazy set-up
        opened[name].call(*call)
    taken: dict[str, list[float]] = {name: [] for name in names}
    end = perf_counter() + seconds
    for turn in range(MOST):
        for i in range(len(names)):
            name = names[(turn + i) % len(names)]
            start = perf_counter()
            opened[name].call(*call)
            taken[name].append(perf_counter() - start)
        # Five rounds even of a slow form: a median of fewer says little.
        if turn + 1 >= FEWEST and perf_counter() > end:
            break
    return {name: _latency(times) for name, times in taken.items()}


def _latency(times: list[float]) -> Latency:
    ordered = sorted(times)
    low, high = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
    return Latency(median=median(ordered), low=low, high=high)


def _figures(
    name: str,
    form: Ready,
    latency: dict[int, Latency],
    opened: Mapping[str, Ready],
    largest: Call,
) -> FormFigures:
    first = next(iter(opened.values()))
    difference = outputs_differ_by(first.call(*largest), form.call(*largest))
    return FormFigures(
        name=name,
        dense_bytes=form.sizes.dense_bytes if form.sizes else None,
        file_bytes=form.file_bytes,
        parameters=form.parameters,
        nonzero=form.nonzero,
        macs=form.macs,
        memory=peak_memory(lambda: form.call(*largest)),
        difference=difference,
        latency=latency,
    )


def processor() -> str:
    """The processor's own name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines: list[Any] = info.read_text().splitlines() if info.exists() else []
    names = [
        line.partition(":")[2].strip()
        for line in lines
        if line.startswith("model name")
    ]
    return names[0] if names else platform.processor() or platform.machine()
