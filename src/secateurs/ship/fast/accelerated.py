"""`accelerate`: a model as a program of compiled kernels that run only its non-zeros."""

import logging
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from math import prod
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from secateurs.base.progress import Progress, show_progress
from secateurs.channels import compact
from secateurs.errors import (
    ArgumentError,
    CaptureError,
    SecateursError,
    ShipError,
    UnsupportedOperation,
)
from secateurs.graph import Example
from secateurs.graph.export import Call, outputs_of
from secateurs.graph.spot_check import SpotRun, answers_in_turn
from secateurs.graph.untouched import untouched
from secateurs.ship.fast.choose import (
    RememberedWays,
    Timed,
    choose_ways,
    remembered_ways,
    untimed,
    wait_for,
)
from secateurs.ship.fast.compiled import NAMES, KernelLibrary, library
from secateurs.ship.fast.convolve import Choice
from secateurs.ship.fast.layers import DENSEST, SMALLEST, compiled_layers
from secateurs.ship.fast.module import (
    Compiled,
    FastModule,
    FastReport,
    InTorch,
    Layer,
    Runner,
    in_torch,
)
from secateurs.ship.fast.operations import Conv, Outside, Part, Segment, Steps, parts, work
from secateurs.ship.fast.plan import groups_of, program_of
from secateurs.ship.fast.read import read
from secateurs.ship.fast.trace import (
    apart_by,
    arguments,
    check,
    devices_of,
    random_call,
    trace,
)

_log = logging.getLogger("secateurs.ship")
# Forms are compared on one sample and on many: 64, or fewer if a call of those would take longer
# than this many seconds. A large image fills the vectors, and more of them only take longer. At
# least two, and one for each thread.
BATCH_SIZES, MAX_CALL_SECONDS = (64, 32, 16, 8, 4), 0.25
CALLS = 5  # of a GPU, between two waits
ROUNDS = 26  # at most; the first warms up
# A comparison ends after this many rounds and seconds: calls of microseconds are compared often,
# since one of them may take a thousand times as long on a busy machine; calls of a second a few
# times.
MIN_ROUNDS, MIN_SECONDS = 3, 0.5
# A form whose fastest call took this many times as long as the slowest call of the best form is not
# called again.
HOPELESSLY_SLOWER = 2.0
APART = 1e-3  # of the largest output: by rounding alone programs differ by 1e-6 in single precision
NAMES_IN_LOG = 3  # layers that a log line names
# Token tables and recurrence cannot be programs on planes.
NEVER_A_PROGRAM = (nn.Embedding, nn.EmbeddingBag, nn.RNNBase)


