"""What a traced program is, as a key: two models with one key are read into one graph.

Comparing a graph with its model costs two forward passes, 0.9 s for a ResNet-18 at 224×224 where
reading takes 0.3 s. A certificate reads two networks of one program, a search for the largest
sparsity dozens: the program is compared once.
"""

import hashlib
from collections import OrderedDict

import torch
from torch import Tensor, nn

from secateurs.graph.example import Call
from secateurs.graph.export import Exported
from secateurs.graph.lower import LOWERINGS, Rule

_REMEMBERED = 256


class Checked:
    """The programs that were compared with their models, the latest ones, and what stayed unseen:
    a parameter that was zero as a whole hides how it is used.
    """

    def __init__(self) -> None:
        self._unseen: OrderedDict[str, frozenset[str]] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._unseen

    def covers(self, key: str, model: nn.Module) -> bool:
        """Whether comparing this model would show nothing that was not compared before."""
        if key not in self._unseen:
            return False
        named = dict(model.named_parameters(remove_duplicate=False))
        return not any(bool(named[name].any()) for name in self._unseen[key])

    def remember(self, key: str, unseen: frozenset[str] = frozenset()) -> None:
        """File one more; the oldest goes where there are too many."""
        self._unseen[key] = unseen & self._unseen.get(key, unseen)
        while len(self._unseen) > _REMEMBERED:
            self._unseen.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._unseen.clear()


CHECKED = Checked()
"""Of this process. What is here was traced, read and found equal to a model."""


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
