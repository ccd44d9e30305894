"""Processes that form a group, for tests of what several ranks do together."""

import gc
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing as mp

# A forked process has everything imported; a new one takes three seconds of processor for that. A
# fork cannot use CUDA, and macOS does not promise that its frameworks survive one.
START = "fork" if sys.platform == "linux" and not torch.cuda.is_available() else "spawn"


def run_ranks(function: Callable[..., Any], *arguments: Any, ranks: int) -> None:
    """Call `function(rank, *arguments)` in a process for each rank; an error in one is an error."""
    # A group of processes that nobody names any more waits, when it goes, for threads of its own,
    # and a forked process has none of them.
    gc.collect()
    mp.start_processes(function, arguments, nprocs=ranks, start_method=START)
