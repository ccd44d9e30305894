"""Compiled layers inside the user's modules: if no program can run a network as a whole, its layers
with enough zeros become separate compiled calls, and the rest stays as it is.

On a GPU these are linear layers in half precision: with 2:4 zeros by torch's own kernels, and for
up to four inputs with zeros anywhere by a kernel in Triton.
"""

import copy
import logging
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

from secateurs.base.gpu import by_triton
from secateurs.base.progress import Progress
from secateurs.errors import ShipError
from secateurs.graph import Example
from secateurs.ship.fast.choose import (
    RememberedWays,
    Timed,
    choose_ways,
    remembered_ways,
    untimed,
    wait_for,
)
from secateurs.ship.fast.compiled import KernelLibrary, Shortcut, shortcut
from secateurs.ship.fast.convolve import Choice
from secateurs.ship.fast.eight_bits import EightBits, eight_bit_kernel, in_blocks
from secateurs.ship.fast.module import FastReport, Fixed, Layer
from secateurs.ship.fast.operations import Conv, Planes, Segment, numbers, work
from secateurs.ship.fast.plan import groups_of, program_of
from secateurs.ship.fast.trace import apart_by, arguments

if TYPE_CHECKING:
    from secateurs.ship.fast.gpu_lists import Listed

_log = logging.getLogger("secateurs.ship")

DENSEST = 0.6  # with more non-zeros no linear layer of a batch was ever faster than torch's
SMALLEST = 4096  # weights; below, the call takes longer than what it computes
GAIN = 1.05  # what is less may be the noise of a timing
EXACT = 1e-4  # of the largest output: what rounding may differ by, and no more
ROUNDED = 0.05  # the same where eight bits were asked for: 0.01 is usual
# The same in half precision: sums of halves in another order.
HALVES = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
ROUNDS, CALLS = 9, 20
MOST_ROWS = 1024  # are timed; more only take longer
MOST_ON_GPU = 16384  # 2:4 gains where its calls, of half a millisecond, are less than the product

Rows: TypeAlias = tuple[tuple[int, bool], ...]
"""From how many samples on a layer runs compiled (True) or in torch; ascending, from 1."""


class CompiledLayer(Fixed):
    """What a compiled layer adds to its class: the layer is still an instance of that class, with
    its weight and bias, for code that reads them.

    Samples are rows of a linear layer, images of a convolution. For numbers of samples at which
    torch was faster, and for calls that the kernels cannot run (a gradient, other sizes), the layer
    computes as its class does.
    """

    what = "a network with compiled layers"
    _call: Shortcut
    _rows: Rows
    _dims: tuple[int, ...]
    _made: tuple[int, ...]

    @property
    def plain(self) -> nn.Module:  # type: ignore[override]
        """The layer itself, which has the tensors that it was made with."""
        return self

    def forward(self, x: Tensor) -> Any:
        """As the class does, to rounding."""
        dims, count = self._dims, len(self._dims)
        # Rows may have any number of leading dimensions, images have one.
        fits = x.ndim == count + 1 or (count == 1 and x.ndim > 1)
        if fits and x.shape[-count:] == dims and not torch.is_autocast_enabled(x.device.type):
            flat = x.reshape(-1, *dims)
            found = self._call(flat) if runs_compiled(self._rows, flat.shape[0]) else None
            if found is not None:
                return found if x.ndim == count + 1 else found.view(*x.shape[:-1], *self._made)
        return super().forward(x)

    def __getstate__(self) -> NoReturn:
        raise ShipError(
            "a compiled layer belongs to its process and machine: "
            "save the model it was made from and accelerate it there."
        )


def runs_compiled(rows: Rows, samples: int) -> bool:
    """Whether so many samples run compiled."""
    found = False
    for fewest, compiled in rows:
        if samples < fewest:
            break
        found = compiled
    return found


