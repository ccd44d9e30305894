"""`measure`: several forms of one model side by side, called in turns, so that disturbances affect
all of them alike.
"""

import ctypes
import gc
import math
import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, TypeAlias
from xml.sax.saxutils import escape

import torch
from rich.console import Group
from rich.markup import escape as escape_markup
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from secateurs.base.cells import write_csv
from secateurs.base.printing import Reported
from secateurs.base.progress import Progress, show_progress
from secateurs.base.registry import unknown
from secateurs.base.safefile import replacing
from secateurs.channels.macs import macs
from secateurs.errors import ArgumentError, SecateursError, ShipError
from secateurs.files import FileSizes, save_sparse
from secateurs.graph import Example
from secateurs.graph.untouched import untouched
from secateurs.ship.export import pt2_runner
from secateurs.ship.fast import FastModule
from secateurs.ship.fast.trace import arguments, random_call
from secateurs.ship.onnx import onnx_runner
from secateurs.ship.programs import outputs_differ_by

# The figures of one form of a model, and how they are written.

GAIN = 1.05
"""How many times faster or smaller counts as a gain; below that it is noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds of a call: the median, and the 10th and 90th percentile."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FormFigures:
    """Figures of one form of the model; None for unknown ones, such as the weights of a file.

    Attributes:
        dense_bytes, file_bytes: As a plain safetensors file, and as it is shipped (`save_sparse`,
            or the file itself).
        macs: Multiplications with non-zero weights, for one sample.
        memory: Extra bytes at the peak of a call with the largest batch.
        difference: The difference of the outputs from those of the first form, relative to the
            largest.
    """

    name: str
    dense_bytes: int | None
    file_bytes: int | None
    parameters: int | None
    nonzero: int | None
    macs: int | None
    memory: int | None
    difference: float
    latency: dict[int, Latency]


def bytes_text(count: int | None) -> str:
    if count is None:
        return "-"
    unit, name = (1e6, "MB") if count >= 1e6 else (1e3, "kB")
    return f"{count / unit:.3g} {name}"


def count_text(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def median_text(form: FormFigures, *, batch: int) -> str:
    return _ms(form.latency[batch].median)


def range_text(form: FormFigures, *, batch: int) -> str:
    """The 10th and the 90th percentile: how much a call varies on this machine."""
    took = form.latency[batch]
    return f"{1e3 * took.low:.2g}–{1e3 * took.high:.2g}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"


# The forms in which a model can be measured: modules, files for other runtimes, functions.

Form: TypeAlias = "nn.Module | str | os.PathLike[str] | Callable[..., Any]"
"""A module, a file that `export` wrote, or a function of the inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A form that can be called, and the figures that need no call."""

    call: Callable[[tuple[Tensor, ...], dict[str, Tensor]], Any]
    sizes: FileSizes | None
    file_bytes: int | None
    parameters: int | None
    nonzero: int | None
    macs: int | None


def in_both_formats(forms: Mapping[str, Form]) -> dict[str, Form]:
    """Add, after every module with images, the same one in the channels-last memory format."""
    both: dict[str, Form] = {}
    for name, form in forms.items():
        both[name] = form
        other = f"{name}, channels last"
        if other in forms:
            raise ArgumentError(f"a form is already called {other!r}: rename it.")
        # A program has its own layout.
        if isinstance(form, FastModule) or not isinstance(form, nn.Module):
            continue
        if any(parameter.ndim == 4 for parameter in form.parameters()):
            # torch's annotations do not cover this use.
            both[other] = deepcopy(form).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return both


def ready(name: str, form: Form, example: Example) -> Ready:
    """Open files, refuse modules in training, count weights."""
    if isinstance(form, nn.Module):
        return _module(name, form, example)
    if isinstance(form, str | os.PathLike):
        return _file(name, Path(form))
    if not callable(form):
        raise ArgumentError(
            f"{name!r} is a {type(form).__name__}: give a module, file or function."
        )
    return Ready(
        call=lambda args, kwargs: form(*args, **kwargs),
        sizes=None,
        file_bytes=None,
        parameters=None,
        nonzero=None,
        macs=None,
    )


def _module(name: str, module: nn.Module, example: Example) -> Ready:
    if any(inner.training for inner in module.modules()):
        raise ArgumentError(f"{name!r} is in training mode: call .eval() first.")
    # A fast module keeps its weights in compiled lists: they are counted in the model behind it.
    plain = module.plain if isinstance(module, FastModule) else module
    sizes = _sizes(plain)
    parameters = list(plain.parameters())
    return Ready(
        call=lambda args, kwargs: module(*args, **kwargs),
        sizes=sizes,
        file_bytes=sizes.bytes,
        parameters=sum(p.numel() for p in parameters),
        nonzero=sum(int(p.count_nonzero()) for p in parameters),
        macs=_macs(plain, example),
    )


def _file(name: str, path: Path) -> Ready:
    runners = {".onnx": onnx_runner, ".pt2": pt2_runner}
    if path.suffix not in runners:
        raise ArgumentError(f"{name!r}: {path.name} is not an .onnx or .pt2 file.")
    if not path.exists():
        raise ShipError(f"{name!r}: {path} does not exist.")
    run = runners[path.suffix](path)
    size = path.stat().st_size
    return Ready(
        call=run,
        sizes=None,
        file_bytes=size,
        parameters=None,
        nonzero=None,
        macs=None,
    )


def _sizes(module: nn.Module) -> FileSizes:
    with tempfile.TemporaryDirectory() as folder:
        # The size of a file that was actually written, not an estimate.
        return save_sparse(module, Path(folder) / "m.safetensors")


def _macs(module: nn.Module, example: Example) -> int | None:
    """The multiplications; None if the graph does not cover the model, which can still be timed."""
    try:
        return macs(module, example).nonzero
    except SecateursError:
        return None


# The peak memory of a call, as counted by the system: torch, kernels and runtimes.

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_memory(call: Callable[[], object]) -> int | None:
    """Resident bytes at the peak of the call, minus those before it; None except on Linux.

    Memory that the allocator keeps from earlier calls is released first, as far as possible.
    """
    try:
        gc.collect()
        _trim()
        _RESET.write_text("5", encoding="utf-8")  # the high-water mark is reset
        before = _status("VmRSS")
        call()
        return max(0, _status("VmHWM") - before)
    except (OSError, KeyError, ValueError):
        return None


def _status(key: str) -> int:
    lines = dict(
        line.split(":", 1)
        for line in _STATUS.read_text(encoding="utf-8").splitlines()
        if ":" in line
    )
    return 1024 * int(lines[key].split()[0])


def _trim() -> None:
    # Only glibc has malloc_trim.
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


# Bars as SVG: text and rectangles, without script, font or library.

_WIDTH, _LABEL, _BAR, _GAP, _TITLE = 640, 120, 22, 6, 34
_COLOURS = ("#8a8f98", "#2f7d5b", "#2a6fb0", "#b3652b", "#7a4fa3", "#a33f52")


def bars(panels: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """One panel of horizontal bars below the other: (title, {label: value}).

    >>> "<svg" in bars([("ms", {"dense": 2.0, "fast": 1.0})])
    True
    """
    parts, top = list[str](), 0
    for title, values in panels:
        parts.append(_text(8, top + 22, title, "bold"))
        top += _TITLE
        # If all values are zero, there is nothing to divide by.
        largest = max(values.values(), default=0.0) or 1.0
        for i, (label, value) in enumerate(values.items()):
            parts.append(_bar(top, label, value, largest, _COLOURS[i % len(_COLOURS)]))
            top += _BAR + _GAP
        top += _GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}"'
    style = 'font-family="system-ui, sans-serif" font-size="13" role="img"'
    return "\n".join([f'{head} height="{top}" {style}>', *parts, "</svg>"]) + "\n"


def _bar(top: int, label: str, value: float, largest: float, colour: str) -> str:
    length = (_WIDTH - _LABEL - 90) * value / largest
    middle = top + _BAR - 6
    rectangle = (
        f'<rect x="{_LABEL}" y="{top}" width="{max(length, 1):.1f}" height="{_BAR}" '
        f'fill="{colour}"/>'
    )
    figure = _text(_LABEL + length + 6, middle, f"{value:.3g}")
    return "\n".join([_text(8, middle, label), rectangle, figure])


def _text(x: float, y: float, text: str, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}" fill="#444">{escape(text)}</text>'


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(Reported):
    """All forms, compared with the first one; on this number of threads."""

    forms: tuple[FormFigures, ...]
    batch_sizes: tuple[int, ...]
    threads: int
    machine: str

    def speedup(self, name: str, batch: int) -> float:
        """How many times faster than the first form."""
        known = {form.name: form for form in self.forms}
        if name not in known or batch not in self.batch_sizes:
            raise ArgumentError(
                f"{name!r} at batch {batch} was not measured; forms: {', '.join(known)}."
            )
        return self.forms[0].latency[batch].median / known[name].latency[batch].median

    def verdict(self, form: FormFigures) -> str:
        """How the form compares with the first, in words; "no gain" if it gains nothing."""
        if form is self.forms[0]:
            return "what the others are compared with"
        said = [self._speed(form, batch) for batch in self.batch_sizes]
        first, size = self.forms[0].dense_bytes, form.file_bytes
        if first and size and first / size > GAIN:
            said.append(f"file {first / size:.3g}× smaller")
        gains = [text for text in said if text]
        return "; ".join(gains) if gains else "no gain"

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        rows = [{**asdict(form), "verdict": self.verdict(form)} for form in self.forms]
        return {"threads": self.threads, "machine": self.machine, "forms": rows}

    def to_csv(self) -> str:
        """One line for each form and batch size; times in milliseconds."""
        lines: list[list[object]] = [[*_PLAIN, *_MEASURED]]
        for form in self.forms:
            plain = [getattr(form, name) for name in _PLAIN]
            for batch, took in form.latency.items():
                times = [f"{1e3 * t:.5g}" for t in (took.median, took.low, took.high)]
                row = [*plain, f"{form.difference:.3g}", batch, self.threads, *times]
                lines.append(["" if value is None else value for value in row])
        text = StringIO()
        write_csv(text, lines)
        return text.getvalue()

    def to_svg(self) -> str:
        """Bars of latency and file size, as a picture that needs nothing else."""
        panels = [
            (
                f"milliseconds a call, batch {batch}, {self.threads} thread(s)",
                {form.name: 1e3 * form.latency[batch].median for form in self.forms},
            )
            for batch in self.batch_sizes
        ]
        sizes = {f.name: f.file_bytes / 1e3 for f in self.forms if f.file_bytes is not None}
        return bars([*panels, ("kilobytes of the file", sizes)] if sizes else panels)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the table as .csv, .json or .svg, by the suffix."""
        path = Path(path)
        texts = {".csv": self.to_csv, ".json": self.to_json, ".svg": self.to_svg}
        if path.suffix not in texts:
            raise ArgumentError(unknown("format of a table", path.suffix, texts))
        text = texts[path.suffix]()
        with replacing(path, folders=False) as part:
            part.write_text(text, encoding="utf-8")
        return path

    def __rich__(self) -> Group:
        """One column per form, which fits 80 columns; below the table, what each form gains."""
        table = Table(title=f"{self.machine}, {self.threads} thread(s)")
        table.add_column("", no_wrap=True)
        for form in self.forms:
            table.add_column(escape_markup(form.name), justify="right")
        for heading, cell in self._lines():
            table.add_row(heading, *(cell(form) for form in self.forms))
        gains = [f"{form.name}: {self.verdict(form)}" for form in self.forms[1:]]
        return Group(table, *(Text(gain) for gain in gains))

    def _lines(self) -> list[tuple[str, Callable[[FormFigures], str]]]:
        """The displayed figures of a form, each under its heading."""
        lines: list[tuple[str, Callable[[FormFigures], str]]] = [
            ("safetensors", lambda form: bytes_text(form.dense_bytes)),
            ("file", lambda form: bytes_text(form.file_bytes)),
            ("parameters", lambda form: count_text(form.parameters)),
            ("non-zero", lambda form: count_text(form.nonzero)),
            ("MACs left", lambda form: count_text(form.macs)),
            ("memory", lambda form: bytes_text(form.memory)),
        ]
        for batch in self.batch_sizes:
            lines.append((f"ms, batch {batch}", partial(median_text, batch=batch)))
            lines.append(("  10–90 %", partial(range_text, batch=batch)))
        return lines

    def _speed(self, form: FormFigures, batch: int) -> str:
        """What is gained or lost, if the median and the best calls agree.

        On a busy machine, other work shifts medians, but hardly the best tenth.
        """
        first, took = self.forms[0].latency[batch], form.latency[batch]
        both = (first.median / took.median, first.low / took.low)
        # The smaller of the two gains is claimed.
        ratio = min(both, key=lambda ratio: abs(math.log(ratio)))
        # If one says faster and the other slower, nothing is claimed.
        if (both[0] > 1) != (both[1] > 1):
            return ""
        if ratio > GAIN:
            return f"{ratio:.3g}× faster at batch {batch}"
        return f"{1 / ratio:.3g}× slower at batch {batch}" if ratio < 1 / GAIN else ""