def accelerate(
    model: nn.Module,
    example: Example,
    *,
    tune: Literal["time", "guess"] = "time",
    keep: Literal["faster", "always"] = "faster",
    values: Literal["exact", "int8"] = "exact",
    rivals: Mapping[str, nn.Module] | None = None,
    progress: Progress | None = None,
) -> nn.Module:
    """The model as a module that runs only its non-zeros: same call, same outputs to rounding.

    Convolutions, linear layers, batch norms, ReLUs, pools, sums and concatenations become a program
    of compiled kernels; what they cannot run stays in torch and is named in the report. If no
    program can be made (token tables, caches, recurrence), the result is a copy of the model, of
    its own class, in which the layers that gain by it are compiled. Dead channels are cut out first
    (`compact`). Every layer is timed on this machine in dense and sparse variants and keeps its
    fastest. Then model, compacted model and program are timed in turns, and the fastest is
    returned; if it is not the program, a log line says "no gain" and the times. They are called
    with one sample and with 64, or fewer if a call takes long. Where neither the whole nor a layer
    can be compiled with a gain, the model comes back as it is, and the line says why.

    On a GPU there are no programs: linear layers in half precision run by torch's own kernels for
    2:4 zeros, and for up to four inputs with zeros anywhere by one in Triton (`SECATEURS_TRITON=0`
    does without), where these are faster, in a copy of the model; everything else stays.

    This is not `torch.compile`: nothing is generated, nothing recompiles behind the scenes; one C++
    file is compiled once on a machine. The program holds the current weights, for inputs of the
    example's shape with any batch size, on the CPU, in float32 or float64, without gradients.

    Args:
        model: in evaluation mode; masks are zeros in its weights.
        example: the arguments of a call.
        tune: "guess" skips the timing of layers. Timings, of layers and of the forms of a network,
            are remembered on this machine by shape; `SECATEURS_TUNING=0` times again.
        keep: "always" returns the program even if it is slower, and refuses a model that has none.
        values: "int8" rounds linear layers whose non-zeros are in blocks of four neighbouring
            inputs (`pattern="1x4"`) to eight bits, and their inputs row by row: outputs differ by
            a hundredth of the largest or so, and the report says by how much. Float32 only; other
            layers stay exact.
        rivals: other forms of the model that are timed too, by a name for messages. The fastest of
            all is returned. By default the model in onnxruntime, where that is installed and layers
            are timed (`in_onnxruntime`), and compacted there, too; `{}` for ours and torch's alone.
        progress: called with a line of text for each step.

    Returns:
        A `FastModule`, or the copy with compiled layers; the compacted model, the model or a rival
        if that is faster, or if nothing can be compiled. Two threads may call it at once.

    >>> import secateurs as sc
    >>> import secateurs_lab as lab
    >>> lenet = lab.models.build("lenet-300-100").eval()
    >>> fast = sc.accelerate(lenet, torch.zeros(1, 1, 28, 28), tune="guess")
    >>> with torch.inference_mode():
    ...     fast(torch.zeros(8, 1, 28, 28)).shape
    torch.Size([8, 10])
    """
    _check_options(tune, keep, values)
    check(model, gpu=True)
    _check_devices(model, example)
    _forms(model, None, rivals)  # a wrong name is reported before anything is built
    # Everything is timed in turns, including the model itself.
    with untouched(model), show_progress(progress, "accelerate") as say:
        return _accelerate(model, example, tune, keep, values, rivals, say)


# What is checked before anything is built.


def _check_options(tune: str, keep: str, values: str) -> None:
    for value, known in (
        (tune, ("time", "guess")),
        (keep, ("faster", "always")),
        (values, ("exact", "int8")),
    ):
        if value not in known:
            raise ArgumentError(f"{value!r} is not one of {', '.join(known)}.")


def _check_devices(model: nn.Module, example: Example) -> None:
    args, kwargs = arguments(example)
    here, there = devices_of(model), {t.device for t in (*args, *kwargs.values())}
    if here and not there <= here:
        raise ArgumentError(
            f"the example is on {', '.join(sorted(map(str, there - here)))}, and"
            f" {type(model).__name__} on {', '.join(sorted(map(str, here)))}: move one of them."
        )


def _forms(
    model: nn.Module, small: nn.Module | None, rivals: Mapping[str, nn.Module] | None
) -> dict[str, nn.Module]:
    """The forms besides the program, by name."""
    forms = {"model": model} | ({} if small is None else {"compact": small})
    taken = {"fast", "layers", *forms} & set(rivals or {})
    if taken:
        raise ArgumentError(
            f"a rival cannot be named {', '.join(sorted(taken))}: that is the name of one of our "
            "own forms."
        )
    return forms | dict(rivals or {})


# The forms of a model (compacted, a program, compiled layers), and which of them is returned.


