"""A pretend GPU, so that tests/gpu runs where there is none: tensors that say `cuda:0` and compute
on the CPU.

    python -m pytest -p pretend tests/gpu

They raise where a GPU raises: when an operation is given tensors, or a generator, of two devices.
And they count what the speed of a GPU hangs on (`counted`): launches, waits for the device, and
bytes that travel. A view launches nothing; a foreach operation launches what torch's own rules for
its fast path say; everything else is one launch. Memory, streams and time are not pretended, and
kernels that are not torch's own (Triton's, captured graphs) do not run.

A process that began to pretend pretends to its end.
"""

import contextlib
import copy
import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


def _load_device() -> str:
    """Tell torch of the device, before it is imported; afterwards it has looked and found none.
    Returns why not, where that cannot be.
    """
    if "torch" in sys.modules:
        return "torch was imported before"
    torch = Path(importlib.util.find_spec("torch").origin).parent
    if (torch / "lib/libtorch_cuda.so").exists():
        return "this torch has CUDA's own device"
    headers = [torch / "include", torch / "include/torch/csrc/api/include"]
    build = (
        "import sys; from pathlib import Path; from secateurs.base import native;"
        "print(native.build(Path(sys.argv[1]), native.cache_folder() / sys.argv[2]))"
    )
    # Torch's headers belong to its version.
    version = f"torch-{importlib.metadata.version('torch')}"
    built = subprocess.run(
        [sys.executable, "-c", build, str(Path(__file__).with_suffix(".cpp")), version],
        env={**os.environ, "CPLUS_INCLUDE_PATH": os.pathsep.join(map(str, headers))},
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        return built.stderr.strip().splitlines()[-1]
    for library in (torch / "lib/libc10.so", torch / "lib/libtorch_cpu.so", built.stdout.strip()):
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    return ""


WHY_NOT = _load_device()

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.optim.optimizer import _foreach_supported_types  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

CUDA = torch.device("cuda:0")


# What is counted.


@dataclass
class Counts:
    """What happened on the device: launches by operation; waits by operation and line."""

    launches: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    slow: Counter[str] = field(default_factory=Counter)
    """Foreach operations that fell back to one launch a tensor, with the reason."""
    to_device: int = 0
    to_host: int = 0
    """Bytes that travelled."""

    @property
    def launched(self) -> int:
        return self.launches.total()

    @property
    def waited(self) -> int:
        return self.waits.total()


_counting: list[Counts] = []


@contextlib.contextmanager
def counted() -> Iterator[Counts]:
    """Count what is done inside."""
    _counting.append(Counts())
    try:
        yield _counting[-1]
    finally:
        _counting.pop()


def _launch(name: str, count: int = 1, why: str = "") -> None:
    for counts in _counting:
        counts.launches[name] += count
        if why:
            counts.slow[f"{name}: {why}"] += 1


def _wait(name: str) -> None:
    for counts in _counting:
        counts.waits[f"{name} at {_line()}"] += 1


def _line() -> str:
    """The innermost line of the library, or of whoever else called torch."""
    frame, here = sys._getframe(1), (__file__, torch.__path__[0])
    first = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if "/secateurs/" in name:
            return f"{name.split('/secateurs/')[-1]}:{frame.f_lineno}"
        first = first or ("" if name.startswith(here) else f"{name}:{frame.f_lineno}")
        frame = frame.f_back
    return first


# The device's tensors.


class OnDevice(torch.Tensor):
    """A tensor that says it is on the device; `held` is the CPU tensor with its numbers."""

    held: Tensor
    family: "list[weakref.ref[OnDevice]]"
    """Views of each other, whose changes torch counts together."""

    @staticmethod
    def __new__(cls, held: Tensor, of: "OnDevice | None" = None) -> "OnDevice":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=CUDA,
        )
        made.held = held
        made.family = [] if of is None else of.family
        made.family.append(weakref.ref(made))
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents=None):
        return f"{self.held!r} on {self.device}"

    def numpy(self, *_, **__):
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor"
            " to host memory first."
        )

    __array__ = numpy

    def tolist(self):
        return self.cpu().tolist()

    def data_ptr(self):
        return self.held.data_ptr()

    def untyped_storage(self):
        return self.held.untyped_storage()

    @property
    def data(self):
        found = torch.Tensor.data.__get__(self)
        found.family = [weakref.ref(found)]  # changes through it are not counted
        return found

    @data.setter
    def data(self, value):
        self.held = value.held
        torch.Tensor.data.__set__(self, value)

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            made = OnDevice(self.held.detach().clone(memory_format=torch.preserve_format))
            _launch("clone")
            made.requires_grad_(self.requires_grad)
            if getattr(self, "_is_param", False):
                made._is_param = True
            if self.grad is not None:
                made.grad = copy.deepcopy(self.grad, memo)
            memo[id(self)] = made
        return memo[id(self)]


