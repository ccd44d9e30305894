"""Models as they are given, wrapped or not, and their parameters by name; what can be wrong with
each, and with a mask.

Scores, masks and budgets are mappings from the parameter's own name to a tensor.
"""

import sys
from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from secateurs.errors import ArgumentError, UnsupportedOperation

Params: TypeAlias = Mapping[str, Tensor]
"""Tensors by parameter name."""

# Rejects objects that are not usable models, and says how to get one.


def check_model(model: object) -> None:
    """Refuse what is not a module, saying how to get one, and weights that FSDP has joined."""
    if isinstance(model, nn.Module):
        _refuse_flat(model)
        return
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise ArgumentError(
            f"model is the class {model.__name__}, not a model: call it, {model.__name__}(...)."
        )
    if isinstance(model, Mapping):
        raise ArgumentError(
            f"model is a {type(model).__name__} with {len(model)} entries, not a model: build the"
            " model and call its load_state_dict(...) first."
        )
    raise ArgumentError(
        f"model is {_description(model)}, not a torch.nn.Module: give the network"
        f" itself{_way(model)}."
    )


def _description(value: object) -> str:
    return repr(value) if isinstance(value, str) else f"a {type(value).__name__}"


def _way(value: object) -> str:
    """The way to a model from what the caller most likely has."""
    if isinstance(value, str):
        return ", such as secateurs_lab.models.build(name), with its weights loaded"
    if isinstance(value, torch.optim.Optimizer):
        return ", not what trains it"
    if isinstance(value, list | tuple):
        return ", not its parameters; where= chooses among them"
    return ""