def _accelerate(
    model: nn.Module,
    example: Example,
    tune: str,
    keep: str,
    values: str,
    rivals: Mapping[str, nn.Module] | None,
    say: Progress,
) -> nn.Module:
    dtype, gpu = _dtype_of(model, example), on_gpu(model)
    if values == "int8" and dtype != torch.float32:
        raise ArgumentError(f'values="int8" rounds layers of float32, not {dtype}: model.float().')
    if values == "int8" and gpu:
        raise ArgumentError('values="int8" runs on the processor: model.cpu().')
    say("looking for dead channels")
    small = smaller(model, example)
    kernels = None if gpu else library()
    if not gpu and (kernels is None or dtype not in NAMES):
        why = "no compiled kernels" if kernels is None else f"{dtype} has no kernels"
        return _in_torch(model, small, rivals or {}, example, why)
    made, timed, exact = small or model, tune == "time", values == "exact"
    own = rivals is None
    if rivals is None and timed and exact and keep == "faster" and not gpu:
        rivals = by_onnxruntime(
            {"": model} | ({} if small is None else {"compact": small}), example, say
        )

    def whole() -> FastModule | SecateursError:
        return _program(made, example, kernels, dtype, timed, say)

    # Each candidate is a module, or the reason why there is none.
    program: FastModule | SecateursError | None = None
    layers: nn.Module | tuple[str, ...] = ()
    # Saves half a minute of tracing if its outcome is known.
    if kernels is None or (
        exact and not any(isinstance(m, NEVER_A_PROGRAM) for m in made.modules())
    ):
        program = whole()
    if not isinstance(program, FastModule) or program.report.outside:
        layers = compiled_layers(
            made, example, kernels, dtype, timed=timed, eight_bits=not exact, say=say
        )
    if program is None and not isinstance(layers, nn.Module):
        program = whole()
    candidates = {"fast": program, "layers": layers}
    found = {name: m for name, m in candidates.items() if isinstance(m, nn.Module)}
    if isinstance(program, SecateursError) and not isinstance(layers, nn.Module):
        why = _no_gain(layers, program)
        if keep == "always":
            raise type(program)(f"{type(model).__name__}: {why}.")
        # The compacted model is timed here, since the result must not be slower than the model
        # given.
        forms = _forms(model, small, rivals)
        best = "model" if len(forms) == 1 else _best(_time_forms(forms, example))
        _log.warning("no gain for %s: %s; %s", type(model).__name__, why, _ending(best))
        return forms[best]
    if isinstance(program, FastModule):
        # The model given by the user, even if the program was made from the compacted one.
        program.plain = model
    if keep == "always":
        return next(iter(found.values()))
    # Times are remembered by shapes, which do not tell one rival of others from another.
    remembered = RememberedWays(path=None)
    if kernels is not None and (own or not rivals):
        remembered = remembered_ways(kernels)
    say("timing the whole network in its forms")
    return _fastest(_forms(model, small, rivals), found, example, remembered)


def smaller(model: nn.Module, example: Example) -> nn.Module | None:
    """The compacted model; None if no channel is dead, or if it cannot be compacted."""
    if not any(_has_dead(parameter) for parameter in model.parameters()):
        return None  # reading the graph takes seconds, and most models have nothing dead
    try:
        small = compact(model, example)
    # A program can be made without it: code that cannot be copied or narrowed fails in many ways.
    except (
        SecateursError,
        RuntimeError,
        TypeError,
        AttributeError,
        KeyError,
    ) as problem:
        _log.info("%s is not compacted: %s", type(model).__name__, problem)
        return None
    account = small.compaction
    return small if account.removed else None  # type: ignore[union-attr]


@torch.no_grad()
def _has_dead(weight: Tensor) -> bool:
    """Whether a whole row or column of a layer is zero."""
    if weight.ndim < 2:
        return False
    alive = (weight != 0).flatten(2) if weight.ndim > 2 else (weight != 0).unsqueeze(2)
    rows, columns = alive.any(2).any(1), alive.any(2).any(0)
    return not bool(rows.all()) or not bool(columns.all())


LARGEST_RIVAL = 1 << 27
"""Weights of a model up to which onnxruntime is tried: half a gigabyte is written for it."""


def by_onnxruntime(
    models: Mapping[str, nn.Module], example: Example, say: Progress
) -> dict[str, nn.Module]:
    """The models in onnxruntime, by these names behind its own, where they can be had: of a network
    that lost channels both, since some of its kernels want them in multiples of eight or sixteen.
    """
    if not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        return {}
    # Imported here: most models on most machines run without it.
    from secateurs.ship.onnx import in_onnxruntime

    found: dict[str, nn.Module] = {}
    for name, model in models.items():
        if sum(p.numel() for p in model.parameters()) > LARGEST_RIVAL:
            continue
        say("writing it for onnxruntime")
        try:
            found[f"onnxruntime {name}".strip()] = in_onnxruntime(model, example)
        # Nobody has asked for it, so whatever is wrong with three packages of others ends nothing
        # here.
        except Exception as problem:
            _log.debug("%s is not tried in onnxruntime: %s", type(model).__name__, problem)
    return found


def _dtype_of(model: nn.Module, example: Example) -> torch.dtype:
    args, kwargs = arguments(example)
    # Parameters are checked first, since an example may consist of integers.
    given: list[Tensor] = [*model.parameters(), *args, *kwargs.values()]
    return next((t.dtype for t in given if t.is_floating_point()), torch.float32)


