"""A certificate as text that can be kept: the networks and inputs it is about.

The JSON holds the boxes (or, if there are many, their hash and the name of a file), hashes of both
networks' weights and graphs, and the versions. `kept.py` reads it, and `recheck` proves it again.
"""

import base64
import hashlib
import json
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
)

import torch
from torch import Tensor, nn

from secateurs.base.hashing import (
    CERTIFICATE_FORMAT,
    bytes_of,
    hash_tensors,
    state_hash,
    tensors_that_count,
)
from secateurs.base.safefile import replacing
from secateurs.graph.joint import canonical
from secateurs.proof.domain import Domain
from secateurs.proof.margins import joint_change, keeps_class
from secateurs.proof.methods import TOO_LOOSE
from secateurs.proof.problem import CapturedNetwork, NetworkPair
from secateurs.version import __version__

# Tensors as text and back, the same bytes on every machine; files written whole.


def pack_tensor(value: Tensor) -> dict[str, Any]:
    """A tensor as text, in float32 if that keeps every value (inputs mostly are float32)."""
    # Half the text if nothing is lost by it.
    exact = bool((value.float().double() == value.double()).all())
    dtype = torch.float32 if exact else torch.float64
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "shape": list(value.shape),
        "data": base64.b64encode(bytes_of(value, dtype)).decode(),
    }


def write_whole(path: Path, content: bytes) -> None:
    """Write the file completely or not at all: to a temporary file first, then renamed."""
    with replacing(path, folders=False) as part:
        part.write_bytes(content)


INLINE = 2**20
"""Up to this many numbers of boxes are written into the text itself; more go into a file beside it.
"""


def states_of(dense: nn.Module, sparse: nn.Module) -> dict[str, str]:
    """SHA-256 of all weights of both networks, whether a graph reads them or not: computed at once,
    since weights may change afterwards."""
    return {"dense": state_hash(dense), "sparse": state_hash(sparse)}


class StateHashes(Mapping[str, str]):
    """The result of `states_of` for two networks as they are now, computed on request: hashing
    takes a tenth of the time of a cheap certificate, and most are never kept.

    copies: those of what the graphs read, in float64, which never change; the rest is copied.
    """

    def __init__(
        self, networks: Mapping[str, nn.Module], copies: Mapping[str, Mapping[str, Tensor]]
    ) -> None:
        self._hashes: dict[str, str] = {}
        self._kept = {
            who: {
                name: (_copy(value, copies[who].get(name)), value.dtype)
                for name, value in tensors_that_count(model)
            }
            for who, model in networks.items()
        }

    def __getitem__(self, who: str) -> str:
        if who not in self._hashes:
            # In the network's own precision: its copy holds the same values.
            tensors = self._kept[who].items()
            self._hashes[who] = hash_tensors(
                (name, value.to(dtype)) for name, (value, dtype) in tensors
            )
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkHashes:
    """The identity of one network: `weights_hash` and `graph_hash`."""

    weights: str
    graph: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairHashes:
    """The identity of both networks, and the precision they are evaluated in."""

    dense: NetworkHashes
    sparse: NetworkHashes
    dtype: str


