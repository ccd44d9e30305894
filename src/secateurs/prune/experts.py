"""Weights of several linear layers kept as one tensor, seen as the layers they are.

Experts of transformers are one parameter (experts, outputs, inputs), of which an expert takes its
slice; a router keeps a matrix and no `nn.Linear`. While a block is pruned, each slice becomes a
linear layer whose weight is a view of it, so that what is known of linear layers (their inputs,
their order, how to solve for them) holds for experts, each on the tokens it gets.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from secateurs.scores.rules.wanda import lies_along

Slice = tuple[int, int]
"""Where the weight of a product lies: its storage, and the place in there."""


@contextmanager
def split_into_layers(
    block: nn.Module, run: Callable[[], object]
) -> Iterator[Mapping[str, tuple[str, ...]]]:
    """The block with a linear layer for each matrix that a product takes out of a parameter of
    another kind of module; yields the names of their weights by the parameter's name.

    `run` runs the block once, to see which products there are. Afterwards every parameter is in its
    place again, with what was written to the layers.
    """
    owners = {
        f"{prefix}.{key}" if prefix else key: (module, key, parameter)
        for prefix, module in block.named_modules()
        for key, parameter in module._parameters.items()
        if parameter is not None
        and parameter.ndim in (2, 3)
        and parameter.is_contiguous()
        and not type(module).__module__.startswith("torch.nn")
        and not lies_along(module)
    }
    if not owners:
        yield {}
        return
    with ExitStack() as stack:
        stack.enter_context(_one_by_one(block))
        with _Products({}) as seen, torch.no_grad():
            run()
        layers: dict[Slice, nn.Module] = {}
        parts: dict[str, tuple[str, ...]] = {}
        for name, (module, key, parameter) in owners.items():
            matrices = parameter.detach().view(-1, *parameter.shape[-2:])
            if not seen.met & {_place(matrix) for matrix in matrices}:
                continue
            own = nn.ModuleList(_linear(matrix) for matrix in matrices)
            layers |= {_place(matrix): layer for matrix, layer in zip(matrices, own, strict=True)}
            parts[name] = tuple(f"{name}.{number}.weight" for number in range(len(own)))
            stack.enter_context(_hidden_by(module, key, parameter, own))
        stack.enter_context(_Products(layers))
        yield parts


def part_names(names: Iterable[str], parts: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The names of the layers' weights where a parameter is split, and of the others as they
    are.
    """
    return [part for name in names for part in parts.get(name, (name,))]


def split_masks(
    masks: Mapping[str, Tensor], parts: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, Tensor]]:
    """The masks by the names of the layers' weights."""
    for name, mask in masks.items():
        if name in parts:
            yield from zip(parts[name], mask.view(-1, *mask.shape[-2:]), strict=True)
        else:
            yield name, mask


def join_masks(
    masks: Mapping[str, Tensor], parts: Mapping[str, tuple[str, ...]], block: nn.Module
) -> Iterator[tuple[str, Tensor]]:
    """The masks by the names of the block's own parameters, in their order."""
    for name, parameter in block.named_parameters():
        if name in masks:
            yield name, masks[name]
        elif name in parts and parts[name][0] in masks:
            yield name, torch.stack([masks[part] for part in parts[name]]).view(parameter.shape)


def _place(matrix: Tensor) -> Slice:
    return matrix.untyped_storage().data_ptr(), int(matrix.storage_offset())


def _linear(matrix: Tensor) -> nn.Linear:
    """A linear layer whose weight is this very matrix."""
    layer = nn.Linear(1, 1, bias=False, device="meta")
    layer.out_features, layer.in_features = matrix.shape
    layer.weight = nn.Parameter(matrix, requires_grad=False)
    return layer


@contextmanager
def _hidden_by(
    module: nn.Module, key: str, parameter: nn.Parameter, layers: nn.ModuleList
) -> Iterator[None]:
    """The layers under the parameter's name, where only the module's own code finds it."""
    order = list(module._parameters)
    del module._parameters[key]
    module._modules[key] = layers
    # Attributes of the instance are found before modules are looked through.
    vars(module)[key] = parameter
    try:
        yield
    finally:
        del vars(module)[key], module._modules[key]
        found = {key: parameter, **module._parameters}
        module._parameters.clear()
        module._parameters.update({name: found[name] for name in order})


class _Products(TorchFunctionMode):
    """Lets products with these slices run as calls of their layers, whose hooks then see them;
    `met` are all slices that products took.
    """

    def __init__(self, layers: Mapping[Slice, nn.Module]) -> None:
        super().__init__()
        self.layers, self.met = layers, set[Slice]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and len(args) > 1 and args[1].ndim == 2:
            where = _place(args[1])
            self.met.add(where)
            layer = self.layers.get(where)
            if layer is not None:
                bias = args[2] if len(args) > 2 else (kwargs or {}).get("bias")
                answer = layer(args[0])
                return answer if bias is None else answer + bias
        return func(*args, **(kwargs or {}))


@contextmanager
def _one_by_one(block: nn.Module) -> Iterator[None]:
    """Experts of transformers by a loop over them, not by one product for all."""
    configs = {
        id(config): config
        for module in block.modules()
        if (config := vars(module).get("config")) is not None
        and getattr(config, "_experts_implementation", None)
    }
    before = [(config, config._experts_implementation) for config in configs.values()]
    try:
        for config, _ in before:
            config._experts_implementation = "eager"
        yield
    finally:
        for config, way in before:
            config._experts_implementation = way
