"""The table of the Fashion-MNIST study, as Markdown, beside the paper's figures."""

from collections.abc import Iterable, Mapping


def markdown(rows: Iterable[Mapping[str, str]]) -> str:
    """A table of the rows."""
    return ""
