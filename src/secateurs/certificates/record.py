"""A certificate as text that can be kept: of which networks it speaks, and on which inputs.

The JSON holds the boxes (or, where they are many, their hash and the name of a file), hashes of
both networks' weights and graphs, and the versions. `recheck` proves it again.
"""

import base64
import hashlib
import json
import math
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy
import torch
from torch import Tensor, nn

from secateurs.certificates.domain import Domain, ball_domain, box_domain
from secateurs.certificates.margins import joint_change, keeps_class
from secateurs.certificates.problem import NetworkPair, Own
from secateurs.certificates.statistical import StatisticalCertificate
from secateurs.errors import ArgumentError, DomainError, SecateursError
from secateurs.graph.capture import canonical
from secateurs.graph.ir import unwrap
from secateurs.safefile import replacing
from secateurs.version import __version__

# Tensors as text and back, the same bytes on every machine; files written whole.

_KINDS = {"float32": "<f4", "float64": "<f8"}


def packed(value: Tensor) -> dict[str, Any]:
    """A tensor as text, in float32 where that keeps every value (inputs are float32 mostly)."""
    # Half the text where nothing is lost by it.
    exact = bool((value.float().double() == value.double()).all())
    dtype = torch.float32 if exact else torch.float64
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "shape": list(value.shape),
        "data": base64.b64encode(bytes_of(value, dtype)).decode(),
    }


def unpacked(record: Any) -> Tensor:
    """The tensor of such a text, in float64."""
    try:
        kind = _KINDS[record["dtype"]]
        shape = [int(n) for n in record["shape"]]
        # validate: else characters that are no base64 would be skipped in silence.
        raw = base64.b64decode(record["data"], validate=True)
        array = numpy.frombuffer(raw, dtype=kind).astype("float64").reshape(shape)
    except (KeyError, TypeError, ValueError):
        raise DomainError("a tensor of the record is damaged.") from None
    return torch.from_numpy(array)


def write_whole(path: Path, content: bytes) -> None:
    """The file whole or not at all: written beside it first, then renamed."""
    with replacing(path, folders=False) as part:
        part.write_bytes(content)


def bytes_of(value: Tensor, dtype: torch.dtype) -> bytes:
    """Little-endian bytes, the same on every machine."""
    return _little_endian(value, dtype).tobytes()


def _little_endian(value: Tensor, dtype: torch.dtype) -> numpy.ndarray[Any, Any]:
    """Contiguous; the tensor's own memory where that is so already."""
    array = numpy.ascontiguousarray(value.detach().cpu().to(dtype).numpy())
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


FORMAT = "secateurs certificate 1"
INLINE = 2**20
"""So many numbers of boxes are written into the text itself; more go into a file beside it."""


def states_of(dense: nn.Module, sparse: nn.Module) -> dict[str, str]:
    """SHA-256 of all weights of both networks, whatever a graph reads of them: asked at once, since
    weights may change afterwards."""
    return {"dense": state_hash(dense), "sparse": state_hash(sparse)}


class StateHashes(Mapping[str, str]):
    """What `states_of` says of two networks as they are now, computed when it is asked for: hashing
    takes a tenth of the time of a cheap certificate, and most are never kept.

    copies: of what the graphs read, in float64, which nobody changes; the rest is copied.
    """

    def __init__(
        self, networks: Mapping[str, nn.Module], copies: Mapping[str, Mapping[str, Tensor]]
    ) -> None:
        self._hashes: dict[str, str] = {}
        self._kept = {
            who: {
                name: (_copy(value, copies[who].get(name)), value.dtype)
                for name, value in _counted(model)
            }
            for who, model in networks.items()
        }

    def __getitem__(self, who: str) -> str:
        if who not in self._hashes:
            # In the network's own precision: its copy holds the same values.
            tensors = self._kept[who].items()
            self._hashes[who] = _hash((name, value.to(dtype)) for name, (value, dtype) in tensors)
        return self._hashes[who]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


def _copy(value: Tensor, known: Tensor | None) -> Tensor:
    plain = value.dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    if known is not None and plain and known.dtype == torch.float64 and known.shape == value.shape:
        return known
    return value.detach().clone()


def state_hash(model: nn.Module | Mapping[str, Tensor]) -> str:
    """SHA-256 of parameters and persistent buffers by name, tied ones once.

    Equal for a model, its state dict, and what is loaded from a file of it.
    """
    return _hash(_counted(model))


