"""A record: a sparse file, and beside it a text that says which network it is, on which data, how
well it does and how it was made. The zoo is a folder of records; so is whatever others hand in.
"""

import copy
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateurs.base.json_object import json_object
from secateurs.base.prunable import prunable
from secateurs.base.registry import unknown
from secateurs.base.safefile import replacing
from secateurs.base.untrusted import reading
from secateurs.errors import ArgumentError, RecordError, SecateursError
from secateurs.files import check_file, load_sparse, save_sparse
from secateurs.proof import certify
from secateurs_lab.data import Dataset
from secateurs_lab.models import MODELS, build, skeleton
from secateurs_lab.study.fields import (
    CheckedSettings,
    Count,
    Misfit,
    PlainTable,
    Problem,
    Text,
    within,
)
from secateurs_lab.train import evaluate

LARGEST_FILE = 200_000
"""Bytes of the largest sparse file of a record."""

LARGEST_TEXT = 1_000_000
"""Bytes of the largest text of a record."""

LARGEST_NETWORK = 50_000_000
"""Entries of the largest network, dense: what a record names is built before it is compared."""

ImageSide = Annotated[int, within(1, 1024)]


def _name(value: str) -> None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*(/[a-z0-9][a-z0-9.-]*){2}", value):
        raise Misfit.of(
            f"{value[:60]!r} is not network/data/name in small letters, digits, dots and dashes"
        )


def _plain_file(value: str) -> None:
    # A record from anywhere must not name files elsewhere.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors", value):
        raise Misfit.of(f"{value[:60]!r} is not the plain name of a .safetensors file beside it")


def _hash(value: str) -> None:
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise Misfit.of(f"{value[:70]!r} is not a SHA-256 of 64 hexadecimal digits")


def _small_options(value: Mapping[str, Any]) -> None:
    for name, option in value.items():
        if isinstance(option, int | float) and not 0 <= option <= 4096:
            raise Misfit.of(f"{name} = {option!r} is not between 0 and 4096")


Share = Annotated[float, within(0, 1)]


@dataclass(frozen=True, kw_only=True)
class Record(CheckedSettings):
    """The description of a sparse network in the zoo.

    Attributes:
        name: network/data/name, such as "lenet-300-100/fashion-mnist/500x".
        model, options, in_channels, classes, size: The network, as `lab.models.build` takes
            it. A file of a compacted network holds smaller tensors.
        data: A name of `secateurs data`; its test images are those of the accuracy.
        pixels, pad: The network takes pixels in [0, 1] where the data are normalised; images with
            so many rows and columns of black around them. `prepare` does both.
        file, sha256: The sparse file beside the record, and the hash of its bytes.
        kept, total: Prunable weights in the file that are not zero, and all of the dense network.
        accuracy: Share of the test images that this file classifies rightly.
        seeds, accuracies: The same training with other seeds: what a reader may expect of it.
        method, command: How it was made, in a word, and what makes it again.
        settings: Of the run in a study, where there is one.
        certificate: What `secateurs.certify` proved of the network against itself rounded to
            bfloat16, with its inputs: it is proved again from the file alone.
    """

    called: ClassVar[str] = "a record"

    format: Literal["secateurs.record/1"] = "secateurs.record/1"
    name: Annotated[Text, _name]
    model: Text
    options: Annotated[PlainTable, _small_options] = field(default_factory=dict)
    in_channels: ImageSide
    classes: ImageSide
    size: ImageSide
    data: Text
    pixels: bool = False
    pad: Annotated[int, within(0, 32)] = 0
    file: Annotated[Text, _plain_file]
    sha256: Annotated[Text, _hash]
    kept: Count
    total: Count
    accuracy: Share
    seeds: tuple[Annotated[int, within(0)], ...] = ()
    accuracies: tuple[Share, ...] = ()
    method: Text
    command: Text
    settings: Mapping[str, Any] = field(default_factory=dict)
    certificate: Mapping[str, Any] | None = None

    def conflicts(self) -> Iterator[Problem]:
        """Describe the numbers that contradict each other."""
        if self.kept > self.total:
            yield Problem(("kept",), f"{self.kept} of {self.total} weights are more than all")
        if len(self.seeds) != len(self.accuracies):
            text = f"{len(self.accuracies)} accuracies for {len(self.seeds)} seeds"
            yield Problem(("accuracies",), text)

    @property
    def compression(self) -> float:
        """total/kept."""
        return self.total / self.kept

    def prepare(self, data: Dataset) -> Dataset:
        """The data set as the network takes it."""
        if not (self.pixels or self.pad):
            return data
        scale, offset = (torch.tensor(each).view(-1, 1, 1) for each in (data.scale, data.offset))

        def prepared(x: Tensor) -> Tensor:
            shown = (x * scale + offset).clamp(0, 1)
            # Black is 0 among pixels, and what it became where these are normalised again.
            shown = F.pad(shown, (self.pad,) * 4)
            return shown if self.pixels else (shown - offset) / scale

        return replace(data, train_x=prepared(data.train_x), test_x=prepared(data.test_x))

    def network(self) -> nn.Module:
        """The dense network with fresh weights.

        Raises:
            RecordError: there is no such network, or it is larger than any record's may be.
        """
        shape: dict[str, Any] = {
            "in_channels": self.in_channels,
            "classes": self.classes,
            "size": self.size,
        }
        if self.model not in MODELS:
            raise RecordError(unknown("model", self.model, MODELS.names()))
        try:
            # Built without memory first: options may ask for any size.
            empty = skeleton(self.model, **shape, **self.options)
            entries = sum(p.numel() for p in empty.parameters())
            if entries > LARGEST_NETWORK:
                raise RecordError(
                    f"{self.name} is a network of {entries:,} entries; a record's has at most"
                    f" {LARGEST_NETWORK:,}."
                )
            return build(self.model, **shape, **self.options)
        except RecordError:
            raise
        except (ArgumentError, TypeError, ValueError, RuntimeError) as error:
            raise RecordError(f"{self.name}: the network cannot be built: {error}") from None


