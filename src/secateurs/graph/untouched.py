"""Runs a model so that it is afterwards as it was, down to the state it keeps for itself.

A forward pass may write more than outputs: a table for the last size seen, a counter, the features
of the last call, an entry in a list. Traced, these become tensors without values. So whatever a
model holds, itself or through containers, plain objects and closures, is noted before a run and put
back after it. A deep copy would not do: closures and hooks would still write into the original.

The tracer is silenced meanwhile (`quietly`).
"""

import hashlib
import logging
import os
import random
import sys
import types
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from secateurs.base.interrupts import Uninterrupted

_PLAIN = frozenset(
    {
        *(type(None), bool, int, float, complex, str, bytes, range, slice),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
    }
)
# Types that a forward pass does not change and that are not looked into.
_CLOSED = (type, types.ModuleType, types.BuiltinFunctionType, types.CodeType)
_ABSENT = object()

_MOST_OBJECTS = 200_000
_MOST_BYTES = 2**28
"""Where a model holds more than so many objects, or tensors and arrays of its own of more bytes, a
whole data set is attached to it: what exceeds this is left out.
"""

_SMALL = 2**16
"""Tensors and arrays of at most this many bytes are identified by their values, larger ones by
their form.
"""


@contextmanager
def keeping(model: nn.Module) -> Iterator[str]:
    """Put back whatever is changed inside, except values of parameters and buffers; the random
    states of torch, numpy and Python as well.

    Gives SHA-256 of all that the model holds beside the values of its tensors: classes, attributes,
    containers, hooks. Deep copies have the same one.
    """
    numbers, arrays = random.getstate(), np.random.get_state()
    held = _Held(model)
    try:
        # A random operator must not move the user's generator.
        with torch.random.fork_rng():
            yield held.digest()
    finally:
        with Uninterrupted():
            held.put_back()
            random.setstate(numbers)
            np.random.set_state(arrays)


@contextmanager
def untouched(model: nn.Module) -> Iterator[str]:
    """As `keeping`, with the values of parameters and buffers, and which of them take a gradient:
    for a run of the model itself.
    """
    tensors = [*model.parameters(), *model.buffers()]
    before = [(t, t.detach().clone(), t.requires_grad) for t in tensors]
    try:
        with keeping(model) as digest:
            yield digest
    finally:
        with Uninterrupted():
            for tensor, values, trained in before:
                _refill_tensor(tensor, values)
                if tensor.requires_grad != trained:
                    tensor.requires_grad_(trained)


