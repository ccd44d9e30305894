"""One writer: the process that holds a lock on `writer.lock`, which the system takes back when it
dies.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from secateurs.errors import StoreError
from secateurs.study.keeping.database import told


def being_written(folder: Path) -> bool:
    """Whether some process writes to this store now."""
    try:
        with open(folder / "writer.lock", encoding="utf-8") as file:
            # A shared lock, which goes with the file a moment
            # later: nobody is kept from writing.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # somebody holds it
        return True
    return False


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Be the one process that writes to this store; refused while another is."""
    with told(folder):
        # "a+" leaves what is in it: the number of the process that holds the lock.
        file = open(folder / "writer.lock", "a+", encoding="utf-8")  # noqa: SIM115  (closed below)
    # The lock ends with the file, however this process ends.
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            who = file.read().strip() or "unknown"
            raise StoreError(
                f"{folder} is being written by another process ({who}): wait for it or stop it. "
                f"Watch it with "
                "`secateurs study status`."
            ) from None
        with told(folder):
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield
