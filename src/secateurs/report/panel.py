"""A part of a page: a drawing or a table, with its numbers, under a head."""

from dataclasses import dataclass

from secateurs.report.figures.drawing import Drawing
from secateurs.report.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A part of the page.

    Attributes:
        name: What its files are called.
        head, text: What stands above it; panels that follow under the same head stand side by side.
        drawing: The figure, if it is one.
        table: Its numbers; without a drawing they are what is shown.
        folded: Shown only when it is opened.
    """

    name: str
    head: str
    text: str = ""
    drawing: Drawing | None = None
    table: Table
    folded: bool = False
