"""Channels: which are tied, alive or removable; networks cut down to those that matter."""

from typing import TYPE_CHECKING

from secateurs.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs.channels.compact import Compaction, Kept, Narrowed, compact
    from secateurs.channels.dead import remove_dead_
    from secateurs.channels.macs import LayerMacs, Macs, macs
    from secateurs.channels.normalize import Normalization, normalize_
    from secateurs.channels.rescale import rescale_random_
    from secateurs.channels.scaling import Rescaling

__all__ = [
    "Compaction",
    "Kept",
    "LayerMacs",
    "Macs",
    "Narrowed",
    "Normalization",
    "Rescaling",
    "compact",
    "macs",
    "normalize_",
    "remove_dead_",
    "rescale_random_",
]

open_on_first_use(__name__)
