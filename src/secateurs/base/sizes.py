"""Sizes that pruning changed besides the shapes of tensors: attributes that count channels, and
blocks that were dropped.

Each change is noted on the module it was made to, so that it goes wherever the module goes (deep
copies, submodules, other wrappers). A sparse file keeps the notes, and a model fresh from its class
gets the same sizes from them.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from secateurs.base.resized import ATTRIBUTES, resize_attribute_

_BLOCKS = "_secateurs_blocks"
"""On a list of blocks: how many there were, and which of them are left."""

_LARGEST, _MOST = 2**31, 65_536
"""The largest size in a file, and the most sizes, or blocks of a list."""

BEFORE_DROPPING = "before_dropping_blocks"
"""On a configuration: what counted or listed the blocks before some were dropped. A block may
depend on its place (a scale by its index, experts in every other one), so that only a model made
with all of them has the blocks that are left. Configurations write it down with everything else."""

INDICES = ("layer_idx", "layer_id", "layer_index", "layer_number")
"""How modules call their place in the list of blocks, by which they find their cache."""

_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")
_DECODER_COUNTS = ("num_decoder_layers", "decoder_layers")
"""How configurations and modules call the number of blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """A list of blocks that lost some.

    Attributes:
        total: How many there were.
        kept: The places, in that list, of those that are left.
        names: What the list calls all of them, where these are not their places (a named
            `nn.Sequential`): such names do not move up. Known of a list in a model, not in a file.
    """

    total: int
    kept: tuple[int, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedSizes:
    """What must be set on a model of the original class before the tensors of a smaller one fit.

    Attributes:
        resized: Attributes of modules by their dotted name, before and after.
        blocks: Lists of blocks by name. All names are those of the smaller model.
    """

    resized: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    blocks: Mapping[str, Blocks] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.resized or self.blocks)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        blocks = {name: [each.total, list(each.kept)] for name, each in self.blocks.items()}
        return {"resized": {n: list(sizes) for n, sizes in self.resized.items()}, "blocks": blocks}

    def name_before(self, name: str) -> str:
        """The name that something in the smaller model had before blocks were dropped."""
        return self._renamed(name, before=True) or name

    def name_after(self, name: str) -> str | None:
        """The name in the smaller model; None for what was dropped."""
        return self._renamed(name, before=False)

    def _renamed(self, name: str, *, before: bool) -> str | None:
        after: list[str] = []  # the part walked so far, in the smaller model: lists are known by it
        found: list[str] = []
        for part in name.split("."):
            place, blocks = part, self.blocks.get(".".join(after))
            if blocks is not None and blocks.names:
                gone = {n for i, n in enumerate(blocks.names) if i not in blocks.kept}
                if not before and part in gone:
                    return None
            elif blocks is not None and part.isdecimal():
                index = int(part)
                if before and index < len(blocks.kept):
                    place = str(blocks.kept[index])
                elif not before:
                    if index not in blocks.kept:
                        return None
                    place = str(blocks.kept.index(index))
            after.append(part if before else place)
            found.append(place)
        return ".".join(found)


def read_sizes(value: Any) -> ChangedSizes:
    """Changed sizes from plain values; a ValueError says what is wrong with them."""
    if not isinstance(value, dict) or set(value) != {"resized", "blocks"}:
        raise ValueError("the changed sizes are not 'resized' and 'blocks'")
    for key, held in value.items():
        if not isinstance(held, dict) or len(held) > _MOST:
            raise ValueError(f"{key!r} of the changed sizes is not an object of a reasonable size")
    resized = {}
    for name, sizes in value["resized"].items():
        path, _, attribute = name.rpartition(".")
        if not attribute.isidentifier() or attribute.startswith("_") or not _is_path(path):
            raise ValueError(f"{name[:80]!r} is not the name of an attribute")
        if not (_are_sizes(sizes) and len(sizes) == 2 and sizes[0] != sizes[1] and min(sizes) > 0):
            raise ValueError(f"{name[:80]!r} is resized by {str(sizes)[:80]}, not by two sizes")
        resized[name] = sizes[0], sizes[1]
    blocks = {}
    for name, held in value["blocks"].items():
        valid = _is_path(name) and isinstance(held, list) and len(held) == 2
        if not (valid and _are_sizes(held[:1]) and _are_sizes(held[1]) and held[0] <= _MOST):
            said = str(held)[:80]
            raise ValueError(f"{name[:80]!r} is not a list of blocks with those kept: {said}")
        total, kept = held
        if not kept or kept[-1] >= total or sorted(set(kept)) != kept:
            raise ValueError(f"{name[:80]!r} cannot keep the blocks {str(kept)[:80]} of {total}")
        blocks[name] = Blocks(total=total, kept=tuple(kept))
    return ChangedSizes(resized=resized, blocks=blocks)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value <= _LARGEST for value in values
    )


