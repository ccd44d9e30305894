"""Which stored tensors are pruned. No module says what they are, so their names have to."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from secateurs.errors import EmptySelectionError, ParameterError
from secateurs.prune.on_disk.checkpoint import Shard, Stored
from secateurs.prune.on_disk.header import Entry
from secateurs.registry import unknown

_NOT_WEIGHTS = re.compile(
    r"norm|embed|(^|[._])(wte|wpe|ln|bn|rotary|pos|bias|lm_head|shared|codebook)([._0-9]|$)",
    re.IGNORECASE,
)
"""Parts of names of what is looked up, scaled or added, and of the table that ends a language
model, which is often the embedding itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meant:
    """The tensors to prune, in the order of the files, and why the others are left."""

    chosen: tuple[tuple[Shard, Entry], ...]
    left: dict[str, str]


def meant(stored: Stored, where: Sequence[str] | None) -> Meant:
    """What globs of names choose ('!' leaves out), or without any every float weight of two or more
    dimensions that is no norm, embedding, bias or head by its name.
    """
    wanted = [glob for glob in where or () if not glob.startswith("!")]
    excluded = [glob[1:] for glob in where or () if glob.startswith("!")]
    names = [entry.name for _, entry in stored.entries()]
    # A glob that fits nothing is a misspelt name: pruning everything else would be the
    # worst answer.
    for glob in [*wanted, *excluded]:
        if not any(fnmatchcase(name, glob) for name in names):
            raise ParameterError(unknown("tensor", glob, names))
    chosen, left = list[tuple[Shard, Entry]](), dict[str, str]()
    for shard, entry in stored.entries():
        reason = _reason(entry, wanted, excluded)
        if reason:
            left[entry.name] = reason
        else:
            chosen.append((shard, entry))
    if not chosen:
        raise EmptySelectionError(
            f"{stored.source} has no tensor to prune: of {len(names)}, the first is left because"
            f" {next(iter(left.values()), 'there is none')}. Choose by --where GLOB."
        )
    return Meant(chosen=tuple(chosen), left=left)


def _reason(entry: Entry, wanted: Sequence[str], excluded: Sequence[str]) -> str:
    """Why a tensor is left as it is; empty if it is pruned."""
    name = entry.name
    if any(fnmatchcase(name, glob) for glob in excluded):
        return "it is excluded"
    asked = any(fnmatchcase(name, glob) for glob in wanted)
    if wanted and not asked:
        return "no glob chooses it"
    if not entry.kind.torch:
        # Eight bits and less come with scales in other tensors: their sizes say nothing alone.
        problem = f"its dtype is {entry.dtype}, not a float of 16 or more bits"
        # Named in full it is an error; caught by a glob it is only left out.
        if asked and "*" not in "".join(wanted):
            raise ParameterError(f"{name!r} cannot be pruned: {problem}.")
        return problem
    if not entry.total:
        return "it is empty"
    if asked:
        return ""
    if len(entry.shape) < 2:
        return "it has fewer than two dimensions"
    return "of its name" if _NOT_WEIGHTS.search(name) else ""
