"""A kept certificate, read again: from its text, and from the file with its boxes.

Anybody can edit a text, so what is read here is a claim, and whatever is no certificate is refused.
"""

import base64
import binascii
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy
import torch
from torch import Tensor

from secateurs.base.hashing import CERTIFICATE_FORMAT
from secateurs.errors import ArgumentError, DomainError, SecateursError
from secateurs.proof.domain import Domain, ball_domain, box_domain
from secateurs.proof.record import (
    BoxesRecord,
    CertificateRecord,
    as_json,
    domain_hash,
)
from secateurs.proof.splitting import LONGEST, Parts

# The boxes of a record: from its text, or from the file next to it.


def read_domain(boxes: BoxesRecord, ends: Mapping[str, Tensor]) -> Domain:
    """The boxes of a record, rebuilt by the functions that made them.

    ends: from the record, or from the file next to it.
    """
    names = ("lo", "hi") if boxes.radius is None else ("center",)
    if missing := [name for name in names if name not in ends]:
        raise DomainError(f"the boxes of the record lack {', '.join(missing)}.")
    # `box_domain` and `ball_domain` check these like a user's, since the file may have been edited.
    if boxes.radius is None:
        return box_domain((ends["lo"], ends["hi"]))
    clip = None if boxes.clip is None else (boxes.clip[0], boxes.clip[1])
    return ball_domain(ends["center"], boxes.radius, clip=clip)


def boxes_of_record(boxes: BoxesRecord, beside: Path | None, given: Domain | None) -> Domain:
    """The boxes as given, from the record itself, or from the file next to it."""
    try:
        domain = given or _kept_boxes(boxes, beside)
    except SecateursError:
        raise
    # An edited text may hold anything: a clip of one number, a name that no file can have.
    except (IndexError, TypeError, ValueError, OverflowError) as error:
        raise DomainError(f"the boxes of the record are damaged ({error!r}).") from None
    # Also for boxes from the record itself: half of it may have been edited.
    if domain_hash(domain) != boxes.sha256:
        raise DomainError("these are not the boxes of the record: their hash does not match.")
    return domain


def _kept_boxes(boxes: BoxesRecord, beside: Path | None) -> Domain:
    if boxes.file is not None and beside is not None:
        # Only a plain name next to the record: a text from elsewhere must not point anywhere else.
        if Path(boxes.file).name != boxes.file or not (beside / boxes.file).is_file():
            raise DomainError(
                f"the boxes are in {boxes.file!r}, which is missing beside the record."
            )
        return read_domain(boxes, _tensors(beside / boxes.file))
    if not boxes.ends:
        raise ArgumentError(
            "the record holds only the hash of its boxes: give the same domain again with domain=,"
            " or keep the file that Certificate.save wrote beside it."
        )
    return read_domain(boxes, boxes.ends)


def _tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise DomainError(f"{path} is damaged: {error}.") from None


def read_parts(text: str, most: int) -> Parts:
    """The parts of a box that were packed; anything else is refused. most: inputs and neurons
    together.
    """
    try:
        unzip = zlib.decompressobj()
        raw = unzip.decompress(base64.b64decode(text, validate=True), 4 * LONGEST)
        if unzip.unconsumed_tail or not unzip.eof or len(raw) % 4:
            raise ValueError("too long, or cut short")
        cuts = tuple(numpy.frombuffer(raw, dtype="<u4").tolist())
    except (ValueError, zlib.error, binascii.Error) as error:
        raise ArgumentError(f"the parts of a box cannot be read: {error}.") from None
    # Each cut opens one more part than it closes.
    left = 1
    for number, cut in enumerate(cuts):
        left += 1 if cut else -1
        if cut > most or (left == 0) != (number == len(cuts) - 1):
            raise ArgumentError("the parts of a box are not a tree of cuts.")
    if left:
        raise ArgumentError("the parts of a box are not a tree of cuts.")
    return Parts(cuts=cuts)


# The fields of a record: of every text each is read with the type that it is declared with.


