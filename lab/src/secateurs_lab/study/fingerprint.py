"""What a user's own network, data, score or metric is, as a hash: a changed one, or another one of
the same name, must not be taken for the one that was run before.

Two things are hashed. The text: the source of the function and of the classes that it makes (with
their bases), and the values it was made with (closures, defaults, those of a `partial`, constants
of its module). And what the network does: its outputs and gradients on a fixed input, which depend
on whatever the text does not show.
"""

import hashlib
import inspect
import math
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache, partial
from numbers import Number
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from secateurs.errors import ArgumentError
from secateurs_lab.data import DATA, Dataset
from secateurs_lab.study.own import call, data_hash, load, weights_hash
from secateurs_lab.study.settings import Data

Shape: TypeAlias = tuple[int, ...]


def fingerprint(make: Any, shape: Shape | None = None) -> str:
    """A hash of a data set's bytes, or of a network's text and of what it does on images of this
    shape.

    Raises:
        ArgumentError: two calls with one seed return two different things, or one and the same.
    """
    return _identify(make, shape)[0]


def image_shape(data: Data) -> Shape | None:
    """The shape of one image of a data set; None if that is not known."""
    if data.make is not None:
        return _identify(data.make, None)[1]
    if data.name in DATA:
        return DATA[data.name].shape
    return _identify(load("data", data.name), None)[1]


def fingerprint_of_values(used: Any) -> str:
    """A hash of the text and values of a score or metric, of which nothing else can be known."""
    return _hash(describe(used, mutable=True))


def _identify(make: Any, shape: Shape | None) -> tuple[str, Shape | None]:
    """The hash; of a data set also the shape of an image."""
    if isinstance(make, Dataset):
        return data_hash(make), tuple(make.train_x.shape[1:])
    # All that can change between two calls: what was found before is found again if it has not.
    now = _hash(describe(make, mutable=True))
    return _identify_function(_ByIdentity(make), now, shape)


@dataclass(frozen=True, slots=True)
class _ByIdentity:
    """A function as a key; one that a user's class makes callable may have no hash."""

    make: Callable[..., Any] = field(compare=False)
    number: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "number", id(self.make))


@lru_cache(maxsize=64)
def _identify_function(key: _ByIdentity, now: str, shape: Shape | None) -> tuple[str, Shape | None]:
    make = key.make
    one, other = _fresh(make), _fresh(make)
    if isinstance(one, Dataset) and isinstance(other, Dataset):
        _refuse_different(make, data_hash(one), data_hash(other))
        return _identify(one, None)
    # The run says what is wrong with it.
    if not (isinstance(one, nn.Module) and isinstance(other, nn.Module)):
        return _hash(describe(make)), None
    held = [{id(tensor) for tensor in _tensors(made).values()} for made in (one, other)]
    if one is other or held[0] & held[1]:
        raise ArgumentError(
            f"{_name(make)} returns the same weights each time, so a run would go on where another"
            " one stopped. Make the network inside of the function, or return a copy.deepcopy."
        )
    _refuse_different(make, *(weights_hash(_tensors(made)) for made in (one, other)))
    found = [
        describe(make),
        # repr shows what neither shapes nor outputs do.
        repr(one),
        [(name, tuple(t.shape), str(t.dtype)) for name, t in _tensors(one).items()],
        [describe(part) for part in dict.fromkeys(type(part) for part in one.modules())],
        _answers(make, shape) if shape else [],
    ]
    return _hash(found), None


def _fresh(make: Callable[..., Any]) -> Any:
    return call(make, torch.Generator().manual_seed(0))


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    found = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    # A lazy one has no values yet.
    return {name: tensor for name, tensor in found.items() if not is_lazy(tensor)}


def _refuse_different(make: Callable[..., Any], one: str, other: str) -> None:
    if one != other:
        raise ArgumentError(
            f"{_name(make)} returns something else each time, though the seed is the same: no run"
            " could be repeated. Draw from torch's own generator, or from a parameter named"
            " `generator`, and from no other."
        )


def _name(make: Any) -> str:
    return str(getattr(make, "__qualname__", type(make).__name__))


# What a network does: outputs and gradients on a fixed input, as numbers that every machine finds.


def _answers(make: Callable[..., Any], shape: Shape) -> list[str]:
    """Of a network in evaluation and in training; nothing, if it does not run, as its runs will
    say.
    """
    # In float64 machines differ in the sixteenth digit, and six are looked at. A network that
    # makes float32 itself runs in its own precision, of which three are.
    for dtype, steps in ((torch.float64, 2**20), (None, 2**10)):
        try:
            with torch.random.fork_rng(), torch.enable_grad():
                return list(_answers_in(_fresh(make), dtype, shape, steps))
        # A user's network may raise anything, or end the program: its run will say so.
        except (Exception, SystemExit):
            continue
    return []


def _answers_in(
    model: nn.Module, dtype: torch.dtype | None, shape: Shape, steps: int
) -> Iterator[str]:
    if dtype is not None:
        model.to(dtype)
    first = next(iter(_tensors(model).values()), torch.zeros(()))
    # The same on every machine, unlike draws: multiples of the golden ratio, less their integers.
    places = torch.arange(4 * math.prod(shape), dtype=torch.float64)
    x = (2 * (places * 0.6180339887498949).frac() - 1).view(4, *shape)
    x = x.to(first.device, dtype or (first.dtype if first.is_floating_point() else torch.float32))
    for train in (False, True):
        torch.manual_seed(0)
        model.train(train)
        outputs = list(_inside(model(x)))
        yield from (_rounded(output, steps) for output in outputs)
    # Weights of its own for each entry: a plain sum is constant where outputs are shares.
    loss = sum((out.double().flatten() * _spread(out)).sum() for out in outputs)
    if isinstance(loss, Tensor) and loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
        grads = [p.grad for p in model.parameters()]
        norms = [0.0 if g is None else float(g.double().norm()) for g in grads]
        yield _rounded(torch.tensor(norms, dtype=torch.float64), steps)


def _spread(out: Tensor) -> Tensor:
    return torch.arange(1, out.numel() + 1, device=out.device).double().cos()


def _inside(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield torch.view_as_real(output) if output.is_complex() else output
    elif isinstance(output, dict):
        yield from _inside(list(output.values()))
    elif isinstance(output, list | tuple):
        for entry in output:
            yield from _inside(entry)


def _rounded(values: Tensor, steps: int) -> str:
    """A hash of values in steps of the largest, and of that one's magnitude."""
    flat = values.detach().double().flatten().cpu()
    finite = flat[flat.isfinite()]
    largest = float(finite.abs().max()) if len(finite) else 0.0
    # No simple share of the largest lies on the edge of a step of this width.
    shares = (flat / (largest or 1.0) * (steps / torch.pi)).round().nan_to_num(-9e9, 9e9, -9e9)
    size = round(float(torch.tensor(largest or 1.0, dtype=torch.float64).log2()) * steps / 32)
    return _hash([tuple(values.shape), size, shares.to(torch.int64).numpy().tobytes()])


# What is written: the source of functions and classes, and the values they are made with.


def describe(value: Any, *, mutable: bool = False) -> Any:
    """Nested lists that say what this is, equal in every process.

    Without `mutable` no lists, tables and tensors: a function may change its own when it is called.
    """
    return _describe(value, mutable, {})


def _describe(value: Any, mutable: bool, seen: dict[int, tuple[int, Any]]) -> Any:
    if value is None or isinstance(value, Number | str | bytes):
        return [type(value).__name__, repr(value)]
    if isinstance(value, ModuleType | BuiltinFunctionType):
        return value.__name__
    if isinstance(value, tuple | frozenset):
        # Not noted as seen: whether two equal ones are one and the same is up to the compiler.
        found = [_describe(entry, mutable, seen) for entry in value]
        return ["tuple", *(found if isinstance(value, tuple) else sorted(map(repr, found)))]
    if id(value) in seen:
        return ["again", seen[id(value)][0]]
    # The first comes from the user, wherever it lies; what it uses of a library is known by name.
    # Kept, because the number of what is gone is given to another.
    top, seen[id(value)] = not seen, (len(seen), value)

    def inner(entries: Iterable[Any]) -> list[Any]:
        return [_describe(entry, mutable, seen) for entry in entries]

    if isinstance(value, partial):
        return ["partial", *inner([value.func, value.args, tuple(value.keywords.items())])]
    if isinstance(value, MethodType):
        return ["method", *inner([value.__func__, value.__self__])]
    if isinstance(value, FunctionType):
        return _name_of(value) if _of_others(value) and not top else _function(value, inner)
    if isinstance(value, type):
        return _name_of(value) if _of_library(value) else _class(value, inner)
    if isinstance(value, list | dict | set | Tensor | np.ndarray):
        return _contents(value, inner) if mutable else type(value).__name__
    if _of_library(type(value)) and not isinstance(value, _Open):
        # dtypes, devices, paths, modules; what prints its address is another in every process.
        shown = str(value) if " at 0x" not in str(value) else type(value).__name__
        weights = _tensors(value) if isinstance(value, nn.Module) and mutable else {}
        return [shown, weights_hash(weights)]
    return [*inner([type(value), *_attributes(value)])]


# Of the standard library, but with nothing in them that is not the user's.
_Open = (SimpleNamespace, Namespace, property, staticmethod, classmethod)


def _function(value: FunctionType, inner: Callable[[Iterable[Any]], list[Any]]) -> list[Any]:
    used = set(_names(value.__code__))
    constants = [(name, value.__globals__[name]) for name in sorted(used & {*value.__globals__})]
    cells = []
    for cell in value.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:  # not filled yet
            cells.append(None)
    values = (value.__defaults__, tuple((value.__kwdefaults__ or {}).items()), *cells, *constants)
    source = _source(value)
    # Two lambdas may stand in one line, and what was typed in has no text.
    exact = not source or value.__name__ == "<lambda>"
    return ["def", source, _code(value.__code__) if exact else [], *inner(values)]


def _class(value: type, inner: Callable[[Iterable[Any]], list[Any]]) -> list[Any]:
    # Not its module: a script may be renamed.
    found: list[Any] = ["class", value.__qualname__]
    for part in value.__mro__:
        if not _of_library(part):
            found.append(_source(part))
            # Methods have closures, defaults and constants, too.
            if not _of_others(part):
                found += inner(v for n, v in sorted(vars(part).items()) if n not in _OWN_OF_CLASSES)
    return found


_OWN_OF_CLASSES = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__slots__"),
    *("__firstlineno__", "__static_attributes__", "__dataclass_fields__", "_abc_impl"),
}
"""What the source says already, or what changes when a line is added above it."""


