"""What pruning costs and buys on a GPU, in one command that needs nothing but this folder, Python
and torch: no installation, no data.

    PYTHONPATH=src:tests python3 benchmarks/gpu.py --seconds 500 --out results
    PYTHONPATH=src:tests python3 benchmarks/gpu.py --parts steps kernels
    PYTHONPATH=src:tests python3 benchmarks/gpu.py --rehearse    small, where there is no GPU

Parts stand in order of their worth, each in a process of its own with its own limit: what crashes
or hangs takes nothing else along. Rows go to rows.jsonl as soon as they are measured, and tables.md
has them as tables at the end. A time is the median of blocks that end when the device is done, and
ways take turns, so that a ratio compares the same minutes.

A rehearsal runs the same code with small sizes on the pretend GPU of the tests, and kernels in
Triton's interpreter; what neither can do says so in its row.

Training on CIFAR-10 on a card is a command of its own: `python -m experiments.cifar_card`.
"""

import argparse
import copy
import json
import math
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

REHEARSAL = "--rehearse" in sys.argv
if REHEARSAL:
    os.environ["TRITON_INTERPRET"] = "1"
    import pretend  # before torch, which looks for devices when it is imported

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import secateurs as sc  # noqa: E402
from secateurs.optim import (  # noqa: E402
    HAM,
    DGating,
    Factorized,
    FactorizedSGD,
    PowerPropagation,
    RigL,
    keep,
)
from secateurs.optim.factorized.maths import StepRule  # noqa: E402
from secateurs.optim.factorized.step import AllAtOnce  # noqa: E402

try:
    from secateurs.optim import gpu_clear  # these import Triton
    from secateurs.optim.factorized.gpu_step import WholeStep
    from secateurs.ship.fast import gpu_lists
except ImportError:
    gpu_lists = None

LR, MOMENTUM = 0.1, 0.9
BATCH, WIDTH = (4, 2) if REHEARSAL else (128, 64)
DEVICE = "cpu" if REHEARSAL and pretend.WHY_NOT else "cuda"
REAL = not REHEARSAL


class NotHere(Exception):
    """What this machine cannot do."""


@dataclass(slots=True)
class Part:
    """The rows of a part, written as they come, and the time it has left."""

    name: str
    folder: Path
    until: float
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def left(self) -> float:
        return self.until - time.monotonic()

    def row(self, **values: object) -> None:
        """Keep a row, whatever happens next."""
        shown = {key: _rounded(value) for key, value in values.items()}
        self.rows.append(shown)
        line = json.dumps({"part": self.name, **shown}, default=str)
        with (self.folder / "rows.jsonl").open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)

    @contextmanager
    def trying(self, **what: object) -> Iterator[None]:
        """Let one way fail alone."""
        try:
            yield
        except NotHere as reason:
            self.row(**what, skipped=str(reason))
        except Exception as error:
            places = traceback.extract_tb(error.__traceback__)
            ours = [place for place in places if "/secateurs" in place.filename] or places
            said = f"{type(error).__name__}: {error}"[:400]
            self.row(**what, failed=said, at=f"{ours[-1].filename}:{ours[-1].lineno}")
            (self.folder / "errors.log").open("a").write(traceback.format_exc() + "\n")


def _rounded(value: object) -> object:
    return float(f"{value:.5g}") if isinstance(value, float) else value


PARTS: dict[str, tuple[float, Callable[[Part], None]]] = {}
"""Seconds at most, and what is done."""


def part(name: str, seconds: float) -> Callable[[Callable[[Part], None]], Callable[[Part], None]]:
    def register(run: Callable[[Part], None]) -> Callable[[Part], None]:
        PARTS[name] = seconds, run
        return run

    return register


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed(
    ways: dict[str, Callable[[], object]], *, seconds: float, rounds: int = 30, block: int = 10
) -> dict[str, list[float]]:
    """Milliseconds of a call in every round, by name; ways take turns while the time lasts."""
    if REHEARSAL:
        rounds, block = 1, 1
    found: dict[str, list[float]] = {name: [] for name in ways}
    end = time.monotonic() + seconds
    for name in ways:
        ways[name]()
    for number in range(rounds):
        if number > 0 and time.monotonic() > end:
            break
        for name, run in ways.items():
            wait()
            start = time.perf_counter()
            for _ in range(block):
                run()
            wait()
            found[name].append((time.perf_counter() - start) * 1e3 / block)
    return found


# What is measured: networks and methods.


class Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.last = nn.BatchNorm2d(after)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            self.shortcut.append(nn.Conv2d(before, after, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        y = self.last(self.second(F.relu(self.norm(self.first(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for images of 32×32 pixels."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks, before = [], width
        for stage in range(4):
            for number in range(2):
                after = width << stage
                blocks.append(Block(before, after, 2 if stage and not number else 1))
                before = after
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(before, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        return self.head(x.mean((2, 3)))


def resnet() -> ResNet18:
    torch.manual_seed(0)
    model = ResNet18(WIDTH).to(DEVICE)
    return model.to(memory_format=torch.channels_last)


def batch() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, 3, 32, 32, generator=draw).to(DEVICE)
    y = torch.randint(10, (BATCH,), generator=draw).to(DEVICE)
    return x.contiguous(memory_format=torch.channels_last), y


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, fused=True)


def backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    loss.backward()


@dataclass(slots=True)
class Way:
    """A way to train: its model and what moves the weights."""

    model: nn.Module
    move: Callable[[], object]
    optimizer: torch.optim.Optimizer
    keep: object = None


def dense() -> Way:
    model = resnet()
    optimizer = sgd(model)
    return Way(model, optimizer.step, optimizer)


def held() -> Way:
    model = resnet()
    optimizer = sgd(model)
    masks = sc.prune_(model, "magnitude", sparsity=0.9).masks
    return Way(model, optimizer.step, optimizer, sc.hold(model, masks, optimizer))


def without_triton(make: Callable[[], Way]) -> Way:
    """By torch's own kernels."""
    keep.one_bit.cache_clear()
    os.environ["SECATEURS_TRITON"] = "0"
    try:
        return make()
    finally:
        del os.environ["SECATEURS_TRITON"]
        keep.one_bit.cache_clear()


def factorized(depth: int, fused: bool | None = None) -> Way:
    """In one launch where Triton is there; by torch's foreach kernels where not `fused`."""
    model = resnet()
    optimizer = FactorizedSGD(
        model.parameters(),
        lr=LR,
        momentum=MOMENTUM,
        depth=depth,
        strength=1e-4,
        init="dwf",
        fused=fused,
    )
    return Way(model, optimizer.step, optimizer)


def factorized_adamw() -> Way:
    model = resnet()
    optimizer = Factorized(
        model.parameters(),
        base=torch.optim.AdamW,
        base_kwargs={"lr": 1e-3},
        depth=2,
        strength=1e-4,
        init="dwf",
    )
    return Way(model, optimizer.step, optimizer)


def attached(make: Callable[[nn.Module, torch.optim.Optimizer], object]) -> Way:
    model = resnet()
    optimizer = sgd(model)
    return Way(model, optimizer.step, optimizer, make(model, optimizer))


def need_triton() -> None:
    if gpu_lists is None:
        raise NotHere("Triton is not installed")
    if REHEARSAL and DEVICE == "cuda":
        raise NotHere("the pretend GPU runs no kernels")


WAYS: dict[str, Callable[[], Way]] = {
    "dense": dense,
    "hold": held,
    "FactorizedSGD D=2": lambda: factorized(2),
    "FactorizedSGD D=3": lambda: factorized(3),
    "FactorizedSGD D=2, foreach": lambda: factorized(2, fused=False),
    "FactorizedSGD D=3, foreach": lambda: factorized(3, fused=False),
    "hold, foreach": lambda: without_triton(held),
    "FactorizedSGD D=4": lambda: factorized(4),
    "FactorizedSGD D=4, foreach": lambda: factorized(4, fused=False),
    "Factorized(AdamW) D=2": factorized_adamw,
    "RigL": lambda: attached(
        lambda m, o: RigL(m, o, sparsity=0.9, steps=100_000, every=3 if REHEARSAL else 100)
    ),
    "HAM": lambda: attached(HAM),
    "DGating": lambda: attached(lambda m, o: DGating(m, o, strength=1e-3)),
    "PowerPropagation": lambda: attached(PowerPropagation),
}


# The parts.


@part("machine", 25)
def machine(at: Part) -> None:
    """Versions, the card, and its two ceilings."""
    at.row(python=sys.version.split()[0], torch=torch.__version__, secateurs=sc.__version__)
    try:
        import triton as found

        at.row(triton=found.__version__)
    except ImportError:
        at.row(triton=None)
    if not REAL:
        at.row(card="none: a rehearsal", device=DEVICE)
        return
    card = torch.cuda.get_device_properties(0)
    at.row(
        card=card.name,
        memory_gb=card.total_memory / 1e9,
        multiprocessors=card.multi_processor_count,
        l2_mb=card.L2_cache_size / 1e6,
    )
    source = torch.randn(1 << 29, device=DEVICE)
    target = torch.empty_like(source)
    times = timed({"copy": lambda: target.copy_(source)}, seconds=5, block=5)["copy"]
    at.row(what="copy", gb_s=2 * source.nbytes / 1e6 / statistics.median(times))
    one = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    times = timed({"product": lambda: one @ one}, seconds=5)["product"]
    at.row(what="bf16 product", tflop_s=2 * 8192**3 / 1e9 / statistics.median(times))


@part("tests", 150)
def tests(at: Part) -> None:
    """tests/gpu, in processes of their own."""
    if not REAL:
        raise NotHere("a rehearsal does not run them: python -m pytest -p pretend tests/gpu")
    # Other plugins than ours may be installed there, and slow.
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-v", "-rfE", "--tb=short"]
    command += ["-p", "no:benchmark"]
    try:
        import xdist  # noqa: F401

        command += ["-n", "8"]
    except ImportError:
        pass
    log = at.folder / "tests.log"
    code: object = "stopped at the limit"
    with log.open("w") as file, suppress(subprocess.TimeoutExpired):
        code = subprocess.run(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=max(10.0, at.left - 3),
            check=False,
            cwd=Path(__file__).parents[1],
        ).returncode
    lines = log.read_text().splitlines()
    for line in lines:
        if line.startswith(("FAILED", "ERROR")):
            at.row(failed=line[:300])
    passed = sum("PASSED" in line for line in lines)
    at.row(exit=code, passed=passed, said=lines[-1] if lines else "")


@part("steps", 55)
def steps(at: Part) -> None:
    """Training steps of ResNet-18 in bf16, channels last, by all methods in turn."""
    torch.backends.cudnn.benchmark = True
    x, y = batch()
    ways: dict[str, Way] = {}
    begun = at.left
    for name, make in WAYS.items():
        if at.left < 0.6 * begun:
            at.row(way=name, skipped="no time left")
            continue
        with at.trying(way=name):
            way = make()
            for _ in range(1 if REHEARSAL else 3):
                step(way, x, y)
            wait()
            if REAL:
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                step(way, x, y)
                wait()
                peak = (torch.cuda.max_memory_allocated() - before) / 1e6
                state = _bytes_of(way) / 1e6
                at.row(way=name, peak_mb=peak, state_mb=state)
            ways[name] = way
    calls = {name: (lambda way=way: step(way, x, y)) for name, way in ways.items()}
    moves = {name: way.move for name, way in ways.items()}
    for what, these, share in (("step", calls, 0.6), ("update", moves, 0.9)):
        found = timed(these, seconds=at.left * share, rounds=40, block=5)
        for name, times in found.items():
            pairs = zip(times, found["dense"], strict=True)
            at.row(
                what=what,
                way=name,
                ms=statistics.median(times),
                least=min(times),
                ratio=statistics.median(one / other for one, other in pairs),
                rounds=len(times),
            )


def step(way: Way, x: Tensor, y: Tensor) -> None:
    way.model.zero_grad(set_to_none=True)
    backward(way.model, x, y)
    way.move()


def _bytes_of(way: Way) -> int:
    """The state of the optimizer."""
    found: dict[int, int] = {}
    todo: list[object] = [*way.optimizer.state.values()]
    while todo:
        one = todo.pop()
        if isinstance(one, Tensor):
            found[one.data_ptr()] = one.nbytes
        elif isinstance(one, dict):
            todo += one.values()
        elif isinstance(one, list | tuple):
            todo += one
    return sum(found.values())


@part("launches", 35)
def launches(at: Part) -> None:
    """Kernels that an update launches, and how often it waits for the device."""
    x, y = batch()
    for name, make in WAYS.items():
        with at.trying(way=name):
            way = make()
            for _ in range(1 if REHEARSAL else 3):
                step(way, x, y)
            way.model.zero_grad(set_to_none=True)
            backward(way.model, x, y)
            if REHEARSAL:
                if DEVICE == "cpu":
                    raise NotHere(pretend.WHY_NOT)
                with pretend.counted() as counts:
                    way.move()
                at.row(way=name, launches=counts.launched, waits=counts.waited)
                continue
            from torch.profiler import ProfilerActivity, profile

            wait()
            with profile(activities=[ProfilerActivity.CUDA]) as profiled:
                way.move()
                wait()
            kinds: dict[str, int] = {"kernels": 0, "copies": 0}
            busy = 0.0
            for event in profiled.events():
                if event.device_type == torch.autograd.DeviceType.CUDA:
                    copied = event.name.startswith(("Memcpy", "Memset"))
                    kinds["copies" if copied else "kernels"] += 1
                    busy += event.device_time if hasattr(event, "device_time") else 0.0
            way.model.zero_grad(set_to_none=True)
            backward(way.model, x, y)
            wait()
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                try:
                    way.move()
                finally:
                    torch.cuda.set_sync_debug_mode("default")
            waits = sum("synchroniz" in str(warning.message) for warning in said)
            at.row(way=name, **kinds, busy_us=busy, waits=waits)


SHAPES = [(64, 256)] if REHEARSAL else [(4096, 4096), (4096, 11008)]
BATCHES = (1, 4)
DTYPES = (torch.bfloat16, torch.float16)


@part("scattered", 60)
def scattered(at: Part) -> None:
    """Products with matrices of scattered zeros beside cuBLAS. Enough copies of each matrix take
    turns that no cache holds them, in one CUDA graph, so that launches cost nobody anything.
    """
    need_triton()
    best: dict[tuple[object, ...], list[Form]] = {}
    for shape in SHAPES:
        for count in BATCHES:
            for density in (0.5, 0.2):
                with at.trying(shape=shape, batch=count, what="search"):
                    best[shape, count, density] = _search(at, shape, count, density)
    for dtype in DTYPES:
        for shape in SHAPES:
            for density in (0.5, 0.3, 0.2, 0.1):
                for count in BATCHES:
                    forms = best.get((shape, count, 0.5 if density > 0.4 else 0.2))
                    if at.left < 4 or not forms:
                        continue
                    with at.trying(shape=shape, dtype=str(dtype), density=density, batch=count):
                        _compare(at, shape, dtype, density, count, forms[:3])


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A way to store a matrix with zeros, and to multiply by it."""

    name: str
    kind: str
    store: Callable[[Tensor], Any]
    times: Callable[[Any, Tensor], Tensor]


def _forms() -> list[Form]:
    """What is tried."""
    return [
        Form(
            name=f"Listed(each={each}, unroll={unroll})",
            kind=f"lists of {each}",
            store=lambda matrix, each=each: gpu_lists.Listed.of(matrix, each),
            times=lambda matrix, x, unroll=unroll: gpu_lists.product(matrix, x, None, unroll),
        )
        for each in (4, 8)
        for unroll in ((2,) if REHEARSAL else (1, 2, 4))
    ]


def _matrix(shape: tuple[int, int], dtype: torch.dtype, density: float) -> Tensor:
    draw = torch.Generator(DEVICE).manual_seed(0)
    matrix = torch.randn(shape, generator=draw, device=DEVICE)
    matrix *= torch.rand(shape, generator=draw, device=DEVICE) < density
    return matrix.to(dtype)


def _copies(one: Any) -> list[Any]:
    """So many of a matrix that together they are larger than any cache."""
    return [_copy(one) for _ in range(1 if REHEARSAL else math.ceil(3e8 / _size(one)))]


LISTS = ("values", "offsets", "bases", "starts")


def _copy(one: Any) -> Any:
    if isinstance(one, Tensor):
        return one.clone()
    return replace(one, **{key: getattr(one, key).clone() for key in LISTS})


def _size(one: Any) -> int:
    """Bytes that a product reads."""
    parts = [one] if isinstance(one, Tensor) else [getattr(one, key) for key in LISTS]
    return sum(part.nbytes for part in parts)


def _graph_ms(times: Callable[[Any], object], matrices: list[Any]) -> float:
    """Milliseconds of a product, from the replays of a captured graph of one with each matrix."""
    if REHEARSAL:
        times(matrices[0])
        return 1.0
    calls = len(matrices)
    replay = captured(lambda: [times(matrix) for matrix in matrices])
    found = timed({"": replay}, seconds=1, rounds=5, block=max(1, 200 // calls))[""]
    return statistics.median(found) / calls


def _search(at: Part, shape: tuple[int, int], count: int, density: float) -> list[Form]:
    """The forms in order of their time."""
    matrix = _matrix(shape, torch.bfloat16, density)
    x = torch.randn(count, shape[1], device=DEVICE).to(torch.bfloat16)
    stored: dict[str, list[Any]] = {}
    times: dict[Form, float] = {}
    for form in _forms():
        if at.left < 30 and times:
            break
        with at.trying(shape=shape, batch=count, density=density, form=form.name):
            if form.kind not in stored:
                stored[form.kind] = _copies(form.store(matrix))
            some = stored[form.kind]
            ms = _graph_ms(lambda one, form=form: form.times(one, x), some)
            times[form] = ms
            at.row(
                what="search",
                shape=shape,
                batch=count,
                density=density,
                form=form.name,
                us=ms * 1e3,
                gb_s=_size(some[0]) / ms / 1e6,
            )
    return sorted(times, key=times.__getitem__)


def _compare(
    at: Part,
    shape: tuple[int, int],
    dtype: torch.dtype,
    density: float,
    count: int,
    forms: list[Form],
) -> None:
    matrix = _matrix(shape, dtype, density)
    x = torch.randn(count, shape[1], device=DEVICE).to(dtype)
    theirs = _graph_ms(lambda one: F.linear(x, one), _copies(matrix))
    want = x.double() @ matrix.double().T
    found: list[tuple[float, float, float, str]] = []
    for form in forms:
        some = _copies(form.store(matrix))
        gap = float((form.times(some[0], x).double() - want).abs().max() / want.abs().max())
        ms = _graph_ms(lambda one, form=form: form.times(one, x), some)
        found.append((ms, _size(some[0]), gap, form.name))
    ms, size, gap, name = min(found)
    at.row(
        what="product",
        shape=shape,
        dtype=str(dtype),
        density=density,
        batch=count,
        cublas_us=theirs * 1e3,
        ours_us=ms * 1e3,
        ratio=theirs / ms,
        bound=matrix.nbytes / size,
        gb_s=size / ms / 1e6,
        cublas_gb_s=matrix.nbytes / theirs / 1e6,
        gap=gap,
        form=name,
    )


def captured(run: Callable[[], object]) -> Callable[[], object]:
    """A function whose kernels are recorded once and replayed by one launch."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # warm before the capture, as torch asks
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # On the same stream, which has the tables of our kernels by now.
    with torch.cuda.graph(graph, stream=side):
        run()

    def replay() -> None:
        graph.replay()

    # The graph reads where the tensors of `run` lie, and keeps none of them.
    replay.keeps = run  # type: ignore[attr-defined]
    return replay


@part("kernels", 45)
def kernel_times(at: Part) -> None:
    """The kernels alone on the parameters of ResNet-18, beside foreach, and compiled foreach."""
    need_triton()
    for depth in (2, 3, 4):
        with at.trying(what="step", depth=depth):
            _whole_steps(at, depth)
    with at.trying(what="hold"):
        _holds(at)
    with at.trying(what="compiled foreach"):
        _compiled_foreach(at)


def _tensors(last: bool) -> list[Tensor]:
    model = resnet() if last else ResNet18(WIDTH).to(DEVICE)
    return [p.detach().clone() for p in model.parameters()]


def _whole_steps(at: Part, depth: int) -> None:
    for last in (False, True):
        weights = _tensors(last)
        entries = sum(w.numel() for w in weights)
        # Every number that has to be read or written, once.
        least = {"fused SGD, dense": 20}
        found = timed(_step_ways(weights, depth), seconds=3, rounds=10, block=20)
        for name, times in found.items():
            ms = statistics.median(times)
            at.row(
                what="step",
                depth=depth,
                channels_last=last,
                way=name,
                us=ms * 1e3,
                gb_s=entries * least.get(name, 16 * depth + 8) / ms / 1e6,
            )


def _step_ways(weights: list[Tensor], depth: int) -> dict[str, Callable[[], object]]:
    rule = StepRule(lr=1e-3, momentum=MOMENTUM, decay=2e-4 / depth)
    factors = [torch.rand(depth, *w.shape, device=DEVICE) for w in weights]
    momenta = [torch.zeros_like(f) for f in factors]
    grads = [torch.randn_like(w) * 1e-3 for w in weights]
    ways: dict[str, Callable[[], object]] = {}
    for block, warps in ((512, 4), (1024, 4), (1024, 8), (2048, 8)):
        mover = WholeStep(weights, factors, momenta, block=block, warps=warps)
        ways[f"{block}, {warps} warps"] = _on_device(lambda m=mover: m.step_(grads, rule))
    foreach = AllAtOnce(weights, factors, momenta)
    called = WholeStep(weights, factors, momenta)
    ways["foreach"] = _on_device(lambda: foreach.step_(grads, rule, flush=False))
    ways["foreach, called"] = lambda: foreach.step_(grads, rule, flush=False)
    ways["1024, 4 warps, called"] = lambda: called.step_(grads, rule)
    bare = [nn.Parameter(w.clone()) for w in weights]
    for parameter, grad in zip(bare, grads, strict=True):
        parameter.grad = grad
    ways["fused SGD, dense"] = _on_device(
        torch.optim.SGD(bare, lr=1e-3, momentum=0.9, fused=True).step
    )
    return ways


def _on_device(run: Callable[[], object]) -> Callable[[], object]:
    return captured(run) if REAL else run


def _holds(at: Part) -> None:
    for density in (0.5, 0.1):
        tensors = [w for w in _tensors(True) if w.dim() > 1]
        entries = sum(t.numel() for t in tensors)
        found = timed(_hold_ways(tensors, density), seconds=4, rounds=10, block=20)
        for name, times in found.items():
            ms = statistics.median(times)
            at.row(
                what="hold", density=density, way=name, us=ms * 1e3, gb_s=entries * 8.125 / ms / 1e6
            )


def _hold_ways(tensors: list[Tensor], density: float) -> dict[str, Callable[[], object]]:
    draw = torch.Generator(DEVICE).manual_seed(0)
    # In the memory layout of their tensors.
    masks = [
        torch.empty_like(t, dtype=torch.bool).copy_(
            torch.rand(t.shape, generator=draw, device=DEVICE) < density
        )
        for t in tensors
    ]
    pairs = [(gpu_clear.MaskBits(m, like=t), t) for m, t in zip(masks, tensors, strict=True)]
    ways: dict[str, Callable[[], object]] = {
        "bits, called": lambda: gpu_clear.clear_(pairs),
        "bits, captured one by one": _on_device(lambda: gpu_clear.clear_(pairs)),
    }
    views = [t.view(torch.int32) for t in tensors]
    ones = [m.int() for m in masks]
    ways["foreach, 4 bytes a weight"] = _on_device(lambda: torch._foreach_mul_(views, ones))
    every = [-one for one in ones]
    ways["one AND a tensor"] = _on_device(
        lambda: [view.bitwise_and_(one) for view, one in zip(views, every, strict=True)]
    )
    return ways


def _compiled_foreach(at: Part) -> None:
    """The step at depth 3 as foreach operations that torch.compile fuses."""
    if not REAL:
        raise NotHere("a rehearsal compiles nothing")
    weights = _tensors(False)
    first, second, third = ([torch.rand_like(w) for w in weights] for _ in range(3))
    moving = [list(map(torch.zeros_like, weights)) for _ in range(3)]
    grads = [torch.randn_like(w) * 1e-3 for w in weights]

    def run() -> None:
        factors = (first, second, third)
        slopes = [
            torch._foreach_mul(torch._foreach_mul(one, two), grads)
            for one, two in ((second, third), (first, third), (first, second))
        ]
        for f, m, s in zip(factors, moving, slopes, strict=True):
            torch._foreach_add_(s, f, alpha=6e-5)
            torch._foreach_mul_(m, MOMENTUM)
            torch._foreach_add_(m, s)
            torch._foreach_add_(f, m, alpha=-1e-3)
        product = torch._foreach_mul(torch._foreach_mul(first, second), third)
        torch._foreach_copy_(weights, product)

    start = time.perf_counter()
    compiled = torch.compile(run)
    compiled()
    wait()
    seconds = time.perf_counter() - start
    times = timed({"compiled": compiled, "eager": run}, seconds=3, rounds=10, block=20)
    for name, found in times.items():
        ms = statistics.median(found)
        entries = sum(w.numel() for w in weights)
        at.row(
            what="foreach",
            depth=3,
            way=name,
            us=ms * 1e3,
            gb_s=entries * 56 / ms / 1e6,
            compile_s=seconds,
        )


@part("select", 20)
def select(at: Part) -> None:
    """The exact selection among 100 million weights, and whether it is that of torch.topk."""
    for total in (20_000,) if REHEARSAL else (10_000_000, 100_000_000):
        draw = torch.Generator(DEVICE).manual_seed(0)
        scores = {str(i): torch.rand(total // 40, generator=draw, device=DEVICE) for i in range(40)}
        with at.trying(weights=total):
            _select(at, scores)


def _select(at: Part, scores: dict[str, Tensor]) -> None:
    everything = torch.cat([*scores.values()])
    total, kept = len(everything), len(everything) // 10
    chosen = torch.cat([*sc.select(scores, density=0.1).values()])
    least = torch.topk(everything, kept, sorted=False).values.min()
    right = int(chosen.sum()) == kept and not bool((chosen & (everything < least)).any())
    ways: dict[str, Callable[[], object]] = {
        "torch.topk": lambda: torch.topk(everything, kept, sorted=False),
        "select": lambda: sc.select(scores, density=0.1),
    }
    times = timed(ways, seconds=at.left / 3, rounds=10, block=1)
    base = statistics.median(times["torch.topk"])
    for name, found in times.items():
        ms = statistics.median(found)
        at.row(weights=total, way=name, ms=ms, ratio=ms / base, right=right)


@part("semi-structured", 40)
def semi_structured(at: Part) -> None:
    """What `accelerate` makes of a block with 2:4 zeros, beside the dense one."""
    width = 64 if REHEARSAL else 4096
    for dtype in (torch.bfloat16, torch.float16):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        sc.prune_(model, "magnitude", pattern="2:4")
        model = model.eval().to(DEVICE, dtype)
        for tokens in (4,) if REHEARSAL else (1, 16, 256, 1024, 8192):
            if at.left < 5:
                return
            with at.trying(dtype=str(dtype), tokens=tokens):
                x = torch.randn(tokens, width, device=DEVICE).to(dtype)
                made = sc.accelerate(model, x)
                if made is model:
                    at.row(dtype=str(dtype), tokens=tokens, ways="no gain: the dense model")
                    continue
                ways = [", ".join(layer.ways) for layer in made.report.layers]
                with torch.inference_mode():
                    gap = float((made(x) - model(x)).abs().max() / model(x).abs().max())
                    times = timed(
                        {
                            "dense": lambda x=x, m=model: m(x),
                            "accelerate": lambda x=x, m=made: m(x),
                        },
                        seconds=2,
                    )
                ms = {name: statistics.median(found) for name, found in times.items()}
                at.row(
                    dtype=str(dtype),
                    tokens=tokens,
                    dense_ms=ms["dense"],
                    accelerate_ms=ms["accelerate"],
                    ratio=ms["dense"] / ms["accelerate"],
                    gap=gap,
                    ways=str(ways),
                )


@part("certify", 25)
def certify(at: Part) -> None:
    """Balls proven per second on the device and on the CPU: a network of dense layers, LeNet-5."""
    mlp = lambda: nn.Sequential(  # noqa: E731
        nn.Flatten(),
        nn.Linear(784, 300),
        nn.ReLU(),
        nn.Linear(300, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )
    lenet = lambda: nn.Sequential(  # noqa: E731
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )
    for name, make, count in (("mlp", mlp, 512), ("lenet-5", lenet, 32)):
        torch.manual_seed(0)
        model = make().eval()
        pruned = copy.deepcopy(model)
        sc.prune_(pruned, "magnitude", sparsity=0.5)
        for device in dict.fromkeys((DEVICE, "cpu")):
            # The CPU proves fewer: its speed does not hang on their number.
            balls = 4 if REHEARSAL else count if device == "cuda" else max(8, count // 8)
            with at.trying(network=name, device=device):
                one, two = model.to(device), pruned.to(device)
                x = torch.rand(balls, 1, 28, 28, generator=torch.Generator().manual_seed(1))
                x = x.to(device)
                sc.certify(one, two, around=x[:2], radius=1 / 250)
                wait()
                start = time.perf_counter()
                proof = sc.certify(one, two, around=x, radius=1 / 250)
                wait()
                seconds = time.perf_counter() - start
                at.row(
                    network=name,
                    device=device,
                    balls=balls,
                    seconds=seconds,
                    balls_s=balls / seconds,
                    bound=float(proof.bound),
                )


class Attention(nn.Module):
    """Causal attention of many heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.into = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in self.into)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    """A block of a language model: attention, and a gated part of three layers."""

    def __init__(self, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


@part("blocks", 35)
def blocks(at: Part) -> None:
    """Two blocks of a language model of 7 billion parameters, pruned one after the other."""
    width, inner, heads, tokens, samples = (64, 172, 4, 32, 2) if REHEARSAL else (
        4096, 11008, 32, 2048, 16
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = nn.Sequential(*(Decoder(width, inner, heads) for _ in range(2)))
    model = model.to(torch.bfloat16)
    before = copy.deepcopy(model.state_dict())
    x = [torch.randn(1, tokens, width, device=DEVICE).to(torch.bfloat16) for _ in range(samples)]
    for name, fields in (
        ("wanda", {"scope": "row", "sparsity": 0.5}),
        ("wanda, 2:4", {"pattern": "2:4"}),
        ("sparsegpt", {"sparsity": 0.5}),
        ("wanda, reconstructed", {"scope": "row", "sparsity": 0.5, "reconstruct": True}),
    ):
        if at.left < 6:
            return
        with at.trying(way=name):
            model.load_state_dict(before)
            if REAL:
                torch.cuda.reset_peak_memory_stats()
            wait()
            start = time.perf_counter()
            found = sc.prune_blocks_(
                model, name.partition(",")[0], batch=x, blocks=["0", "1"], **fields
            )
            wait()
            seconds = time.perf_counter() - start
            peak = torch.cuda.max_memory_allocated() / 1e9 if REAL else None
            zeros = sum(int((~mask).sum()) for mask in found.masks.values())
            total = sum(mask.numel() for mask in found.masks.values())
            at.row(way=name, tokens=tokens * samples, seconds=seconds, peak_gb=peak,
                   sparsity=zeros / total)  # fmt: skip


@part("graph", 20)
def graph(at: Part) -> None:
    """A captured training step with zeros held: does it run, and does it follow new masks?"""
    if not REAL:
        raise NotHere("the pretend GPU captures nothing")
    x, y = batch()
    for name in ("hold",):
        with at.trying(way=name):
            way = WAYS[name]()
            for _ in range(3):
                step(way, x, y)
            replay = captured(lambda way=way: step(way, x, y))
            times = timed({"replay": replay, "call": lambda way=way: step(way, x, y)}, seconds=4)
            for kind, found in times.items():
                at.row(way=name, what=kind, ms=statistics.median(found))
            if not isinstance(way.keep, sc.optim.Held):
                continue
            fewer = {}
            for key, mask in way.keep.masks.items():
                fewer[key] = mask & (torch.rand(mask.shape, device=DEVICE) < 0.5)
            way.keep.shrink(fewer)
            for _ in range(3):
                replay()
            wait()
            back = sum(
                int(way.model.get_parameter(key)[~mask].count_nonzero())
                for key, mask in fewer.items()
            )
            at.row(way=name, what="after shrink", dropped_weights_that_came_back=back)


@part("nccl", 40)
def nccl(at: Part) -> None:
    """A world of one: hold, FactorizedSGD, FSDP2, a checkpoint."""
    import torch.distributed as dist

    backend = "nccl" if REAL else "gloo"
    if REHEARSAL and DEVICE == "cuda":
        raise NotHere("the pretend GPU has no world")
    dist.init_process_group(
        backend, init_method=f"file://{at.folder.resolve()}/world", rank=0, world_size=1
    )
    x, y = batch()
    for name in ("hold", "FactorizedSGD D=2", "RigL"):
        with at.trying(way=name):
            way = WAYS[name]()
            wrapped = nn.parallel.DistributedDataParallel(way.model)
            for _ in range(3):
                way.model.zero_grad(set_to_none=True)
                backward(wrapped, x, y)
                way.move()
            wait()
            at.row(way=name, what="three steps in DDP", ok=True)
    with at.trying(way="hold", what="FSDP2"):
        from torch.distributed.fsdp import fully_shard

        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(DEVICE)
        masks = sc.prune_(model, "magnitude", sparsity=0.5).masks
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        sc.hold(model, masks, optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 64, device=DEVICE)).square().mean().backward()
            optimizer.step()
        full = {name: p.full_tensor() for name, p in model.named_parameters()}
        at.row(way="hold", what="FSDP2", ok=not any(full[n][~m].any() for n, m in masks.items()))
    dist.destroy_process_group()


# Kernels are compiled beside the first parts, by processes of their own.


def compile_ahead(rank: int, count: int) -> None:
    """This process's share of the products that are going to be timed, into Triton's cache."""
    os.setsid()
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    # How lists are grouped hangs on the density.
    jobs = [
        (shape, batch_size, density, form)
        for density in (0.5, 0.2, 0.1)
        for shape in SHAPES
        for batch_size in BATCHES
        for form in _forms()
    ]
    for dtype in DTYPES:
        for shape, batch_size, density, form in jobs[rank::count]:
            x = torch.ones(batch_size, shape[1], device=DEVICE, dtype=dtype)
            try:
                # A few rows have the structure of all.
                rows = _matrix((256, shape[1]), dtype, density)
                form.times(form.store(rows), x)
            except Exception:
                continue  # the part itself will say so


# How a command becomes processes.


def worker(name: str, folder: Path, until: float) -> None:
    os.setsid()
    at = Part(name, folder, until)
    if REHEARSAL:
        pretend.begin()
    with at.trying():
        PARTS[name][1](at)


def tables(folder: Path) -> str:
    """The rows as tables, one for each part and set of columns."""
    text = ["# Measured by benchmarks/gpu.py", "", f"    {' '.join(sys.argv)}", ""]
    groups: dict[tuple[str, tuple[str, ...]], list[dict[str, Any]]] = {}
    file = folder / "rows.jsonl"
    for line in file.read_text().splitlines() if file.exists() else []:
        row = json.loads(line)
        name = row.pop("part")
        groups.setdefault((name, tuple(row)), []).append(row)
    for (name, columns), rows in groups.items():
        text += [f"## {name}", "", f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
        text += [f"| {' | '.join(str(row[c]) for c in columns)} |" for row in rows] + [""]
    return "\n".join(text)


def _end(processes: list[Any], seconds: float) -> None:
    """Wait so long for these, then end them, and everything that they have started."""
    until = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        if process.is_alive():
            os.killpg(process.pid, signal.SIGKILL)
            process.join()


def main() -> None:
    """Run parts in order until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="*", default=[*PARTS], help=f"of {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=600, help="of all parts together")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    parser.add_argument("--rehearse", action="store_true", help="small, without a GPU")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "rows.jsonl").unlink(missing_ok=True)
    end = time.monotonic() + given.seconds
    # Forked, so that torch is imported once; nothing here may touch the device.
    context = multiprocessing.get_context("fork")
    ahead = []
    if REAL and gpu_lists is not None and "scattered" in given.parts:
        ahead = [context.Process(target=compile_ahead, args=(rank, 12)) for rank in range(12)]
    for process in ahead:
        process.start()
    for name in given.parts:
        if name not in ("machine", "tests"):
            # They would share the device with what is timed.
            _end(ahead, seconds=25)
            ahead = []
        start = time.monotonic()
        until = min(end, start + PARTS[name][0] * (10 if REHEARSAL else 1))
        if until - start < 5:
            break
        process = context.Process(target=worker, args=(name, given.out, until))
        process.start()
        process.join(max(0.0, until - time.monotonic()) + 2)
        if process.is_alive():
            _end([process], seconds=0)
            Part(name, given.out, until).row(stopped="at its limit")
        elif process.exitcode:
            Part(name, given.out, until).row(stopped=f"exit code {process.exitcode}")
        print(f"-- {name}: {time.monotonic() - start:.0f} s", flush=True)
        (given.out / "tables.md").write_text(tables(given.out))


if __name__ == "__main__":
    main()
