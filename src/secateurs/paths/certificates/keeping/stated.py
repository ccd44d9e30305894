"""What a kept certificate states, read from its text with every field checked for its type."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from secateurs.errors import ArgumentError, DomainError, SecateursError
from secateurs.paths.certificates.domain import Domain
from secateurs.paths.certificates.keeping.kept_boxes import kept_boxes
from secateurs.paths.certificates.keeping.packing import unpacked
from secateurs.paths.certificates.keeping.record import FORMAT, domain_hash
from secateurs.paths.certificates.keeping.worth import Worth

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
    networks: dict[tuple[str, str], str]
    dtype: str
    torch: str
    worst_input: Tensor | None
    statistical: bool
    boxes: Mapping[str, Any]


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
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(
            f"this is no certificate: it is not JSON ({error})."
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


def _stated(record: Mapping[str, Any]) -> Stated:
    options, networks = record["options"], record["networks"]
    per_output = tuple(_number(value) for value in record["per_output"])
    return Stated(
        worth=_worth(record, per_output),
        verdict=str(record["verdict"]),
        method=str(record["method"]),
        tightness=_number(record["tightness"]),
        per_output=per_output,
        bounds={str(name): _number(v) for name, v in dict(record["bounds"]).items()},
        told={
            "norm": str(float(record["norm"])),
            "domain": str(record["domain"]),
            "rounding": str(record["rounding"]),
        },
        assumptions=tuple(str(text) for text in list(record["assumptions"])),
        methods=[str(name) for name in list(options["methods"])],
        norm=float(options["norm"]),
        rounding=options["rounding"],
        effort=float(options["effort"]),
        symbols=None if options["symbols"] is None else int(options["symbols"]),
        networks={
            (who, what): str(networks[who][what])
            for who in WHO
            for what in ("weights", "graph")
        },
        dtype=str(networks["dtype"]),
        torch=str(record["versions"]["torch"]),
        worst_input=None
        if record["worst_input"] is None
        else unpacked(record["worst_input"]),
        statistical=record["statistical"] is not None,
        boxes=dict(record["boxes"]),
    )


def _worth(record: Mapping[str, Any], per_output: tuple[float, ...]) -> Worth:
    """The sizes as stated: the verdict must follow from them."""
    kept = record["certified"] or {}
    return Worth(
        bound=_number(record["bound"]),
        lower_bound=_number(record["lower_bound"]),
        # From the stated outputs: a `largest` of its own could contradict them.
        largest=max(per_output),
        output_range=_optional(record["output_range"]),
        smallest_margin=_optional(record["smallest_margin"]),
        kept=int(kept["kept"]) if kept else None,
        boxes=int(kept["of"]) if kept else 0,
    )


def _number(value: Any) -> float:
    """A number of the record; null stands for infinity."""
    return math.inf if value is None else float(value)


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)