def _contents(value: Any, inner: Callable[[Iterable[Any]], list[Any]]) -> list[Any]:
    if isinstance(value, dict):
        return ["dict", *inner(tuple(value.items()))]
    if isinstance(value, set):
        return ["set", *sorted(map(repr, inner(value)))]
    if isinstance(value, list):
        return ["list", *inner(value)]
    if isinstance(value, Tensor):
        return ["tensor", weights_hash({"": value})]
    return ["array", repr(value.shape), repr(value.dtype), value.tobytes()]


def _attributes(value: Any) -> list[Any]:
    if isinstance(value, property):
        return [value.fget]
    if isinstance(value, (staticmethod, classmethod)):
        return [value.__func__]
    if is_dataclass(value):
        return [(entry.name, getattr(value, entry.name)) for entry in fields(value)]
    return list(getattr(value, "__dict__", {}).items())


def _names(code: CodeType) -> Iterator[str]:
    """Names of the module that this code and the functions inside it may use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _code(code: CodeType) -> list[Any]:
    plain = [
        _code(c) if isinstance(c, CodeType)
        # Sets of texts print in another order in every process.
        else sorted(map(repr, c)) if isinstance(c, frozenset)
        else repr(c)
        for c in code.co_consts
    ]  # fmt: skip
    return [code.co_code, plain, code.co_names]


@lru_cache(maxsize=1024)
def _source(what: Any) -> str:
    try:
        return inspect.getsource(what)
    except (OSError, TypeError):
        return ""


def _name_of(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _of_library(value: Any) -> bool:
    """Whether this function or class is torch's, Python's or ours."""
    top = str(value.__module__).partition(".")[0]
    return top in ("torch", "numpy", "secateurs", "secateurs_lab", *_STANDARD)


_STANDARD = sys.stdlib_module_names - {"__main__"}


def _of_others(value: Any) -> bool:
    """Whether it comes from an installed package, whose functions lead to thousands of others."""
    file = getattr(sys.modules.get(str(value.__module__)), "__file__", None) or ""
    return _of_library(value) or "site-packages" in file or "dist-packages" in file


def _hash(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]