@cache
def compiled_kind(kind: type[nn.Module]) -> type[nn.Module]:
    """The class of a compiled layer of this class."""
    return type(f"Compiled{kind.__name__}", (CompiledLayer, kind), {"__module__": __name__})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A layer that has enough zeros, and what it is as a convolution on planes."""

    name: str
    layer: nn.Module
    conv: Conv | None  # not on a GPU
    density: float

    @property
    def weight(self) -> Tensor:
        return cast(Tensor, self.layer.weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CompiledCall:
    """A compiled call for it, and the numbers of samples for which it gains."""

    call: Shortcut
    keeps: Any
    dims: tuple[int, ...]
    made: tuple[int, ...]
    rows: Rows
    report: Layer


def compiled_layers(
    model: nn.Module,
    example: Example,
    kernels: KernelLibrary | None,
    dtype: torch.dtype,
    *,
    timed: bool,
    eight_bits: bool,
    say: Progress,
) -> nn.Module | tuple[str, ...]:
    """A copy of the model, of its own class, in which every layer that gains by it is compiled; its
    `report` says how each layer runs. If none gains, the reasons, layer by layer.

    kernels: None on a GPU.
    eight_bits: linear layers whose non-zeros form 1×4 blocks are rounded to eight bits.

    The copy has its own values, except for the weights of compiled layers, and takes no gradients.
    """
    start = time.perf_counter()
    found = _candidates(model, dtype, gpu=kernels is None)
    shapes = _shapes(model, example, [one.layer for one in found])
    remembered = RememberedWays(path=None)
    if timed and kernels is not None:
        remembered = remembered_ways(kernels)
    made: dict[str, _CompiledCall] = {}
    lines: list[str] = []
    known: dict[Any, Any] = {}
    run = eight_bit_kernel() if eight_bits and dtype == torch.float32 else None
    for done, one in enumerate(found, 1):
        say(f"timing layer {done} of {len(found)}: {one.name}")
        shape = shapes.get(one.layer)
        if shape is None:
            lines.append(f"{one.name}: not called, or not with tensors of its own kind")
            continue
        result: _CompiledCall | str
        if kernels is None or one.conv is None:
            result = _on_gpu(one, shape, dtype, known if timed else None, remembered)
        else:
            if run is not None and not isinstance(one.layer, nn.Conv2d) and in_blocks(one.conv):
                ready = _round(one.conv, run)
            else:
                ways = remembered if timed else None
                ready = _program(one, one.conv, shape, kernels, dtype, ways)
            result = _compile(one, shape, ready, dtype, known if timed else None, remembered)
        if isinstance(result, str):
            lines.append(f"{one.name}: {result}")
        else:
            made[one.name] = result
    remembered.save()
    if not made:
        return tuple(lines)
    fast = _copy(model, {one.name: one.layer for one in found if one.name in made}, made)
    fast.report = FastReport(  # type: ignore[assignment]
        layers=tuple(one.report for one in made.values()),
        groups=(),
        outside=(*lines, f"everything else of {type(model).__name__}"),
        seconds={},
        threads=torch.get_num_threads(),
        built_in=time.perf_counter() - start,
        remembered=remembered.used,
    )
    return fast


def _candidates(model: nn.Module, dtype: torch.dtype, *, gpu: bool) -> list[_Candidate]:
    found = []
    for name, layer in model.named_modules():
        weight = layer._parameters.get("weight")
        if weight is None or weight.dtype != dtype or weight.numel() < SMALLEST:
            continue
        density = int(torch.count_nonzero(weight)) / weight.numel()
        if density > DENSEST or hasattr(layer, "parametrizations") or "forward" in vars(layer):
            continue
        conv = None if gpu else _as_conv(layer)
        if conv is not None or (gpu and type(layer) is nn.Linear):
            found.append(_Candidate(name=name, layer=layer, conv=conv, density=density))
    return found


def _as_conv(layer: nn.Module) -> Conv | None:
    """A layer as a convolution; None if its class may compute something else."""
    kind, weight, bias = type(layer), cast(Tensor, layer.weight), layer.bias
    options: dict[str, Any] = {}
    if kind is nn.Linear:
        values = numbers(weight)[:, :, None, None]
    # By its full name, since transformers need not be installed.
    elif f"{kind.__module__}.{kind.__name__}" == "transformers.pytorch_utils.Conv1D":
        values = numbers(weight).T.copy()[:, :, None, None]
    elif isinstance(layer, nn.Conv2d) and kind is nn.Conv2d:
        if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            return None
        values = numbers(weight)
        options = {n: getattr(layer, n) for n in ("stride", "padding", "dilation", "groups")}
    else:
        return None
    made = np.zeros(len(values)) if bias is None else numbers(cast(Tensor, bias))
    return Conv(source="x", to="y", weight=values, bias=made, **options)


@torch.no_grad()
def _shapes(
    model: nn.Module, example: Example, layers: list[nn.Module]
) -> dict[nn.Module, tuple[torch.Size, torch.Size]]:
    """For every layer that is called, its largest input and the output for it."""
    seen: dict[nn.Module, tuple[torch.Size, torch.Size]] = {}

    def see(layer: nn.Module, args: tuple[Any, ...], made: Any) -> None:
        if len(args) == 1 and isinstance(args[0], Tensor) and isinstance(made, Tensor):
            before = seen.get(layer)
            if before is None or args[0].numel() > before[0].numel():
                seen[layer] = args[0].shape, made.shape

    args, kwargs = arguments(example)
    handles = [layer.register_forward_hook(see) for layer in layers]
    try:
        model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A layer ready to run, before it is known whether it gains."""

    call: Shortcut
    keeps: Any  # what the call points to
    dims: tuple[int, ...]
    made: tuple[int, ...]
    way: str
    groups: tuple[int, ...]
    exact: float  # how far outputs may be apart
    most: int | None = None  # samples that it takes; None takes any number


