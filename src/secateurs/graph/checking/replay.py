"""What a call of a model does, as a key: a graph read before is read again from nothing but this.

Tracing a ResNet-18 takes as long as half of its forward and backward pass. Whether a graph of
before is still the model's cannot be told from the model's attributes: `forward` may look at a
global, a closure, a file. So `forward` runs again, on tensors without values, and everything it
asks of torch is written down: each operator with its literals, which of its tensors are which
parameter, buffer, input or earlier result, the bytes of every other tensor, and the module that
asks. Two calls with one record compute the same function of their weights. That takes a twentieth
of the time of a trace.
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
)

from secateurs.graph.checking.programs import integers, raw, rules
from secateurs.graph.example import Call
from secateurs.graph.quiet import quietly
from secateurs.graph.reading.outputs import outputs_of
from secateurs.graph.untouched import keeping
from secateurs.stateless import call_with

_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


class _Unknown(Exception):
    """Something in a call has no text that tells it from all others."""


def replay_key(
    model: nn.Module, call: Call, output: str | int | None, *, opaque: bool = False
) -> str | None:
    """SHA-256 of everything a call does, or None where that cannot be known.

    None is the answer where the model does not run without values (it asks for one), and where an
    operator takes something that is neither a tensor nor a plain literal.
    """
    with keeping(model):
        return recorded(model, call, output, opaque=opaque)


def recorded(
    model: nn.Module, call: Call, output: str | int | None, *, opaque: bool
) -> str | None:
    """`replay_key` for callers that keep the model as it is themselves."""
    try:
        with torch.no_grad(), quietly():
            # The same call is read differently with and without opaque nodes.
            return f"{opaque} {_Record(model, call, output).key()}"
    # The model's own code runs here and may raise anything; the trace that follows tells the user.
    except Exception:
        return None


class _Record(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what is asked of torch while it is active."""

    def __init__(
        self, model: nn.Module, call: Call, output: str | int | None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model, self.call, self.output = model, call, output
        self.digest = hashlib.sha256()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        # The tensors are kept: the identity of one that is gone may be given to another.
        self.labels: dict[int, tuple[str, Tensor]] = {}
        self.storages: dict[int, int] = {}
        self.thread = threading.get_ident()

    def key(self) -> str:
        """Run the model once and return what was written."""
        self._header()
        own = (*self.model.named_parameters(), *self.model.named_buffers())
        state = {name: self._known(name, tensor) for name, tensor in own}
        call = self.call.replaced(
            [self._known(f"input {i}", t) for i, t in enumerate(self.call.tensors)]
        )
        with ExitStack() as stack:
            stack.enter_context(self._modules())
            stack.enter_context(self.fake)
            stack.enter_context(self)
            result = call_with(self.model, state, call.args, call.kwargs)
        for name, tensor in outputs_of(result).items():
            self._write(f"output {name} is {self._tensor(tensor)}")
        return self.digest.hexdigest()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # The arguments are written before the operator runs: it may change them.
        self._write(f"{func} {self._text(args)} {self._text(kwargs)}")
        result = func(*args, **kwargs)
        for number, tensor in enumerate(_tensors(result)):
            # What is changed in place comes back as itself and keeps its label.
            if id(tensor) not in self.labels:
                self._name(f"{len(self.labels)}.{number}", tensor)
            self._write(_form(tensor))
        return result

    def _header(self) -> None:
        """What tracing and reading depend on beside the operators."""
        modules = self.model.named_modules(remove_duplicate=False)
        named = self.model.named_parameters(remove_duplicate=False)
        first: dict[int, str] = {}
        for text in (
            f"{self.output!r} {self.model.training} {torch.get_default_dtype()}",
            str([(name, str(type(module))) for name, module in modules]),
            # A tied parameter is told by the name it has first.
            str([(name, first.setdefault(id(p), name)) for name, p in named]),
            rules(),
        ):
            self._write(text)
        for name, tensor in integers(self.model):
            self._write(f"{name} {_form(tensor)}")
            self.digest.update(raw(tensor))

    def _known(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor without values, in the shape of this one; it is known by a name."""
        fake = self._without_values(tensor)
        self._write(f"{name} {_form(tensor)} in {self._storage(tensor)}")
        self._name(name, fake)
        return fake

    def _without_values(self, tensor: Tensor) -> Tensor:
        """A tensor of this form and no values."""
        plain = type(tensor) in (Tensor, nn.Parameter, nn.Buffer)
        odd = tensor.is_conj() or tensor.is_neg() or tensor.is_quantized
        if not plain or odd or tensor.layout != torch.strided:
            return self.fake.from_tensor(tensor)
        # A tenth of the time of `from_tensor`, which was 40 % of a replay: that also carries over
        # gradients, bases of views and storages. None of these is asked here: a record names
        # storages by the true tensors.
        shape, strides = tensor.shape, tensor.stride()
        empty = torch.empty_strided(shape, strides, dtype=tensor.dtype, device="meta")
        fake = FakeTensor(self.fake, empty, tensor.device)
        fake.requires_grad_(tensor.requires_grad)
        if isinstance(tensor, nn.Parameter):
            # What isinstance asks: a model may treat parameters otherwise.
            fake._is_param = True
        return fake

    def _storage(self, tensor: Tensor) -> int:
        """Which memory holds the entries: what is written through one tensor is read in another."""
        address = tensor.untyped_storage().data_ptr()
        return self.storages.setdefault(address, len(self.storages))

    def _name(self, name: str, tensor: Tensor) -> None:
        self.labels[id(tensor)] = (name, tensor)

    @contextmanager
    def _modules(self) -> Iterator[None]:
        """Write down which module begins and ends: a graph names the places of its nodes."""
        names = {id(module): name for name, module in self.model.named_modules()}

        def note(word: str, module: nn.Module) -> None:
            if (
                threading.get_ident() == self.thread
            ):  # another thread's model is none of ours
                self._write(f"{word} {names.get(id(module), type(module))}")

        before = register_module_forward_pre_hook(lambda m, _: note("begin", m))
        after = register_module_forward_hook(lambda m, _, __: note("end", m))
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _text(self, value: Any) -> str:
        """A text that no other argument has."""
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, list | tuple):
            return f"{type(value).__name__}({', '.join(map(self._text, value))})"
        if isinstance(value, dict):
            return str([(key, self._text(item)) for key, item in value.items()])
        if type(value) in _PLAIN:
            return f"{type(value).__name__} {value!r}"
        raise _Unknown

    def _tensor(self, tensor: Tensor) -> str:
        """The label of a tensor that was met, the values of one that was not."""
        if id(tensor) in self.labels:
            return self.labels[id(tensor)][0]
        if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
            raise _Unknown
        # Outside of the mode that leaves tensors without values: these are read.
        with _disable_current_modes():
            values = hashlib.sha256(raw(tensor)).hexdigest()
            return f"{_form(tensor)} in {self._storage(tensor)} {values}"

    def _write(self, text: str) -> None:
        self.digest.update(text.encode() + b"\0")


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, list | tuple):
        return [tensor for item in result for tensor in _tensors(item)]
    return []


def _form(tensor: Tensor) -> str:
    shape = (
        f"{tuple(tensor.shape)} {tuple(tensor.stride())} {tensor.storage_offset()}"
    )
    return (
        f"{shape} {tensor.dtype} {tensor.device} {tensor.is_conj()} {tensor.is_neg()}"
    )
