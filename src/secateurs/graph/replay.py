"""A key for what a call of a model does, by which a graph that was read before is found again.

Tracing a ResNet-18 takes as long as half of its forward and backward pass. Whether an earlier graph
is still the model's cannot be seen from the model's attributes: `forward` may read a global, a
closure, a file. So `forward` runs again, on tensors without values, and everything it
asks of torch is written down: each operator with its literals, which of its tensors are which
parameter, buffer, input or earlier result, the bytes of every other tensor, and the module that
asks. Two calls with one record compute the same function of their weights. That takes a twentieth
of the time of a trace.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from secateurs.base.copies import call_with
from secateurs.graph.export import Call, ExportedModel, outputs_of
from secateurs.graph.ir import Graph
from secateurs.graph.operators import LOWERINGS, Rule
from secateurs.graph.untouched import keeping, quietly, untouched

# The key of a traced program, and which model was compared with which program.
#
# Comparing a graph with its model costs several forward passes, where reading costs none. So a
# model is compared with its graph once: with every program that it gives, in every state of what
# it holds beside its tensors. Another model is compared for itself, also where it gives the same
# program: its code may tell the tracer from a user, and only a run of its own shows that.

_REMEMBERED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The result of comparing a model with its graph.

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
        self._models: WeakKeyDictionary[nn.Module, OrderedDict[str, Seen]] = WeakKeyDictionary()
        self._done: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()

    def is_done(self, model: nn.Module, what: str) -> bool:
        """Whether this step, which is done once for a model, has been done."""
        return what in self._done.get(model, ())

    def note(self, model: nn.Module, what: str) -> None:
        """Remember that this step has been done."""
        self._done.setdefault(model, set()).add(what)

    def seen(self, model: nn.Module, key: str) -> Seen | None:
        """The result of an earlier comparison of this model; None where a new one could show
        more."""
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
        """Store one more; the oldest is dropped when there are too many."""
        own = self._models.setdefault(model, OrderedDict())
        before = own.get(key)
        if before and before.unseen is not None and seen.unseen is not None:
            seen = replace(seen, unseen=seen.unseen & before.unseen)
        own[key] = replace(seen, weights=_sums(model))
        while len(own) > _REMEMBERED:
            own.popitem(last=False)

    def share(self, copy: nn.Module, model: nn.Module) -> None:
        """Let a copy or a wrapper that we made share the results of its model."""
        self._models[copy] = self._models.setdefault(model, OrderedDict())
        self._done[copy] = self._done.setdefault(model, set())

    def clear(self) -> None:
        """Forget all."""
        self._models.clear()
        self._done.clear()


@torch.no_grad()
def _sums(model: nn.Module) -> tuple[float, ...]:
    """A sum for each parameter, which changes when its weights do, even where torch's version
    counter does not.
    """
    return tuple(float(p.sum()) for p in model.parameters())


COMPARED = Compared()
"""Of this process."""


def fill_caches(model: nn.Module, args: Sequence[Tensor], kwargs: Mapping[str, Tensor]) -> None:
    """Call a model on values before it is called on tensors without values, once for each form.

    What its code keeps outside of it, as in a table under `functools.lru_cache`, is then made of
    values. Made in a trace it would be made without, and stay so for this process: the user's own
    next call would fail.
    """
    tensors = (*args, *kwargs.values())
    form = f"called {[*kwargs]} {[_form(t) for t in tensors]} {model.training}"
    if COMPARED.is_done(model, form):
        return
    COMPARED.note(model, form)
    # An error of the user's code comes again in the trace, and is reported there.
    with suppress(Exception), torch.inference_mode(False), torch.no_grad(), untouched(model):
        model(*args, **kwargs)


def program_key(
    exported: ExportedModel, model: nn.Module, call: Call, output: str | int | None
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

_TABLE: tuple[tuple[tuple[Any, Rule], ...], str] = ((), "[]")
"""The rules as they were last, and their text: it takes a tenth of a replay to write."""


def rules() -> str:
    """Which rule reads which operator, now: other rules read the same program differently."""
    global _TABLE
    table = tuple((key, LOWERINGS[key]) for key in LOWERINGS)
    if table != _TABLE[0]:
        _NAMED.update((id(rule), rule) for _, rule in table)
        _TABLE = table, str([(str(key), id(rule)) for key, rule in table])
    return _TABLE[1]


def integers(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Buffers of integers and flags: an index kept in one is read as a literal."""
    return [(n, b) for n, b in model.named_buffers() if not b.is_floating_point()]


def raw(tensor: Tensor) -> bytes:
    """The bytes of a tensor's entries in row-major order."""
    # As bytes, for numpy knows no bfloat16.
    whole = tensor.detach().cpu().contiguous().reshape(-1)
    return whole.view(torch.uint8).numpy().tobytes() if whole.numel() else b""


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


