"""Exact compaction: dead channels of a network go, and its outputs stay what they were."""

from secateurs.ship.compaction.compact import compact, compaction, idle_blocks
from secateurs.ship.compaction.result import Compaction, Kept, Narrowed

__all__ = ["Compaction", "Kept", "Narrowed", "compact", "compaction", "idle_blocks"]