def read_record(path: str | Path) -> Record:
    """A record from its text; everything in it is checked by its type, and nothing is run.

    Raises:
        RecordError: it cannot be read, is no record, or holds values that cannot be.
    """
    path = Path(path)
    with reading(path, RecordError), open(path, "rb") as stream:
        # One byte more than allowed tells the two apart without reading an endless file.
        text = stream.read(LARGEST_TEXT + 1)
    if len(text) > LARGEST_TEXT:
        raise RecordError(
            f"{path} is larger than {LARGEST_TEXT:,} bytes, the most a record may have."
        )
    try:
        return Record.read(json_object(text, str(path), RecordError))
    except Misfit as error:
        raise RecordError(f"{path} is not a record: {str(error).rstrip('.')}.") from None


def sparse_file(record: Record, folder: Path) -> Path:
    """The record's file, whose bytes are those that it names.

    Raises:
        RecordError: it is missing, too large or another.
    """
    path = folder / record.file
    # A link could name anything on this machine.
    if path.is_symlink():
        raise RecordError(f"{path} is a link; a record comes with the file itself.")
    with reading(path, RecordError), open(path, "rb") as stream:
        content = stream.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise RecordError(f"{path} is larger than {LARGEST_FILE:,} bytes.")
    found = hashlib.sha256(content).hexdigest()
    if found != record.sha256:
        raise RecordError(f"{path} has the SHA-256 {found}; its record says {record.sha256}.")
    return path


def opened(record: Record, folder: Path) -> nn.Module:
    """The network of a record, in evaluation mode."""
    path, model = sparse_file(record, folder), record.network()
    try:
        check_file(path, model)
        return load_sparse(path, into=model).eval()
    except RecordError:
        raise
    except SecateursError as error:
        raise RecordError(f"{path} is not the network of its record: {error}") from error


# The zoo: the records of the package.


def _folder() -> Any:
    return files("secateurs_lab.zoo").joinpath("networks")


def names() -> list[str]:
    """The networks of the zoo.

    >>> "lenet-300-100/fashion-mnist/50x" in names()
    True
    """
    found = (
        entry.name.removesuffix(".json").replace("_", "/")
        for entry in _folder().iterdir()
        if entry.name.endswith(".json")
    )
    return sorted(found, key=_natural)