def text_of(path: Path) -> str:
    """The text of a file."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path} cannot be read: {error}.") from None


def read_record(text: str) -> tuple[CertificateRecord, list[str]]:
    """The claims of a certificate's text, each with the type of its field, and the places where the
    text differs from what would be written for them. Anything that is not a certificate is refused.
    """
    content = _json(text)
    record: CertificateRecord = _read(CertificateRecord, content, "")
    return record, _spelling_problems(content, {"format": CERTIFICATE_FORMAT} | as_json(record))


def _read(hint: Any, value: Any, place: str) -> Any:
    """The value at a place of the text, converted to the field's type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        found = _read(inner[0], value, place)
        try:
            inner[1](found)
        except ValueError as error:
            raise _misfit(place, str(error)) from None
        return found
    if origin in (Union, UnionType):
        if value is None and NoneType in inner:
            return None
        kinds = [kind for kind in inner if kind is not NoneType]
        # Of several plain types: that of the value, if it is among them.
        return _read(type(value) if type(value) in kinds else kinds[0], value, place)
    if place.split(".")[-1] == "norm":
        return _norm(value, place)
    if origin is Literal:
        if value not in inner:
            raise _misfit(place, f"{brief(value)} is none of {', '.join(inner)}")
        return value
    if hint is Tensor:
        return _tensor(value)
    if hint is float:
        return _number(value, place)
    kind = Mapping if is_dataclass(hint) else list if origin is tuple else origin or hint
    # `type`: True is an int to `isinstance`.
    if not (isinstance(value, dict) if kind is Mapping else type(value) is kind):
        raise _misfit(place, f"{brief(value)} is not {_WORDS[kind]}")
    if is_dataclass(hint):
        return _read_fields(hint, value, place)
    if kind is list:
        return tuple(_read(inner[0], entry, f"{place}[{i}]") for i, entry in enumerate(value))
    if kind is Mapping:
        return {name: _read(inner[1], entry, f"{place}.{name}") for name, entry in value.items()}
    return value


_WORDS = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    list: "a list",
    Mapping: "an object",
}


def _read_fields(kind: Any, table: Mapping[str, Any], place: str) -> Any:
    within = f"{place}." if place else ""
    hints = get_type_hints(kind, include_extras=True)
    lacking = [e.name for e in fields(kind) if e.default is MISSING and e.name not in table]
    if lacking:
        raise _misfit(within + lacking[0], "it is missing")
    return kind(
        **{name: _read(hints[name], table[name], within + name) for name in hints if name in table}
    )


_KINDS = {"float32": "<f4", "float64": "<f8"}


def _tensor(record: Any) -> Tensor:
    """The tensor of a text by `pack_tensor`, in float64."""
    try:
        kind = _KINDS[record["dtype"]]
        shape = [int(n) for n in record["shape"]]
        # validate: otherwise characters that are not base64 would be skipped silently.
        raw = base64.b64decode(record["data"], validate=True)
        array = numpy.frombuffer(raw, dtype=kind).astype("float64").reshape(shape)
    except (KeyError, TypeError, ValueError):
        raise DomainError("a tensor of the record is damaged.") from None
    return torch.from_numpy(array)


def _number(value: Any, place: str) -> float:
    if value is None:
        return math.inf
    # `type`: `float` would also take "0.5" and true.
    if type(value) not in (int, float):
        raise _misfit(place, f"{brief(value)} is not a number")
    try:
        return float(value)
    except OverflowError:
        raise _misfit(place, f"{brief(value)} is too large") from None


def _norm(value: Any, place: str) -> float:
    if value not in ("1", "1.0", "2", "2.0", "inf"):
        raise _misfit(place, f"{brief(value)} is not a norm: '1', '2' or 'inf'")
    return float(value)


def _misfit(place: str, text: str) -> ArgumentError:
    return ArgumentError(f"this is not a certificate: {place}: {text}.")


def brief(value: Any) -> str:
    """A value as messages show it."""
    text = json.dumps(value)
    return text if len(text) < 80 else f"{text[:60]}…"


def _json(text: str) -> dict[str, Any]:
    try:
        record = json.loads(text, object_pairs_hook=_each_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        # Passing a path as text is a common mistake.
        short = len(text) < 300 and "\n" not in text
        raise ArgumentError(
            f"this is not a certificate: it is not JSON ({error})."
            + (f" For a file give Path({text!r})." if short else "")
        ) from None
    if not isinstance(record, dict) or record.get("format") != CERTIFICATE_FORMAT:
        raise ArgumentError(
            f"this is not a certificate of the format {CERTIFICATE_FORMAT!r}; write one with"
            " Certificate.save, Certificate.to_json or `secateurs verify --save`."
        )
    if record.get("networks") is None:
        raise ArgumentError(
            "this certificate is statistical: it is about a sample of inputs, so there is nothing "
            "to prove again."
        )
    # Earlier texts had a place for what a sample says; with something in it, they do not hold.
    if record.get("statistical", "") is None:
        del record["statistical"]
    return record


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Readers disagree on which of two equal keys counts."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key appears twice")
    return fields


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _spelling_problems(text: Any, expected: Any, place: str = "") -> list[str]:
    """The places where a text differs from what would be written for the values read from it."""
    if not (isinstance(text, dict) and isinstance(expected, dict)):
        # 2 and 2.0 are one norm, and one number.
        same = text == expected or place.split(".")[-1] == "norm"
        return [] if same else [f"{place} is not spelled as it is written"]
    within = f"{place}." if place else ""
    found = [f"the record also holds {within + name!r}" for name in text if name not in expected]
    found += [f"the record lacks {within + name!r}" for name in expected if name not in text]
    for name in text:
        if name in expected:
            found += _spelling_problems(text[name], expected[name], within + name)
    return found
