"""The whole tool on a small network in under two minutes: a study of seven methods on the embedded
digits, its page, and the best network made smaller, measured and certified.

To extend it, append to `METHODS` (a line in every figure) or to `SECTIONS` (something shown at the
end), both in `run.py`.
"""

from secateurs_lab.demo.run import (
    METHODS,
    SECTIONS,
    Outcome,
    Section,
    Settings,
    plan,
    run,
    table,
    write,
)

__all__ = [
    "METHODS",
    "SECTIONS",
    "Outcome",
    "Section",
    "Settings",
    "plan",
    "run",
    "table",
    "write",
]
