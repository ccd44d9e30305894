"""A certificate as text that can be kept: what was proved, of which networks, on which inputs.

The JSON holds the boxes themselves (up to a size; else their hash), hashes of both networks'
weights and graph, the versions, the methods and their bounds. `recheck` proves it again.
"""

import base64
import hashlib
import json
import math
import platform
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

import secateurs
from secateurs.errors import ArgumentError, DomainError
from secateurs.graph.joint import canonical
from secateurs.paths.certificates.domain import Domain
from secateurs.paths.certificates.problem import Own, Problem

FORMAT = "secateurs certificate 1"
_INLINE = 2**22  # numbers of boxes written into the text itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Recheck:
    """Whether a kept certificate holds, and what was found.

    Attributes:
        holds: Both networks are the ones of the record, and the bound proved now is not above it.
        bound: Proved now.
        stated: In the record.
        problems: What does not agree, in words; empty where it holds.
    """

    holds: bool
    bound: float
    stated: float
    problems: tuple[str, ...]

    def __str__(self) -> str:
        if self.holds:
            return f"holds: proved again, {self.bound:.6g} ≤ {self.stated:.6g}"
        return f"does not hold: {'; '.join(self.problems)}"


def networks_of(problem: Problem) -> dict[str, Any]:
    """What identifies both networks."""
    dense, sparse = problem.own
    return {
        "dense": {"weights": weights_hash(dense), "graph": graph_hash(dense)},
        "sparse": {"weights": weights_hash(sparse), "graph": graph_hash(sparse)},
        "dtype": str(problem.dtype).removeprefix("torch."),
    }


def versions() -> dict[str, str]:
    """What the proof ran on."""
    return {
        "secateurs": secateurs.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def domain_record(domain: Domain) -> dict[str, Any]:
    """The boxes, as float64 bytes, with the hash that stands for them where they are too many."""
    record: dict[str, Any] = {
        "description": domain.description,
        "radius": domain.radius,
        "shape": list(domain.lo.shape),
        "sha256": domain_hash(domain),
    }
    if domain.lo.numel() <= _INLINE:
        ends = (("lo", domain.lo), ("hi", domain.hi), ("center", domain.center))
        record |= {name: base64.b64encode(_bytes(end)).decode() for name, end in ends}
    return record


def read_domain(record: dict[str, Any]) -> Domain:
    """The boxes of a record; refused where they are not those that were hashed."""
    if "lo" not in record:
        raise ArgumentError(
            "the record holds only the hash of its boxes, because they are too many: give the"
            " same domain again with domain=."
        )
    shape = [int(n) for n in record["shape"]]
    ends = {name: _tensor(record[name], shape) for name in ("lo", "hi", "center")}
    radius = record["radius"]
    domain = Domain(
        **ends,
        radius=None if radius is None else float(radius),
        description=str(record["description"]),
    )
    if domain_hash(domain) != record["sha256"]:
        raise DomainError(
            "the boxes of the record are damaged: their hash does not fit."
        )
    return domain


def domain_hash(domain: Domain) -> str:
    """SHA-256 of the ends and middles of all boxes."""
    digest = hashlib.sha256(str(tuple(domain.lo.shape)).encode())
    for end in (domain.lo, domain.hi, domain.center):
        digest.update(_bytes(end))
    return digest.hexdigest()


def weights_hash(own: Own) -> str:
    """SHA-256 of all tensors the graph reads, by name."""
    digest = hashlib.sha256()
    for name in sorted(own.state):
        value = own.state[name]
        digest.update(f"{name} {tuple(value.shape)} ".encode() + _bytes(value))
    return digest.hexdigest()


def graph_hash(own: Own) -> str:
    """SHA-256 of the operations with all their literals, in order."""
    return hashlib.sha256(canonical(own.graph).describe().encode()).hexdigest()


def read_record(text: str) -> dict[str, Any]:
    """The JSON of a certificate, checked for its format."""
    try:
        record = json.loads(text)
    except ValueError as error:
        raise ArgumentError(
            f"this is no certificate: it is not JSON ({error})."
        ) from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ArgumentError(
            f"this is no certificate of the format {FORMAT!r}; write one with"
            " Certificate.to_json() or `secateurs certify --json`."
        )
    if record.get("networks") is None:
        raise ArgumentError(
            "this certificate is statistical: it speaks of inputs seen, and there is nothing to"
            " prove again."
        )
    return record


def mismatches(record: dict[str, Any], problem: Problem) -> list[str]:
    """In what the networks at hand are not those of the record."""
    now, then = networks_of(problem), record["networks"]
    found = []
    for who in ("dense", "sparse"):
        for what in ("weights", "graph"):
            if now[who][what] != then[who][what]:
                found.append(f"the {what} of the {who} network are not those certified")
    return found


def _bytes(value: Tensor) -> bytes:
    """Little-endian float64 (or int64) bytes, the same on every machine."""
    wide = (
        value.detach()
        .cpu()
        .to(torch.float64 if value.is_floating_point() else torch.int64)
    )
    array = numpy.ascontiguousarray(wide.numpy())
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def _tensor(text: str, shape: list[int]) -> Tensor:
    try:
        array = numpy.frombuffer(base64.b64decode(text, validate=True), dtype="<f8")
        return torch.from_numpy(array.astype("float64").reshape(shape))
    except ValueError:
        raise DomainError("the boxes of the record are damaged.") from None


def verdict(bound: float, outputs: Tensor | None, per_box: Tensor, lower: float) -> str:
    """What a bound is worth, in words.

    outputs: the dense network's answers at the middles of the boxes, None where there are none.
    """
    if not math.isfinite(bound):
        return "vacuous: nothing finite was proved"
    if bound == 0:
        return "the two networks agree everywhere on the domain"
    if outputs is None:
        return (
            f"the networks differ by at most {bound:.4g}, and somewhere by {lower:.4g}"
        )
    size = float(outputs.max() - outputs.min()) or 2 * float(outputs.abs().max())
    if bound > size:
        return f"vacuous: the bound {bound:.4g} exceeds the range of the outputs, {size:.4g}"
    if outputs.shape[1] < 2 or len(outputs) != len(per_box):
        return (
            f"the networks differ by at most {bound:.4g}; the outputs span {size:.4g}"
        )
    kept = int(_keeps(outputs, per_box).sum())
    return (
        f"certifies {kept} of {len(outputs)}: at the middle of each of these boxes the predicted"
        " class cannot have changed"
    )


def _keeps(outputs: Tensor, per_box: Tensor) -> Tensor:
    """The margin to every other class exceeds what both logits can move."""
    chosen = outputs.argmax(dim=1, keepdim=True)
    change = per_box.gather(1, chosen) + per_box
    clear = outputs.gather(1, chosen) - outputs > change
    return clear.scatter(1, chosen, True).all(dim=1)