def _program(
    one: _Candidate,
    conv: Conv,
    shape: tuple[torch.Size, torch.Size],
    kernels: KernelLibrary,
    dtype: torch.dtype,
    remembered: RememberedWays | None,
) -> _Call:
    linear = not isinstance(one.layer, nn.Conv2d)
    dims, made = (tuple(s[-1:] if linear else s[-3:]) for s in shape)
    planes: dict[str, Planes] = {
        name: (some[0], 1, 1) if linear else cast(Planes, some)
        for name, some in (("x", dims), ("y", made))
    }
    segment = Segment(
        operations=[conv], enters=(("in", "x"),), leaves=(("out", "y"),),
        dims={"out": made}, planes=planes,
    )  # fmt: skip
    guess = untimed(kernels, dtype, planes)
    groups = groups_of([segment], dtype, guess)
    timing = guess
    if remembered is not None:
        timing = Timed(library=kernels, dtype=dtype, planes=planes, remembered=remembered)
    chosen: dict[tuple[str, int], Choice] = choose_ways([conv], groups, timing)
    program = program_of(
        segment, groups, kernels, dtype, lambda conv, group: chosen[conv.to, group]
    )
    return _Call(
        call=shortcut(program, dtype, dims, made, prod(dims) + work(conv, planes)),
        keeps=program, dims=dims, made=made, way=str(chosen[conv.to, groups[0]]),
        groups=groups, exact=EXACT,
    )  # fmt: skip


def _round(conv: Conv, run: Callable[..., int]) -> _Call:
    weight = conv.weight[:, :, 0, 0]
    call = EightBits(run, weight, conv.bias)
    return _Call(
        call=call, keeps=call, dims=weight.shape[1:], made=weight.shape[:1], way="eight bits",
        groups=(128, 16, 1), exact=ROUNDED,
    )  # fmt: skip


def pack_2_4(weight: Tensor) -> Tensor:
    """A weight with 2:4 zeros in the format of torch's kernels."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The PyTorch API of SparseSemiStructured")
        packed: Tensor = torch.sparse.to_sparse_semi_structured(weight.detach().contiguous())
    return packed


def _pack(one: _Candidate) -> _Call | str:
    """A linear layer by torch's own kernels for 2:4 zeros, or why it cannot run by them."""
    weight, bias = one.weight.detach(), cast(Tensor | None, one.layer.bias)
    if weight.dtype not in HALVES:
        return f"GPUs have 2:4 kernels for half precision, not {weight.dtype}: model.bfloat16()"
    if weight.shape[1] % 4 or int((weight != 0).reshape(-1, 4).sum(1).max()) > 2:
        return 'its zeros are not 2:4 along its inputs: prune_(…, pattern="2:4")'
    try:
        packed = pack_2_4(weight)
    except (RuntimeError, NotImplementedError, ValueError) as problem:
        return f"torch has no 2:4 kernel for it ({str(problem).splitlines()[0]})"

    def call(x: Tensor) -> Tensor | None:
        if torch.is_grad_enabled() and x.requires_grad:
            return None
        return torch.nn.functional.linear(x, packed, bias)

    return _Call(
        call=call, keeps=packed, dims=(weight.shape[1],), made=(weight.shape[0],), way="2:4",
        groups=(4096, 1024, 128, 16, 1), exact=HALVES[weight.dtype],
    )  # fmt: skip


