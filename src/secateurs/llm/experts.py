"""Weights of several linear layers kept as one tensor, seen as the layers they are.

Experts of transformers are one parameter (experts, outputs, inputs), of which an expert takes its
slice, or (experts, inputs, outputs), as of GPT-OSS and Llama 4; a router keeps a matrix and no
`nn.Linear`. While a block is pruned, each slice becomes a linear layer whose weight is a view of
it, so that everything known about linear layers (their inputs, their order, how to solve for them)
holds for experts, each on the tokens it gets.
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
        storages = {p.untyped_storage().data_ptr(): p.shape[-2:] for _, _, p in owners.values()}
        with _Products(storages, {}) as seen, torch.no_grad():
            run()
        layers: dict[Slice, nn.Module] = {}
        parts: dict[str, tuple[str, ...]] = {}
        for name, (module, key, parameter) in owners.items():
            matrices = parameter.detach().view(-1, *parameter.shape[-2:])
            ways = {seen.met[place] for place in map(_place, matrices) if place in seen.met}
            # One that is used both ways, as a table and its transpose are, is not a layer.
            if ways not in ({"rows"}, {"columns"}):
                continue
            kind = Conv1D if ways == {"rows"} else _linear
            own = nn.ModuleList(kind(matrix) for matrix in matrices)
            layers |= {_place(matrix): layer for matrix, layer in zip(matrices, own, strict=True)}
            parts[name] = tuple(f"{name}.{number}.weight" for number in range(len(own)))
            stack.enter_context(_hidden_by(module, key, parameter, own))
        stack.enter_context(_Products(storages, layers))
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


class Conv1D(nn.Module):
    """A linear layer whose weight is (inputs, outputs): the name and `nf` are those by which such a
    layer of transformers is known."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.nf = matrix.shape[1]
        self.weight = nn.Parameter(matrix, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class _Products(TorchFunctionMode):
    """Lets products with slices of these storages run as calls of their layers, whose hooks then
    see them; `met` says of all that products took which of their dimensions is the inputs.
    """

    def __init__(
        self, storages: Mapping[int, tuple[int, ...]], layers: Mapping[Slice, nn.Module]
    ) -> None:
        super().__init__()
        self.storages, self.layers, self.met = storages, layers, dict[Slice, str]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (func is F.linear or func in _MATMULS) and len(args) > 1 and self._ours(args[1]):
            if func is F.linear and args[1].ndim == 2:
                layer = self._layer(args[1], "columns")
                if layer is not None:
                    bias = args[2] if len(args) > 2 else (kwargs or {}).get("bias")
                    answer = layer(args[0])
                    return answer if bias is None else answer + bias
            elif func in _MATMULS and args[1].ndim == 2 and args[0].ndim > 1:
                layer = self._layer(args[1], "rows")
                if layer is not None:
                    return layer(args[0])
            elif func in _MATMULS and args[1].ndim == 3 and args[0].ndim == 3:
                layers = [self._layer(matrix, "rows") for matrix in args[1]]
                if all(layers) and len(args[0]) == len(layers):
                    pairs = zip(layers, args[0], strict=True)
                    return torch.stack([layer(x) for layer, x in pairs if layer is not None])
        return func(*args, **(kwargs or {}))

    def _ours(self, matrix: Tensor) -> bool:
        return matrix.untyped_storage().data_ptr() in self.storages

    def _layer(self, matrix: Tensor, inputs: str) -> nn.Module | None:
        """The layer of this matrix, of which a product sums over its rows or its columns."""
        # By its shape: a matrix of one row, and its transpose, are both contiguous.
        stored = self.storages[matrix.untyped_storage().data_ptr()]
        if matrix.shape != stored or not matrix.is_contiguous():
            matrix, inputs = matrix.mT, {"rows": "columns", "columns": "rows"}[inputs]
        if matrix.shape != stored or not matrix.is_contiguous():
            return None
        where = _place(matrix)
        known = self.met.setdefault(where, inputs)
        if known != inputs:
            self.met[where] = "both"
        return self.layers.get(where)


_MATMULS = {
    *(torch.matmul, torch.mm, torch.bmm, Tensor.matmul, Tensor.mm, Tensor.bmm),
    Tensor.__matmul__,
}


@contextmanager
def _one_by_one(block: nn.Module) -> Iterator[None]:
    """Experts of transformers run in a loop, not as one product for all."""
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