def on_gpu(model: nn.Module) -> bool:
    """Whether the model lies on a GPU."""
    return any(device.type == "cuda" for device in devices_of(model))


def _in_torch(
    model: nn.Module,
    small: nn.Module | None,
    rivals: Mapping[str, nn.Module],
    example: Example,
    why: str,
) -> nn.Module:
    """The fastest rival, or without one the compacted model if it is smaller, else the model."""
    name, forms = type(model).__name__, _forms(model, small, rivals)
    if rivals:
        best = _best(_time_forms(forms, example))
        _log.warning("%s runs as %s: %s", name, best, why)
        return forms[best]
    if small is None:
        _log.warning("no gain for %s: %s; it runs in torch", name, why)
        return model
    _log.warning("%s runs compacted in torch: %s", name, why)
    return small


def _program(
    model: nn.Module,
    example: Example,
    kernels: KernelLibrary | None,
    dtype: torch.dtype,
    timed: bool,
    say: Progress,
) -> FastModule | SecateursError:
    """The program of the whole model, or the reason why there is none."""
    if kernels is None:
        return UnsupportedOperation("programs run on the processor: model.cpu()")
    try:
        return _build(model, example, kernels, dtype, timed=timed, say=say)
    except (CaptureError, ShipError, UnsupportedOperation) as problem:
        return problem


def _build(
    model: nn.Module,
    example: Example,
    kernels: KernelLibrary,
    dtype: torch.dtype,
    *,
    timed: bool,
    say: Progress,
) -> FastModule:
    """The fast module of a model."""
    start = time.perf_counter()
    args, kwargs = arguments(example)
    other = {str(t.dtype) for t in (*args, *kwargs.values())} - {str(dtype)}
    if other:
        # Checked before tracing, which takes seconds: the program would refuse each call.
        raise UnsupportedOperation(
            f"{type(model).__name__} is called with {', '.join(sorted(other))}, and a program is"
            f" called with {dtype} alone: accelerate a part of the model that is, such as what"
            " follows an embedding"
        )
    say("tracing the model")
    steps = read(trace(model, example), dtype)
    found = parts(steps)
    guess = untimed(kernels, dtype, steps.planes)
    remembered = remembered_ways(kernels) if timed else RememberedWays(path=None)
    timing = Timed(library=kernels, dtype=dtype, planes=steps.planes, remembered=remembered)
    choose = timing if timed else guess
    # With guessed ways, so that layers are timed only for the group sizes in use.
    groups = groups_of([p for p in found if isinstance(p, Segment)], dtype, guess)
    chosen = choose_ways(_convs(found), groups, choose, say)
    remembered.save()
    # The ways just chosen are looked up, so that program and report agree.
    runners: list[Runner] = []
    for part in found:
        if isinstance(part, Outside):
            runners.append(InTorch(step=part))
            continue
        program = program_of(part, groups, kernels, dtype, lambda conv, g: chosen[conv.to, g])
        runners.append(Compiled(segment=part, program=program, dtype=dtype))
    report = FastReport(
        layers=tuple(_layer_report(conv, steps, groups, chosen) for conv in _convs(found)),
        groups=groups,
        outside=tuple(
            f"{s.target} at {s.place or 'the model itself'}: {s.why}" for s in in_torch(found)
        ),
        seconds={},
        threads=torch.get_num_threads(),
        built_in=time.perf_counter() - start,
        remembered=remembered.used,
    )
    fast = FastModule(model, steps, runners, dtype, report)
    _check_batches(model, fast, example)
    return fast


def _convs(found: list[Part]) -> list[Conv]:
    return [
        op
        for part in found
        if isinstance(part, Segment)
        for op in part.operations
        if isinstance(op, Conv)
    ]


def _layer_report(
    conv: Conv,
    steps: Steps,
    groups: tuple[int, ...],
    chosen: dict[tuple[str, int], Choice],
) -> Layer:
    return Layer(
        place=conv.place,
        density=np.count_nonzero(conv.weight) / conv.weight.size,
        macs=work(conv, steps.planes),
        ways=tuple(str(chosen[conv.to, group]) for group in groups),
    )