# One operation.

VIEWS = frozenset(
    [
        *("view", "_unsafe_view", "reshape", "_reshape_alias", "view_as", "expand", "expand_as"),
        *("t", "transpose", "permute", "movedim", "slice", "select", "narrow", "unfold"),
        *("unsqueeze", "squeeze", "detach", "alias", "as_strided", "diagonal", "unbind", "lift"),
        *("split", "split_with_sizes", "unsafe_split", "chunk", "unsafe_chunk", "lift_fresh"),
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"),
        *("view_as_real", "view_as_complex", "real", "imag", "_conj", "set_", "is_same_size"),
        *("is_pinned", "record_stream"),
    ]
)
"""What launches nothing."""

WAITS = frozenset(
    [
        *("_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "nonzero", "argwhere"),
        *("masked_select", "bincount", "_unique", "_unique2", "unique_dim", "unique_consecutive"),
    ]
)
"""What the host cannot have before the device is done."""

NUMBERS = ["_local_scalar_dense", "item", "is_nonzero"]
"""What copies one number to the host."""

HOST = [*NUMBERS, "equal", "allclose"]
"""Whose result is the host's."""

NO_NUMBERS = ["cat", "stack", "index_select", "gather", "embedding", "bmm", "mm", "addmm"]
"""What takes no single number of the host either."""

INDEXING = ["index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"]

PER_LAUNCH = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""How many tensors one launch of foreach takes, by the number of its lists (and at most 320 pieces
of 65,536 entries)."""


def _run(func, args, kwargs):
    name = func._schema.name.split("::")[1]
    given = tree_leaves((args, kwargs))
    there = [value for value in given if isinstance(value, OnDevice)]
    here = [x for x in given if isinstance(x, Tensor) and not isinstance(x, OnDevice)]
    wanted = kwargs.get("device")
    target = torch.device(wanted).type if wanted is not None else "cuda" if there else "cpu"
    if not there and target != "cuda":
        return func(*args, **kwargs)
    if target == "cuda" and wanted is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if name == "_to_copy" and wanted is not None:
        return _moved(_computed(func, args, kwargs), target, there)
    if name == "copy_" and there and here:
        return _copied(func, args, kwargs)
    if there:
        _refuse_mixture(name, args, here)
    drawn = [x for x in given if isinstance(x, torch.Generator) and x.device.type == "cpu"]
    if drawn and target == "cuda":
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    _count(name, args, kwargs)
    result = _computed(func, args, kwargs)
    _count_changes(func, args, kwargs)
    if name in HOST or target != "cuda":
        return result
    writes = func._schema.is_mutable and (name.endswith("_") or _writes_out(func._schema))
    known = {id(value.held): value for value in there} if writes else {}
    of = {value.held.untyped_storage()._cdata: value for value in there}
    return tree_map(lambda x: known[id(x)] if id(x) in known else _placed(x, of), result)


def _count_changes(func, args, kwargs):
    """Torch counts the changes of a tensor for all of its views, which are tensors of their own
    here."""
    if not func._schema.is_mutable:
        return
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[number] if number < len(args) else kwargs.get(argument.name)
            for tensor in tree_leaves(given):
                if isinstance(tensor, OnDevice):
                    alive = [found for one in tensor.family if (found := one()) is not None]
                    torch.autograd.graph.increment_version(alive)


def _computed(func, args, kwargs):
    """The operation on the CPU's numbers; a generator of the device draws as one of the CPU."""
    draws = {}

    def own(value):
        if isinstance(value, torch.Generator) and value.device.type == "cuda":
            draws[value] = torch.Generator()
            draws[value].set_state(value.get_state())
            return draws[value]
        return value.held if isinstance(value, OnDevice) else value

    args, kwargs = tree_map(own, args), tree_map(own, kwargs)
    if func is torch.ops.aten.convolution_backward.default:
        result = _convolved_back(*args, **kwargs)
    else:
        result = func(*args, **kwargs)
    for generator, drawn in draws.items():
        generator.set_state(drawn.get_state())
    return result


def _convolved_back(grad, images, weight, *args, **kwargs):
    """As `aten.convolution_backward`, whose gradients have the layout of what they belong to.

    Torch 2.13.0 crashes here on processors without AVX-512, where tensors are in channels_last, of
    few channels, and kernels are 1 × 1 with stride 2: no card does, so the passes go another way.
    (`contiguous` would leave such kernels alone, which are contiguous in either layout.)
    """
    given = [
        torch.empty_like(tensor, memory_format=torch.contiguous_format).copy_(tensor)
        for tensor in (grad, images, weight)
    ]
    of_images, of_weight, of_bias = torch.ops.aten.convolution_backward(*given, *args, **kwargs)

    def like(made, tensor):
        last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
        if made is None or not last:
            return made
        return made.contiguous(memory_format=torch.channels_last)

    return like(of_images, images), like(of_weight, weight), of_bias


def _placed(value, of=None):
    plain = isinstance(value, Tensor) and not isinstance(value, OnDevice)
    if not plain:
        return value
    place = value.untyped_storage()._cdata
    return OnDevice(value, (of or {}).get(place))


def _moved(result, target, there):
    """A tensor that was copied to another device, or to another dtype on its own."""
    if target == "cuda":
        _launch("_to_copy")
        if not there:
            _travelled("to_device", result)
        return OnDevice(result)
    if target == "cpu":
        _wait("copy to the host")
        _travelled("to_host", result)
    # A copy even where the numbers were the CPU's already.
    return result.clone() if any(result is value.held for value in there) else result


def _copied(func, args, kwargs):
    """`copy_` between the devices."""
    target, source, *more = args
    waits = not (more[0] if more else kwargs.get("non_blocking", False))
    if isinstance(target, OnDevice):
        _computed(func, args, kwargs)
        _count_changes(func, args, kwargs)
        _launch("copy_")
        _travelled("to_device", target)
    elif hasattr(target, "pinned") and not waits:
        # It is there when an event says so, and not before.
        _on_their_way.append((target, source.held.clone()))
        _launch("copy_")
        _travelled("to_host", target)
    else:
        _computed(func, args, kwargs)
        _wait("copy to the host")
        _travelled("to_host", target)
    return target


_on_their_way: list[tuple[Tensor, Tensor]] = []


class Event:
    """What was launched before `record`. A device that is `behind` has not done it until somebody
    waits."""

    behind = False

    def record(self, *_):
        self._copies = [*_on_their_way]
        _on_their_way.clear()

    def query(self):
        if not self.behind:
            self._arrive()
        return not self.behind

    def synchronize(self):
        _wait("event")
        self._arrive()

    def _arrive(self):
        while self._copies:
            target, value = self._copies.pop(0)
            target.copy_(value)


def _travelled(way, tensor):
    for counts in _counting:
        setattr(counts, way, getattr(counts, way) + tensor.numel() * tensor.element_size())


def _refuse_mixture(name, args, here):
    """Tensors of the host beside those of the device: only single numbers, and indices, may be."""
    first = args[0] if args else None
    indexes = name in INDEXING and isinstance(first, OnDevice)
    shaped = [value for value in here if value.dim() > 0 and not value.is_meta]
    if indexes and shaped:
        _wait("index of the host")
    written = name.endswith("_") and isinstance(first, Tensor) and not isinstance(first, OnDevice)
    if (shaped and not indexes) or (here and (written or name in NO_NUMBERS)):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0"
            f" and cpu! (aten::{name})"
        )


