"""Drops whole blocks: those whose output points where their input does."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn

from secateurs.base.copies import evaluating
from secateurs.base.interrupts import Uninterrupted
from secateurs.base.parameters import refuse_wrapped
from secateurs.base.printing import Reported
from secateurs.base.sizes import INDICES, changed_sizes, count_all_blocks_, keep_blocks_
from secateurs.errors import ArgumentError, ScoreError
from secateurs.llm.blocks import Blocks, blocks_of, first_of, uncached
from secateurs.scores.task import Inputs, batches, call, with_decoder_inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedBlocks(Reported):
    """Which blocks were dropped, and how much each did.

    Attributes:
        influence: 1 − cosine of what goes into a block and what comes out, the mean over all
            tokens, by the block's name before.
        dropped: Names of the blocks that are gone.
        left: Old and new name of the others, in the order in which they run.
        tokens: Over how many tokens the mean was taken.
        notes: Which blocks could not be dropped, and why; how to save a model whose blocks depend
            on their places.
    """

    influence: Mapping[str, float]
    dropped: tuple[str, ...]
    left: Mapping[str, str]
    tokens: int
    notes: tuple[str, ...]

    def __rich__(self) -> Table:
        table = Table("block", "influence", "", title="blocks dropped")
        table.caption = escape("; ".join((f"mean over {self.tokens:,} tokens", *self.notes)))
        for name, value in self.influence.items():
            now = f"now {self.left[name]}" if name in self.left else "dropped"
            table.add_row(escape(name), f"{value:.4g}", escape(now))
        return table


def drop_blocks_(
    model: nn.Module, n: int, *, batch: Any, blocks: str | None = None
) -> DroppedBlocks:
    """Drop the n blocks of least influence, in place.

    The influence of a block is the mean of 1 − cos(x, y) over all tokens, where x goes into the
    block and y comes out. All blocks are measured in the whole model, before the first is dropped;
    of equal ones the later goes. Places that caches are found by (`layer_idx`) and the numbers of
    blocks in a configuration of transformers follow, so that `generate` works as before, and
    `save_sparse` writes down which blocks are left. The configuration keeps the numbers from
    before, since a block may depend on its place (DiffLlama, Qwen2-MoE, Llama 4): such a model
    comes back through `secateurs.llm.from_pretrained`, or `load_sparse` into the original
    class; transformers itself would make other blocks, and the notes of the result say so. Drop
    blocks before pruning: the names of those that are left change, and masks and optimizers made
    before do not follow.

    Args:
        model: unmodified; evaluation mode while this runs. The blocks that stay are the same
            modules as before.
        n: how many blocks go. At least one stays. A block with parameters that no other has (the
            first one of T5 holds the position bias of all) is never dropped; the result says so.
        batch: calibration batches, as for `prune_blocks_`. Padding under an `attention_mask` does
            not count.
        blocks: the name of the list that holds the blocks (`"model.layers"`); by default the list
            of modules that holds most of the model.

    Reference: Men et al. 2024, "ShortGPT: Layers in Large Language Models are More Redundant Than
    You Expect", eq. (1).

    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    ...
    ...     def forward(self, x):
    ...         for block in self.blocks:
    ...             x = x + block(x) if self.training else block(x)
    ...         return x
    >>> model = Net()
    >>> with torch.no_grad():
    ...     _ = model.blocks[1].weight.copy_(torch.eye(4)), model.blocks[1].bias.zero_()
    >>> done = drop_blocks_(model, 1, batch=torch.randn(8, 4))
    >>> done.dropped, done.left
    (('blocks.1',), {'blocks.0': 'blocks.0', 'blocks.2': 'blocks.1'})
    """
    refuse_wrapped(model)
    if not (blocks is None or isinstance(blocks, str)):
        raise ArgumentError(
            f"blocks={blocks!r}: blocks are dropped from one list, so give its name, such as"
            " blocks='model.layers'."
        )
    found = blocks_of(model, blocks)
    where = next(iter(found)).rpartition(".")[0]
    if not isinstance(model.get_submodule(where), nn.ModuleList | nn.Sequential):
        kind = type(model.get_submodule(where)).__name__
        raise ArgumentError(
            f"blocks={where!r} is a {kind}: only an nn.ModuleList or nn.Sequential can lose blocks."
        )
    alone = _with_parameters_of_their_own(found)
    most = len(found) - max(1, len(alone))
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= most:
        staying = f"{', '.join(alone)} must stay" if alone else "one must stay"
        way = f"give a whole number from 1 to {most}" if most else "none of them can be dropped"
        raise ArgumentError(f"n={n!r}: {where!r} has {len(found)} blocks and {staying}: {way}.")
    influence, tokens = _influence(model, where, found, batch)
    names = list(found)
    # From the last to the first, and sorting is stable: of equal blocks the later goes
    # (the rule in masks/topk.py).
    candidates = [name for name in reversed(names) if name not in alone]
    gone = set(sorted(candidates, key=lambda name: influence[name])[:n])
    kept = [number for number, name in enumerate(names) if name not in gone]
    keep_blocks_(model, where, kept)
    other = _other_in_a_fresh_model(model, where)
    return DroppedBlocks(
        influence=influence,
        dropped=tuple(name for name in names if name in gone),
        left={
            names[old]: f"{where}.{now}"
            for old, now in zip(kept, model.get_submodule(where)._modules, strict=True)
        },
        tokens=tokens,
        notes=(
            *(f"{name} stays: no other block has a {each!r}" for name, each in alone.items()),
            *(
                [
                    f"blocks of this model depend on their places ({other}): write it with"
                    " secateurs.llm.save_pretrained, since transformers itself would load other"
                    " blocks"
                ]
                if other
                else []
            ),
        ),
    )


def _other_in_a_fresh_model(model: nn.Module, where: str) -> str:
    """What the blocks that are left lose where their class makes them anew for their new places,
    as transformers does when it loads them; empty where nothing is known to differ.

    Two fresh models without memory are compared, so that nothing counts that was set since.
    """
    config = vars(model).get("config")
    if not hasattr(config, "to_dict"):
        return ""
    before = copy.deepcopy(config)
    count_all_blocks_(before)
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            whole, fresh = (type(model)(copy.deepcopy(one)) for one in (before, config))
        blocks = list(whole.get_submodule(where).children())
        now = list(fresh.get_submodule(where).children())
        kept = changed_sizes(model).blocks[where].kept
        pairs = [(blocks[old], new) for old, new in zip(kept, now, strict=True)]
    # A class of the user's own may take other arguments, or none of this be there.
    except Exception:
        return ""
    for place, (old, new) in enumerate(pairs):
        was, becomes = _described(old), _described(new)
        for name, value in was.items():
            if becomes.get(name) != value:
                return f"{where}.{place}.{name}: {value}, in a fresh one {becomes.get(name)}"
    return ""


def _described(block: nn.Module) -> dict[str, object]:
    """Classes and plain attributes of a block by name, without its place."""
    found: dict[str, object] = {}
    for path, module in block.named_modules():
        found[path] = type(module).__name__
        for name, value in vars(module).items():
            if isinstance(value, bool | int | float | str) and name not in INDICES:
                found[f"{path}.{name}" if path else name] = value
    return found


def _with_parameters_of_their_own(found: Blocks) -> dict[str, str]:
    """Blocks that have a parameter no other block has, with the name of the first such."""
    owners: dict[str, list[str]] = {}
    for name, block in found.items():
        for inner, _ in block.named_parameters():
            owners.setdefault(inner, []).append(name)
    alone: dict[str, str] = {}
    for inner, names in owners.items():
        if len(names) == 1 < len(found):
            alone.setdefault(names[0], inner)
    return alone


@torch.no_grad()
def _influence(
    model: nn.Module, where: str, found: Blocks, batch: Any
) -> tuple[dict[str, float], int]:
    """The influence of every block, and the number of tokens it was measured on."""
    device = next(model.parameters()).device
    # One batch of an encoder-decoder has two sequences, each with a padding of its own.
    both = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    key = "decoder_attention_mask" if both and "decoder" in where.split(".") else "attention_mask"
    sums, tokens = dict.fromkeys(found, 0.0), 0
    with evaluating(model), uncached(model):
        for item in batches(batch, device=device):
            inputs = with_decoder_inputs(model, item).inputs
            with _cosines(found) as cosines:
                call(model, inputs)
            idle = [name for name in found if name not in cosines]
            if idle:
                raise ArgumentError(
                    f"{len(idle)} of {len(found)} blocks did not run on the batch, the first of"
                    f" them {idle[0]!r}: name the list of those that do with blocks=."
                )
            counted = _counted(inputs, key, cosines[next(iter(found))])
            tokens += int(counted.sum())
            for name, cosine in cosines.items():
                sums[name] += float((1 - cosine)[counted].sum())
    if not tokens:
        raise ArgumentError("batch has no tokens: give calibration data.")
    broken = [name for name, total in sums.items() if total != total]
    if broken:
        raise ScoreError(
            f"the influence of {broken[0]!r} is not a number: what runs through the block holds NaN"
            " or infinite values."
        )
    return {name: total / tokens for name, total in sums.items()}, tokens


@contextmanager
def _cosines(found: Blocks) -> Iterator[dict[str, Tensor]]:
    """While this is open, the model's calls write down the cosines of each block, by token."""
    cosines: dict[str, Tensor] = {}

    def look(name: str) -> Callable[..., None]:
        def hook(block: nn.Module, args: Any, given: dict[str, Any], output: Any) -> None:
            before, after = _floating_input(name, args, given), first_of(output)
            if name in cosines:
                raise ArgumentError(
                    f"{name!r} runs more than once in a call (shared weights): such a block cannot"
                    " be dropped."
                )
            if before.shape != after.shape:
                raise ArgumentError(
                    f"{name!r} maps {tuple(before.shape)} to {tuple(after.shape)}: only blocks"
                    " that keep the shape of what runs through them can be dropped. Name the list"
                    " of such blocks with blocks=."
                )
            # Half precision has too few digits for cosines close to one, single precision for
            # their differences to one.
            cosines[name] = torch.cosine_similarity(before.double(), after.double(), dim=-1)

        return hook

    handles = []
    try:
        with Uninterrupted():
            for name, block in found.items():
                handles.append(block.register_forward_hook(look(name), with_kwargs=True))
        yield cosines
    finally:
        with Uninterrupted():
            for handle in handles:
                handle.remove()


def _floating_input(name: str, args: Any, given: Mapping[str, Any]) -> Tensor:
    """What runs through a block: the first floating-point tensor it is called with."""
    for value in (*args, *given.values()):
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    raise ArgumentError(f"{name!r} is called without a floating-point tensor.")


def _counted(inputs: Inputs, key: str, cosine: Tensor) -> Tensor:
    """Which tokens are not padding."""
    mask = inputs.get(key) if isinstance(inputs, Mapping) else None
    if isinstance(mask, Tensor) and mask.shape == cosine.shape:
        return mask.to(cosine.device).bool()
    return torch.ones_like(cosine, dtype=torch.bool)
