"""What is no model to work on, told by name, with the way to one."""

from collections.abc import Mapping

import torch
from torch import nn

from secateurs.errors import ArgumentError


def check_model(model: object) -> None:
    """Refuse what is no module, with the way to one, and weights that FSDP has melted into one."""
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
        f"model is {_told(model)}, not a torch.nn.Module: give the network itself{_way(model)}."
    )


def _told(value: object) -> str:
    return repr(value) if isinstance(value, str) else f"a {type(value).__name__}"


def _way(value: object) -> str:
    """What somebody who gave this most likely has at hand."""
    if isinstance(value, str):
        return ", such as secateurs.models.build(name), with its weights loaded"
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


def refuse_wrapped(model: nn.Module) -> None:
    """Refuse what is no model, and wrappers that talk to other processes: they have no copy."""
    check_model(model)
    kind = type(model).__name__
    if kind in ("DistributedDataParallel", "DataParallel"):
        raise ArgumentError(
            f"model is a {kind}: give model.module, which has the same weights. Masks then fit"
            " both."
        )