def networks_of(problem: NetworkPair) -> PairHashes:
    """The hashes of a pair that was read."""
    dense, sparse = (
        NetworkHashes(weights=weights_hash(own), graph=graph_hash(own)) for own in problem.own
    )
    dtype = str(problem.dtype).removeprefix("torch.")
    return PairHashes(dense=dense, sparse=sparse, dtype=dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The versions that a proof ran with."""

    secateurs: str = __version__
    torch: str = torch.__version__
    python: str = platform.python_version()


def boxes_of(domain: Domain) -> dict[str, Tensor]:
    """The tensors that determine the boxes: centres of balls, or both ends."""
    if domain.radius is not None:
        return {"center": domain.center}
    return {"lo": domain.lo, "hi": domain.hi}


def fits(domain: Domain) -> bool:
    """Whether the boxes are few enough to be in the text."""
    # Beyond this a text of base64 would be tens of megabytes.
    return sum(t.numel() for t in boxes_of(domain).values()) <= INLINE


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxesRecord:
    """The boxes: as bytes if they are few, else as the hash that stands for them.

    Attributes:
        file: The name of the file next to the record that holds them.
        center, lo, hi: As in `Domain`; balls have a centre, other boxes both ends.
    """

    shape: tuple[int, ...]
    radius: float | None
    clip: tuple[float, ...] | None
    sha256: str
    file: str | None
    center: Tensor | None = None
    lo: Tensor | None = None
    hi: Tensor | None = None

    @property
    def ends(self) -> dict[str, Tensor]:
        """The boxes themselves, if the record holds them."""
        found = {"center": self.center, "lo": self.lo, "hi": self.hi}
        return {name: end for name, end in found.items() if end is not None}


def domain_record(domain: Domain, *, inline: bool, file: str | None) -> BoxesRecord:
    """The record of these boxes."""
    ends = boxes_of(domain) if inline and file is None else {}
    return BoxesRecord(
        shape=tuple(domain.lo.shape),
        radius=domain.radius,
        clip=domain.clip,
        sha256=domain_hash(domain),
        file=file,
        **ends,
    )


def domain_hash(domain: Domain) -> str:
    """SHA-256 of the ends and middles of all boxes."""
    digest = hashlib.sha256(str(tuple(domain.lo.shape)).encode())
    # The centres, too: predictions are counted there, and a cut ball does not determine its centre.
    for end in (domain.lo, domain.hi, domain.center):
        digest.update(bytes_of(end, torch.float64))
    return digest.hexdigest()


def weights_hash(own: CapturedNetwork) -> str:
    """SHA-256 of all tensors the graph reads, by name."""
    digest = hashlib.sha256()
    for name in sorted(own.state):
        value = own.state[name]
        # In one format, so that the same values hash alike in every precision.
        wide = torch.float64 if value.is_floating_point() else torch.int64
        digest.update(f"{name} {tuple(value.shape)} ".encode() + bytes_of(value, wide))
    return digest.hexdigest()


def graph_hash(own: CapturedNetwork) -> str:
    """SHA-256 of the operations with all their literals, in order."""
    return hashlib.sha256(canonical(own.graph).describe().encode()).hexdigest()


# The value of a bound, compared with the outputs' range and margins, and in words.


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """The sizes that a bound has to be compared with.

    Fields that need logits are None if the outputs are not logits.

    Attributes:
        bound, lower_bound: Those of the certificate.
        largest: The largest bound of a single output.
        output_range: Largest minus smallest output of the dense network at the boxes' centres.
        smallest_margin: The smallest margin between its two largest logits there.
        kept: At how many of the centres the predicted class provably stays.
        boxes: The number of boxes.
        hopeless: Costly methods were left out, since they could not have helped.
        alone: The inputs of a batch act on each other, and only batches of one are meant.
    """

    bound: float
    lower_bound: float
    largest: float
    output_range: float | None = None
    smallest_margin: float | None = None
    kept: int | None = None
    boxes: int = 0
    hopeless: bool = False
    alone: bool = False

    @property
    def text(self) -> str:
        """The verdict in words.

        >>> Worth(bound=0.5, lower_bound=0.1, largest=0.5, output_range=0.2).text
        'vacuous: the bound 0.5 exceeds the range of the outputs, 0.2'
        """
        return f"each input alone: {self._text}" if self.alone else self._text

    @property
    def _text(self) -> str:
        if not math.isfinite(self.bound):
            return f"vacuous: nothing finite was proved{self._help}"
        if self.bound == 0:
            return "the two networks agree everywhere on the domain"
        wide = self.output_range is not None and self.largest > self.output_range
        if self.kept:
            worst = "; the bound of the worst one exceeds the outputs' range"
            return f"certifies {self.kept} of {self.boxes}{worst if wide else ''}"
        if wide:
            return (
                f"vacuous: the bound {self.largest:.4g} exceeds the range of the outputs,"
                f" {self.output_range:.4g}{self._help}"
            )
        if self.kept == 0:
            return (
                f"certifies 0 of {self.boxes}: the bound {self.largest:.4g} lies within the"
                f" outputs' range, {self.output_range:.4g}, but above the margins"
            )
        size = "" if self.output_range is None else f"; the outputs span {self.output_range:.4g}"
        if self.lower_bound == 0:
            # In deep networks no a-priori bound of rounding is small.
            found = "; no difference was found that rounding cannot have made"
            return f"the networks differ by at most {self.bound:.4g}{found}{size}"
        return (
            f"the networks differ by at most {self.bound:.4g}, and somewhere by"
            f" {self.lower_bound:.4g}{size}"
        )

    @property
    def _help(self) -> str:
        ways = "; costly methods were left out: see `skipped` for what would help"
        return ways if self.hopeless else ""


ALONE = "each input alone, a batch of one"
"""How the assumption begins where the inputs of a batch act on each other."""


def is_alone(assumptions: Sequence[str]) -> bool:
    """Whether a certificate is about batches of one only."""
    return any(text.startswith(ALONE) for text in assumptions)


@torch.no_grad()
def worth(
    bound: float,
    lower: float,
    per_box: Tensor,
    inner: Tensor,
    problem: NetworkPair,
    region: Domain,
) -> Worth:
    """Compare the bounds of all boxes with the outputs of the dense network at their centres, and
    those in front of a map at the end with the margins there.
    """
    sizes = Worth(bound=bound, lower_bound=lower, largest=float(per_box.max()))
    # 64 inputs at a time: the values of a wide network for all of them may not fit.
    found = [problem.near(0, part.center) for part in region.split(64)]
    outputs, error = (torch.cat(parts) for parts in zip(*found, strict=True))
    returned = problem.returned(outputs)
    # One output at one point has no range: its size in both directions stands for it.
    span = float(returned.max() - returned.min()) or 2 * float(returned.abs().max())
    # Overflowing outputs have no range to compare with.
    if not math.isfinite(span):
        return sizes
    if len(problem.output_shape) != 1 or problem.outputs < 2:
        return replace(sizes, output_range=span)
    two, chosen = outputs.topk(2, dim=1).values, outputs.argmax(dim=1)
    return replace(
        sizes,
        output_range=span,
        smallest_margin=float((two[:, 0] - two[:, 1]).min()),
        kept=int(keeps_class(outputs, chosen, joint_change(inner + error, chosen)).sum()),
        boxes=len(outputs),
    )


# The fields of a record, for writing and for reading alike: each is declared here once, filled in
# by `Certificate.record`, and compared in `recheck`. What is None by default is left out of the
# text. There null stands for infinity, a norm is text, and tensors are `pack_tensor`.


Rounding: TypeAlias = Literal["auto"] | bool


def _finite_effort(value: float) -> None:
    # An infinite effort could not be written as JSON again.
    if not 0 < value < math.inf:
        raise ValueError(f"{value!r} is not a finite number above 0")


def _not_empty(values: tuple[float, ...]) -> None:
    if not values:
        raise ValueError("the list is empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The arguments of `certify`, with which `recheck` has to repeat it; see `CertifyOptions`.

    Attributes:
        spare: Whether hopeless boxes were left out of the costly methods.
        parts: The parts into which each box was split, as `Parts.pack` writes them.
    """

    methods: tuple[str, ...]
    norm: float
    rounding: Rounding
    effort: Annotated[float, _finite_effort]
    symbols: int | None
    output: str | int | None
    seconds: float | None
    target: float | None = None
    claim: Literal["top-1"] | None = None
    margin: float | None = None
    parts: tuple[str, ...] | None = None
    spare: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRecord:
    """Hashes of all weights of both networks, by `states_of`; empty if they were not requested."""

    dense: str = ""
    sparse: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCount:
    """At how many of the boxes' centres the predicted class provably stays."""

    kept: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRecord:
    """The result of a claim; see `ClassAnswer`."""

    answer: Literal["proven", "refuted", "open"]
    share: float
    counterexample: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRecord:
    """Everything that a text says about a certificate. Read from a text, these are mere claims."""

    verdict: str
    bound: float
    lower_bound: float
    tightness: float
    output_range: float | None
    smallest_margin: float | None
    certified: KeptCount | None
    norm: float
    method: str
    domain: str
    rounding: str
    per_output: Annotated[tuple[float, ...], _not_empty]
    bounds: Mapping[str, float]
    skipped: Mapping[str, str]
    assumptions: tuple[str, ...]
    options: Request
    versions: Versions
    states: StateRecord
    networks: PairHashes
    boxes: BoxesRecord
    worst_input: Tensor | None
    claim: ClaimRecord | None = None

    @property
    def worth(self) -> Worth:
        """The sizes as stated here, from which the verdict must follow."""
        return Worth(
            bound=self.bound,
            lower_bound=self.lower_bound,
            # From the outputs, since a separate `largest` could contradict them.
            largest=max(self.per_output),
            output_range=self.output_range,
            smallest_margin=self.smallest_margin,
            kept=None if self.certified is None else self.certified.kept,
            boxes=0 if self.certified is None else self.certified.of,
            hopeless=TOO_LOOSE in self.skipped.values(),
            alone=is_alone(self.assumptions),
        )

    @property
    def text(self) -> str:
        """The JSON, which `read_record` reads again."""
        content = {"format": CERTIFICATE_FORMAT} | as_json(self)
        # NaN and Infinity are not JSON: `as_json` writes null, and any that it missed must raise.
        return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)


def as_json(value: Any, name: str = "") -> Any:
    """A record, or the value of its field `name`, as JSON values."""
    if name == "norm":
        return str(value)
    if isinstance(value, Tensor):
        return pack_tensor(value)
    if isinstance(value, Mapping):
        return {key: as_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    if is_dataclass(value):
        return {
            entry.name: as_json(inner, entry.name)
            for entry in fields(value)
            if (inner := getattr(value, entry.name)) is not None or entry.default is not None
        }
    return None if isinstance(value, float) and not math.isfinite(value) else value
