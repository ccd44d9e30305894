"""What a kept certificate states, read from its text with every field checked for its type."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from secateurs.errors import ArgumentError, DomainError, SecateursError
from secateurs.paths.certificates.domain import Domain
from secateurs.paths.certificates.keeping.kept_boxes import kept_boxes
from secateurs.paths.certificates.keeping.packing import unpacked
from secateurs.paths.certificates.keeping.record import FORMAT, domain_hash
from secateurs.paths.certificates.keeping.worth import Worth
from secateurs.paths.certificates.samples.result import StatisticalCertificate

Read = TypeVar("Read")

WHO = ("dense", "sparse")


@dataclass(frozen=True, kw_only=True)
class Stated:
    """A record as it was read: claims, none of them believed."""

    worth: Worth
    verdict: str
    method: str
    tightness: float
    per_output: tuple[float, ...]
    bounds: dict[str, float]
    told: dict[str, str]
    assumptions: tuple[str, ...]
    methods: list[str]
    norm: float
    rounding: Any
    effort: float
    symbols: int | None
    seconds: float | None
    output: str | int | None
    states: Mapping[str, str]
    skipped: dict[str, str]
    versions: dict[str, str]
    networks: dict[tuple[str, str], str]
    dtype: str
    worst_input: Tensor | None
    statistical: StatisticalCertificate | None
    boxes: Mapping[str, Any]
    record: Mapping[str, Any]


def read_stated(text: str) -> Stated:
    """The claims of a certificate's text; what is no certificate is refused."""
    record = _json(text)
    try:
        return _stated(record)
    except SecateursError:
        raise
    # An edited text may hold anything anywhere; whatever breaks is one kind of error.
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ArgumentError(
            "this is no certificate: a field is missing or of another type"
            f" ({type(error).__name__}: {error})."
        ) from None


def boxes(stated: Stated, beside: Path | None, given: Domain | None) -> Domain:
    """The boxes: as given, from the record itself, or from the file beside it."""
    try:
        domain = given or kept_boxes(stated.boxes, beside)
        # Also for boxes from the record itself: half of it may have been edited.
        same = domain_hash(domain) == stated.boxes["sha256"]
    # Whatever an edited text may hold: no number in `clip`, a list where a text should be.
    except (
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        AttributeError,
        OverflowError,
    ) as error:
        if isinstance(error, SecateursError):
            raise
        raise DomainError(
            f"the boxes of the record are damaged ({error!r})."
        ) from None
    if not same:
        raise DomainError(
            "these are not the boxes of the record: their hash does not fit."
        )
    return domain


def _json(text: str) -> dict[str, Any]:
    try:
        record = json.loads(
            text, object_pairs_hook=_each_once, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        # A path as text is a common slip.
        short = len(text) < 300 and "\n" not in text
        raise ArgumentError(
            f"this is no certificate: it is not JSON ({error})."
            + (f" For a file give Path({text!r})." if short else "")
        ) from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ArgumentError(
            f"this is no certificate of the format {FORMAT!r}; write one with Certificate.save,"
            " Certificate.to_json or `secateurs certify --save`."
        )
    if record.get("networks") is None:
        raise ArgumentError(
            "this certificate is statistical: it speaks of inputs seen, and there is nothing to"
            " prove again."
        )
    return record


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Readers disagree on which of two equal keys counts."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key is given twice")
    return fields


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _stated(record: Mapping[str, Any]) -> Stated:
    options, networks = record["options"], record["networks"]
    per_output = tuple(_number(value) for value in record["per_output"])
    return Stated(
        worth=_worth(record, per_output),
        verdict=str(record["verdict"]),
        method=str(record["method"]),
        tightness=_number(record["tightness"]),
        per_output=per_output,
        bounds={name: _number(v) for name, v in record["bounds"].items()},
        told={
            "norm": str(float(record["norm"])),
            "domain": str(record["domain"]),
            "rounding": str(record["rounding"]),
        },
        assumptions=tuple(str(text) for text in list(record["assumptions"])),
        skipped={name: str(text) for name, text in record["skipped"].items()},
        versions={name: str(text) for name, text in record["versions"].items()},
        methods=[str(name) for name in list(options["methods"])],
        norm=float(options["norm"]),
        rounding=_rounding(options["rounding"]),
        effort=_positive(options["effort"]),
        symbols=_optional(options["symbols"], _whole),
        seconds=_optional(options["seconds"], _number),
        output=_optional(options["output"], _output),
        states={who: str(record["states"][who]) for who in WHO},
        networks={
            (who, what): str(networks[who][what])
            for who in WHO
            for what in ("weights", "graph")
        },
        dtype=str(networks["dtype"]),
        worst_input=_optional(record["worst_input"], unpacked),
        statistical=_optional(record["statistical"], _statistical),
        boxes=dict(record["boxes"]),
        record=record,
    )


def _worth(record: Mapping[str, Any], per_output: tuple[float, ...]) -> Worth:
    """The sizes as stated: the verdict must follow from them."""
    kept = record["certified"] or {}
    return Worth(
        bound=_number(record["bound"]),
        lower_bound=_number(record["lower_bound"]),
        # From the stated outputs: a `largest` of its own could contradict them.
        largest=max(per_output),
        output_range=_optional(record["output_range"], _number),
        smallest_margin=_optional(record["smallest_margin"], _number),
        kept=_whole(kept["kept"]) if kept else None,
        boxes=_whole(kept["of"]) if kept else 0,
    )


def _statistical(fields: Mapping[str, Any]) -> StatisticalCertificate:
    numbers = {
        name: _number(value)
        for name, value in fields.items()
        if name not in ("samples", "changed", "assumptions", "norm")
    }
    return StatisticalCertificate(
        samples=_whole(fields["samples"]),
        changed=_whole(fields["changed"]),
        assumptions=tuple(map(str, fields["assumptions"])),
        norm=float(fields["norm"]),
        **numbers,
    )


def _number(value: Any) -> float:
    """A number of the record; null stands for infinity."""
    if value is None:
        return math.inf
    # `type`: `float` would also take "0.5" and true.
    if type(value) not in (int, float):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _positive(value: Any) -> float:
    # An infinite effort could not be written as JSON again.
    if not 0 < (number := _number(value)) < math.inf:
        raise ValueError(f"{value!r} is no finite number above 0")
    return number


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def _output(value: Any) -> str | int:
    return value if isinstance(value, str) else _whole(value)


def _rounding(value: Any) -> Any:
    if not isinstance(value, bool | str):
        raise TypeError(f"rounding={value!r}")
    return value


def _optional(value: Any, read: Callable[[Any], Read]) -> Read | None:
    return None if value is None else read(value)
