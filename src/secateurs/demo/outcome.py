"""What came out: all rows, and the network that is shipped."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from secateurs.data import Dataset
from secateurs.errors import ArgumentError
from secateurs.study import Row, Store, Study
from secateurs.study.pipeline.bench import Bench, network

CLOSE = 0.01
"""A sparse network is as good as its dense one if it loses at most one point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All results, and the sparsest network within a point of its dense one, if there is any.

    Attributes:
        rows: One a run.
        best: The row of the network that is shipped.
        before: The row of the dense network of the same seed.
        dense, sparse: Both networks.
    """

    data: Dataset
    rows: tuple[Row, ...]
    best: Row
    before: Row
    dense: nn.Module
    sparse: nn.Module


def outcome(study: Study, store: Store) -> Outcome:
    """Read what a finished study left, and choose."""
    rows = tuple(store.rows())
    best = chosen(rows)
    before = _dense(rows, best.seed)
    data, _ = Bench(device="cpu").data(study.data[0])
    dense, sparse = (
        _network(study, store, row, data).eval() for row in (before, best)
    )
    return Outcome(
        data=data, rows=rows, best=best, before=before, dense=dense, sparse=sparse
    )


def chosen(rows: Sequence[Row]) -> Row:
    """The sparsest run that loses at most a point, of several the most accurate; if none is so
    good, the most accurate of all.
    """
    sparse = [row for row in rows if row.state == "done" and row.kind != "dense"]
    if not sparse:
        raise ArgumentError("no sparse network was trained to its end.")
    # Within a point of the dense network of the same seed: seeds differ by more than that.
    close = [row for row in sparse if _accuracy(row) >= _limit(rows, row.seed)]
    if close:
        # By the compression asked for: what was reached differs by rounding, which
        # should not decide.
        return max(close, key=lambda row: (row.asked or 0.0, _accuracy(row)))
    return max(sparse, key=_accuracy)


def _limit(rows: Sequence[Row], seed: int) -> float:
    return _accuracy(_dense(rows, seed)) - CLOSE


def _dense(rows: Sequence[Row], seed: int) -> Row:
    return next(row for row in rows if row.kind == "dense" and row.seed == seed)


def _accuracy(row: Row) -> float:
    return row.accuracy or 0.0


def _network(study: Study, store: Store, row: Row, data: Dataset) -> nn.Module:
    model = network(study.model[0], data, row.seed)
    if row.weights is None:
        raise ArgumentError(f"run {row.key} ended {row.state}: it left no weights.")
    model.load_state_dict(store.tensors(row.weights))
    return model
