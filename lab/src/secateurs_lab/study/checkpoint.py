"""The state of a training as one safetensors file: tensors as they are, everything else as JSON in
the header.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.errors import StoreError
from secateurs_lab.train import Epoch, Standing

Tensors = dict[str, Tensor]

APART = "\x1f"
"""Between the keys of nested dictionaries: a character that no parameter has in its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Tensors by name, and plain values.

    A network's tensors are under "model.", an optimizer's under "optimizer.INDEX.", generators
    under "generator.".
    """

    tensors: Tensors
    values: dict[str, Any] = field(default_factory=dict)

    def pack(self) -> bytes:
        """The bytes of a file; floats come back bit for bit (JSON writes all their digits)."""
        own = {
            # Clones, because safetensors refuses tensors that share memory, such as tied ones.
            name: tensor.detach().cpu().contiguous().clone()
            for name, tensor in self.tensors.items()
        }
        return save(own, metadata={"state": json.dumps(self.values)})

    @classmethod
    def unpack(cls, blob: bytes) -> "State":
        """The state in these bytes."""
        try:
            # The header is parsed here, because safetensors returns no metadata for bytes in
            # memory.
            size = int.from_bytes(blob[:8], "little")
            header = json.loads(blob[8 : 8 + size])
            values = json.loads(header.get("__metadata__", {}).get("state", "{}"))
            return cls(tensors=load(blob), values=values)
        except (ValueError, SafetensorError, AttributeError) as error:
            raise StoreError(
                f"a checkpoint cannot be read: {error}. The run is repeated."
            ) from error

    def part(self, prefix: str) -> Tensors:
        """The tensors under a prefix, without it."""
        start = f"{prefix}."
        return {
            name.removeprefix(start): t
            for name, t in self.tensors.items()
            if name.startswith(start)
        }


def weights_of(model: nn.Module) -> Tensors:
    """Parameters and buffers under their own names."""
    return {name: value.detach() for name, value in model.state_dict().items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """The tensors with a prefix."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def put_weights_(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into the model; names and shapes must be its own."""
    model.load_state_dict(dict(weights), strict=True)


def optimizer_state(optimizer: Optimizer) -> tuple[Tensors, dict[str, Any]]:
    """An optimizer's state as tensors and plain values, with that of the methods attached to it."""
    state = optimizer.state_dict()
    tensors: Tensors = {}
    attached: dict[str, dict[str, Any]] = {}
    first, *others = state["param_groups"]
    # Methods have their states in the first group, each a dictionary with tensors in it.
    for owner in [key for key, value in first.items() if isinstance(value, Mapping)]:
        attached[owner] = _take_tensors(first[owner], owner, tensors)
    plain: dict[str, dict[str, Any]] = {}
    for index, entries in state["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{key}"] = value
            else:
                # As text: JSON has no other keys.
                plain.setdefault(str(index), {})[key] = value
    own = {key: value for key, value in first.items() if key not in attached}
    values = {"state": plain, "param_groups": [own, *others], "attached": attached}
    return tensors, values


def _take_tensors(values: Mapping[str, Any], place: str, tensors: Tensors) -> dict[str, Any]:
    """The plain values of nested dictionaries; their tensors are added to `tensors`."""
    plain = {}
    for key, value in values.items():
        if isinstance(value, Tensor):
            tensors[f"{place}{APART}{key}"] = value
        elif isinstance(value, Mapping):
            plain[key] = _take_tensors(value, f"{place}{APART}{key}", tensors)
        else:
            plain[key] = value
    return plain


def load_optimizer_(
    optimizer: Optimizer, tensors: Mapping[str, Tensor], values: Mapping[str, Any]
) -> None:
    """Restore the state of the optimizer. Groups keep values that are not plain as they are."""
    state: dict[int, dict[str, Any]] = {
        int(i): dict(entries) for i, entries in values["state"].items()
    }
    attached = {owner: dict(found) for owner, found in values["attached"].items()}
    for name, tensor in tensors.items():
        # "OWNER/KEY/…" is a method's, "INDEX.KEY" the optimizer's own.
        *way, last = name.split(APART)
        if way:
            inner: dict[str, Any] = attached
            for key in way:
                inner = inner.setdefault(key, {})
            inner[last] = tensor
            continue
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = tensor
    now = optimizer.state_dict()["param_groups"]
    groups = [
        {**old, **_tuples(new, old)} for new, old in zip(values["param_groups"], now, strict=True)
    ]
    groups[0] |= attached
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _tuples(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Turn lists back into tuples, which JSON does not have."""
    return {
        key: tuple(value) if isinstance(old.get(key), tuple) else value
        for key, value in new.items()
    }


def training_state(standing: Standing) -> tuple[Tensors, dict[str, Any]]:
    """The state of a training run as tensors and plain values, with torch's own generator."""
    tensors = {
        "order": standing.order,
        "drawn": standing.drawn,
        # Dropout draws from torch's own generator.
        "global": torch.get_rng_state(),
    }
    values = {
        "iteration": standing.iteration,
        "loss_sum": standing.loss_sum,
        "examples": standing.examples,
        "rates": list(standing.rates),
        "history": [asdict(epoch) for epoch in standing.history],
    }
    for number in range(torch.cuda.device_count()):
        tensors[f"cuda{number}"] = torch.cuda.get_rng_state(number)
    return tensors, values


def read_training_state(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> Standing:
    """Read that state back; torch's own generator is restored, too."""
    torch.set_rng_state(tensors["global"])
    for number in range(torch.cuda.device_count()):
        if f"cuda{number}" in tensors:
            torch.cuda.set_rng_state(tensors[f"cuda{number}"], number)
    return Standing(
        iteration=values["iteration"],
        order=tensors["order"],
        drawn=tensors["drawn"],
        loss_sum=values["loss_sum"],
        examples=values["examples"],
        rates=tuple(values["rates"]),
        history=tuple(Epoch(**epoch) for epoch in values["history"]),
    )