class _Held:
    """Everything a model holds, noted once."""

    def __init__(self, model: nn.Module) -> None:
        self._words: list[str] = []
        self._undo: list[Callable[[], object]] = []
        self._dicts: list[tuple[dict[Any, Any], list[Any], list[Any]]] = []
        # Most tables of a module are of hooks, and empty: they need no more than a look.
        self._empty: list[dict[Any, Any]] = []
        self._left = _MOST_BYTES
        # Parameters and buffers are kept elsewhere.
        self._named = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        # By identity; the objects are kept, for that of one that is gone is given to another.
        self._seen: dict[int, tuple[int, Any]] = {}
        self._kinds: dict[type, list[str]] = {}
        self._stack: list[Any] = [model]
        while self._stack and len(self._seen) < _MOST_OBJECTS:
            self._look(self._stack.pop())

    def digest(self) -> str:
        """A key of everything that the model holds: equal as long as nothing in it changed."""
        text = "\0".join(self._words)
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()

    def put_back(self) -> None:
        """Give everything its content again, by identity."""
        for held in filter(None, self._empty):
            _refill(held, [], [])
        for held, keys, values in self._dicts:
            same = len(held) == len(keys) and all(map(is_, held, keys))
            if not (same and all(map(is_, held.values(), values))):
                _refill(held, keys, values)
        for undo in self._undo:
            undo()

    def _look(self, value: Any) -> None:
        """Record one object, and queue what it holds."""
        kind, seen = type(value), self._seen
        if kind in _PLAIN:
            self._words.append(repr(value))
        elif id(value) in seen:
            self._words.append(f"again {seen[id(value)][0]}")
        else:
            seen[id(value)] = len(seen), value
            self._words.append(f"{kind.__qualname__} {id(kind)}")
            self._note(value)

    def _note(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, nn.Module):
            self._attributes(value)
        elif isinstance(value, _CLOSED):
            self._words.append(str(id(value)))
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self._stack += [value.__func__, value.__self__]
        elif isinstance(value, partial):
            self._stack += [value.func, value.args, value.keywords]
        elif isinstance(value, np.ndarray):
            self._array(value)
        elif isinstance(value, tuple | frozenset):
            self._stack += [*value]
        else:
            self._content(value)
            self._attributes(value)

    def _content(self, value: Any) -> None:
        """What a container holds, or the state of a generator of random numbers."""
        if isinstance(value, dict):
            self._dict(value)
        elif isinstance(value, list | deque):
            items = list(value)
            self._undo.append(partial(_refill_list, value, items))
            self._stack += items
        elif isinstance(value, set | bytearray):
            before = value.copy()
            self._undo.append(partial(_refill_set, value, before))
            self._words += sorted(map(str, before))
        elif isinstance(value, torch.Generator):
            self._undo.append(partial(value.set_state, value.get_state()))
        elif isinstance(value, random.Random):
            self._undo.append(partial(value.setstate, value.getstate()))
        elif isinstance(value, np.random.Generator):
            bits = value.bit_generator
            self._undo.append(partial(setattr, bits, "state", bits.state))

    def _attributes(self, value: Any) -> None:
        own = getattr(value, "__dict__", None)
        if type(own) is dict:
            self._dict(own)
        kind = type(value)
        if kind not in self._kinds:
            self._kinds[kind] = [name for base in kind.__mro__ for name in _slots(base)]
            if isinstance(value, nn.Module):
                self._classes(kind)
        for name in self._kinds[kind]:
            held = getattr(value, name, _ABSENT)
            self._undo.append(partial(_reset, value, name, held))
            self._stack += [name, None if held is _ABSENT else held]

    def _classes(self, kind: type) -> None:
        """Data that all modules of one class share."""
        for base in kind.__mro__:
            if base.__module__.partition(".")[0] in ("torch", "builtins"):
                continue
            for name, held in list(vars(base).items()):
                code = callable(held) or hasattr(held, "__get__")
                if not (code or name.startswith("__")):
                    self._undo.append(partial(_reset, base, name, held))
                    self._stack += [name, held]

    def _dict(self, held: dict[Any, Any]) -> None:
        keys, values = list(held), list(held.values())
        self._dicts.append((held, keys, values))
        words = self._words
        for key, value in zip(keys, values, strict=True):
            # Hooks are filed under numbers that only grow: a copy has others.
            if type(key) is str:
                words.append(key)
            elif type(key) is not int:
                self._look(key)
            # Most of a model is this: numbers, and tables of hooks without a hook.
            if type(value) in _PLAIN:
                words.append(repr(value))
            elif id(value) in self._named:
                words.append("on" if value.requires_grad else "off")
            elif (type(value) is dict or type(value) is OrderedDict) and not value:
                self._empty.append(value)
            else:
                self._stack.append(value)

    def _function(self, function: types.FunctionType) -> None:
        self._words.append(str(id(function.__code__)))
        self._stack += [
            function.__defaults__,
            function.__kwdefaults__,
            function.__dict__,
        ]
        for cell in function.__closure__ or ():
            try:
                inside = cell.cell_contents
            except ValueError:  # a name that is not bound yet
                continue
            self._undo.append(partial(_reset, cell, "cell_contents", inside))
            self._stack.append(inside)

    def _tensor(self, tensor: Tensor) -> None:
        if id(tensor) in self._named:
            return
        self._words.append(f"{tensor.shape} {tensor.dtype} {tensor.requires_grad}")
        readable = tensor.layout == torch.strided and not tensor.is_meta
        if not readable or type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
            return
        size = tensor.numel() * tensor.element_size()
        if size <= _SMALL and not tensor.is_quantized:
            self._words.append(str(tensor.detach().cpu().tolist()))
        if size <= self._left:
            self._left -= size
            self._undo.append(partial(_refill_tensor, tensor, tensor.detach().clone()))

    def _array(self, array: "np.ndarray[Any, Any]") -> None:
        self._words.append(f"{array.shape} {array.dtype}")
        if array.nbytes <= _SMALL and not array.dtype.hasobject:
            self._words.append(array.tobytes().hex())
        if array.nbytes <= self._left and array.flags.writeable:
            self._left -= array.nbytes
            self._undo.append(partial(np.copyto, array, array.copy()))


