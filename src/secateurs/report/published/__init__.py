"""Figures that papers print, to stand dotted beside ours where network and data are the same."""

from secateurs.report.published.lines import names_in_print, printed_lines
from secateurs.report.published.read import (
    Published,
    named_figures,
    read_published,
    shipped,
)

__all__ = [
    "Published",
    "named_figures",
    "names_in_print",
    "printed_lines",
    "read_published",
    "shipped",
]
