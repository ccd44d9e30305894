"""The tables of a study as CSV, which any program reads."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from secateurs.base.cells import write_csv
from secateurs.base.safefile import replacing
from secateurs.errors import ArgumentError
from secateurs_lab.study.database import SUMMARY, Row
from secateurs_lab.study.store import Store


def export(store: Store, path: str | Path, *, table: str = "runs") -> Path:
    """Write a table of the store as CSV.

    Args:
        store: A study's store.
        path: The file to write.
        table: "runs" (one line per run, metrics and settings flattened), "history" (one per epoch),
            "layers" (one per parameter) or "rows" (those of jobs that train no network).
    """
    path = Path(path)
    if table not in TABLES:
        raise ArgumentError(f"there is no table {table!r}; there are {', '.join(TABLES)}.")
    if path.suffix != ".csv":
        raise ArgumentError(f"{path} does not end in .csv.")
    return write_lines(TABLES[table](store.rows()), path)


def write_lines(lines: Iterable[Mapping[str, Any]], path: Path) -> Path:
    """Lines as CSV, with a column for every name that one of them has."""
    lines = [*lines]
    with (
        replacing(path) as part,
        part.open("w", newline="", encoding="utf-8") as file,
    ):
        names = _columns(lines)
        cells = ([line.get(name, "") for name in names] for line in lines)
        write_csv(file, [names, *cells], end="\r\n")
    return path


def run_lines(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """One line per run: columns, metrics.NAME, settings.NAME.NAME."""
    for row in rows:
        named = {
            "metrics": row.metrics,
            "settings": row.settings,
            "timings": row.timings,
        }
        yield {**row.summary, **flat({**named, "provenance": row.provenance})}


def history_lines(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """One line per epoch."""
    for row in rows:
        yield from ({**_who(row), **asdict(point)} for point in row.history)


def layer_lines(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """One line per parameter of a run."""
    for row in rows:
        for layer in row.layers:
            # As text, because a cell cannot hold a tuple.
            shape, counts = (
                "x".join(map(str, layer.shape)),
                " ".join(map(str, layer.histogram)),
            )
            yield {**_who(row), **asdict(layer), "shape": shape, "histogram": counts}


def job_lines(rows: Iterable[Row]) -> Iterator[Mapping[str, str]]:
    """The lines of jobs that train no network, as they are."""
    for row in rows:
        yield from row.rows


TABLES = {
    "runs": run_lines,
    "history": history_lines,
    "layers": layer_lines,
    "rows": job_lines,
}


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dots between the names; lists as JSON.

    >>> flat({"a": {"b": 1, "c": [1, 2]}})
    {'a.b': 1, 'a.c': '[1, 2]'}
    """
    found: dict[str, Any] = {}
    for name, entry in value.items():
        if isinstance(entry, Mapping):
            found |= flat(entry, f"{prefix}{name}.")
        else:
            found[prefix + name] = json.dumps(entry) if isinstance(entry, list | tuple) else entry
    return found


def _who(row: Row) -> dict[str, Any]:
    return {
        name: getattr(row, name)
        for name in ("key", "label", "data", "model", "seed", "asked", "strength")
    }


def _columns(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    # The columns of a listing come first and in its order, the others as they appear.
    names = dict.fromkeys(SUMMARY) if lines and "state" in lines[0] else {}
    for line in lines:
        names.update(dict.fromkeys(line))
    return list(names)