def _natural(name: str) -> list[tuple[int, str]]:
    """20x before 100x."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _at(name: str) -> str:
    if name not in names():
        raise ArgumentError(unknown("network of the zoo", name, names()))
    # Names hold no underscore, so that one can stand for a slash.
    return name.replace("/", "_")


def record(name: str) -> Record:
    """The record of a network of the zoo.

    >>> record("lenet-300-100/fashion-mnist/50x").compression > 49
    True
    """
    at = _at(name)
    with as_file(_folder().joinpath(f"{at}.json")) as path:
        return read_record(path)


def load(name: str) -> nn.Module:
    """A network of the zoo with its weights, in evaluation mode. It takes images as
    `secateurs_lab.data.load` gives them, or as `record(name).prepare` makes them.

    >>> model = load("lenet-300-100/fashion-mnist/50x")
    >>> model(torch.zeros(1, 1, 28, 28)).shape
    torch.Size([1, 10])
    """
    found = record(name)
    with as_file(_folder()) as folder:
        return opened(found, Path(folder))


# Writing a record, the zoo's own and what is handed in.


def rounded(model: nn.Module, fresh: nn.Module) -> nn.Module:
    """The network with every value rounded to bfloat16 and back: what its certificate compares it
    with. `fresh` takes the values, and has the shapes of the model.
    """
    state = {
        name: value.bfloat16().to(value.dtype) if value.is_floating_point() else value
        for name, value in model.state_dict().items()
    }
    fresh.load_state_dict(state)
    return fresh.eval()


def write_record(
    model: nn.Module,
    folder: str | Path,
    *,
    name: str,
    architecture: str,
    data: Dataset,
    method: str,
    command: str,
    options: Mapping[str, Any] | None = None,
    pixels: bool = False,
    pad: int = 0,
    seeds: Sequence[int] = (),
    accuracies: Sequence[float] = (),
    settings: Mapping[str, Any] | None = None,
    balls: Tensor | None = None,
    methods: str = "linear",
) -> Path:
    """Write a network as a sparse file with its record, ready to be handed in; returns the
    record's path.

    Args:
        model: the sparse network, of an architecture of `secateurs_lab.models`.
        folder: where both files go.
        name: network/data/name.
        architecture, options: what `secateurs_lab.models.build` takes.
        data: its test images give the accuracy, as `pixels` and `pad` make them.
        pixels, pad: as in `Record`.
        method, command: how it was made, in a word, and what makes it again.
        seeds, accuracies: of the same training with other seeds.
        settings: of its run in a study.
        balls: images around which the effect of rounding it to bfloat16 is certified, within 1/255
            in each entry; None leaves the certificate out.
        methods: of the certificate; "interval" is quick for deep networks.
    """
    folder, model = Path(folder), model.eval()
    file = f"{name.replace('/', '_')}.safetensors"
    save_sparse(model, folder / file, notes={"record": name})
    kept = sum(int(weight.count_nonzero()) for weight in prunable(model).values())
    certificate = None
    if balls is not None:
        other = rounded(model, copy.deepcopy(model))
        proof = certify(other, model, around=balls, radius=1 / 255, methods=methods, restarts=1)
        certificate = json.loads(proof.to_json())
    side = data.size + 2 * pad
    shape: dict[str, Any] = {
        "in_channels": data.in_channels,
        "classes": data.classes,
        "size": side,
    }
    whole = build(architecture, **shape, **dict(options or {}))
    found = Record(
        name=name,
        model=architecture,
        options=dict(options or {}),
        **shape,
        data=data.name,
        pixels=pixels,
        pad=pad,
        file=file,
        sha256=hashlib.sha256((folder / file).read_bytes()).hexdigest(),
        kept=kept,
        total=sum(weight.numel() for weight in prunable(whole).values()),
        accuracy=0.0,
        seeds=tuple(seeds),
        accuracies=tuple(accuracies),
        method=method,
        command=command,
        settings=dict(settings or {}),
        certificate=certificate,
    )
    found = replace(found, accuracy=evaluate(model, found.prepare(data)).accuracy)
    path = folder / f"{name.replace('/', '_')}.json"
    told = {entry.name: getattr(found, entry.name) for entry in fields(Record)}
    with replacing(path) as part:
        part.write_text(json.dumps(told, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")
    return path
