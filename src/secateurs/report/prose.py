"""How a study was done, in words: every setting, what all runs share and what each method adds."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from secateurs.study.keeping.export import flat
from secateurs.study.keeping.row import Row

KEYS = ("seed", "compression", "parent", "rewind", "data.root", "data.name")
"""Settings that are said elsewhere, or that are names of other runs."""
MACHINE = ("machine", "device", "threads", "precision", "data_hash")


def methods_paragraph(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Heads and sentences: the networks, the training, each method, the machine."""
    rows = [row for row in rows if row.settings and not row.hidden]
    if not rows:
        return []
    shown = [_settings(row) for row in rows]
    common = {key: value for key, value in shown[0].items() if _same(key, shown)}
    parts = [("What was run", _what(rows)), ("All runs share", _listed(common))]
    for label in dict.fromkeys(row.label for row in rows):
        mine = [
            own for own, row in zip(shown, rows, strict=True) if row.label == label
        ]
        parts.append((label, _own(mine, common)))
    return [*parts, *_machine(rows)]


def _settings(row: Row) -> dict[str, Any]:
    # KEYS has names of tables and names with dots, so it
    # is asked before and after flattening.
    found = flat({key: row.settings[key] for key in row.settings if key not in KEYS})
    return {key: value for key, value in found.items() if key not in KEYS}


def _same(key: str, shown: Iterable[Mapping[str, Any]]) -> bool:
    # Compared as text, because a list cannot be an element of a set.
    return len({str(own.get(key, "")) for own in shown}) == 1


def _own(mine: Sequence[Mapping[str, Any]], common: Mapping[str, Any]) -> str:
    """What is special about a method; a list of strengths is said as a list."""
    # A dict and not a set: settings are said in the order in which they were given.
    keys = dict.fromkeys(key for own in mine for key in own if key not in common)
    values = {
        key: list(dict.fromkeys(_word(own[key]) for own in mine if key in own))
        for key in keys
    }
    return _listed({key: ", ".join(found) for key, found in values.items()})


def _what(rows: Sequence[Row]) -> str:
    models, data = (
        ", ".join(dict.fromkeys(values))
        for values in ((r.model for r in rows), (r.data for r in rows))
    )
    # Methods may prune different layers, so one network can have several totals.
    sizes = {(r.model, r.total) for r in rows if r.total}
    weights = "".join(
        f" {model} has {total:,} prunable weights." for model, total in sorted(sizes)
    )
    seeds = _seeds(sorted({row.seed for row in rows}))
    asked = ", ".join(
        f"{value:g}×" for value in sorted({r.asked or 0 for r in rows} - {0})
    )
    asked = f" Compressions asked for: {asked}." if asked else ""
    return f"{models} on {data}.{weights} Seeds: {seeds}.{asked}"


def _seeds(seeds: Sequence[int]) -> str:
    """Every seed; a long unbroken row by its ends."""
    if len(seeds) > 5 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def _listed(settings: Mapping[str, Any]) -> str:
    """Settings by their table: "train: length 20ep, batch 128; method: depth 3"."""
    groups: dict[str, list[str]] = {}
    for key, value in settings.items():
        table, _, name = key.rpartition(".")
        groups.setdefault(table, []).append(f"{name} {_word(value)}")
    said = [
        f"{table}: {', '.join(found)}" if table else ", ".join(found)
        for table, found in groups.items()
    ]
    return f"{'; '.join(said)}." if said else "nothing else."


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "":
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _machine(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Versions and machines, each different one once."""
    found = dict.fromkeys(
        _listed(
            {
                **{
                    key: row.provenance[key]
                    for key in MACHINE
                    if key in row.provenance
                },
                **dict(row.provenance.get("versions", {})),
            }
        )
        for row in rows
        if row.provenance
    )
    return [("Computed with", " ".join(found))] if found else []
