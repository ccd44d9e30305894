"""Writing a sparse file: every tensor as its kept words and their places."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.table import Table
from torch import Tensor, nn

from secateurs.base.hashing import CERTIFICATE_FORMAT, state_hash
from secateurs.base.parameters import unwrap
from secateurs.base.printing import AsJson, Reported, plain
from secateurs.base.registry import unknown
from secateurs.base.safefile import replacing
from secateurs.base.sizes import ChangedSizes, changed_sizes
from secateurs.errors import ArgumentError, SparseFileError
from secateurs.files.coding import NAMES
from secateurs.files.description import (
    ROUNDED,
    Description,
    ModelTensors,
    StreamsOfFile,
    TensorLine,
    container_header,
    pack,
    seal_of,
    stored_tensors,
)

# Storing values in fewer bits, and what that does to the function.

VALUES = ("exact", *ROUNDED)
"""How `save_sparse` can store values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounded:
    """A tensor as it is stored, with its scales per row ("int8" only), and as it will be read."""

    stored: Tensor
    scales: Tensor | None
    restored: Tensor


def round_weight(name: str, tensor: Tensor, values: str) -> Rounded | None:
    """A weight in fewer bits; None if it stays exact: biases, norms, integers, and dtypes that are
    already as short.

    "bf16" and "fp16" round to nearest, ties to even. "int8" stores w ≈ s·q with q in −127…127 and
    one float32 scale s = max|w| / 127 per row, a row being an output of the layer.
    """
    if (
        values == "exact"
        or tensor.ndim < 2
        or not tensor.is_floating_point()
        or not tensor.numel()
        # Short enough already. Float8 stops here: torch cannot even check whether it is finite.
        or tensor.element_size() <= (1 if values == "int8" else 2)
    ):
        return None
    # The extremes stand for all: they are NaN if any number is, at a fifth of the cost of checking
    # each.
    extremes = torch.stack(torch.aminmax(tensor))
    if not bool(torch.isfinite(extremes).all()):
        raise ArgumentError(
            f"{name!r} has values that are not finite: save it with values='exact'."
        )
    if values == "int8":
        return _int8(tensor)
    short = torch.bfloat16 if values == "bf16" else torch.float16
    # Rounding keeps the order: if the extremes stay finite, all do.
    if not bool(torch.isfinite(extremes.to(short)).all()):
        raise ArgumentError(
            f"{name!r} has values up to {float(tensor.abs().max()):.3g}, too large for {values}: "
            "use values='bf16'."
        )
    stored = tensor.to(short)
    return Rounded(stored=stored, scales=None, restored=stored.to(tensor.dtype))


