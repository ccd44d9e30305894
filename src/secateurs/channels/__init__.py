"""Channels: which are tied, alive or removable; networks cut down to those that matter."""

from typing import TYPE_CHECKING

from secateurs.base.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs.channels.compact import Compaction, Kept, Narrowed, compact
    from secateurs.channels.macs import LayerMacs, Macs, macs

__all__ = ["Compaction", "Kept", "LayerMacs", "Macs", "Narrowed", "compact", "macs"]

open_on_first_use(__name__)
