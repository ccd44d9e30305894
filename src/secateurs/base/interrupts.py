"""Ctrl-C at a moment when it can be borne."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Uninterrupted:
    """Within it a Ctrl-C waits until the block is over; a second one does not wait.

    For what must not stop half-way: putting back what a call changed, giving a file its name, and
    whatever runs in torch's tracer or in `torch.func`, where an exception out of nowhere leaves
    torch's own state torn, so that the next trace ends the whole process, and the next vmap fails.

    >>> with Uninterrupted():
    ...     pass
    """

    def __enter__(self) -> None:
        self._came: list[tuple[int, FrameType | None]] = []
        self._before: Any = None
        while True:
            try:
                self._begin()
                return
            except KeyboardInterrupt:  # one that came while this began waits like any other
                self._came.append((signal.SIGINT, None))

    def _begin(self) -> None:
        # Signals are met by the main thread alone. What is ignored stays so, and what ends the
        # process at once still does.
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            around = isinstance(getattr(handler, "__self__", None), Uninterrupted)
            if callable(handler) and not around:
                self._before = handler
                signal.signal(signal.SIGINT, self._note)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            if len(self._came) == 1:
                self._before(*self._came[0])

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append((number, frame))
        if len(self._came) > 1:
            self._before(number, frame)
