"""The short way into a program of one input and one output, for networks of microseconds."""

from secateurs.ship.fast.entry.builtin import enter_through_
from secateurs.ship.fast.entry.shortcut import Shortcut, no_shortcut, shortcut

__all__ = ["Shortcut", "enter_through_", "no_shortcut", "shortcut"]