def _writes_out(schema):
    return any(argument.is_out for argument in schema.arguments if argument.kwarg_only)


def _count(name, args, kwargs):
    if not _counting:
        return
    masked = name in INDEXING and any(
        isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)
        for index in args[1] or ()
    )
    lengths = name == "repeat_interleave" and kwargs.get("output_size") is None
    if name in WAITS or masked or lengths:
        _wait(name)
    if name.startswith(("_foreach_", "_fused_")):
        count, why = _launches(name, args, kwargs)
        _launch(name, count, why)
    elif name not in VIEWS and name not in NUMBERS:
        _launch(name)


def _launches(name, args, kwargs):
    """Launches of one foreach operation, and what keeps it from its fast path."""
    lists = [x for x in (*args, *kwargs.values()) if isinstance(x, list | tuple) and x]
    lists = [x for x in lists if all(isinstance(value, Tensor) for value in x)]
    if not lists:
        return 1, ""
    first = lists[0]
    lists = [x for x in lists if len(x) == len(first)]
    why = next((w for x in lists for w in map(_unlike, first, x, [name] * len(x)) if w), "")
    if not why and len({value.dtype for value in first}) > 1:
        why = "several dtypes"
    if why:
        if name.startswith("_fused_"):
            raise RuntimeError(f"{name} would fail on a GPU: {why}")
        return len(first), why
    # An operation that is not in place writes one list more.
    tensors = PER_LAUNCH.get(len(lists) + (not name.endswith("_")), 30)
    pieces = sum(-(-value.numel() // 65536) for value in first)
    return max(-(-len(first) // tensors), -(-pieces // 320)), ""


def _unlike(first, other, name):
    if name.startswith("_fused_adam") and other.dim() == 0:
        return ""  # counts of steps
    if first.shape != other.shape:
        return f"shapes {tuple(first.shape)} and {tuple(other.shape)}"
    strides = zip(first.shape, first.stride(), other.stride(), strict=True)
    if any(size > 1 and one != two for size, one, two in strides):
        return f"strides {first.stride()} and {other.stride()}"
    if first.dtype != other.dtype and name != "_foreach_copy_":
        return f"{first.dtype} and {other.dtype}"
    dense = torch.ops.aten.is_non_overlapping_and_dense.default(other.held)
    return "" if dense else f"strides {other.stride()}"


# How a process begins to pretend.


class _Operations(TorchDispatchMode):
    """Operations that make tensors on the device have none among their arguments."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """What torch does before any operation is seen: "cuda" without a number, and `torch.tensor`."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = {**(kwargs or {})}
        if "device" in kwargs:
            kwargs["device"] = _numbered(kwargs["device"])
        if kwargs.get("pin_memory"):
            made = self.__torch_function__(func, types, args, {**kwargs, "pin_memory": False})
            made.pinned = True
            return made
        if func is torch.Tensor.cuda:
            return args[0].to(CUDA)
        if func is torch.Tensor.to:
            args = (args[0], *map(_numbered, args[1:]))
        if func in (torch.tensor, torch.as_tensor, torch.scalar_tensor):
            device = kwargs.get("device")
            if device is not None and torch.device(device).type == "cuda":
                del kwargs["device"]
                learns = kwargs.pop("requires_grad", False)
                return func(*args, **kwargs).to(device).requires_grad_(learns)
        return func(*args, **kwargs)


def _numbered(device):
    return CUDA if isinstance(device, str | torch.device) and str(device) == "cuda" else device


_begun = contextlib.ExitStack()


def begin() -> None:
    """Pretend from now on, where that can be."""
    if not WHY_NOT:
        _replace_questions()
        _begun.enter_context(_Operations())
        _begun.enter_context(_Functions())


def _replace_questions():
    """What is asked of torch.cuda, which knows of no device."""
    answers = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: False,
        "is_current_stream_capturing": lambda: False,
        "is_bf16_supported": lambda *_, **__: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda *_: "pretend",
        "get_device_capability": lambda *_: (0, 0),
        "synchronize": lambda *_: _wait("synchronize"),
        "empty_cache": lambda: None,
        "memory_allocated": lambda *_: 0,
        "max_memory_allocated": lambda *_: 0,
        "reset_peak_memory_stats": lambda *_: None,
        "manual_seed_all": lambda *_: None,
        "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda *_, **__: None,
        "default_generators": (torch.Generator(),),
        "device": lambda *_: contextlib.nullcontext(),
        "Event": Event,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    # It lists torch's functions by their identity, so before one is replaced.
    importlib.import_module("torch._dynamo")
    alike = torch._has_compatible_shallow_copy_type
    torch._has_compatible_shallow_copy_type = lambda one, two: (
        isinstance(one, OnDevice) == isinstance(two, OnDevice) and alike(one, two)
    )
    _foreach_supported_types.append(OnDevice)


def pytest_configure(config):
    begin()


def pytest_report_header(config):
    return f"no pretend GPU: {WHY_NOT}" if WHY_NOT else "a pretend GPU"
