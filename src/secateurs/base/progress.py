"""How far a long call has come: one line on standard error, where that is a terminal.

Nothing is shown where a program, a notebook, a test or a display of rich reads standard error, and
nothing for a call that is over within a second.
"""

import logging
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO, TypeAlias

from secateurs.base.foreign import one_line
from secateurs.base.interrupts import Uninterrupted

Progress: TypeAlias = Callable[[str], None]
"""Called with a line of text for each step."""

AFTER = 1.0  # seconds

# Held by the call whose line is shown: what it calls, and other threads, say nothing.
_shown = threading.Lock()


def silent(text: str) -> None:
    """Show no progress; to be given as `progress=`."""


@contextmanager
def show_progress(progress: Progress | None, call: str) -> Iterator[Progress]:
    """What a call tells its steps: the function it was given; without one, a line on a terminal
    that is rewritten at each step and wiped at the end.

    >>> with show_progress(print, "certify") as say:
    ...     say("both networks are read")
    both networks are read
    """
    if progress is not None:
        yield progress
        return
    stream = _terminal()
    if stream is None or not _shown.acquire(blocking=False):
        yield silent
        return
    line = _Line(stream, call)
    try:
        yield line.say
    finally:
        with Uninterrupted():
            line.wipe()
            _shown.release()


def _terminal() -> TextIO | None:
    """Standard error where it is a terminal of our own.

    What somebody has put in its place (a display of rich, a notebook) takes no lines that are
    rewritten, whatever it says of itself.
    """
    own = sys.__stderr__
    if own is None or sys.stderr is not own or own.closed:
        return None
    return own if own.isatty() else None


class _Line:
    """The last line of a terminal. A timer shows it first, since the first step may be long."""

    def __init__(self, stream: TextIO, call: str) -> None:
        self._stream, self._call, self._text = stream, call, call
        self._width = 0  # of what is to be wiped
        self._begun = self._over = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(AFTER, self._begin)
        self._timer.daemon = True
        self._timer.start()
        # A filter of a parent does not see what its children log.
        known = [*logging.Logger.manager.loggerDict.items()]
        ours = [each for name, each in known if name.partition(".")[0] == "secateurs"]
        self._loggers = [each for each in ours if isinstance(each, logging.Logger)]
        for logger in self._loggers:
            logger.addFilter(self._make_room)

    def say(self, text: str) -> None:
        """Show the text, or keep it until the first second is over."""
        with self._lock:
            self._text = one_line(f"{self._call}: {text}")
            if self._begun:
                self._write(self._text)

    def wipe(self) -> None:
        """Leave an empty line."""
        self._timer.cancel()
        for logger in self._loggers:
            logger.removeFilter(self._make_room)
        with self._lock:
            self._over = True
            self._clear()

    def _make_room(self, record: logging.LogRecord) -> bool:
        """What is logged meanwhile stands on a line of its own; the next step is shown below it."""
        with self._lock:
            self._clear()
        return True

    def _clear(self) -> None:
        if self._begun:
            self._write("")
            self._stream.write("\r")
            self._stream.flush()

    def _begin(self) -> None:
        with self._lock:
            if not self._over:
                self._begun = True
                self._write(self._text)

    def _write(self, text: str) -> None:
        # Blanks wipe the rest of the old text on terminals that know no escape sequences. The last
        # column stays free: text in it would begin a new line.
        text = text[: shutil.get_terminal_size().columns - 1]
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._width = len(text)
