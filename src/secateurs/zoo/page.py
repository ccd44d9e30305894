"""The page of records: one line per record under its network and data, by compression."""

from collections.abc import Iterable
from statistics import median

from secateurs import foreign
from secateurs.zoo.records import Record

HEAD = """# Records

Small sparse networks that come with the package: `secateurs.zoo.load(NAME)` returns one with its
weights, `secateurs zoo check` checks all of them again. [The zoo](zoo.md) says how to hand in
another. This page is written by `secateurs zoo records`.
"""


def records_page(records: Iterable[Record]) -> str:
    """The page as Markdown.

    If a network was trained with several seeds, their median, minimum and maximum stand beside the
    accuracy of the file itself.
    """
    found = list(records)
    parts = [HEAD]
    for place in dict.fromkeys((record.model, record.data) for record in found):
        mine = [record for record in found if (record.model, record.data) == place]
        parts.append(f"## {foreign.markdown(f'{place[0]} on {place[1]}')}\n")
        parts.append("| name | compression | weights | accuracy | seeds, in % | made by |")
        parts.append("| --- | --- | --- | --- | --- | --- |")
        parts += map(_line, sorted(mine, key=lambda record: record.compression))
        parts.append("")
    return "\n".join(parts)


def _line(record: Record) -> str:
    seeds = "one"
    if len(record.seeds) > 1:
        low, middle, high = (100 * each(record.accuracies) for each in (min, median, max))
        seeds = f"{len(record.seeds)}: {middle:.2f} ({low:.2f}–{high:.2f})"
    cells = (
        record.name.rpartition("/")[2],
        f"{record.compression:.4g}×",
        f"{record.kept:,} of {record.total:,}",
        f"{100 * record.accuracy:.2f} %",
        seeds,
        f"{record.method}: {record.command}",
    )
    return "| " + " | ".join(map(foreign.markdown, cells)) + " |"
