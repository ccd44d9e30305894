"""secateurs in other people's training loops: one callback each, imported when it is asked for.

`PruningCallback` is for the Trainer of Hugging Face (`pip install 'secateurs[hf]'`),
`LightningPruning` for Lightning (`pip install 'secateurs[lightning]'`).
"""

from typing import Any

__all__ = ["LightningPruning", "PruningCallback"]


def __getattr__(name: str) -> Any:
    # Imported when asked for: transformers and lightning take seconds to load.
    if name == "PruningCallback":
        from secateurs.adapters.huggingface import PruningCallback

        return PruningCallback
    if name == "LightningPruning":
        from secateurs.adapters.lightning import LightningPruning

        return LightningPruning
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
