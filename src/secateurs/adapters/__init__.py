"""secateurs with other people's libraries; each adapter is imported when it is asked for.

`PruningCallback` is for the Trainer of Hugging Face (`pip install 'secateurs[hf]'`),
`LightningPruning` for Lightning (`pip install 'secateurs[lightning]'`). `save_pretrained` and
`from_pretrained` keep models of transformers in folders. `peft_masks`, `hold_lora` and `merge_lora`
keep zeros under adapters of peft (`pip install 'secateurs[peft]'`).
"""

from typing import TYPE_CHECKING

from secateurs.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs.adapters.huggingface import PruningCallback
    from secateurs.adapters.lightning import LightningPruning
    from secateurs.adapters.lora import HeldLora, hold_lora, merge_lora, peft_masks
    from secateurs.adapters.pretrained import from_pretrained, save_pretrained

__all__ = [
    "HeldLora",
    "LightningPruning",
    "PruningCallback",
    "from_pretrained",
    "hold_lora",
    "merge_lora",
    "peft_masks",
    "save_pretrained",
]

open_on_first_use(__name__)
