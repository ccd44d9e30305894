"""What is shown below the table. One line each; append your own to `SECTIONS`."""

from collections.abc import Callable
from typing import TypeAlias

from rich.console import RenderableType

from secateurs.demo.outcome import Outcome
from secateurs.demo.shipping import shipped
from secateurs.paths import certify

Section: TypeAlias = Callable[[Outcome], RenderableType]
"""Something to show below the table."""


RADIUS = 1 / 255
"""One step of an eight-bit pixel."""
BALLS = 8


def certificate(outcome: Outcome) -> str:
    """What pruning may change: on inputs like the test set, and for certain within small balls
    around a few of them.
    """
    dense, sparse, best = outcome.dense, outcome.sparse, outcome.best
    some = outcome.data.test_x[:BALLS]
    # Two statements of different kinds: what to expect of fresh inputs like these, with a stated
    # confidence; and what holds for every point of some small balls, whatever happens there.
    seen = certify(dense, sparse, data=outcome.data.test_x[:2000])
    proven = certify(
        dense, sparse, around=some, radius=RADIUS, methods="linear", restarts=1
    )
    share = proven.certified_share(some)
    return (
        f"{best.label} at {best.compression:.0f}×, against its dense network:\n"
        f"{seen.statistical}\n{proven}; of {len(some)} test images {share:.0%} provably"
        " keep their class."
    )


SECTIONS: list[Section] = [shipped, certificate]
"""What the demo shows at its end."""
