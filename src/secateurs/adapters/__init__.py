"""secateurs in other people's training loops; each adapter is imported when it is asked for.

`PruningCallback` is for the Trainer of Hugging Face (`pip install 'secateurs[hf]'`),
`LightningPruning` for Lightning (`pip install 'secateurs[lightning]'`).
"""

from typing import TYPE_CHECKING

from secateurs.base.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs.adapters.huggingface import PruningCallback
    from secateurs.adapters.lightning import LightningPruning

__all__ = ["LightningPruning", "PruningCallback"]

open_on_first_use(__name__)