_PLAIN = (
    "name",
    "dense_bytes",
    "file_bytes",
    "parameters",
    "nonzero",
    "macs",
    "memory",
)
_MEASURED = ("difference", "batch", "threads", "median_ms", "p10_ms", "p90_ms")


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

    Forms are called in turns on the same random inputs, with torch's number of threads; the table
    gives the median of a form with the 10th and 90th percentile. If a form is neither faster nor
    smaller than the first by more than 5 %, the table says "no gain"; faster means that the median
    and the best tenth of the calls agree, because other work on the machine shifts medians.

    Args:
        forms: modules in evaluation mode, paths of .onnx or .pt2 files, or functions, by name.
        example: the arguments of a call; random inputs of its shape are used.
        batch_sizes: numbers of samples per call.
        seconds: about how long each batch size is measured, all forms together.
        channels_last: measure every module with images a second time in torch's channels-last
            memory format, as a separate form. Neither format is the faster one for all widths, and
            a form should be compared with the better of the first one's two.
        progress: called with one line for each step.

    >>> from torch import nn
    >>> model = nn.Linear(20, 10).eval()
    >>> table = measure({"dense": model, "same": model}, torch.zeros(1, 20), seconds=0.1)
    >>> table.forms[1].difference, table.forms[0].macs
    (0.0, 200)
    """
    _check(forms, batch_sizes, seconds)
    forms = in_both_formats(forms) if channels_last else forms
    args, kwargs = arguments(example)
    opened = {name: ready(name, form, example) for name, form in forms.items()}
    with ExitStack() as stack:
        say = stack.enter_context(show_progress(progress, "measure"))
        for form in forms.values():
            if isinstance(form, nn.Module):
                stack.enter_context(untouched(form))
        return _measure(opened, batch_sizes, seconds, (args, kwargs), say)


def _measure(
    opened: Mapping[str, Ready],
    batch_sizes: Sequence[int],
    seconds: float,
    like: Call,
    say: Progress,
) -> Measured:
    args, kwargs = like
    times: dict[str, dict[int, Latency]] = {name: {} for name in opened}
    for batch in batch_sizes:
        say(f"batch {batch}: {', '.join(opened)} in turns")
        call = random_call(args, kwargs, batch)
        for name, latency in _time_in_rounds(opened, call, seconds).items():
            times[name][batch] = latency
    say("peak memory")
    largest = random_call(args, kwargs, max(batch_sizes))
    rows = [_figures(name, form, times[name], opened, largest) for name, form in opened.items()]
    return Measured(
        forms=tuple(rows),
        batch_sizes=tuple(batch_sizes),
        threads=torch.get_num_threads(),
        machine=processor(),
    )


def _check(forms: Mapping[str, Form], batch_sizes: Sequence[int], seconds: float) -> None:
    if not isinstance(forms, Mapping):
        raise ArgumentError(
            f"forms is a {type(forms).__name__}: give every form a name, {{'dense': model}}."
        )
    if not forms:
        raise ArgumentError("there is no form to measure: give {'dense': model, ...}.")
    if not batch_sizes or any(type(n) is not int or n < 1 for n in batch_sizes):
        raise ArgumentError(f"batch_sizes={tuple(batch_sizes)!r}: give whole numbers, 1 or more.")
    if not seconds > 0:
        raise ArgumentError(f"seconds={seconds!r}: give a positive number of seconds.")


def _time_in_rounds(opened: Mapping[str, Ready], call: Call, seconds: float) -> dict[str, Latency]:
    """Rounds in which every form is called once, each round starting with a different form."""
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
        # Five rounds even for slow forms: the median of fewer says little.
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
    """The processor's name, if the system provides it."""
    info = Path("/proc/cpuinfo")
    lines: list[Any] = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
