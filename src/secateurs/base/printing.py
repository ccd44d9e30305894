"""What results have in common: they print as tables, and are plain values and JSON, too."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from io import StringIO
from typing import Any

from rich.console import (
    Console,
    ConsoleOptions,
    ConsoleRenderable,
    RenderableType,
    RichCast,
)
from rich.errors import MarkupError
from rich.segment import Segment
from rich.text import Text

from secateurs.base.foreign import visible

WIDTH = 120


class Screen(Console):
    """A console whose texts cannot steer the terminal: controls in them are shown as signs, and
    no markup makes a link.

    The colours and lines of rich itself stand beside a text, not in it, and stay as they are.
    """

    def render_str(self, text: str, *args: Any, **options: Any) -> Text:
        """Text, made visible before it is measured; shown as it is where it is not markup."""
        text = visible(text)
        try:
            return super().render_str(text, *args, **options)
        # A path or a name with brackets in it that nobody escaped.
        except MarkupError:
            return super().render_str(text, *args, **options | {"markup": False})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """What a renderable draws, where it brings a `Text` of its own, too."""
        for text, style, control in super().render(renderable, options):
            if style is not None and style.link is not None:
                style = style.update_link(None)
            yield Segment(text if control else visible(text), style, control)


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
        """The object as rich prints it."""
        raise NotImplementedError

    def __str__(self) -> str:
        # No colours and a fixed width: what is printed into a log is the same everywhere. In a
        # notebook rich would add a display of its own, an empty one.
        console = Screen(
            file=StringIO(),
            width=WIDTH,
            color_system=None,
            force_terminal=False,
            force_jupyter=False,
        )
        with console.capture() as captured:
            console.print(self.__rich__())
        return captured.get().rstrip()


class AsJson:
    """Mixin for results that are dataclasses: `as_dict()`, and the same as JSON.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Answer(AsJson):
    ...     value: float
    >>> Answer(math.inf).as_dict()
    {'value': None}
    """

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values; what is infinite or not a number is None, as in `to_json`."""
        found: dict[str, Any] = plain(asdict(self))  # type: ignore[call-overload]
        return found

    def to_json(self) -> str:
        """The result as a JSON object; what is infinite or not a number is null."""
        return json.dumps(plain(self.as_dict()), indent=2, allow_nan=False)


def plain(value: Any) -> Any:
    """The value as JSON has it: lists for tuples, None for what is infinite or not a number."""
    # JSON has neither, and readers that take them disagree on how they are written.
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Reported(AsJson, Printed):
    """Mixin for results that print as a table and are plain values, too."""

    __slots__ = ()
