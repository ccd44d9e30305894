"""Resuming: what torch casts on loading an optimizer's state, put back as it was saved."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


def restore_(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Every tensor of the state in the dtype it was saved in, and as a copy: torch casts it to that
    of the weight.

    Devices are where torch has put them, since some optimizers keep their step count on the CPU.
    """
    for parameter, index in _pairs(optimizer, saved):
        for key, value in saved["state"].get(index, {}).items():
            if isinstance(value, Tensor):
                device = optimizer.state[parameter][key].device
                optimizer.state[parameter][key] = value.detach().to(device, copy=True)


def factors_only(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a state that is not its base's: factors and groups."""
    states = {
        index: {key: value for key, value in state.items() if key == "factors"}
        for index, state in saved["state"].items()
    }
    return {"state": states, "param_groups": saved["param_groups"]}


def joined(optimizer: Optimizer, saved: Mapping[str, Any]) -> dict[Tensor, dict[str, Any]]:
    """Saved states by parameter: of those, too, that are still frozen here and had joined there."""
    return {
        p: saved["state"][index] for p, index in _pairs(optimizer, saved) if index in saved["state"]
    }


def back_into_(optimizer: Optimizer, held: Mapping[Tensor, dict[str, Any]]) -> None:
    """Write the loaded values into the tensors that were the state before, and make these the state
    again.
    """
    for parameter, state in held.items():
        for key, value in state.items():
            value.copy_(optimizer.state[parameter][key])
        optimizer.state[parameter] = state


def _pairs(optimizer: Optimizer, saved: Mapping[str, Any]) -> Iterator[tuple[Tensor, int]]:
    """Every parameter with the number that stands for it in the saved state."""
    order = (index for group in saved["param_groups"] for index in group["params"])
    return zip((p for group in optimizer.param_groups for p in group["params"]), order, strict=True)
