"""Writing a sparse file: every tensor as its kept words and their places."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from secateurs.errors import ArgumentError
from secateurs.paths import Certificate, StatisticalCertificate
from secateurs.paths.certificates.keeping.record import FORMAT, state_hash
from secateurs.registry import unknown
from secateurs.ship.files.coding.words import NAMES
from secateurs.ship.files.container import write_file
from secateurs.ship.files.description import Description, pack
from secateurs.ship.files.line import Line
from secateurs.ship.files.rounding import VALUES, Rounded, rounded, what_changed
from secateurs.ship.files.seals import container_header, seal_of
from secateurs.ship.files.sizes import FileSizes, sizes_of
from secateurs.ship.files.streams import Streams
from secateurs.ship.files.tensors import Stored, stored_tensors


class Provable(Protocol):
    """A certificate: anything that writes itself as a JSON object."""

    def to_json(self) -> str: ...


def save_sparse(
    model: nn.Module | Mapping[str, Tensor],
    path: str | os.PathLike[str],
    *,
    certificate: Provable | Mapping[str, Any] | None = None,
    notes: Mapping[str, str] | None = None,
    values: str = "exact",
    example: Tensor | None = None,
    radius: float | None = None,
) -> FileSizes:
    """Write only what is not zero, exact to the bit, as one safetensors file.

    The places of the kept entries take about their entropy, a float about 26 of its 32 bits;
    docs/format.md has the layout and a reader of under thirty lines. Equal models give equal bytes.
    The file appears whole or not at all.

    Args:
        model: a model, or tensors by name. Tied tensors are written once; every parameter and
            persistent buffer is.
        certificate: what is proven of this model, such as `certify` returns; it is kept in the
            file. One of other weights is refused, and so is one of the weights before `values`
            rounds them.
        notes: texts to keep beside it, such as the name of the architecture.
        values: "exact", or weights rounded to "bf16", "fp16" or "int8" (a scale per row). They load
            in their own dtype.
        example, radius: inputs on which the effect of that rounding is certified: within balls of
            this radius, or without one on these inputs and, statistically, on fresh ones of their
            kind.

    −0.0 is not zero here, since its bits are not: prune with `apply_`, which writes +0.0.

    >>> import tempfile, torch
    >>> layer = nn.Linear(1000, 1000)
    >>> _ = layer.weight.data.masked_fill_(torch.rand(1000, 1000) < 0.99, 0.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sizes = save_sparse(layer, f"{folder}/layer.safetensors")
    >>> sizes.dense_bytes, sizes.compression > 80
    (4004000, True)
    """
    if values not in VALUES:
        raise ArgumentError(unknown("way to store values", str(values), VALUES))
    state = stored_tensors(model)
    short = {
        n: r
        for n, t in state.tensors.items()
        if (r := rounded(n, t, values)) is not None
    }
    about = _about(certificate, notes)
    if certificate is not None:
        loaded = {
            name: short[name].restored if name in short else tensor
            for name, tensor in state.tensors.items()
        }
        _check_certificate(about["certificate"], state.tensors, loaded, values)
    if short:
        changed = {
            name: (state.tensors[name], r.restored) for name, r in short.items()
        }
        about["rounding"] = what_changed(
            model, changed, values=values, example=example, radius=radius
        )
    described, streams = _encoded(state, short)
    text = json.dumps(
        about, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    packed = pack(replace(described, about=text))
    header = _sealed([packed, *streams])
    write_file(Path(path), header, [packed, *streams])
    return sizes_of(Path(path), described, header=8 + len(header) + len(packed))


def _sealed(parts: list[bytes]) -> bytes:
    return container_header(seal_of(parts), sum(map(len, parts)))


def _encoded(
    state: Stored, short: Mapping[str, Rounded]
) -> tuple[Description, list[bytes]]:
    streams, lines = Streams(), list[Line]()
    for name, tensor in state.tensors.items():
        brief = short.get(name)
        if brief is None:
            lines.append(streams.add(name, tensor, NAMES[tensor.dtype], tensor))
            continue
        lines.append(
            streams.add(name, brief.stored, NAMES[brief.stored.dtype], brief.restored)
        )
        # A line without a name, right behind the tensor it belongs to.
        if brief.scales is not None:
            lines.append(streams.add("", brief.scales, "F32", brief.scales))
    parts = streams.done()
    described = Description(
        streams=tuple(map(len, parts)), lines=tuple(lines), ties=state.ties, about=""
    )
    return described, parts


def _about(certificate: Any, notes: Mapping[str, str] | None) -> dict[str, Any]:
    """What is told beside the tensors, as plain values."""
    about: dict[str, Any] = {}
    if certificate is not None:
        about["certificate"] = _finite(_record(certificate))
    if notes:
        # Sorted, because equal notes have to give equal bytes.
        about["notes"] = {str(key): str(text) for key, text in sorted(notes.items())}
    return about


def _record(certificate: Provable | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(certificate, StatisticalCertificate):
        raise ArgumentError(
            "a StatisticalCertificate does not say which networks it speaks of: give what"
            " certify(dense, sparse, data=...) returns."
        )
    if isinstance(certificate, Mapping):
        return dict(certificate)
    if isinstance(certificate, Certificate):
        return dict(json.loads(certificate.to_json(boxes=False)))
    return dict(json.loads(certificate.to_json()))


def _check_certificate(
    record: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    loaded: Mapping[str, Tensor],
    values: str,
) -> None:
    """Refuse a certificate of other weights than those that will be loaded from the file."""
    # What somebody else states is kept as it is: nothing here knows what it speaks of.
    if record.get("format") != FORMAT:
        return
    states = record.get("states")
    of = list(states.values()) if isinstance(states, Mapping) else []
    if state_hash(loaded) in of:
        return
    if loaded is not tensors and state_hash(tensors) in of:
        raise ArgumentError(
            f"the certificate is of the weights before values={values!r} rounds them, and says"
            " nothing of those in the file. Save without it, certify what load_sparse reads from"
            " that file, and save that with its certificate."
        )
    raise ArgumentError(
        "the certificate is of other weights than these: of another network, or of this one before"
        " it was changed. Certify the model as it is now, or save it without."
    )


def _finite(value: Any) -> Any:
    """JSON has no infinity: None stands for it, as in the certificates' own JSON."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