def _slots(kind: type) -> list[str]:
    names = vars(kind).get("__slots__", ())
    listed = [names] if isinstance(names, str) else [*names]
    # Classes of compiled code have slots that cannot be set.
    inner = kind.__module__.partition(".")[0] in ("builtins", "torch", "numpy")
    return [] if inner else [n for n in listed if n not in ("__dict__", "__weakref__")]


def _refill(held: dict[Any, Any], keys: list[Any], values: list[Any]) -> None:
    # By the methods of the plain classes: a user's own may refuse or count.
    kind: Any = OrderedDict if isinstance(held, OrderedDict) else dict
    kind.clear(held)
    for key, value in zip(keys, values, strict=True):
        kind.__setitem__(held, key, value)


def _refill_list(held: Any, items: list[Any]) -> None:
    if len(held) != len(items) or not all(map(is_, held, items)):
        held.clear()
        held.extend(items)


def _refill_set(held: Any, before: Any) -> None:
    if held != before:
        held.clear()
        held.update(before) if isinstance(held, set) else held.extend(before)


@torch.no_grad()
def _refill_tensor(tensor: Tensor, values: Tensor) -> None:
    # By values, not by the version: batch norm and what is written through numpy move none.
    if tensor.layout != torch.strided:
        return  # torch cannot say whether such a one has changed
    if tensor.shape == values.shape and not torch.equal(tensor, values):
        tensor.data.copy_(values)


def _reset(holder: Any, name: str, value: Any) -> None:
    if getattr(holder, name, _ABSENT) is value:
        return
    if value is _ABSENT:
        object.__delattr__(holder, name)
    elif isinstance(holder, type | types.CellType):
        setattr(holder, name, value)
    else:  # frozen dataclasses write like this themselves
        object.__setattr__(holder, name, value)


# Hides the tracer's own messages: errors are raised in our own words.
#
# torch logs warnings and whole stacks while it traces, and prints the graph so far where it fails:
# 20 to 150 lines before the message. What the user's own code prints, warns of or logs is not
# touched.

_LOUD = ("torch", "onnxscript", "onnx_ir")
# Loggers under these names speak of tracing and nothing else.
_WARNINGS = (
    "The tensor attribute",  # a model that keeps a tensor as it runs; it is put back
    "Converting a tensor",
    "Was not able to add assertion",
)


@contextmanager
def quietly() -> Iterator[None]:
    """Trace and export without torch's messages about its internals; Ctrl-C waits for the end,
    since torch's tracer does not survive it.

    If TORCH_LOGS is set, the user wants these messages: then nothing is hidden.
    """
    if os.environ.get("TORCH_LOGS"):
        with Uninterrupted():
            yield
        return
    stream = sys.stderr
    sieve = _Sieve(stream)
    with Uninterrupted(), warnings.catch_warnings(), _silent():
        for message in _WARNINGS:
            warnings.filterwarnings("ignore", message=message)
        sys.stderr = sieve
        try:
            yield
        finally:
            # Other code may have replaced the stream meanwhile.
            if sys.stderr is sieve:
                sys.stderr = stream


@contextmanager
def _silent() -> Iterator[None]:
    """No records of loggers that belong to torch's tracer and to exporters."""
    loggers = [logging.getLogger(name) for name in _LOUD]
    known = logging.Logger.manager.loggerDict
    for name in [*known]:
        if name.partition(".")[0] in _LOUD:
            logger = known[name]
            # A level of its own is not inherited.
            if isinstance(logger, logging.Logger) and logger.level:
                loggers.append(logger)
    before = [(logger, logger.level) for logger in dict.fromkeys(loggers)]
    _set_levels([(logger, logging.CRITICAL + 1) for logger, _ in before])
    try:
        yield
    finally:
        _set_levels(before)


def _set_levels(levels: list[tuple[logging.Logger, int]]) -> None:
    """`setLevel` of each, which empties the cache of every logger there is: 0.1 ms, but for the
    last one."""
    for logger, level in levels[:-1]:
        logger.level = level
    for logger, level in levels[-1:]:
        logger.setLevel(level)


class _Sieve:
    """A stream that passes on everything but what torch writes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, unless the caller is torch's own code."""
        writer = sys._getframe(1).f_globals.get("__name__", "")
        if writer.startswith(("torch.export", "torch._export", "torch.fx")):
            return len(text)
        written: int = self._stream.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
