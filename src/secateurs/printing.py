"""Results print as what they say: `print(report)` gives the table that rich would show."""

from io import StringIO

from rich.console import Console, ConsoleRenderable, RichCast

WIDTH = 120


class Printed:
    """Mixin for results with `__rich__`: `str()` gives the same table as plain text.

    >>> from rich.table import Table
    >>> class Answer(Printed):
    ...     def __rich__(self):
    ...         return Table("answer", title="all")
    >>> "answer" in str(Answer())
    True
    """

    __slots__ = ()

    def __rich__(self) -> ConsoleRenderable | RichCast | str:
        """What rich shows."""
        raise NotImplementedError

    def __str__(self) -> str:
        # No colours and a fixed width: what is printed into a log is the same
        # everywhere.
        console = Console(
            file=StringIO(), width=WIDTH, color_system=None, force_terminal=False
        )
        with console.capture() as captured:
            console.print(self.__rich__())
        return captured.get().rstrip()
