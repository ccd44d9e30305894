"""Everything a model and the process hold, as text that is compared before and after a call."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor, nn

_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
)


def snapshot(model: nn.Module, *, parameters: bool = True) -> dict[str, str]:
    """By place: parameters, buffers, attributes, containers, hooks, modes, and random states.

    Tensors are told by their bytes and by who they are: a copy in the place of the user's own
    tensor would part it from an optimizer.
    """
    found = {}
    for name, module in model.named_modules(remove_duplicate=False):
        found[f"{name} is"] = f"{type(module).__qualname__} {id(module)}"
        for key, value in module.__dict__.items():
            if key == "_parameters" and not parameters:
                names = [(child, id(held)) for child, held in value.items()]
                found[f"{name}.{key}"] = f"{id(value)} {names}"
                continue
            for place, text in _texts(value, f"{name}.{key}", set()):
                found[place] = text
    found["torch's generator"] = str(torch.get_rng_state().tolist())
    found["Python's generator"] = str(random.getstate())
    found["numpy's generator"] = str(numpy.random.get_state())
    found["modes"] = (
        f"{torch.is_grad_enabled()} {torch.is_inference_mode_enabled()}"
        f" {torch.get_default_dtype()} {torch.is_autocast_enabled()}"
        f" {torch.are_deterministic_algorithms_enabled()} {torch.get_num_threads()}"
    )
    return found


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The places that differ, with what was there and what is."""
    return [
        f"{place}: {before.get(place, 'nothing')[:120]} -> {after.get(place, 'nothing')[:120]}"
        for place in sorted({*before, *after})
        if before.get(place) != after.get(place)
    ]


def _texts(value: Any, place: str, above: set[int]) -> Iterator[tuple[str, str]]:
    if isinstance(value, Tensor):
        yield place, _tensor(value)
    elif isinstance(value, _PLAIN):
        yield place, repr(value)
    elif id(value) in above:
        yield place, "itself"
    elif isinstance(value, random.Random):
        yield place, str(value.getstate())
    elif isinstance(value, Mapping):
        yield place, f"{type(value).__name__} {id(value)} {[str(k) for k in value]}"
        for key, held in value.items():
            yield from _texts(held, f"{place}[{key!r}]", {*above, id(value)})
    elif isinstance(value, tuple | frozenset):
        # Nobody can tell an immutable from one that is equal.
        yield place, f"{type(value).__name__} {len(value)}"
        for number, held in enumerate(value):
            yield from _texts(held, f"{place}[{number}]", {*above, id(value)})
    elif isinstance(value, list | set):
        yield place, f"{type(value).__name__} {id(value)} {len(value)}"
        for number, held in enumerate(value):
            yield from _texts(held, f"{place}[{number}]", {*above, id(value)})
    elif isinstance(value, nn.Module) or not hasattr(value, "__dict__"):
        yield place, f"{type(value).__name__} {id(value)}"
    else:
        yield place, f"{type(value).__name__} {id(value)}"
        yield from _texts(vars(value), f"{place}.__dict__", {*above, id(value)})


def _tensor(tensor: Tensor) -> str:
    kind = type(tensor)
    form = f"{tensor.dtype} {tuple(tensor.shape)} {tensor.requires_grad}"
    head = f"{kind.__name__} {id(tensor)} {form}"
    if kind not in (Tensor, nn.Parameter, nn.Buffer):
        return head
    grad = None if not tensor.is_leaf or tensor.grad is None else tensor.grad.tolist()
    return f"{head} {tensor.data_ptr()} {tensor.stride()} {tensor.tolist()} {grad}"
