"""What a traced program is, as a key, and which model was compared with which program.

Comparing a graph with its model costs several forward passes, where reading costs none. So a model
is compared with its graph once: with every program that it gives, in every state of what it holds
beside its tensors. Another model is compared for itself, also where it gives the same program: its
code may tell the tracer from a user, and only a run of its own shows that.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from secateurs.graph.example import Call
from secateurs.graph.export import Exported
from secateurs.graph.lower import LOWERINGS, Rule

_REMEMBERED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What comparing a model with its graph showed.

    Attributes:
        unseen: The parameters that were zero as a whole, such as fresh biases: how they are used
            could not be seen. None where nothing could: no finite values, or nothing passed an
            activation.
        alone: How the samples of a batch act on each other, as `Graph.alone`.
        weights: The sum of each parameter then.
    """

    unseen: frozenset[str] | None
    alone: str
    weights: tuple[float, ...] = ()


class Compared:
    """The models that were compared with their graphs, as long as they live, each with its latest
    programs.
    """

    def __init__(self) -> None:
        self._models: WeakKeyDictionary[nn.Module, OrderedDict[str, Seen]] = (
            WeakKeyDictionary()
        )

    def seen(self, model: nn.Module, key: str) -> Seen | None:
        """What was seen of this model; None where comparing it could show something new."""
        own = self._models.get(model)
        seen = own.get(key) if own else None
        if seen is None:
            return None
        if seen.unseen is None:
            # Other weights may let something through.
            return seen if seen.weights == _sums(model) else None
        named = dict(model.named_parameters(remove_duplicate=False))
        return None if any(bool(named[n].any()) for n in seen.unseen) else seen

    def remember(self, model: nn.Module, key: str, seen: Seen) -> None:
        """File one more; the oldest goes where there are too many."""
        own = self._models.setdefault(model, OrderedDict())
        before = own.get(key)
        if before and before.unseen is not None and seen.unseen is not None:
            seen = replace(seen, unseen=seen.unseen & before.unseen)
        own[key] = replace(seen, weights=_sums(model))
        while len(own) > _REMEMBERED:
            own.popitem(last=False)

    def share(self, copy: nn.Module, model: nn.Module) -> None:
        """What is seen of a copy that we made, or of a wrapper of ours, is seen of the model."""
        self._models[copy] = self._models.setdefault(model, OrderedDict())

    def clear(self) -> None:
        """Forget all."""
        self._models.clear()


@torch.no_grad()
def _sums(model: nn.Module) -> tuple[float, ...]:
    """Something that changes when a weight does, also behind the back of its version."""
    return tuple(float(p.sum()) for p in model.parameters())


COMPARED = Compared()
"""Of this process."""


def program_key(
    exported: Exported, model: nn.Module, call: Call, output: str | int | None
) -> str:
    """SHA-256 of all that reading depends on, but the floating-point weights.

    That is: every operator with its literals, the names of what it reads, constants, integer
    tensors (they become literals), shapes and dtypes, the rules for operators, and the output.
    """
    program = exported.program
    digest = hashlib.sha256()
    for text in (
        str(program.graph_module.graph),
        str(program.graph_signature),
        str(call.shapes),
        str([t.dtype for t in call.tensors]),
        str([(name, p.dtype, p.shape) for name, p in model.named_parameters()]),
        f"{output!r} {exported.leaves} {model.training} {type(model)}",
        rules(),
    ):
        # A zero between the parts: "ab" + "c" must not equal "a" + "bc".
        digest.update(text.encode() + b"\0")
    for name, tensor in (*program.constants.items(), *integers(model)):
        if isinstance(tensor, Tensor):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(raw(tensor))
    return digest.hexdigest()


_NAMED: dict[int, Rule] = {}
"""Every rule that a key names lives on: else its identity could be given to another rule."""


def rules() -> str:
    """Which rule reads which operator, now: other rules read the same program differently."""
    found = [(str(key), LOWERINGS[key]) for key in LOWERINGS]
    _NAMED.update((id(rule), rule) for _, rule in found)
    return str([(key, id(rule)) for key, rule in found])


def integers(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Buffers of integers and flags: an index kept in one is read as a literal."""
    return [(n, b) for n, b in model.named_buffers() if not b.is_floating_point()]


def raw(tensor: Tensor) -> bytes:
    """The bytes of a tensor's entries in row-major order."""
    # As bytes, for numpy knows no bfloat16.
    whole = tensor.detach().cpu().contiguous().reshape(-1)
    return whole.view(torch.uint8).numpy().tobytes() if whole.numel() else b""