_OPEN = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""Numbers that are not known without values."""


class _Unknown(Exception):
    """Something in a call has no text that tells it from all others."""


def replay_key(
    model: nn.Module, call: Call, output: str | int | None, *, covered: str = ""
) -> str | None:
    """SHA-256 of everything a call does, or None where that cannot be known.

    None is the answer where the model does not run without values (it asks for one), and where an
    operator takes something that is neither a tensor nor a plain literal.
    """
    with keeping(model):
        return recorded_key(model, call, output, covered=covered)


def recorded_key(
    model: nn.Module, call: Call, output: str | int | None, *, covered: str
) -> str | None:
    """`replay_key` for callers that keep the model as it is themselves."""
    try:
        with torch.no_grad(), quietly():
            # The same call is read differently with and without opaque nodes.
            return f"{covered} {_Record(model, call, output).key()}"
    # The model's own code runs here and may raise anything; the trace that follows tells the user.
    except Exception:
        return None


def _fake_mode() -> FakeTensorMode:
    """Tensors without values, under the settings of `torch.export`.

    torch remembers by these settings what an operator makes of such tensors, and the trace that
    follows a record meets every operator again: of MobileNetV3 it then takes two thirds of its
    time.
    """
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    try:
        sizes = ShapeEnv(prefer_deferred_runtime_asserts_over_guards=False, trace_asserts=True)
    except TypeError:  # other versions of torch have other settings; then nothing is shared
        return FakeTensorMode(allow_non_fake_inputs=True)
    return FakeTensorMode(
        allow_non_fake_inputs=True, shape_env=sizes, static_shapes=True, export=True
    )


class _Record(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what is asked of torch while it is active."""

    def __init__(self, model: nn.Module, call: Call, output: str | int | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model, self.call, self.output = model, call, output
        self.digest = hashlib.sha256()
        self.fake = _fake_mode()
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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # The arguments are written before the operator runs: it may change them.
        self._write(f"{func} {self._text(args)} {self._text(kwargs)}")
        result = func(*args, **kwargs)
        if isinstance(result, _OPEN):  # a number that only values tell
            raise _Unknown
        for number, tensor in enumerate(_tensors(result)):
            # A tensor changed in place comes back as itself and keeps its label.
            if id(tensor) not in self.labels:
                self._name(f"{len(self.labels)}.{number}", tensor)
            if any(isinstance(size, _OPEN) for size in tensor.shape):
                raise _Unknown
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
            # A tied parameter goes by its first name.
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
        # gradients, bases of views and storages. None of these is needed here: a record names
        # storages by the real tensors.
        shape, strides = tensor.shape, tensor.stride()
        empty = torch.empty_strided(shape, strides, dtype=tensor.dtype, device="meta")
        fake = FakeTensor(self.fake, empty, tensor.device)
        fake.requires_grad_(tensor.requires_grad)
        if isinstance(tensor, nn.Parameter):
            # For `isinstance`: a model may treat parameters differently.
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
            if threading.get_ident() == self.thread:  # a model of another thread is ignored
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
    shape = f"{tuple(tensor.shape)} {tuple(tensor.stride())} {tensor.storage_offset()}"
    return f"{shape} {tensor.dtype} {tensor.device} {tensor.is_conj()} {tensor.is_neg()}"


# The latest graphs, by what their models did when they were traced (`replay_key`).

_LATEST = 32
"""A graph holds names, literals and the constants of the model's code, never its weights."""


class Remembered:
    """Graphs by their replay keys, each with the key of its program."""

    def __init__(self) -> None:
        self._graphs: OrderedDict[str, tuple[Graph, str]] = OrderedDict()

    def graph(self, key: str | None, tensors: Mapping[str, Tensor]) -> tuple[Graph, str] | None:
        """The graph filed under a replay key, and the key of its program.

        None where these tensors choose other indices than those that the graph was read with.
        """
        if key is None or key not in self._graphs:
            return None
        graph, program = self._graphs[key]
        return (own_copy(graph), program) if graph.decides_the_same(tensors) else None

    def remember(self, key: str | None, graph: Graph, program: str) -> None:
        """Store a graph; the oldest is dropped when there are too many. Nothing is stored under
        None."""
        if key is None:
            return
        self._graphs[key] = (own_copy(graph), program)
        while len(self._graphs) > _LATEST:
            self._graphs.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._graphs.clear()


def own_copy(graph: Graph) -> Graph:
    """A graph with its own mappings and tensors, so that callers cannot change the stored one."""

    def copied(tensor: Tensor) -> Tensor:
        return tensor.detach().clone()

    return replace(
        graph,
        parameters=dict(graph.parameters),
        buffers=dict(graph.buffers),
        constants={name: copied(tensor) for name, tensor in graph.constants.items()},
    )


REMEMBERED = Remembered()
"""Of this process."""