def _refuse_flat(model: nn.Module) -> None:
    """`FullyShardedDataParallel` keeps flat pieces of many weights: no mask has a place in them."""
    # By the name of the class: importing it costs more than most calls that come through here.
    kinds = (type(module).__name__ for module in model.modules())
    if "FullyShardedDataParallel" in kinds:
        raise ArgumentError(
            f"{type(model).__name__} is sharded by FullyShardedDataParallel, which has no whole"
            " weights. Work on the model before it is wrapped; to train on with zeros held, shard"
            " it with torch.distributed.fsdp.fully_shard, which hold supports."
        )


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile`, `DataParallel` and `DistributedDataParallel`."""
    inner = getattr(model, "_orig_mod", None)
    if isinstance(inner, nn.Module):
        return unwrap(inner)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrap(model.module)
    return model


def refuse_wrapped(model: nn.Module) -> None:
    """Refuse what is not a model, and wrappers that talk to other processes, which have no copy."""
    check_model(model)
    kind = type(model).__name__
    if kind in ("DistributedDataParallel", "DataParallel"):
        raise ArgumentError(
            f"model is a {kind}: give model.module, which has the same weights. Masks then fit"
            " both."
        )


def refuse_scripted(model: nn.Module) -> None:
    """Refuse what TorchScript compiled: it is neither traced nor run on other weights."""
    found = [n for n, m in model.named_modules() if isinstance(m, torch.jit.ScriptModule)]
    if found:
        where = f"{found[0]!r} of {type(model).__name__}" if found[0] else "the model"
        raise UnsupportedOperation(
            f"{where} is compiled by TorchScript, which cannot be traced or run on other weights."
            " Give the Python module that it was made from; weights of this one fit it"
            " (load_state_dict), and so do masks."
        )


# Under which names a model, perhaps wrapped, has its parameters.


def aliases(model: nn.Module) -> dict[str, str]:
    """Every other name of a tied parameter, mapped to the name it is listed under."""
    first: dict[int, str] = {}
    names = (
        (name, parameter) for name, parameter in model.named_parameters(remove_duplicate=False)
    )
    return {name: first[id(p)] for name, p in names if first.setdefault(id(p), name) != name}


def plain(name: str) -> str:
    """The name without what wrappers put in front of it or, compiled parts, inside it.

    >>> plain("module._orig_mod.0.weight")
    '0.weight'
    """
    while found := next((w for w in _WRAPPED if name.startswith(w)), ""):
        name = name.removeprefix(found)
    return name.replace("._orig_mod.", ".")


_WRAPPED = ("module.", "_orig_mod.", "ema_model.")
"""What DistributedDataParallel, AveragedModel, torch.compile and ema-pytorch put before names."""


# What can be wrong with a parameter, or with a mask for it, in the same words everywhere.
#
# Each function returns the second half of a sentence that begins with the parameter's name, or an
# empty string where nothing is wrong. The callers collect these and raise once.


def without_values(tensor: Tensor) -> str:
    """Why a tensor holds no numbers yet; empty if it holds some.

    >>> without_values(torch.empty(2, device="meta"))
    'is on the meta device and has no values: load the weights first'
    """
    # Checked first: a lazy parameter raises at nearly every other access.
    if is_lazy(tensor):
        return "is lazy and has no shape yet: run one forward pass first"
    if tensor.is_meta:
        return "is on the meta device and has no values: load the weights first"
    return ""


def not_real(tensor: Tensor) -> str:
    """Why a tensor cannot be used as real floating-point weights; empty if it can.

    >>> not_real(torch.tensor([1, 2]))
    'has integer values (torch.int64): real floating-point weights are needed'
    """
    if text := without_values(tensor):
        return text
    if is_sharded(tensor):
        return (
            "lies in pieces on several processes (fully_shard): work on the model before it is"
            " sharded, and give the masks to hold afterwards"
        )
    if tensor.is_complex():
        return f"is complex ({tensor.dtype}): real floating-point weights are needed"
    if not tensor.is_floating_point():
        return f"has integer values ({tensor.dtype}): real floating-point weights are needed"
    return unworkable(tensor)


def unworkable(tensor: Tensor) -> str:
    """Why entries cannot be worked on one by one where they are; empty if they can.

    >>> unworkable(torch.eye(2).to_sparse())
    'has the layout torch.sparse_coo: give it dense, by parameter.to_dense()'
    """
    if tensor.layout != torch.strided:
        return f"has the layout {tensor.layout}: give it dense, by parameter.to_dense()"
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        return (
            "was made in torch.inference_mode(), outside of which torch neither changes nor "
            "differentiates it: build the model outside, or copy its state_dict into one that was"
        )
    if tensor.is_floating_point() and tensor.dtype.itemsize == 1:
        # Formats to store numbers in: torch neither adds nor sorts their values.
        return (
            f"has values of {tensor.dtype}, which torch only stores: convert them first, such as by"
            " model.bfloat16()"
        )
    return ""


WHOLE_KINDS = frozenset((Tensor, nn.Parameter))


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process has only a piece of the tensor.

    >>> import torch
    >>> is_sharded(torch.zeros(2))
    False
    """
    # Every step asks this of every tensor.
    if type(tensor) in WHOLE_KINDS:
        return False
    # If nobody has imported the module, there is no such tensor; importing it would cost time.
    tensors = sys.modules.get("torch.distributed.tensor")
    kind = getattr(tensors, "DTensor", None)
    if kind is None or isinstance(tensor, kind):
        return kind is not None
    return isinstance(getattr(tensor, "data", tensor), kind)


def mask_misfit(mask: object, shape: torch.Size | tuple[int, ...]) -> str:
    """Why a mask does not fit a parameter of this shape; empty if it does.

    >>> mask_misfit(torch.ones(2, 3), (2, 3))
    'has a mask of torch.float32 values, not of booleans (True = kept)'
    """
    if not isinstance(mask, Tensor):
        return f"has a mask that is a {type(mask).__name__}, not a tensor"
    # Floats are refused and not read as booleans: 0.3 would silently mean "kept".
    if mask.dtype != torch.bool:
        return f"has a mask of {mask.dtype} values, not of booleans (True = kept)"
    if mask.is_meta:
        return "has a mask on the meta device, which has no values"
    if mask.shape != torch.Size(shape):
        return f"has shape {tuple(shape)}, but its mask has shape {tuple(mask.shape)}"
    return ""


def all_finite(tensor: Tensor) -> bool:
    """Whether no entry is NaN or infinite: one pass that only adds, and a second where in doubt.

    >>> all_finite(torch.tensor([1.0, 2.0])), all_finite(torch.tensor([1.0, float("inf")]))
    (True, False)
    """
    tensor = tensor.detach()
    # ∞ − ∞ is NaN and NaN stays NaN, so a finite sum proves that all entries are finite. It may
    # overflow, though; `isfinite` writes four tensors of its size and takes ten times as long.
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())
