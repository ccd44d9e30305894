"""The published figures that ship with the package."""

import csv
from importlib.resources import files


def printed_rows(name: str) -> list[dict[str, str]]:
    """The lines of a file of published figures, as text by column.

    >>> printed_rows("weight_factorization_table1.csv")[0]["method"]
    'dwf-depth-2'
    """
    text = files("secateurs.study").joinpath(f"reference/{name}").read_text()
    return list(csv.DictReader(text.splitlines()))
