"""The tracer's own words, left out: what goes wrong is raised in words of ours.

torch logs warnings and whole stacks while it traces, and prints the graph so far where it fails:
20 to 150 lines before the message. What the user's own code prints, warns of or logs is not
touched.
"""

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LOUD = ("torch", "onnxscript", "onnx_ir")
# Loggers under these names speak of tracing and nothing else.
_WARNINGS = (
    "The tensor attribute",  # a model that keeps a tensor as it runs; it is put back
    "Converting a tensor",
    "Was not able to add assertion",
)


@contextmanager
def quietly() -> Iterator[None]:
    """Trace and export without what torch says about its own insides.

    TORCH_LOGS is a wish to hear it: then all is left as it is.
    """
    if os.environ.get("TORCH_LOGS"):
        yield
        return
    stream = sys.stderr
    sieve = _Sieve(stream)
    with warnings.catch_warnings(), _silent():
        for message in _WARNINGS:
            warnings.filterwarnings("ignore", message=message)
        sys.stderr = sieve
        try:
            yield
        finally:
            # Somebody may have put another stream there meanwhile.
            if sys.stderr is sieve:
                sys.stderr = stream


@contextmanager
def _silent() -> Iterator[None]:
    """No records of loggers that belong to torch's tracer and to exporters."""
    loggers = [logging.getLogger(name) for name in _LOUD]
    known = logging.Logger.manager.loggerDict
    for name in [*known]:
        if name.partition(".")[0] in _LOUD:
            logger = known[name]
            # A level of its own is not inherited.
            if isinstance(logger, logging.Logger) and logger.level:
                loggers.append(logger)
    before = [(logger, logger.level) for logger in dict.fromkeys(loggers)]
    _set_levels([(logger, logging.CRITICAL + 1) for logger, _ in before])
    try:
        yield
    finally:
        _set_levels(before)


def _set_levels(levels: list[tuple[logging.Logger, int]]) -> None:
    """`setLevel` of each, which empties the cache of every logger there is: 0.1 ms, but for the
    last one."""
    for logger, level in levels[:-1]:
        logger.level = level
    for logger, level in levels[-1:]:
        logger.setLevel(level)


class _Sieve:
    """A stream that lets through what others than torch write."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, unless the line that writes is torch's own."""
        writer = sys._getframe(1).f_globals.get("__name__", "")
        if writer.startswith(("torch.export", "torch._export", "torch.fx")):
            return len(text)
        written: int = self._stream.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
