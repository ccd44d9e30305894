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


@dataclass(slots=True, kw_only=True)
class Pace:
    """How fast work goes, so that no step begins that would not end in time; steps that end are
    told, one a second at most.
    """

    clock: Clock
    _work: float = 1.0
    _began: float = 0.0
    # Seconds of a unit of work, unknown before the first step.
    _price: float = 0.0
    _told: float = -math.inf

    def allows(self, work: float) -> bool:
        """Whether a step of that much work, which begins now, would end in time."""
        self._work, self._began = max(work, 1.0), time.monotonic()
        left = self.clock.left()
        return left >= 0 and left >= self._price * self._work

    def done(self, text: str) -> None:
        """The step has ended."""
        self._price = (time.monotonic() - self._began) / self._work
        self.say(text)

    def under(self, clock: Clock) -> "Pace":
        """What is known of the pace, under another clock."""
        return Pace(clock=clock, _price=self._price, _told=self._told)

    def say(self, text: str) -> None:
        """Tell it, unless something was told within the last second."""
        if time.monotonic() - self._told > 1:
            self._told = time.monotonic()
            self.clock.report(text)

    def late(self, text: str) -> Callable[[], bool]:
        """Whether the time is up; who asks is on the way, and that is told."""

        def asked() -> bool:
            self.say(text)
            return self.clock.late()

        return asked