def spread(stored: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """s·q per row, in float32, as the dtype of the tensor."""
    return (stored.float() * scales.view(-1, *[1] * (stored.ndim - 1))).to(dtype)


def _int8(tensor: Tensor) -> Rounded:
    rows = tensor.float().flatten(1)
    scales = rows.abs().amax(dim=1) / 127
    # For a row of zeros any scale will do that does not divide by zero.
    scales[scales == 0] = 1.0
    if _was_rounded_before(rows, scales):
        scales = _reproducing_scale(rows, scales, tensor.dtype)
    stored = _nearest(rows, scales).to(torch.int8).view(tensor.shape)
    return Rounded(stored=stored, scales=scales, restored=spread(stored, scales, tensor.dtype))


def _nearest(rows: Tensor, scales: Tensor) -> Tensor:
    return (rows / scales[:, None]).round().clamp(-127, 127)


def _was_rounded_before(rows: Tensor, scales: Tensor) -> bool:
    """Whether these are weights that were read from such a file, as far as their quotients show.

    They should come back unchanged, but the largest of a row is 127 times a scale, which dividing
    by 127 need not restore.
    """
    # A few rows nearly always show that they are not, in a thousandth of the time.
    for part in (slice(0, 16), slice(None)):
        quotients = rows[part] / scales[part, None]
        if not bool((quotients - quotients.round()).abs_().max() < 1e-3):
            return False
    return True


def _reproducing_scale(rows: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """For each row, the scale or neighbouring float that reproduces the row, if there is one."""
    best = scales
    wanted = rows.to(dtype)
    open_ = (spread(_nearest(rows, scales), scales, dtype) != wanted).any(dim=1)
    for end in (torch.inf, -torch.inf):
        other = torch.nextafter(scales, torch.full_like(scales, end))
        again = (spread(_nearest(rows, other), other, dtype) == wanted).all(dim=1)
        best = torch.where(open_ & again, other, best)
    return best


def what_changed(changed: Mapping[str, tuple[Tensor, Tensor]], *, values: str) -> dict[str, Any]:
    """The largest change of a weight, and where it is."""
    differences = {name: _largest_change(a, b) for name, (a, b) in changed.items()}
    worst = max(differences, key=lambda name: differences[name], default="")
    return {
        "values": values,
        "tensors": len(changed),
        "largest_change": differences.get(worst, 0.0),
        "in": worst,
    }


def _largest_change(before: Tensor, after: Tensor) -> float:
    # A number and its rounding are within a factor of two of each other, or the rounding is zero,
    # so their difference is exact in their own dtype (Sterbenz), which saves two copies in float64.
    if before.element_size() < 4:
        before, after = before.double(), after.double()
    return float((before - after).abs_().max())


# The size of a file, the share of its header, and how that compares with the entropy of its zeros.


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSizes(Reported):
    """The sizes of a sparse file.

    Attributes:
        bytes: The size of the whole file.
        header: The part of it that is header and description.
        entries, kept: Counts over all tensors, tied ones once; a complex number counts as two.
        dense_bytes: The size of the same tensors, written densely.
        entropy_bytes: (n·H(s) + Σ width·kept) / 8, the entropy of the zeros at the one sparsity s
            of the file, drawn independently, and every kept value raw.
    """

    path: str
    bytes: int
    header: int
    entries: int
    kept: int
    dense_bytes: int
    entropy_bytes: float

    @property
    def compression(self) -> float:
        """dense_bytes / bytes."""
        return self.dense_bytes / self.bytes

    @property
    def of_entropy(self) -> float:
        """bytes / entropy_bytes: below 1 if values take fewer bits than their dtype has."""
        return self.bytes / self.entropy_bytes if self.entropy_bytes else math.inf

    @property
    def sparsity(self) -> float:
        """1 − kept / entries."""
        return 1 - self.kept / self.entries if self.entries else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**AsJson.as_dict(self), "compression": self.compression}

    def __rich__(self) -> Table:
        table = Table(
            "",
            "bytes",
            title=f"{self.path}: {self.kept:,} of {self.entries:,} entries kept",
        )
        table.columns[1].justify = "right"
        table.add_row("written densely", f"{self.dense_bytes:,}")
        table.add_row("this file", f"{self.bytes:,}")
        table.add_row("of it header and description", f"{self.header:,}")
        table.caption = f"{self.compression:.3g} times smaller"
        return table


def sizes_of(path: Path, described: Description, *, header: int) -> FileSizes:
    """The sizes of the file with this description."""
    lines = described.lines
    named = [line for line in lines if line.name]
    entries = sum(line.size for line in named)
    kept = sum(line.kept for line in lines if line.name)
    return FileSizes(
        path=str(path),
        bytes=header + sum(described.streams),
        header=header,
        entries=entries,
        kept=kept,
        dense_bytes=sum(line.bytes for line in named),
        entropy_bytes=_entropy_bits(lines) / 8,
    )


def _entropy_bits(lines: Iterable[TensorLine]) -> float:
    """n·H(s) + Σ width·kept over words; values count with the width they have in the model."""
    counted = [
        (line.size, line.kept, line.bytes // line.size * 8)
        for line in lines
        if line.name and line.size
    ]
    words, kept = sum(n for n, _, _ in counted), sum(k for _, k, _ in counted)
    share = kept / words if words else 0.0
    # 0 · log 0 counts as 0.
    entropy = -sum(p * math.log2(p) for p in (share, 1 - share) if p > 0)
    return words * entropy + sum(count * width for _, count, width in counted)


class Provable(Protocol):
    """A certificate that says which networks it is about, as `secateurs.certify` and
    `secateurs.proof.statistical` return it.
    """

    @property
    def states(self) -> Mapping[str, str]: ...
    def as_dict(self) -> dict[str, Any]: ...


def save_sparse(
    model: nn.Module | Mapping[str, Tensor],
    path: str | os.PathLike[str],
    *,
    certificate: Provable | Mapping[str, Any] | None = None,
    notes: Mapping[str, str] | None = None,
    values: str = "exact",
) -> FileSizes:
    """Write only the non-zeros, exact to the bit, as one safetensors file.

    The positions of the kept entries take about their entropy, a float about 26 of its 32 bits;
    docs/format.md has the layout and a reader of under thirty lines. Equal models give equal bytes.
    The file appears complete or not at all.

    Args:
        model: a model, or tensors by name. Tied tensors are written once; every parameter and
            persistent buffer is.
        certificate: what is proven about this model, as `certify` returns it; it is kept in the
            file. One of other weights is refused, and so is one of the weights before `values`
            rounds them.
        notes: texts to keep with it, such as the name of the architecture.
        values: "exact", or weights rounded to "bf16", "fp16" or "int8" (one scale per row). They
            load in their own dtype.
            What that does to the outputs, `secateurs.certify(model, load_sparse(path, into=...))`
            proves.

    Sizes that pruning changed are saved, too: attributes such as `num_heads` that `compact`
    changed, and blocks that were dropped. `load_sparse(path, into=...)` sets them again.

    −0.0 does not count as zero, since its bits are not zero: prune with `apply_`, which writes
    +0.0.

    >>> import tempfile, torch
    >>> layer = nn.Linear(1000, 1000)
    >>> _ = layer.weight.data.masked_fill_(torch.rand(1000, 1000) < 0.99, 0.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sizes = save_sparse(layer, f"{folder}/layer.safetensors")
    >>> sizes.dense_bytes, sizes.compression > 80
    (4004000, True)
    """
    sizes = changed_sizes(unwrap(model)) if isinstance(model, nn.Module) else ChangedSizes()
    return write_sparse(
        model,
        path,
        sizes,
        certificate=certificate,
        notes=notes,
        values=values,
    )


def write_sparse(
    model: nn.Module | Mapping[str, Tensor],
    path: str | os.PathLike[str],
    sizes: ChangedSizes,
    *,
    certificate: Provable | Mapping[str, Any] | None = None,
    notes: Mapping[str, str] | None = None,
    values: str = "exact",
) -> FileSizes:
    """Do what `save_sparse` does, with the changed sizes that the file should hold."""
    if values not in VALUES:
        raise ArgumentError(unknown("way to store values", str(values), VALUES))
    state = stored_tensors(model)
    short = {
        n: r for n, t in state.tensors.items() if (r := round_weight(n, t, values)) is not None
    }
    about = _about(certificate, notes)
    if certificate is not None:
        loaded = {
            name: short[name].restored if name in short else tensor
            for name, tensor in state.tensors.items()
        }
        check_certificate(about["certificate"], state.tensors, loaded, values)
    if short:
        changed = {name: (state.tensors[name], r.restored) for name, r in short.items()}
        about["rounding"] = what_changed(changed, values=values)
    described, streams = _encode(state, short)
    if sizes:
        about["sizes"] = sizes.as_dict()
    text = json.dumps(about, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    packed = pack(replace(described, about=text))
    parts = [packed, *streams]
    header = container_header(seal_of(parts), sum(map(len, parts)))
    with replacing(Path(path), error=SparseFileError) as part, part.open("wb") as file:
        file.writelines([header, *parts])
    return sizes_of(Path(path), described, header=len(header) + len(packed))


def _encode(state: ModelTensors, short: Mapping[str, Rounded]) -> tuple[Description, list[bytes]]:
    streams, lines = StreamsOfFile(), list[TensorLine]()
    for name, tensor in state.tensors.items():
        brief = short.get(name)
        if brief is None:
            lines.append(streams.add(name, tensor, NAMES[tensor.dtype], tensor))
            continue
        lines.append(streams.add(name, brief.stored, NAMES[brief.stored.dtype], brief.restored))
        # A line without a name, right after the tensor it belongs to.
        if brief.scales is not None:
            lines.append(streams.add("", brief.scales, "F32", brief.scales))
    parts = streams.done()
    described = Description(
        streams=tuple(map(len, parts)), lines=tuple(lines), ties=state.ties, about=""
    )
    return described, parts


def _about(certificate: Any, notes: Mapping[str, str] | None) -> dict[str, Any]:
    """Certificate, notes and rounding, as plain values."""
    about: dict[str, Any] = {}
    if certificate is not None:
        about["certificate"] = plain(record_of(certificate))
    if notes:
        # Sorted, because equal notes must give equal bytes.
        about["notes"] = {str(key): str(text) for key, text in sorted(notes.items())}
    return about


def record_of(certificate: Provable | Mapping[str, Any]) -> dict[str, Any]:
    """A certificate as plain values, without its boxes."""
    if isinstance(certificate, Mapping):
        return dict(certificate)
    if not hasattr(certificate, "states"):
        raise ArgumentError(
            f"a {type(certificate).__name__} does not say which networks it is about: give what"
            " certify or statistical returns."
        )
    return certificate.as_dict()


def check_certificate(
    record: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    loaded: Mapping[str, Tensor],
    values: str,
) -> None:
    """Refuse a certificate of weights other than those that will be loaded from the file."""
    # A certificate of another kind is kept as it is, since its meaning is unknown here.
    if record.get("format") != CERTIFICATE_FORMAT:
        return
    states = record.get("states")
    of = list(states.values()) if isinstance(states, Mapping) else []
    if state_hash(loaded) in of:
        return
    if loaded is not tensors and state_hash(tensors) in of:
        raise ArgumentError(
            f"the certificate is about the weights before values={values!r} rounds them, and says "
            "nothing about those in the file. Save without it, certify what load_sparse reads "
            "from that file, and save that with its certificate."
        )
    raise ArgumentError(
        "the certificate is not about these weights, but about another network, or about this one "
        "before it was changed. Certify the model as it is now, or save it without."
    )