def _check_batches(model: nn.Module, fast: FastModule, example: Example) -> None:
    """Refuse a program that was read for two samples and works for no other number.

    A loop over the samples is unrolled during tracing: for three samples it would leave one out.
    The tracer does not notice: it calls the size of the batch free all the same.
    """
    args, kwargs = arguments(example)
    for batch in (1, 3):
        call = Call(*random_call(args, kwargs, batch))
        wanted = answers_in_turn(model, [SpotRun(call=call, gradients=False)], None)[0]
        if isinstance(wanted, Exception):
            continue  # the model accepts no such batch, so nothing can differ
        apart = _apart(model, fast, call, list(wanted.values()))
        if not apart <= APART:
            outside = fast.report.outside[:1]
            stays = "".join(f", and part of it stays in torch ({o})" for o in outside)
            raise UnsupportedOperation(
                f"{type(model).__name__} behaves differently for each batch size{stays}: at "
                f"{batch} sample(s) its program differs by {apart:.3g} of the largest output. "
                "Write what it does sample by sample as operators on the whole batch, without the "
                "size of the batch as a number."
            )


def _apart(model: nn.Module, fast: FastModule, call: Call, wanted: list[Tensor]) -> float:
    try:
        with torch.inference_mode():
            given = fast(*call.args, **call.kwargs)
    except (RuntimeError, IndexError, ValueError):
        return float("inf")
    found = [t.double() for t in outputs_of(given).values()]
    if len(found) != len(wanted):
        return float("inf")
    apart = max(map(apart_by, wanted, found), default=0.0)
    if apart <= APART or apart == float("inf"):
        return apart
    # Outputs may cancel to far less than their terms; then the model itself is as far off.
    exact = answers_in_turn(model, [SpotRun(call=call, gradients=False)], torch.float64)[0]
    if isinstance(exact, Exception):
        return apart
    truth = list(exact.values())
    own, ours = (max(map(apart_by, truth, some)) for some in (wanted, found))
    return 0.0 if ours <= 100 * own else ours


def _no_gain(unchanged: tuple[str, ...], refused: SecateursError) -> str:
    """Why neither a layer nor the whole is compiled, in a line of bounded length."""
    said = "; ".join(unchanged[:NAMES_IN_LOG]) or (
        f"no linear layer or 2-d convolution of {SMALLEST:,} weights or more has"
        f" {1 - DENSEST:.0%} zeros"
    )
    more = f"; and {len(unchanged) - NAMES_IN_LOG} more" if len(unchanged) > NAMES_IN_LOG else ""
    return (
        f"no layer gains ({said}{more}), and the whole has no program ({str(refused).rstrip('.')})"
    )


def _ending(best: str) -> str:
    ends = {"model": "it stays as it is", "compact": "it runs compacted in torch"}
    return ends.get(best, f"it runs as {best}")


# All forms timed in turns.


def _fastest(
    forms: dict[str, nn.Module],
    found: dict[str, nn.Module],
    example: Example,
    remembered: RememberedWays,
) -> nn.Module:
    """The form that is fastest over all batch sizes; all are timed in turns, once for a network of
    these shapes."""
    key = _shapes(forms, found, example)
    seconds = remembered.find_times(key, {*forms, *found})
    if seconds is None:
        seconds = _time_forms(forms | found, example)
        remembered.note_times(key, seconds)
        remembered.save()
    for form in found.values():
        form.report = replace(cast(FastReport, form.report), seconds=seconds)  # type: ignore[assignment]
    best = _best(seconds)
    if best not in found:
        if "fast" in found:
            what, why = cast(FastReport, found["fast"].report).outside, "the program left to torch"
        else:
            # Layers alone are compiled in a model that can have no program.
            every = forms["model"].named_modules()
            what = tuple(str(name) for name, m in every if isinstance(m, nn.RNNBase))
            why = "no kernel runs recurrent layers"
        listed = "; ".join(list(dict.fromkeys(what))[:NAMES_IN_LOG])
        _log.warning(
            "no gain from the program for %s: %s; %s%s",
            type(forms["model"]).__name__,
            _figures(seconds),
            _ending(best),
            f" ({why}: {listed})" if listed else "",
        )
    return (forms | found)[best]


