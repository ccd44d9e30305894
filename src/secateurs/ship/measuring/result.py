"""The table that `measure` makes, in words, as CSV, JSON and a picture."""

import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from secateurs.errors import ArgumentError
from secateurs.foreign import write_csv
from secateurs.printing import Printed
from secateurs.registry import unknown
from secateurs.ship.measuring.figures import (
    GAIN,
    FormFigures,
    bytes_text,
    count_text,
    median_text,
    range_text,
)
from secateurs.ship.measuring.picture import bars
from secateurs.writing import replacing


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(Printed):
    """Every form, the first being what the others are compared with; on so many threads."""

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
        """What the form gains over the first, in words; "no gain" where there is none."""
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
        rows = [
            {**asdict(form), "verdict": self.verdict(form)} for form in self.forms
        ]
        return {"threads": self.threads, "machine": self.machine, "forms": rows}

    def to_json(self) -> str:
        """The table as a JSON object."""
        return json.dumps(self.as_dict(), indent=2)

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
        sizes = {
            f.name: f.file_bytes / 1e3 for f in self.forms if f.file_bytes is not None
        }
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
        """A column a form, which fits a terminal of eighty; below it what each form gains."""
        table = Table(title=f"{self.machine}, {self.threads} thread(s)")
        table.add_column("", no_wrap=True)
        for form in self.forms:
            table.add_column(escape(form.name), justify="right")
        for heading, cell in self._lines():
            table.add_row(heading, *(cell(form) for form in self.forms))
        gains = [f"{form.name}: {self.verdict(form)}" for form in self.forms[1:]]
        return Group(table, *(Text(gain) for gain in gains))

    def _lines(self) -> list[tuple[str, Callable[[FormFigures], str]]]:
        """What is shown of a form, each under its heading."""
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
        """What is gained or lost, where the median and the best calls agree that it is.

        On a busy machine medians are moved by whoever else computes; the best tenth hardly.
        """
        first, took = self.forms[0].latency[batch], form.latency[batch]
        both = (first.median / took.median, first.low / took.low)
        # The more modest of the two is what is claimed.
        ratio = min(both, key=lambda ratio: abs(math.log(ratio)))
        # One says faster, the other slower: nothing is claimed.
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
