"""Denormal numbers are flushed to zero while training: decayed weights would make a CPU step five
times slower.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def flushed_denormals() -> Iterator[bool]:
    """Treat numbers below 1.2e-38 as zero inside the block; afterwards as before. Yields whether
    the CPU can.
    """
    before = _flushing()
    able = torch.set_flush_denormal(True)
    try:
        yield able
    finally:
        torch.set_flush_denormal(before)


def _flushing() -> bool:
    """Whether denormals are flushed now: torch can set this but not report it."""
    return bool((torch.full((1,), 1e-38, dtype=torch.float32) * 1e-3 == 0).all())
