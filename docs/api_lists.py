"""Lists of public names in the pages of docs/api/, and the directives they stand for.

A page holds blocks such as

    ```{api} secateurs.paths
    path_norm path_metric
    PathNorm
    ```

Each name becomes an entry with its signature and docstring. `tests/test_docs.py` reads the same
blocks and compares them with what the package offers.
"""

import importlib
import inspect
import re

BLOCK = re.compile(r"^```\{api\} (?P<module>[\w.]+)\n(?P<names>.*?)^```$", re.M | re.S)


def listed(text: str) -> list[tuple[str, str]]:
    """(module, name) for every name in the blocks of a page."""
    return [
        (block["module"], name) for block in BLOCK.finditer(text) for name in block["names"].split()
    ]


def expanded(text: str) -> str:
    """The page with its lists as directives of autodoc."""

    def entries(block: re.Match[str]) -> str:
        lines = [directive(block["module"], name) for name in block["names"].split()]
        return "\n".join(["```{eval-rst}", *lines, "```"])

    return BLOCK.sub(entries, text)


def directive(module: str, name: str) -> str:
    """The directive for one name: a class with its documented members, a function, or data."""
    value = getattr(importlib.import_module(module), name)
    if inspect.isclass(value):
        return f".. autoclass:: {module}.{name}\n   :members:\n"
    if inspect.isroutine(value):
        return f".. autofunction:: {module}.{name}\n"
    return f".. autodata:: {module}.{name}\n   :no-value:\n"