@cache
def lists(device: torch.device) -> "type[Listed] | None":
    """Products by lists, tried at the first call; None where a device has no such kernel, or
    refuses it (a log line says why).
    """

    def make(device: torch.device) -> "type[Listed]":
        from secateurs.ship.fast.gpu_lists import try_lists

        return try_lists(device)

    return by_triton(device, make, what="lists of weights", fallback="products are dense", log=_log)


def _list(one: _Candidate) -> _Call | str:
    """A linear layer by lists of its non-zeros, for few inputs at once, or why it cannot run so."""
    weight, bias = one.weight.detach(), cast(Tensor | None, one.layer.bias)
    made = lists(weight.device)
    if made is None or weight.dtype not in HALVES:
        return ""
    from secateurs.ship.fast.gpu_lists import MOST, Product

    try:
        listed = made.of(weight)
    except ShipError as problem:
        return f"; {problem}"
    product = Product(listed, None if bias is None else bias.detach())

    def call(x: Tensor) -> Tensor | None:
        other = x.dtype != listed.values.dtype or x.device != listed.values.device
        if other or not 0 < len(x) <= MOST or (torch.is_grad_enabled() and x.requires_grad):
            return None
        return product(x)

    return _Call(
        call=call, keeps=listed, dims=(weight.shape[1],), made=(weight.shape[0],), way="lists",
        groups=(4, 3, 2, 1), exact=HALVES[weight.dtype], most=MOST,
    )  # fmt: skip


def _on_gpu(
    one: _Candidate,
    shape: tuple[torch.Size, torch.Size],
    dtype: torch.dtype,
    known: dict[Any, Any] | None,
    remembered: RememberedWays,
) -> _CompiledCall | str:
    """A linear layer by torch's own kernels for 2:4 zeros and by lists, each for the numbers of
    samples for which it is the fastest; or why by neither.
    """
    packed, listed = _pack(one), _list(one)
    many: _CompiledCall | str = (
        packed
        if isinstance(packed, str)
        else _compile(one, shape, packed, dtype, known, remembered)
    )
    if isinstance(listed, str):
        return many + listed if isinstance(many, str) else many
    if isinstance(many, str):
        few = _compile(one, shape, listed, dtype, known, remembered)
        return f"{many}; by lists: {few}" if isinstance(few, str) else few
    return _both(one, shape, listed, many, dtype, known, remembered)


def _both(
    one: _Candidate,
    shape: tuple[torch.Size, torch.Size],
    listed: _Call,
    many: _CompiledCall,
    dtype: torch.dtype,
    known: dict[Any, Any] | None,
    remembered: RememberedWays,
) -> _CompiledCall:
    """The layer by 2:4 kernels, and by lists for those few samples for which they are faster
    still.
    """

    def packed(x: Tensor) -> Any:
        found = many.call(x) if runs_compiled(many.rows, len(x)) else None
        return one.layer(x) if found is None else found

    few = _compile(one, shape, listed, dtype, known, remembered, beside=packed)
    if isinstance(few, str):
        return many

    def call(x: Tensor) -> Tensor | None:
        if runs_compiled(few.rows, len(x)):
            return few.call(x)
        return many.call(x) if runs_compiled(many.rows, len(x)) else None

    report = replace(many.report, ways=(*few.report.ways, *many.report.ways))
    return replace(many, call=call, keeps=(few.keeps, many.keeps), rows=((1, True),), report=report)


