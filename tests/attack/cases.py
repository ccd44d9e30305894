"""One case: a network, a changed one and many boxes; what is found is compared with every bound."""

import copy
import math
from collections import Counter
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from attack.programs import (
    CHANGES,
    Program,
    changed,
    one_literal,
    one_read,
    random_program,
)
from secateurs.errors import CaptureError, SecateursError
from secateurs.proof import METHODS
from secateurs.proof.certify import prove
from secateurs.proof.domain import Domain
from secateurs.proof.methods import run_methods
from secateurs.proof.problem import OWN_UNIT, NetworkPair, read_problem

BOXES = 48
DTYPES = (torch.float64, torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass
class Tally:
    """What was tried and what was found."""

    counts: Counter = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __iadd__(self, other: "Tally") -> "Tally":
        self.counts += other.counts
        self.violations += other.violations
        self.errors += other.errors
        return self


def boxes(shape: tuple[int, ...], g: torch.Generator) -> Domain:
    """Boxes of all sizes: points, tiny ones, flat ones, large ones, far from zero, uneven ones.

    Their ends are float16 numbers, so that inputs on them exist in every precision.
    """
    scale = torch.tensor([0.0, 1.0, 1.0, 30.0])[torch.randint(4, (BOXES,), generator=g)]
    radii = torch.tensor([0.0, 2.0**-10, 0.0625, 0.5, 4.0])[torch.randint(5, (BOXES,), generator=g)]
    tall = (BOXES, *[1] * len(shape))
    center = torch.randn(BOXES, *shape, generator=g) * scale.reshape(tall)
    width = radii.reshape(tall) * torch.ones(BOXES, *shape)
    width[::3] *= (torch.rand(width[::3].shape, generator=g) < 0.5).float()  # flat in some axes
    width[1::3] *= torch.rand(width[1::3].shape, generator=g)  # of uneven widths
    lo, hi = ((center - width).half().double(), (center + width).half().double())
    return Domain(lo=lo, hi=hi, center=(lo + hi) / 2, radius=None, description="boxes")


def points(f: nn.Module, g_: nn.Module, domain: Domain, g: torch.Generator) -> Tensor:
    """Middles, corners, random points, and what ascent from some of them reaches:
    (points, boxes, *shape).
    """
    shape = (12, *domain.lo.shape)
    share = torch.rand(shape, generator=g, dtype=torch.float64)
    share[:7] = share[:7].round()
    start = domain.lo + share * (domain.hi - domain.lo)
    start[0] = domain.center
    start[1], start[2] = domain.lo, domain.hi
    visited = [start]
    for sign in (1.0, -1.0):
        x = start[3:11].clone()
        for step in range(5):
            leaf = x.flatten(0, 1).requires_grad_()
            with torch.enable_grad():
                gap = f(leaf) - g_(leaf)
                pick = gap.detach().abs().argmax(dim=1, keepdim=True)
                value = (sign * gap.gather(1, pick)).sum()
                (slope,) = torch.autograd.grad(value, leaf, allow_unused=True)
            if slope is None:
                break
            move = (domain.hi - domain.lo) * 0.5**step * slope.reshape(x.shape).sign()
            x = torch.minimum(torch.maximum(x.detach() + move, domain.lo), domain.hi)
        visited.append(x.detach())
    return torch.cat(visited)


def deviations(f: nn.Module, g_: nn.Module, x: Tensor, dtype: torch.dtype) -> Tensor:
    """|f − g| at every point, evaluated in this precision: (points, boxes, outputs)."""
    with torch.no_grad():
        flat = x.flatten(0, 1).to(dtype)
        gap = f(flat).double() - g_(flat).double()
    return gap.abs().reshape(*x.shape[:2], -1)


def attack_pair(
    f: Program,
    g_: Program,
    domain: Domain,
    g: torch.Generator,
    *,
    dtype: torch.dtype,
    label: str,
    methods: list[str] | None = None,
) -> Tally:
    """Every method, every box, real arithmetic and the networks' own."""
    tally = Tally()
    own = [copy.deepcopy(m).to(dtype).eval() for m in (f, g_)]
    exact = [copy.deepcopy(m).double() for m in own]
    try:
        problem = read_problem(*own, domain.center[:1].to(dtype), unit=OWN_UNIT)
    except CaptureError as error:
        tally.counts["refused"] += 1
        tally.counts[f"refused: {type(error).__name__}"] += 1
        return tally
    x = points(*exact, domain, g)
    seen = deviations(*exact, x, torch.float64)
    seen = seen.amax(dim=0)
    with torch.no_grad():
        slack = _reference_error(problem, domain)
    proven, skipped = run_methods(problem, domain, methods or METHODS.names())
    for name, reach in proven.items():
        _compare(tally, seen, reach.per_output + slack, f"{label} {name}")
        if reach.whole is not None:
            _compare(
                tally,
                seen.sum(1),
                reach.whole + slack.sum(1),
                f"{label} {name} whole",
            )
        tally.counts["method × box"] += len(domain)
    for name in skipped:
        tally.counts[f"skipped {name}"] += 1
    if not proven:
        tally.counts["refused"] += 1
        return tally
    norm = (1, 2, math.inf)[int(torch.randint(3, (), generator=g))]
    _whole(tally, problem, domain, own, x, slack, norm, label)
    tally.counts["cases"] += len(domain)
    tally.counts["points"] += len(domain) * len(x)
    tally.counts["boxes where they differ"] += int((seen.amax(dim=1) > 0).sum())
    return tally


def _whole(
    tally: Tally,
    problem: NetworkPair,
    domain: Domain,
    own: list[nn.Module],
    x: Tensor,
    slack: Tensor,
    norm: float,
    label: str,
) -> None:
    """The certificate itself, in a norm, for real numbers and for the networks as evaluated."""
    names = ["interval", "two-stream"]
    for rounding in ("auto", True):
        if rounding is True and any(c.rounds for o in problem.own for c in o.graph.casts):
            continue
        cert = prove(problem, domain, methods=names, norm=norm, rounding=rounding)
        if bool(cert.balls.isnan().any()):
            tally.violations.append(f"{label} {rounding}: a bound is NaN")
        if rounding is True:
            rounded = torch.minimum(torch.maximum(x.half().double(), domain.lo), domain.hi)
            found = deviations(*own, rounded, problem.dtype)
            # An overflow on both sides is inf − inf; what is not finite needs an infinite bound.
            found = found.nan_to_num(nan=math.inf)
            size = torch.linalg.vector_norm(found, ord=norm, dim=2).amax(dim=0)
            _compare(tally, size, cert.balls, f"{label} norm {norm} in {problem.dtype}")
            tally.counts[f"own precision {problem.dtype}"] += len(domain)
        else:
            with torch.no_grad():
                gaps = problem.difference(x.flatten(0, 1)).reshape(*x.shape[:2], -1)
            size = torch.linalg.vector_norm(gaps, ord=norm, dim=2).amax(dim=0)
            _compare(tally, size, cert.balls + slack.sum(1), f"{label} norm {norm}")
        tally.counts[f"norm {norm}"] += len(domain)


def _reference_error(problem: NetworkPair, domain: Domain) -> Tensor:
    """How far float64 evaluations of both models, which the points are measured by, may be off."""
    return replace(problem, dtype=torch.float64).rounding_errors(domain)


def _compare(tally: Tally, seen: Tensor, bound: Tensor, label: str) -> None:
    if not bool((seen <= bound).all()):
        gap = float((seen - bound).nan_to_num(nan=math.inf).max())
        tally.violations.append(f"{label}: {gap:.3g} above the bound")


def attack_seed(seed: int) -> Tally:
    """One random network, two changes of it, many boxes each."""
    g = torch.Generator().manual_seed(seed)
    f, shape = random_program(g)
    kinds = list(CHANGES)
    tally = Tally()
    for _ in range(2):
        kind = kinds[int(torch.randint(len(kinds), (), generator=g))]
        dtype = DTYPES[int(torch.randint(len(DTYPES), (), generator=g))]
        label = f"seed {seed} {kind} {dtype}"
        try:
            tally += attack_pair(
                f, changed(f, kind, g), boxes(shape, g), g, dtype=dtype, label=label
            )
            for step in f.steps:
                tally.counts[f"operator {step.operator}"] += 1
        except (
            SecateursError,
            RuntimeError,
            TypeError,
            KeyError,
            ValueError,
        ) as error:
            tally.errors.append(f"{label}: {type(error).__name__}: {error}")
    return tally


def attack_twins(seed: int) -> Tally:
    """Two networks that differ in exactly one literal, index, alias, value read or tie."""
    g = torch.Generator().manual_seed(seed)
    f, shape = random_program(g)
    tally = Tally()
    for make in (one_literal, one_read):
        made = make(f, g)
        if made is None or not _differ(f, made[0], shape, g):
            continue
        kind = (
            "tie"
            if made[1] == "tie"
            else "value read"
            if made[1] == "value read"
            else ("alias" if made[1].endswith("alias") else "literal or index")
        )
        label = f"seed {seed} {made[1]}"
        try:
            found = attack_pair(f, made[0], boxes(shape, g), g, dtype=torch.float64, label=label)
        except (
            SecateursError,
            RuntimeError,
            TypeError,
            KeyError,
            ValueError,
        ) as error:
            tally.errors.append(f"{label}: {type(error).__name__}: {error}")
            continue
        tally.counts[f"{kind}: {'refused' if found.counts['refused'] else 'bounded'}"] += 1
        tally.counts["twins"] += 1
        tally += found
    return tally


def _differ(f: nn.Module, g_: nn.Module, shape: tuple[int, ...], g: torch.Generator) -> bool:
    x = 2 * torch.randn(64, *shape, generator=g, dtype=torch.float64)
    with torch.no_grad():
        one, two = f(x), g_(x)
    return one.shape == two.shape and bool(((one - two).abs() > 1e-6).any())