def _shapes(
    forms: Mapping[str, nn.Module], found: Mapping[str, nn.Module], example: Example
) -> object:
    """All that the times of these forms depend on: classes, shapes, how each layer runs."""
    args, kwargs = arguments(example)
    reports = {name: cast(FastReport, form.report) for name, form in found.items()}
    return (
        torch.get_num_threads(),
        # Its distribution has other names for a GPU; imported if it is among the forms.
        getattr(sys.modules.get("onnxruntime"), "__version__", ""),
        [(name, t.shape, str(t.dtype)) for name, t in enumerate((*args, *kwargs.values()))],
        [
            (
                name,
                [(at, type(module).__qualname__) for at, module in form.named_modules()],
                [(at, p.shape, str(p.dtype)) for at, p in form.named_parameters()],
            )
            for name, form in forms.items()
        ],
        [
            (
                name,
                # Of compiled layers it holds measured gains, which differ from build to build, and
                # so does what follows their way.
                report.outside if name == "fast" else (),
                # Densities in steps of 5 %, as for single layers.
                [
                    (
                        *(layer.place, round(20 * layer.density)),
                        *(way.partition(";")[0] for way in layer.ways),
                    )
                    for layer in report.layers
                ],
            )
            for name, report in reports.items()
        ],
    )


def _figures(seconds: dict[int, dict[str, float]]) -> str:
    return ", ".join(
        " and ".join(f"{name} {1e3 * spent:.2f} ms" for name, spent in times.items())
        + f" at batch {batch}"
        for batch, times in seconds.items()
    )


def _time_forms(forms: Mapping[str, nn.Module], example: Example) -> dict[int, dict[str, float]]:
    """Seconds of a call of each form, on one sample and on many; on the example as it is if the
    model accepts no other number of samples, for instance with a state that has them second."""
    try:
        one = compare(forms, example, 1)
        slowest = max(one.values())
        least = max(2, torch.get_num_threads())
        many = next(
            (n for n in BATCH_SIZES if n * slowest <= MAX_CALL_SECONDS and n > least), least
        )
        return {1: one, many: compare(forms, example, many)}
    except Exception:  # models refuse a number of samples in ways of their own
        args, kwargs = arguments(example)
        return {len(next(iter((*args, *kwargs.values())))): compare(forms, example, None)}


def _best(seconds: dict[int, dict[str, float]]) -> str:
    """The smallest product over batch sizes: a factor counts the same for one image and many."""
    names = next(iter(seconds.values()))
    return min(names, key=lambda name: prod(t[name] for t in seconds.values()))


def compare(
    forms: Mapping[str, nn.Module], example: Example, batch: int | None
) -> dict[str, float]:
    """Median seconds of a call of each, in turns, until it is clear which is the fastest; on this
    number of samples, or (None) on the example itself."""
    args, kwargs = arguments(example)
    many = [t if batch is None else _repeat(t, batch) for t in (*args, *kwargs.values())]
    device = many[0].device
    # A GPU is given the next call while it computes this one, as in whatever calls it in a loop.
    calls = 1 if device.type == "cpu" else CALLS
    call = (many[: len(args)], dict(zip(kwargs, many[len(args) :], strict=True)))
    times: dict[str, list[float]] = {name: [] for name in forms}
    left = [*forms]
    with torch.inference_mode():
        begun = time.perf_counter()
        for done in range(ROUNDS):
            if done >= MIN_ROUNDS and time.perf_counter() - begun > MIN_SECONDS:
                break
            # In turns, so that a temporary disturbance of the machine affects all forms alike.
            for name in left:
                start = time.perf_counter()
                for _ in range(calls):
                    forms[name](*call[0], **call[1])
                wait_for(device)
                times[name].append((time.perf_counter() - start) / calls)
            if done:
                # Two calls each are enough. The one that warms up is among them as long as there
                # are no others: a slow form is called as rarely as can be. By its slowest call, so
                # that a disturbed one does not eliminate others.
                seen = {name: times[name][int(done > 1) :] for name in left}
                bar = HOPELESSLY_SLOWER * min(map(max, seen.values()))
                left = [name for name in left if min(seen[name]) <= bar]
            if len(left) < min(2, len(forms)):
                break
    # The lower of two, so that one disturbed call decides nothing.
    return {name: statistics.median_low(spent[1:]) for name, spent in times.items()}


def _repeat(tensor: Tensor, batch: int) -> Tensor:
    # Kernels do the same work whatever the numbers are, so one sample can stand for a batch.
    return tensor.detach()[:1].expand(batch, *tensor.shape[1:]).contiguous()