def _counted(model: nn.Module | Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Those that count, tied ones once."""
    state = unwrap(model).state_dict(keep_vars=True) if isinstance(model, nn.Module) else model
    known = set[object]()
    for name, value in state.items():
        # Counted in training, and read by nobody in evaluation mode.
        if not isinstance(value, Tensor) or name.endswith("num_batches_tracked"):
            continue
        place = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if not value.numel() or place not in known:
            known.add(place)
            yield name, value


def _hash(tensors: Iterable[tuple[str, Tensor]]) -> str:
    lines = [f"{name} {tuple(value.shape)} {_content_hash(value)}" for name, value in tensors]
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
    whole = _little_endian(value, value.dtype).reshape(-1)
    return hashlib.sha256(whole.view(numpy.uint8).data).hexdigest()


def networks_of(problem: NetworkPair) -> dict[str, Any]:
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


def domain_record(domain: Domain, *, inline: bool, file: str | None) -> dict[str, Any]:
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
        digest.update(f"{name} {tuple(value.shape)} ".encode() + bytes_of(value, wide))
    return digest.hexdigest()


def graph_hash(own: Own) -> str:
    """SHA-256 of the operations with all their literals, in order."""
    return hashlib.sha256(canonical(own.graph).describe().encode()).hexdigest()


# The boxes of a record: from its text, or from the file beside it.


def kept_boxes(record: Mapping[str, Any], beside: Path | None) -> Domain:
    """The boxes that a record holds itself, or in the file beside it."""
    name = record.get("file")
    if name is None or beside is None:
        return read_domain(record, {})
    # Only a plain name beside the record: a text from elsewhere must not point anywhere else.
    if Path(name).name != name or not (beside / name).is_file():
        raise DomainError(f"the boxes lie in {name!r}, which is not beside the record.")
    return read_domain(record, _tensors(beside / name))


def _tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise DomainError(f"{path} is damaged: {error}.") from None


# What a bound is worth: beside the outputs' range and margins, and in words.


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The sizes a bound has to be compared with.

    What the outputs are needed for is None where they are no logits.

    Attributes:
        bound, lower_bound: Those of the certificate.
        largest: The largest bound of a single output.
        output_range: Largest minus smallest output of the dense network at the boxes' middles.
        smallest_margin: Between its two largest logits there.
        kept: At how many of the middles the predicted class provably stays.
        boxes: How many there are.
    """

    bound: float
    lower_bound: float
    largest: float
    output_range: float | None = None
    smallest_margin: float | None = None
    kept: int | None = None
    boxes: int = 0

    @property
    def text(self) -> str:
        """The verdict in words.

        >>> Worth(bound=0.5, lower_bound=0.1, largest=0.5, output_range=0.2).text
        'vacuous: the bound 0.5 exceeds the range of the outputs, 0.2'
        """
        if not math.isfinite(self.bound):
            return "vacuous: nothing finite was proved"
        if self.bound == 0:
            return "the two networks agree everywhere on the domain"
        wide = self.output_range is not None and self.largest > self.output_range
        if self.kept:
            worst = "; the bound of the worst one exceeds the outputs' range"
            return f"certifies {self.kept} of {self.boxes}{worst if wide else ''}"
        if wide:
            return (
                f"vacuous: the bound {self.largest:.4g} exceeds the range of the outputs,"
                f" {self.output_range:.4g}"
            )
        if self.kept == 0:
            return (
                f"certifies 0 of {self.boxes}: the bound {self.largest:.4g} lies within the"
                f" outputs' range, {self.output_range:.4g}, but above the margins"
            )
        size = "" if self.output_range is None else f"; the outputs span {self.output_range:.4g}"
        return (
            f"the networks differ by at most {self.bound:.4g}, and somewhere by"
            f" {self.lower_bound:.4g}{size}"
        )


@torch.no_grad()
def worth(
    bound: float,
    lower: float,
    per_box: Tensor,
    problem: NetworkPair | None,
    region: Domain | None,
) -> Worth:
    """Compare the bounds of all boxes with what the dense network answers at their middles."""
    told = Worth(bound=bound, lower_bound=lower, largest=float(per_box.max()))
    if problem is None or region is None:
        return told
    # 64 inputs at a time: the values of a wide network for all of them may not fit.
    outputs = torch.cat([problem.dense(part.center) for part in region.split(64)])
    # One output at one point has no range of its own: its size, both ways, stands for it.
    span = float(outputs.max() - outputs.min()) or 2 * float(outputs.abs().max())
    # Outputs that overflow have no range to compare with.
    if not math.isfinite(span):
        return told
    if len(problem.output_shape) != 1 or problem.outputs < 2:
        return replace(told, output_range=span)
    two, chosen = outputs.topk(2, dim=1).values, outputs.argmax(dim=1)
    return replace(
        told,
        output_range=span,
        smallest_margin=float((two[:, 0] - two[:, 1]).min()),
        kept=int(keeps_class(outputs, chosen, joint_change(per_box, chosen)).sum()),
        boxes=len(outputs),
    )


# What a kept certificate states, read from its text with every field checked for its type.

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
    target: float | None
    claim: str | None
    margin: float
    parts: tuple[str, ...]
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
        raise DomainError(f"the boxes of the record are damaged ({error!r}).") from None
    if not same:
        raise DomainError("these are not the boxes of the record: their hash does not fit.")
    return domain


def _json(text: str) -> dict[str, Any]:
    try:
        record = json.loads(text, object_pairs_hook=_each_once, parse_constant=_no_constant)
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
        # Only where one was asked for.
        target=_optional(options.get("target"), _number),
        claim=_optional(options.get("claim"), str),
        margin=_number(options.get("margin", 0.0)),
        parts=tuple(str(text) for text in list(options.get("parts", ()))),
        states={who: str(record["states"][who]) for who in WHO},
        networks={
            (who, what): str(networks[who][what]) for who in WHO for what in ("weights", "graph")
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
