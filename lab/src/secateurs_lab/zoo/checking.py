"""Checks a record: whether the file is the one it names and holds this network, whether its numbers
are right, and whether its certificate holds.
"""

import copy
import json
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from secateurs.base.prunable import prunable
from secateurs.errors import DataError, MissingExtra, SecateursError
from secateurs.proof.recheck import recheck
from secateurs_lab import data as sets
from secateurs_lab.train import evaluate
from secateurs_lab.zoo.records import Record, opened, read_record, rounded

SLACK = 5e-4
"""How far an accuracy may be off: another machine adds in another order, and images whose two best
classes are level may change sides.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCheck:
    """Whether a record of the zoo agrees with the network and the data on this machine.

    Attributes:
        record: The record that was checked.
        holds: Whether everything that could be compared agrees.
        accuracy: As measured by this check; None where the data are not on this machine.
        problems: What disagrees, in words.
        open: What could not be compared, and why.
    """

    record: Record
    holds: bool
    accuracy: float | None
    problems: tuple[str, ...]
    open: tuple[str, ...]

    def __str__(self) -> str:
        if not self.holds:
            return f"{self.record.name} does not hold: {'; '.join(self.problems)}"
        rest = f" (not compared: {'; '.join(self.open)})" if self.open else ""
        share = self.record.accuracy if self.accuracy is None else self.accuracy
        return f"{self.record.name} holds: {self.record.compression:.4g}×, {share:.2%}{rest}"


def check(path: str | Path) -> RecordCheck:
    """Check a record and its file.

    Neither is trusted: a text or file that is damaged, foreign or hostile raises a RecordError.
    What can be read and is wrong is listed in `problems`.

    >>> from importlib.resources import files
    >>> folder = files("secateurs_lab.zoo").joinpath("networks")
    >>> check(folder.joinpath("lenet-300-100_fashion-mnist_50x.json")).holds
    True
    """
    path = Path(path)
    record = read_record(path)
    model = opened(record, path.parent)
    problems, left = list[str](), list[str]()
    total = sum(weight.numel() for weight in prunable(record.network()).values())
    kept = sum(int(weight.count_nonzero()) for weight in prunable(model).values())
    for what, stated, found in (("total", record.total, total), ("kept", record.kept, kept)):
        if stated != found:
            problems.append(f"{what} is {found:,}, and the record says {stated:,}")
    accuracy = None
    try:
        data = sets.load(record.data)
    except (DataError, MissingExtra) as error:
        left.append(f"the accuracy, since {record.data} is not here: {error}")
    except SecateursError as error:
        problems.append(f"data: {error}")
    else:
        accuracy, problem = _accuracy(record, model, data)
        problems += problem
    if record.certificate is None:
        left.append("the record has no certificate")
    else:
        problem, rest = _certificate(record, model)
        problems += problem
        left += rest
    return RecordCheck(
        record=record,
        holds=not problems,
        accuracy=accuracy,
        problems=tuple(problems),
        open=tuple(left),
    )


def _accuracy(
    record: Record, model: nn.Module, data: sets.Dataset
) -> tuple[float | None, list[str]]:
    shape = (record.in_channels, record.classes, record.size)
    if shape != (data.in_channels, data.classes, data.size + 2 * record.pad):
        return None, [
            f"the network takes {record.in_channels} channels of {record.size} pixels and tells"
            f" {record.classes} classes apart, which is not {record.data}"
        ]
    found = evaluate(model, record.prepare(data)).accuracy
    if abs(found - record.accuracy) > SLACK:
        return found, [f"the accuracy is {found:.2%}, and the record says {record.accuracy:.2%}"]
    return found, []


def _certificate(record: Record, model: nn.Module) -> tuple[list[str], list[str]]:
    """Proved again, against the network rounded to bfloat16."""
    try:
        found = recheck(json.dumps(record.certificate), rounded(model, copy.deepcopy(model)), model)
    except SecateursError as error:
        return [f"the certificate cannot be read: {error}"], []
    return [f"the certificate: {each}" for each in found.problems], [
        f"of the certificate, {each}" for each in found.open
    ]
