"""How much the masks of two methods agree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from secateurs.errors import StoreError
from secateurs.report.choice import at, compressions, first_seeds, spread
from secateurs.report.series import title
from secateurs.study.keeping.row import Row
from secateurs.study.store import Store

if TYPE_CHECKING:  # a page without overlaps must not wait for torch
    from torch import Tensor

METHODS = 12
"""Methods compared at one compression: every pair of masks is laid on each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The masks of several runs laid on each other.

    Attributes:
        data, model, compression: Where, and at which compression they were compared.
        names: The runs.
        shares: For each pair |A ∩ B| / min(|A|, |B|): of what the sparser keeps, the share that the
            other keeps, too.
        chance: The same for a mask drawn at random against each run: its density.
    """

    data: str
    model: str
    compression: float
    names: tuple[str, ...]
    shares: tuple[tuple[float, ...], ...]
    chance: tuple[float, ...]


def overlaps(store: Store, rows: Sequence[Row]) -> list[Overlap]:
    """Overlaps at up to three compressions of every network and data set; one seed each."""
    found = []
    for data, model in dict.fromkeys((row.data, row.model) for row in rows):
        mine = [row for row in rows if (row.data, row.model) == (data, model)]
        first = first_seeds(mine)
        for compression in compressions(first):
            near = spread(at(first, compression), METHODS)
            # A run whose weights were not kept has no mask to compare.
            masks = _masks(store, [row for row in near if row.weights])
            if len(masks) > 1:
                found.append(_laid(masks, near[0], compression))
    return found


def _masks(store: Store, rows: Sequence[Row]) -> "dict[str, dict[str, Tensor]]":
    """Masks by the name of the run. What is damaged is left out: the page is written anyway."""
    found = {}
    for row in rows:
        try:
            found[title(row)] = store.masks(row)
        except (StoreError, KeyError):
            continue
    return found


def _laid(
    masks: "Mapping[str, Mapping[str, Tensor]]", row: Row, compression: float
) -> Overlap:
    flat = {name: _flat(mask) for name, mask in masks.items()}
    return Overlap(
        data=row.data,
        model=row.model,
        compression=compression,
        names=tuple(flat),
        shares=tuple(
            tuple(share(one, other) for other in flat.values())
            for one in flat.values()
        ),
        chance=tuple(float(mask.double().mean()) for mask in flat.values()),
    )


def _flat(mask: "Mapping[str, Tensor]") -> "Tensor":
    import torch

    # Sorted by name, so that entries of two masks line
    # up whatever order their files have.
    return torch.cat([mask[name].flatten() for name in sorted(mask)])


def share(one: "Tensor", other: "Tensor") -> float:
    """|A ∩ B| / min(|A|, |B|) of two masks; 1 where one of them is empty.

    >>> import torch
    >>> share(torch.tensor([True, True, False]), torch.tensor([False, True, False]))
    1.0
    """
    # Divided by the sparser mask: a mask inside a larger one agrees fully, which |A ∩
    # B| / |A ∪ B| would not show.
    least = min(int(one.sum()), int(other.sum()))
    return int((one & other).sum()) / least if least else 1.0