def _is_path(name: str) -> bool:
    return name.isprintable() and len(name) <= 1024


# Changes of a model, each noted where it was made.


def keep_blocks_(model: nn.Module, name: str, kept: Sequence[int]) -> None:
    """Keep only these blocks of a list (an `nn.ModuleList` or `nn.Sequential` by its name), in
    place.

    The blocks' own indices follow, by which they find their caches, and so do the numbers of layers
    in the configurations of transformers. A configuration is copied before it changes: other models
    may have been made from it.
    """
    blocks = model.get_submodule(name)
    if not isinstance(blocks, nn.ModuleList | nn.Sequential):
        raise TypeError(f"{name!r} is a {type(blocks).__name__}, not a list of blocks")
    members, total, names = list(blocks), len(blocks), _own_names(blocks)
    for given in list(blocks._modules):
        delattr(blocks, given)
    for place, index in enumerate(kept):
        blocks.add_module(names[index] if names else str(place), members[index])
    for place, index in enumerate(kept):
        for module in members[index].modules():
            for attribute in INDICES:
                if vars(module).get(attribute) == index:
                    setattr(module, attribute, place)
    _note_blocks(blocks, Blocks(total=total, kept=tuple(kept)))
    _copy_configurations_(model)
    above = name.split(".")
    holders = [model.get_submodule(".".join(above[:depth])) for depth in range(len(above))]
    found = [*holders, *(vars(holder).get("config") for holder in holders)]
    for holder in {id(one): one for one in found if hasattr(one, "__dict__")}.values():
        _count_blocks_(holder, name, total, kept)


def _own_names(blocks: nn.Module) -> tuple[str, ...]:
    """The names of the blocks, where these are not just their places."""
    names = tuple(blocks._modules)
    return () if names == tuple(map(str, range(len(names)))) else names


def _note_blocks(blocks: nn.Module, now: Blocks) -> None:
    """Note which blocks are left, in the places of the list as it was at first."""
    if _BLOCKS in vars(blocks):
        total, earlier = vars(blocks)[_BLOCKS]
        now = Blocks(total=total, kept=tuple(earlier[index] for index in now.kept))
    # Plain values: a pickled model must not need this library.
    setattr(blocks, _BLOCKS, (now.total, now.kept))


def _copy_configurations_(model: nn.Module) -> None:
    """Give the model configurations of its own."""
    copies: dict[int, Any] = {}
    for module in model.modules():
        held = vars(module).get("config")
        # transformers' configurations can be written as text; a module's own may be anything.
        if hasattr(held, "to_dict"):
            own: Any = copy.deepcopy(held, copies)
            module.config = own


def _count_blocks_(holder: Any, name: str, total: int, kept: Sequence[int]) -> None:
    """Set the attributes of a module or configuration that count these blocks, and shorten its
    lists with an entry for each."""
    held = vars(holder)
    # One configuration describes two lists: of the encoder's blocks and of the decoder's.
    both = held.get("is_encoder_decoder") and any(count in held for count in _DECODER_COUNTS)
    decoder = "decoder" in name.split(".")
    names = (*_COUNTS, *_DECODER_COUNTS) if not both else _DECODER_COUNTS if decoder else _COUNTS
    whole = dict(held.get(BEFORE_DROPPING, {}))
    for attribute, value in list(held.items()):
        if attribute in names and type(value) is int and value == total:
            whole.setdefault(attribute, value)
            setattr(holder, attribute, len(kept))
        listed = isinstance(value, list | tuple) and len(value) == total and not (both and decoder)
        if listed and "layer" in attribute:
            whole.setdefault(attribute, list(value))
            setattr(holder, attribute, type(value)(value[index] for index in kept))
    if whole and hasattr(holder, "to_dict"):
        setattr(holder, BEFORE_DROPPING, whole)


