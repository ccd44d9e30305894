"""`accelerate`: a model as a program of compiled kernels that run only its non-zeros."""

import logging
import statistics
import time
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError
from secateurs.graph import Example
from secateurs.ship.fast.build import Progress, built
from secateurs.ship.fast.compiled import NAMES, library
from secateurs.ship.fast.module import FastModule
from secateurs.ship.fast.trace import arguments, check

_log = logging.getLogger("secateurs.ship")
BATCHES = (1, 64)
ROUNDS = 6  # the first warms up


def accelerate(
    model: nn.Module,
    example: Example,
    *,
    tune: Literal["time", "guess"] = "time",
    keep: Literal["faster", "always"] = "faster",
    progress: Progress | None = None,
) -> nn.Module:
    """The model as a module that runs only its non-zeros: same call, same outputs to rounding.

    Convolutions, linear layers, batch norms, ReLUs, pools, sums and concatenations become a program
    of compiled kernels; what they cannot run stays in torch and is named in the report. Every layer
    is timed on this machine in dense and sparse variants and keeps its fastest; where the whole is
    no faster than the model, the model itself comes back and a log line says "no gain".

    This is not `torch.compile`: nothing is generated, nothing recompiles behind the scenes; one C++
    file is compiled once on a machine. The program holds the weights of now, for inputs of the
    example's shape with any batch size, on the processor, in float32 or float64, without gradients.

    Args:
        model: in evaluation mode; masks are zeros in its weights.
        example: what the model is called with.
        tune: "guess" skips the timing of layers.
        keep: "always" gives the program even where it is slower.
        progress: called with what is done, how much of it, and of how much.

    Returns:
        A `FastModule`, or the model where there is nothing to gain or no compiler. Two threads may
        call it at once.

    >>> import secateurs as sc
    >>> lenet = sc.models.build("lenet-300-100").eval()
    >>> fast = sc.accelerate(lenet, torch.zeros(1, 1, 28, 28), tune="guess")
    >>> with torch.inference_mode():
    ...     fast(torch.zeros(8, 1, 28, 28)).shape
    torch.Size([8, 10])
    """
    _options(tune, keep)
    check(model)
    dtype = _dtype(model, example)
    kernels = library()
    if kernels is None or dtype not in NAMES:
        why = "no compiled kernels" if kernels is None else f"{dtype} has no kernels"
        _log.warning("no gain for %s: %s; it runs in torch", type(model).__name__, why)
        return model
    fast = built(
        model,
        example,
        kernels,
        dtype,
        timed=tune == "time",
        progress=progress or _silent,
    )
    return fast if keep == "always" else _faster(model, fast, example)


def _options(tune: str, keep: str) -> None:
    for value, known in ((tune, ("time", "guess")), (keep, ("faster", "always"))):
        if value not in known:
            raise ArgumentError(f"{value!r} is not one of {', '.join(known)}.")


def _dtype(model: nn.Module, example: Example) -> torch.dtype:
    args, kwargs = arguments(example)
    given: list[Tensor] = [*model.parameters(), *args, *kwargs.values()]
    return next((t.dtype for t in given if t.is_floating_point()), torch.float32)


def _silent(what: str, done: int, total: int) -> None:
    """No progress is shown."""


def _faster(model: nn.Module, fast: FastModule, example: Example) -> nn.Module:
    """The program where it gains, else the model; both timed in turns."""
    seconds = {n: compared(model, fast, example, n) for n in BATCHES}
    report = replace(fast.report, seconds=seconds)
    fast.report = report
    if any(plain > quick for plain, quick in seconds.values()):
        return fast
    figures = ", ".join(
        f"{1e3 * a:.2f} ms against {1e3 * b:.2f} at batch {n}"
        for n, (a, b) in seconds.items()
    )
    _log.warning(
        "no gain for %s: the model takes %s; it stays as it is",
        type(model).__name__,
        figures,
    )
    return model


def compared(
    model: nn.Module, fast: nn.Module, example: Example, batch: int
) -> tuple[float, float]:
    """Median seconds of a call of each, in turns."""
    args, kwargs = arguments(example)
    many = [_repeated(t, batch) for t in (*args, *kwargs.values())]
    call = (many[: len(args)], dict(zip(kwargs, many[len(args) :], strict=True)))
    times: tuple[list[float], list[float]] = ([], [])
    with torch.inference_mode():
        for _ in range(ROUNDS):
            for module, spent in zip((model, fast), times, strict=True):
                start = time.perf_counter()
                module(*call[0], **call[1])
                spent.append(time.perf_counter() - start)
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])


def _repeated(tensor: Tensor, batch: int) -> Tensor:
    return tensor.detach()[:1].expand(batch, *tensor.shape[1:]).contiguous()
