"""The figures of one form of a model, and how they are written."""

from dataclasses import dataclass

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
    """One form of the model. What cannot be known of it, such as the weights of a file, is None.

    Attributes:
        dense_bytes, file_bytes: As a plain safetensors file, and as it is shipped (`save_sparse`,
            or the file itself).
        macs: Multiplications with non-zero weights, for one sample.
        memory: Extra bytes at the peak of a call with the largest batch.
        difference: Of the outputs from those of the first form, relative to the largest.
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
    """The tenth and the ninetieth percentile: how much a call varies on this machine."""
    took = form.latency[batch]
    return f"{1e3 * took.low:.2g}–{1e3 * took.high:.2g}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"
