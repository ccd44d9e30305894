"""The figures of the papers, drawn anew from the rows of `secateurs reproduce`."""

from secateurs.report.reproduced.catalogue import figures_of
from secateurs.report.reproduced.write import links, write_figures, write_html

__all__ = [
    "figures_of",
    "links",
    "write_figures",
    "write_html",
]
