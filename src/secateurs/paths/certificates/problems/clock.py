"""How long a proof may take, and whom to tell how far it is."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How long the proof may take, and whom to tell how far it is."""

    seconds: float = math.inf
    # Monotonic: the wall clock may be set back while a proof runs.
    start: float = field(default_factory=time.monotonic)
    tell: Callable[[str], None] | None = None

    def late(self) -> bool:
        """Whether the time is up."""
        return self.left() < 0

    def left(self) -> float:
        """The seconds that are left, negative once the time is up."""
        return self.seconds - (time.monotonic() - self.start)

    def within(self, share: float) -> "Clock":
        """A clock that starts now and stops when this share of the time left is used up."""
        return Clock(seconds=max(0.0, self.left()) * share, tell=self.tell)

    def report(self, text: str) -> None:
        """Say what was done."""
        if self.tell is not None:
            self.tell(text)
