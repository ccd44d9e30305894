"""How much memory a call takes at its peak, counted by the system: torch, kernels and runtimes."""

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_memory(call: Callable[[], object]) -> int | None:
    """Resident bytes at the peak of the call, less those before it; None off Linux.

    Memory that the allocator holds ready from earlier calls is handed back first, as far as it can.
    """
    try:
        gc.collect()
        _trim()
        _RESET.write_text("5")  # the high-water mark starts anew
        before = _status("VmRSS")
        call()
        return max(0, _status("VmHWM") - before)
    except (OSError, KeyError, ValueError):
        return None


def _status(key: str) -> int:
    lines = dict(
        line.split(":", 1) for line in _STATUS.read_text().splitlines() if ":" in line
    )
    return 1024 * int(lines[key].split()[0])


def _trim() -> None:
    # Only glibc has malloc_trim.
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
