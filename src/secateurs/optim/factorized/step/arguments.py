"""The arguments of the compiled step, as C lays them out, and what it answers."""

import ctypes
from enum import IntEnum

from torch import Tensor

from secateurs.optim.factorized.factors.maths import Rule, root


class CRule(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_double) for name in ("lr", "momentum", "decay", "freeze")),
        *((name, ctypes.c_int64) for name in ("nesterov", "decoupled")),
    )


class CJob(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "factors", "momenta")),
        *((name, ctypes.c_int64) for name in ("size", "depth", "rule", "width")),
    )


class Look(IntEnum):
    """What is found before a step."""

    BROKEN = 0  # a gradient is not finite
    FINE = 1
    DRIFTED = 2  # weights are no product of their factors


def c_job(weight: Tensor, factors: Tensor, momenta: Tensor | None, rule: int) -> CJob:
    moved = None if momenta is None else momenta.data_ptr()
    shape = weight.numel(), len(factors)
    return CJob(
        weight.data_ptr(),
        factors.data_ptr(),
        moved,
        *shape,
        rule,
        factors.element_size(),
    )


def c_rule(rule: Rule, depth: int) -> CRule:
    return CRule(
        rule.lr,
        rule.momentum,
        rule.decay,
        root(rule.freeze, depth),
        rule.nesterov,
        rule.decoupled,
    )
