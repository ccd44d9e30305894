"""Large models: pruned block by block, on disk, and under adapters.

`save_pretrained` and `from_pretrained` keep models of transformers in folders. `peft_masks`,
`hold_lora` and `merge_lora` keep zeros under adapters of peft (`pip install 'secateurs[peft]'`).
"""

from typing import TYPE_CHECKING

from secateurs.base.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs.llm.blocks import PrunedBlocks, prune_blocks_
    from secateurs.llm.drop import DroppedBlocks, drop_blocks_
    from secateurs.llm.lora import HeldLora, hold_lora, merge_lora, peft_masks
    from secateurs.llm.on_disk import PrunedFile, prune_file
    from secateurs.llm.perplexity import Perplexity, perplexity
    from secateurs.llm.pretrained import from_pretrained, save_pretrained
    from secateurs.llm.reconstruct_model import ReconstructedModel, reconstruct_
    from secateurs.llm.unpacking import strip_sparsity_config, unpack_bitmasks

__all__ = [
    "DroppedBlocks",
    "HeldLora",
    "Perplexity",
    "PrunedBlocks",
    "PrunedFile",
    "ReconstructedModel",
    "drop_blocks_",
    "from_pretrained",
    "hold_lora",
    "merge_lora",
    "peft_masks",
    "perplexity",
    "prune_blocks_",
    "prune_file",
    "reconstruct_",
    "save_pretrained",
    "strip_sparsity_config",
    "unpack_bitmasks",
]

open_on_first_use(__name__)
