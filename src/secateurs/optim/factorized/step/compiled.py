"""The fused CPU step: `fused.cpp` compiled once per machine, kept in a cache folder, checked before
it is used.

No torch headers and no build tool are needed, only a C++ compiler; it takes about five seconds,
once. Where it cannot be built the optimizers use their pure-torch path and say so in one log line
(native.py). `SECATEURS_FUSED=0` turns it off, `SECATEURS_CACHE` names the folder.
"""

import ctypes
import logging
from functools import cache
from pathlib import Path

import torch

from secateurs import native
from secateurs.optim.factorized.factors.maths import Job, Rule, step
from secateurs.optim.factorized.step.block import move_
from secateurs.optim.factorized.step.library import Kernel

SOURCE = Path(__file__).with_suffix(".cpp")
_log = logging.getLogger("secateurs.optim")


@cache
def kernel() -> Kernel | None:
    """The compiled step, built at the first call on a machine; None where that cannot be (a log
    line says why).
    """
    return native.kernel(
        SOURCE,
        _made,
        switch="SECATEURS_FUSED",
        what="fused step",
        fallback="the optimizers use their pure-torch path",
        log=_log,
    )


def _made(library: ctypes.CDLL) -> Kernel:
    made = Kernel(library)
    _check(made)
    return made


def _check(built: Kernel) -> None:
    """One tiny step against the reference, so that a wrong binary is refused rather than trained
    with.
    """
    factors, momenta = (
        torch.linspace(-1, 1, 33).reshape(3, 11),
        torch.linspace(0, 1, 33).reshape(3, 11),
    )
    grad, weight = torch.linspace(1, 2, 11), torch.zeros(11)
    rule = Rule(lr=0.1, decay=0.01, momentum=0.9)
    expected = step(factors, momenta, grad, rule)
    job = Job(weight=weight, grad=grad, factors=factors, momenta=momenta, rule=rule)
    move_(built, [job])
    # 1e-6 allows for another order of rounding (fused multiply-add) and for nothing
    # else.
    if not all(
        torch.allclose(a, b, atol=1e-6)
        for a, b in zip((factors, momenta, weight), expected, strict=True)
    ):
        raise RuntimeError("the compiled step disagrees with the reference")
