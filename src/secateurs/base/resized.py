"""Attributes of modules that count channels, set anew as pruning changed them.

Each change is noted on the module it was made to, so that it goes wherever the module goes (deep
copies, submodules, other wrappers); `sizes.py` reads the notes.
"""

from torch import nn

ATTRIBUTES = "_secateurs_sizes"
"""On a module: what each attribute was that has been set anew."""


def resize_attribute_(module: nn.Module, name: str, after: int) -> None:
    """Set an attribute that holds a size, and note what it was."""
    before = getattr(module, name)
    setattr(module, name, after)
    noted: dict[str, int] = {**vars(module).get(ATTRIBUTES, {})}
    noted.setdefault(name, before)
    setattr(module, ATTRIBUTES, noted)
