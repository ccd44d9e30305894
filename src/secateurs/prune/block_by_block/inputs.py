"""What each block of a model is called with, found without running the blocks.

The model's own forward pass runs once for every batch, with blocks that hand their input on: it
embeds, makes masks, positions and rotations as it always does, and stops at the last block. So
nothing of the model has to be known, and blocks that are called differently (every other one with a
sliding window) get what is theirs.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError
from secateurs.prune.block_by_block.blocks import Blocks
from secateurs.scores.batches import Inputs
from secateurs.scores.calling import call
from secateurs.scores.nested import map_tensors

CACHES = ("past_key_value", "past_key_values", "layer_past", "cache_params")
"""Arguments that carry keys and values from call to call; a block that is run twice must not."""


@dataclass(slots=True, kw_only=True)
class Call:
    """One batch on its way: the hidden states, and what else each block is given."""

    hidden: Tensor
    name: str = "hidden_states"
    others: list[dict[str, Any]] = field(default_factory=list)

    def arguments(self, number: int) -> dict[str, Any]:
        """The keyword arguments of one block."""
        return {self.name: self.hidden, **self.others[number]}


# An exception is the only way out of a forward pass whose code is not ours.
class _Reached(Exception):
    """The last block is reached: nothing behind it is needed."""


@torch.no_grad()
def caught(model: nn.Module, blocks: Blocks, inputs: Inputs) -> Call:
    """What every block is called with on this batch; the hidden states are those of the first."""
    watch = _Watch(len(blocks))
    with _handing_on(blocks, watch), _uncached(model), suppress(_Reached):
        call(model, inputs)
    if watch.call is None or len(watch.call.others) != len(blocks):
        seen = 0 if watch.call is None else len(watch.call.others)
        raise ArgumentError(
            f"{seen} of {len(blocks)} blocks ran on the batch, in their order, the first of them"
            f" {next(iter(blocks))!r}: name those that do with blocks=."
        )
    return watch.call


def shared(own: dict[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a block, with tensors that are equal to those of the first batch taken from
    there: masks and positions are usually the same, and large.
    """

    def same(value: Any, other: Any) -> Any:
        if isinstance(value, Tensor):
            alike = isinstance(other, Tensor) and value.shape == other.shape
            return other if alike and torch.equal(value, other) else value
        pair = isinstance(value, tuple) and isinstance(other, tuple)
        if pair and len(value) == len(other):
            return tuple(same(a, b) for a, b in zip(value, other, strict=True))
        return value

    return {key: same(value, first.get(key)) for key, value in own.items()}


def first_of(output: Any) -> Tensor:
    """The hidden states among what a block returns."""
    found = output if isinstance(output, Tensor) else None
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        found = output[0]
    if found is None:
        raise ArgumentError(
            f"a block returns a {type(output).__name__}: its hidden states are expected alone, or"
            " first in a tuple."
        )
    return found


class _Watch:
    """Writes down what the blocks are given, in the order in which they are called."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.call: Call | None = None
        self.output: Any = None

    def met(
        self, number: int, forward: Callable[..., Any], args: Any, given: Any
    ) -> Any:
        """Note a call of this block; returns what the model goes on with."""
        arguments = _bound(forward, args, given)
        name = _hidden(arguments)
        hidden = arguments.pop(name)
        if self.call is None:
            self.call = Call(hidden=hidden, name=name)
        # A block that runs twice (shared weights) or out of order cannot be pruned one
        # after the other.
        if number != len(self.call.others) or name != self.call.name:
            raise ArgumentError(
                f"block {number} runs as number {len(self.call.others)}: blocks= lists them in the"
                " order in which they run, each once."
            )
        self.call.others.append(_without_cache(arguments))
        if number == self.count - 1:
            raise _Reached
        if self.output is None:
            # The first block runs once, for the form of what it returns.
            self.output = forward(*args, **given)
            if first_of(self.output).shape != hidden.shape:
                raise ArgumentError(
                    f"the first block turns {tuple(hidden.shape)} into"
                    f" {tuple(first_of(self.output).shape)}: blocks keep the shape of what"
                    " runs through them."
                )
        if isinstance(self.output, Tensor):
            return hidden
        return type(self.output)((hidden, *self.output[1:]))


@contextmanager
def _handing_on(blocks: Blocks, watch: _Watch) -> Iterator[None]:
    """Blocks that only say what they were given. Their own forward is back afterwards."""
    before = {name: vars(block).get("forward") for name, block in blocks.items()}
    try:
        for number, block in enumerate(blocks.values()):
            # The module is called as ever, so that its hooks still run.
            block.forward = _stub(number, block.forward, watch)
        yield
    finally:
        for name, block in blocks.items():
            # Only the attribute of the instance is ours; the method of the class lies
            # beneath.
            vars(block).pop("forward", None)
            if before[name] is not None:  # accelerate leaves its own there
                block.forward = before[name]  # type: ignore[assignment]


def _stub(
    number: int, forward: Callable[..., Any], watch: _Watch
) -> Callable[..., Any]:
    def called(*args: Any, **given: Any) -> Any:
        return watch.met(number, forward, args, given)

    return called


@contextmanager
def _uncached(model: nn.Module) -> Iterator[None]:
    """No cache of keys and values, which would grow with every call of a block."""
    config = getattr(model, "config", None)
    before = getattr(config, "use_cache", None)
    if before:
        config.use_cache = False  # type: ignore[union-attr]
    try:
        yield
    finally:
        if before:
            config.use_cache = before  # type: ignore[union-attr]


def _bound(forward: Callable[..., Any], args: Any, given: Any) -> dict[str, Any]:
    """All arguments by name."""
    # By name, since the block is called again later with other hidden states in the
    # same place.
    signature = inspect.signature(forward)
    bound = signature.bind(*args, **given).arguments
    named: dict[str, Any] = {}
    for name, value in bound.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            named |= value
        elif kind in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.POSITIONAL_ONLY,
        ):
            raise ArgumentError(
                f"a block takes its argument {name!r} by position only, so it cannot be called"
                " again by name."
            )
        else:
            named[name] = value
    return named


def _hidden(arguments: Mapping[str, Any]) -> str:
    """The first floating-point tensor is what runs through the blocks."""
    for name, value in arguments.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            return name
    raise ArgumentError("a block is called without a floating-point tensor.")


def _without_cache(arguments: dict[str, Any]) -> dict[str, Any]:
    kept = {
        name: None if name in CACHES else value for name, value in arguments.items()
    }
    if "use_cache" in kept:
        kept["use_cache"] = False
    detached: dict[str, Any] = map_tensors(kept, lambda tensor: tensor.detach())
    return detached
