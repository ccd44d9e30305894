"""Sizes written in the user's code: attributes that follow, and modules where they cannot."""

from secateurs.ship.compaction.following.attributes import Resized, resized, set_
from secateurs.ship.compaction.following.trial import failing_module

__all__ = ["Resized", "failing_module", "resized", "set_"]
