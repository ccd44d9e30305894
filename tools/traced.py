"""A pytest plugin: which functions of `src` each test calls, and how long it takes.

`python -m pytest -p traced` (with `tools` on the path) writes JSON lines to the file that
MUTANTS_MAP names: `{"test": …, "seconds": …, "functions": ["path:name", …]}`.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest

SOURCE = str(Path(__file__).resolve().parents[1] / "src") + os.sep


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Trace one test with its fixtures; the call events alone cost little."""
    called: set[CodeType] = set()

    def tracer(frame: FrameType, event: str, argument: object) -> None:
        called.add(frame.f_code)

    began = time.perf_counter()
    sys.settrace(tracer)
    yield
    sys.settrace(None)
    write(item.nodeid, time.perf_counter() - began, called)


def write(test: str, seconds: float, called: set[CodeType]) -> None:
    ours = (c for c in called if c.co_filename.startswith(SOURCE))
    functions = {f"{code.co_filename[len(SOURCE) :]}:{code.co_qualname}" for code in ours}
    row = {
        "test": test,
        "seconds": round(seconds, 3),
        "functions": sorted(functions),
    }
    with open(os.environ["MUTANTS_MAP"], "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