def count_all_blocks_(config: Any) -> None:
    """Set a configuration, and those inside it, to the counts from before blocks were dropped."""
    held = vars(config)
    for inner in list(held.values()):
        if hasattr(inner, "to_dict"):
            count_all_blocks_(inner)
    whole = held.get(BEFORE_DROPPING, {})
    for attribute, value in whole.items() if isinstance(whole, dict) else ():
        now = held.get(attribute)
        counted = attribute in (*_COUNTS, *_DECODER_COUNTS) and type(value) is type(now) is int
        listed = "layer" in attribute and isinstance(value, list) and isinstance(now, list | tuple)
        # Of a file: nothing else may be set by it.
        if counted or listed:
            setattr(config, attribute, value)


# What was changed in a model, and the same set on another one.


def changed_sizes(model: nn.Module) -> ChangedSizes:
    """Everything noted on the modules of a model."""
    resized: dict[str, tuple[int, int]] = {}
    blocks: dict[str, Blocks] = {}
    for path, module in model.named_modules():
        for attribute, before in vars(module).get(ATTRIBUTES, {}).items():
            after = getattr(module, attribute, before)
            if after != before:
                resized[f"{path}.{attribute}" if path else attribute] = before, after
        if _BLOCKS in vars(module):
            total, kept = vars(module)[_BLOCKS]
            blocks[path] = Blocks(total=total, kept=kept)
    return ChangedSizes(resized=resized, blocks=blocks)


def size_problems(model: nn.Module, sizes: ChangedSizes) -> list[str]:
    """Why these sizes cannot be set on a model; empty if they can."""
    modules = dict(model.named_modules())
    whole = _whole_lists(model, sizes)
    problems = []
    for name, blocks in sizes.blocks.items():
        owner = modules.get(whole.name_before(name))
        if not isinstance(owner, nn.ModuleList | nn.Sequential):
            problems.append(f"there is no list of blocks {name!r}")
        elif len(owner) not in (blocks.total, len(blocks.kept)):
            problems.append(
                f"{name!r} has {len(owner)} blocks in the model, and the file keeps"
                f" {len(blocks.kept)} of {blocks.total}"
            )
    for name, (before, after) in sizes.resized.items():
        path, _, attribute = name.rpartition(".")
        owner = modules.get(whole.name_before(path))
        value = None if owner is None else vars(owner).get(attribute)
        if type(value) is not int:
            problems.append(f"there is no size {name!r}")
        elif value not in (before, after):
            problems.append(
                f"{name!r} is {value} in the model, but the file changed it from {before} to "
                f"{after}"
            )
    return problems


def name_with(model: nn.Module, sizes: ChangedSizes) -> Callable[[str], str | None]:
    """From a name in the model as it is to that in the model with these sizes; None where it is
    dropped."""
    return _whole_lists(model, sizes).name_after


def _whole_lists(model: nn.Module, sizes: ChangedSizes) -> ChangedSizes:
    """The lists that still have all their blocks; outer lists before those inside their blocks."""
    modules = dict(model.named_modules())
    whole: dict[str, Blocks] = {}
    for name, blocks in sorted(sizes.blocks.items(), key=lambda item: item[0].count(".")):
        owner = modules.get(ChangedSizes(blocks=whole).name_before(name))
        if isinstance(owner, nn.ModuleList | nn.Sequential) and len(owner) == blocks.total:
            whole[name] = replace(blocks, names=_own_names(owner))
    return ChangedSizes(blocks=whole)


def set_sizes_(model: nn.Module, sizes: ChangedSizes) -> None:
    """Give a model these sizes; `size_problems` has found none."""
    for name, blocks in _whole_lists(model, sizes).blocks.items():
        keep_blocks_(model, name, blocks.kept)
    for name, blocks in sizes.blocks.items():
        # Also where the model was made with fewer blocks: its file is to say the same.
        setattr(model.get_submodule(name), _BLOCKS, (blocks.total, blocks.kept))
    for name, (before, after) in sizes.resized.items():
        path, _, attribute = name.rpartition(".")
        owner = model.get_submodule(path)
        setattr(owner, attribute, before)
        resize_attribute_(owner, attribute, after)
