"""A certificate as text that can be kept: of which networks it speaks, and on which inputs.

The JSON holds the boxes (or, where they are many, their hash and the name of a file), hashes of
both networks' weights and graphs, and the versions. `recheck` proves it again.
"""

import hashlib
import platform
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, DomainError
from secateurs.graph.checking.structure import canonical
from secateurs.graph.ir import unwrapped
from secateurs.paths.certificates.domain import Domain, ball_domain, box_domain
from secateurs.paths.certificates.keeping.packing import bytes_of, packed, unpacked
from secateurs.paths.certificates.problem import Own, Problem
from secateurs.version import __version__

FORMAT = "secateurs certificate 1"
INLINE = 2**20
"""So many numbers of boxes are written into the text itself; more go into a file beside it."""


def states_of(dense: nn.Module, sparse: nn.Module) -> dict[str, str]:
    """SHA-256 of all weights of both networks, whatever a graph reads of them: asked at once, since
    weights may change afterwards."""
    return {"dense": state_hash(dense), "sparse": state_hash(sparse)}


def state_hash(model: nn.Module | Mapping[str, Tensor]) -> str:
    """SHA-256 of parameters and persistent buffers by name, tied ones once.

    Equal for a model, its state dict, and what is loaded from a file of it.
    """
    state = (
        unwrapped(model).state_dict(keep_vars=True)
        if isinstance(model, nn.Module)
        else model
    )
    lines, known = list[str](), set[object]()
    for name, value in state.items():
        # Counted in training, and read by nobody in evaluation mode.
        if not isinstance(value, Tensor) or name.endswith("num_batches_tracked"):
            continue
        place = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if not value.numel() or place not in known:
            known.add(place)
            lines.append(f"{name} {tuple(value.shape)} {_content_hash(value)}")
    # Sorted: files keep their tensors in an order of their own.
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _content_hash(value: Tensor) -> str:
    value = value.detach()
    if value.is_quantized:
        value = value.dequantize()
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    if not value.is_floating_point():
        value = value.to(torch.int64)
    elif value.dtype == torch.float64:
        # In one format, so that the same values hash alike in every precision.
        short = value.float()
        value = short if torch.equal(short.double(), value) else value
    else:
        value = value.float()
    return hashlib.sha256(bytes_of(value, value.dtype)).hexdigest()


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
        "secateurs": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def boxes_of(domain: Domain) -> dict[str, Tensor]:
    """The tensors that say which boxes: centres of balls, or both ends."""
    if domain.radius is not None:
        return {"center": domain.center}
    return {"lo": domain.lo, "hi": domain.hi}


def fits(domain: Domain) -> bool:
    """Whether the boxes are few enough to stand in the text."""
    # Beyond this a text of base64 would be tens of megabytes.
    return sum(t.numel() for t in boxes_of(domain).values()) <= INLINE


def domain_record(
    domain: Domain, *, inline: bool, file: str | None
) -> dict[str, Any]:
    """The boxes: as bytes where they are few, else as the hash that stands for them."""
    record: dict[str, Any] = {
        "shape": list(domain.lo.shape),
        "radius": domain.radius,
        "clip": None if domain.clip is None else list(domain.clip),
        "sha256": domain_hash(domain),
        "file": file,
    }
    if inline and file is None:
        record |= {name: packed(end) for name, end in boxes_of(domain).items()}
    return record


def read_domain(record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Domain:
    """The boxes of a record, made again by the functions that made them first.

    tensors: those of the file beside it; empty where the record holds them itself.
    """
    radius, clip = record.get("radius"), record.get("clip")
    names = ("lo", "hi") if radius is None else ("center",)
    if not tensors and names[0] not in record:
        raise ArgumentError(
            "the record holds only the hash of its boxes: give the same domain again with domain=,"
            " or keep the file that Certificate.save wrote beside it."
        )
    missing = [name for name in names if name not in (tensors or record)]
    if missing:
        raise DomainError(f"the boxes of the record lack {', '.join(missing)}.")
    # `box_domain` and `ball_domain` check these as they check a user's: the file may be
    # edited.
    ends = [tensors[n] if tensors else unpacked(record[n]) for n in names]
    if radius is None:
        return box_domain(tuple(ends))
    cut = None if clip is None else (float(clip[0]), float(clip[1]))
    return ball_domain(ends[0], float(radius), clip=cut)


def domain_hash(domain: Domain) -> str:
    """SHA-256 of the ends and middles of all boxes."""
    digest = hashlib.sha256(str(tuple(domain.lo.shape)).encode())
    # The middles too: predictions are counted there, and a cut ball does not determine
    # its own.
    for end in (domain.lo, domain.hi, domain.center):
        digest.update(bytes_of(end, torch.float64))
    return digest.hexdigest()


def weights_hash(own: Own) -> str:
    """SHA-256 of all tensors the graph reads, by name."""
    digest = hashlib.sha256()
    for name in sorted(own.state):
        value = own.state[name]
        # In one format, so that the same values hash alike in every precision.
        wide = torch.float64 if value.is_floating_point() else torch.int64
        digest.update(
            f"{name} {tuple(value.shape)} ".encode() + bytes_of(value, wide)
        )
    return digest.hexdigest()


def graph_hash(own: Own) -> str:
    """SHA-256 of the operations with all their literals, in order."""
    return hashlib.sha256(canonical(own.graph).describe().encode()).hexdigest()
