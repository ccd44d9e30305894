"""Pickles are never read here: what a file that is one is told, with the lines that convert it."""

from pathlib import Path

ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")

_CONVERT = """{path} is a pickle, and loading one can run code, so it is not read here. Convert it
once, with the loader that takes weights only:
    import torch, safetensors.torch
    state = torch.load({source}, map_location="cpu", weights_only=True)
    state = state.get("state_dict", state)
    state = {{key: value.contiguous().clone() for key, value in state.items()}}
    safetensors.torch.save_file(state, "model.safetensors", metadata={{"format": "pt"}})"""


def conversion(path: Path) -> str:
    """The lines that convert a file, if it is a pickle by its ending; else nothing."""
    if path.suffix.lower() not in ENDINGS:
        return ""
    return _CONVERT.format(path=path, source=repr(path.name))


def conversion_of(path: Path, begin: bytes) -> str:
    """The same for a file that could not be read as anything else, by what it begins with, too."""
    # The archive that torch writes, and a bare pickle of any newer protocol.
    if conversion(path):
        return conversion(path)
    if begin.startswith(
        (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
    ):
        # Newer versions of torch go by the ending: what is called .safetensors would not be loaded.
        return _CONVERT.format(path=path, source=f'open({path.name!r}, "rb")')
    return ""
