"""The page of records: one line per record under its network and data, by compression."""

from collections.abc import Iterable
from statistics import median

from torch import nn

from secateurs.base.cells import markdown_cell
from secateurs_lab.zoo.records import Record, load

HEAD = """# Records

Small sparse networks that come with the package: `lab.zoo.load(NAME)` returns one with its
weights, `secateurs zoo check` checks all of them again. [The zoo](zoo.md) says how to hand in
another. This page is written by `secateurs zoo records`.

The first compression counts prunable weights, as the rest of this library does. The second counts
every parameter, biases and norms too, as the paper on deep weight factorization does; tables of
`python -m experiments` have that one.
"""

COLUMNS = (
    *("name", "compression", "weights", "compression, all parameters", "accuracy"),
    *("seeds, in %", "made by"),
)


def records_page(records: Iterable[Record], *, networks: Iterable[nn.Module] | None = None) -> str:
    """The page as Markdown.

    If a network was trained with several seeds, their median, minimum and maximum stand beside the
    accuracy of the file itself.

    Args:
        records: In any order.
        networks: The network of each, in the same order; by default they are loaded from the zoo.
    """
    found = list(records)
    models = [load(record.name) for record in found] if networks is None else networks
    lines = {id(record): _line(record, of) for record, of in zip(found, models, strict=True)}
    parts = [HEAD]
    for place in dict.fromkeys((record.model, record.data) for record in found):
        mine = [record for record in found if (record.model, record.data) == place]
        parts.append(f"## {markdown_cell(f'{place[0]} on {place[1]}')}\n")
        parts.append(f"| {' | '.join(COLUMNS)} |")
        parts.append(f"|{' --- |' * len(COLUMNS)}")
        parts += [lines[id(one)] for one in sorted(mine, key=lambda record: record.compression)]
        parts.append("")
    return "\n".join(parts)


def _line(record: Record, network: nn.Module) -> str:
    every = sum(value.numel() for value in record.network().parameters())
    left = sum(int(value.count_nonzero()) for value in network.parameters())
    seeds = "one"
    if len(record.seeds) > 1:
        low, middle, high = (100 * each(record.accuracies) for each in (min, median, max))
        seeds = f"{len(record.seeds)}: {middle:.2f} ({low:.2f}–{high:.2f})"
    cells = (
        record.name.rpartition("/")[2],
        f"{record.compression:.4g}×",
        f"{record.kept:,} of {record.total:,}",
        f"{every / max(1, left):.4g}×",
        f"{100 * record.accuracy:.2f} %",
        seeds,
        f"{record.method}: {record.command}",
    )
    return "| " + " | ".join(map(markdown_cell, cells)) + " |"
