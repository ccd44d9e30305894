"""Options that belong together, as one value each: which network, which data."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from secateurs.cli.opening import open_model

if TYPE_CHECKING:
    from torch import Tensor, nn

    from secateurs.data import Dataset


@dataclass(frozen=True, slots=True)
class Which:
    """Which network a file holds, as far as the options say it; the file's notes say the rest."""

    arch: str | None = None
    in_channels: int | None = None
    classes: int | None = None
    size: int | None = None

    def opened(self, path: Path) -> "tuple[nn.Module, dict[str, str]]":
        """The network with its weights, and the notes that belong into the next checkpoint."""
        return open_model(path, **asdict(self))


@dataclass(frozen=True, slots=True)
class Source:
    """Where data come from; nowhere, if no set is named."""

    name: str | None = None
    root: Path | None = None
    download: bool = False

    def loaded(self) -> "Dataset | None":
        """The data set, if one is named."""
        if self.name is None:
            return None
        from secateurs.data import load

        return load(self.name, root=self.root, download=self.download)


def nothing_in(notes: dict[str, str]) -> "Tensor":
    """An input of zeros, of the shape that the notes of a checkpoint say."""
    import torch

    side = int(notes["size"])
    return torch.zeros(1, int(notes["in_channels"]), side, side)