def _compile(
    one: _Candidate,
    shape: tuple[torch.Size, torch.Size],
    ready: _Call,
    dtype: torch.dtype,
    known: dict[Any, Any] | None,
    remembered: RememberedWays,
    *,
    beside: Callable[[Tensor], Any] | None = None,
) -> _CompiledCall | str:
    """The layer as a compiled call, or why it stays in torch; known timings are reused, and those
    of earlier builds. It is timed beside the layer, or what is given in its place."""
    most = MOST_ROWS if one.conv is not None else MOST_ON_GPU
    samples = ready.most or min(most, prod(shape[0][: -len(ready.dims)]))
    x = torch.randn((samples, *ready.dims), generator=torch.Generator().manual_seed(0))
    x = x.to(one.weight.device, dtype)
    with torch.inference_mode():
        wanted, found = one.layer(x), ready.call(x)
    apart = float("inf") if found is None else apart_by(wanted.double(), found.double())
    if not apart <= ready.exact:
        return f"its kernels differ from torch by {apart:.1g} of the largest output"
    said = [ready.way] + ([f"{apart:.1g} of the largest output apart"] if apart > EXACT else [])
    ends: Rows = () if ready.most is None else ((ready.most + 1, False),)
    rows: Rows = ((1, True), *ends)
    if known is not None:
        key = (
            *(ready.made, one.weight.shape, shape[0][-len(ready.dims) :]),
            getattr(one.layer, "stride", None),
            *(round(20 * one.density), samples, ready.exact),
            # The ways of a program are those of its shape; on a GPU a layer is tried by two, and
            # the second one beside the first.
            *((ready.way, beside is None) if one.conv is None else ()),
        )
        if key not in known:
            named = (key, ready.way, str(dtype), type(one.layer).__name__, torch.get_num_threads())
            earlier = remembered.find_times(named, {"torch", "compiled"})
            if earlier is None:
                taken = _time(
                    beside or one.layer, ready.call, ready.dims, x[:0], (*ready.groups, samples)
                )
                earlier = {n: {"torch": a, "compiled": b} for n, (a, b) in taken.items()}
                remembered.note_times(named, earlier)
            known[key] = {n: (took["torch"], took["compiled"]) for n, took in earlier.items()}
        times = known[key]
        rows = (*((n, ours * GAIN <= theirs) for n, (theirs, ours) in times.items()), *ends)
        gains = ", ".join(f"{theirs / ours:.2f}× for {n}" for n, (theirs, ours) in times.items())
        if not any(gain for _, gain in rows):
            return f"no gain ({gains})"
        said.append(gains)
    _, height, width = (*ready.made, 1, 1)[:3]
    report = Layer(
        place=f"{one.name} ({type(one.layer).__name__})", density=one.density,
        macs=int(torch.count_nonzero(one.weight)) * height * width, ways=("; ".join(said),),
    )  # fmt: skip
    return _CompiledCall(
        call=ready.call, keeps=ready.keeps, dims=tuple(ready.dims), made=tuple(ready.made),
        rows=rows, report=report,
    )  # fmt: skip


def _time(
    layer: Callable[[Tensor], Any],
    call: Shortcut,
    dims: tuple[int, ...],
    like: Tensor,
    samples: tuple[int, ...],
) -> dict[int, tuple[float, float]]:
    """Median seconds of the layer in torch and compiled, by the number of samples."""
    times = {}
    with torch.inference_mode():
        for n in sorted({min(n, max(samples[-1], 16)) for n in (1, *samples)}):
            x = torch.rand((n, *dims)).to(like)
            spent: tuple[list[float], list[float]] = ([], [])
            # A GPU is given the next call while it computes this one.
            calls = 1 if x.is_cpu else CALLS
            for _ in range(ROUNDS):
                # In turns, so that a temporary disturbance of the machine affects both.
                for run, mine in zip((layer, call), spent, strict=True):
                    start = time.perf_counter()
                    for _ in range(calls):
                        run(x)
                    wait_for(x.device)
                    mine.append((time.perf_counter() - start) / calls)
            times[n] = cast(tuple[float, float], tuple(statistics.median_low(s[1:]) for s in spent))
    return times


def _copy(
    model: nn.Module, layers: dict[str, nn.Module], made: dict[str, _CompiledCall]
) -> nn.Module:
    """A deep copy; the weights of compiled layers, which are hardly ever read, are shared."""
    memo: dict[int, Any] = {}
    for layer in layers.values():
        weight = cast(Tensor, layer.weight)
        memo[id(weight)] = nn.Parameter(weight.detach(), requires_grad=False)
    fast = copy.deepcopy(model, memo)
    fast.requires_grad_(False)
    for name, one in made.items():
        layer = fast.get_submodule(name)
        layer.__class__ = compiled_kind(cast(Any, type(layer)))
        # Bypasses nn.Module's own way, which looks for parameters and modules.
        vars(layer).update(
            _call=one.call, _keeps=one.keeps, _rows=one.rows, _dims=one.dims, _made=one.made
        )
    return fast
