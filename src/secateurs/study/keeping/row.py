"""A run's row: everything a table, a figure or a reader wants to know about one training."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypeAlias, get_args

from secateurs.errors import StoreError
from secateurs.study.keeping.fields import read_fields
from secateurs.study.keeping.parts import Certified, LayerKept, Point
from secateurs.study.key import canonical

State: TypeAlias = Literal[
    "waiting", "running", "done", "diverged", "collapsed", "failed", "cancelled"
]
STATES: tuple[str, ...] = get_args(State)
ENDED: tuple[str, ...] = ("done", "diverged", "collapsed", "failed", "cancelled")
"""Closed vocabulary of ends: done; diverged (the loss became NaN or infinite); collapsed (the
network no longer depends
on its input); failed (an error, see the reason); cancelled (asked to stop for good)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run as the store knows it.

    Attributes:
        key: The run's name, a hash of its settings.
        label: The method's title in tables; equal for all runs of one method.
        kind: "dense", "prune", "imp", "gradual", "dwf", "l1", "path-penalty".
        data, model: Their names.
        seed: The run's seed.
        asked: The compression asked for; None where there is none.
        strength: λ of methods that have one.
        state, reason: Where the run stands; why it ended so, if it is not done.
        accuracy: Final test accuracy as a share; None before the end.
        compression, sparsity: Final total/kept and 1 − kept/total of the prunable parameters.
        kept, total: Their entries.
        seconds: Wall time of the run's own stages.
        progress: From 0 to 1.
        hidden: Only a step on the way of others (the network to rewind to): no line of a figure.
        settings: Every setting, nested plain values, with the keys of the runs it needs as "parent"
        and "rewind".
        metrics: All final numbers by name: accuracy, loss, accuracy_before (after the cut, before
        training), ...; your
            own metrics under "own.NAME".
        history: The training over time.
        layers: Remaining weights, layer by layer.
        certificates: What is known of the distance to the dense network.
        timings: Seconds per stage: "begin", "cut", "train", "collapse", "certify", "measure".
        provenance: versions, data hash, seed, threads, machine, device, precision, begun, ended,
        attempts.
        weights: The name (a hash) of the final weights in the store, as `Store.tensors` takes it;
        None if not kept.
        weights_hash: Hash over names, shapes and bytes of the final weights: equal runs have equal
        ones.
    """

    key: str
    label: str
    kind: str
    data: str
    model: str
    seed: int
    asked: float | None = None
    strength: float | None = None
    state: State = "waiting"
    reason: str = ""
    accuracy: float | None = None
    compression: float | None = None
    sparsity: float | None = None
    kept: int | None = None
    total: int | None = None
    seconds: float = 0.0
    progress: float = 0.0
    hidden: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    history: tuple[Point, ...] = ()
    layers: tuple[LayerKept, ...] = ()
    certificates: tuple[Certified, ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None
    weights_hash: str | None = None

    @property
    def ended(self) -> bool:
        """Whether the run has come to an end, good or bad."""
        return self.state in ENDED

    @property
    def summary(self) -> dict[str, Any]:
        """The columns of a listing, without what is nested."""
        return {name: getattr(self, name) for name in SUMMARY}

    def details(self) -> str:
        """What is nested, as JSON."""
        return json.dumps(
            {name: _plain(getattr(self, name)) for name in NESTED}, sort_keys=True
        )

    def result(self) -> str:
        """What equal runs have in common, as text to compare: no times, no machine."""
        same = {
            name: getattr(self, name)
            for name in ("key", "state", "accuracy", "compression", "kept", "total")
        }
        history = [{**asdict(point), "seconds": 0.0} for point in self.history]
        return canonical({**same, "weights": self.weights_hash, "history": history})


# What a listing does not show is kept in one column, and read only when asked for.
NESTED = (
    "settings",
    "metrics",
    "history",
    "layers",
    "certificates",
    "timings",
    "provenance",
)
SUMMARY = tuple(entry.name for entry in fields(Row) if entry.name not in NESTED)


def row_of(summary: Mapping[str, Any], details: str | None = None) -> Row:
    """The row of a listing's columns and, if given, its nested part.

    A file that came from somewhere can hold anything under these names; what no run of ours has
    written is refused with its place.
    """
    try:
        # SQLite has no truth values: `hidden` comes back as 0 or 1.
        columns = {**summary, "hidden": summary["hidden"] != 0}
        nested = {} if details is None else json.loads(details)
        nested = read_fields(Row, nested, "details")
        return Row(**nested | read_fields(Row, columns, "columns"))
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"the run {summary.get('key')!r} of this store is damaged: {error}. Restore study.db"
            " from a copy, or begin in a new folder with --store."
        ) from error


def _plain(value: Any) -> Any:
    return [asdict(entry) for entry in value] if isinstance(value, tuple) else value
