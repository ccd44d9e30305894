"""Certificates by zonotopes alone: random networks of all operators against search, corners and
ascent, and networks of computed weights against 600 bits; with few symbols and with many, and with
remainders that are given symbols at once.
"""

import copy
import math
from dataclasses import replace

import torch

import attack.computed as computed
from attack.cases import DTYPES, Tally, boxes, deviations, points
from attack.programs import CHANGES, changed, random_program
from secateurs.errors import CaptureError
from secateurs.proof import zonotope
from secateurs.proof.certify import certify, prove, search_boxes
from secateurs.proof.problem import OWN_UNIT, read_problem

BOXES = 8


def attack_zonotopes(seed: int, methods: tuple[str, ...] = ("zonotope",)) -> Tally:
    """One pair of networks; every third one with computed weights."""
    held = zonotope._THREATENS
    # 0 gives every remainder symbols, which else only happens in deep networks.
    zonotope._THREATENS = (held, 0.0)[seed % 2]
    try:
        return _exactly(seed, methods) if seed % 3 == 0 else _programs(seed, methods)
    finally:
        zonotope._THREATENS = held


def _programs(seed: int, methods: tuple[str, ...]) -> Tally:
    g = torch.Generator().manual_seed(40_000 + seed)
    tally = Tally()
    f, shape = random_program(g)
    kinds = list(CHANGES)
    other = changed(f, kinds[int(torch.randint(len(kinds), (), generator=g))], g)
    dtype = DTYPES[int(torch.randint(len(DTYPES), (), generator=g))]
    # Sizes from points to ±4, drawn among many.
    domain = boxes(shape, g)[torch.arange(0, 48, 48 // BOXES)]
    own = [m.to(dtype).eval() for m in (f, other)]
    inputs = math.prod(shape)
    symbols = (None, inputs + 3, inputs + 40)[int(torch.randint(3, (), generator=g))]
    try:
        problem = read_problem(*own, domain.center[:1].to(dtype), unit=OWN_UNIT, symbols=symbols)
    except CaptureError as error:
        tally.counts[f"refused: {type(error).__name__}"] += 1
        return tally
    exact = [copy.deepcopy(m).double() for m in own]
    x = points(*exact, domain, g)
    climbed = search_boxes(problem, domain, restarts=2, steps=6, generator=g).worst
    x = torch.cat([x, climbed.unsqueeze(0)])
    casts = any(c.rounds for o in problem.own for c in o.graph.casts)
    for rounding in ("auto", True)[: 1 if casts else 2]:
        cert = prove(problem, domain, methods=methods, norm=math.inf, rounding=rounding)
        if rounding is True:
            x = torch.minimum(torch.maximum(x.half().double(), domain.lo), domain.hi)
            seen = deviations(*own, x, dtype).nan_to_num(nan=math.inf)
            slack = torch.zeros(())
        else:
            with torch.no_grad():
                seen = problem.difference(x.flatten(0, 1)).reshape(*x.shape[:2], -1).abs()
                # How far these evaluations may be off, which only the reference is to be allowed.
                slack = replace(problem, dtype=torch.float64).rounding_errors(domain)
        above = seen.amax(dim=0) > cert.per_box + slack
        for box in above.any(dim=1).nonzero().flatten().tolist():
            tally.violations.append(
                f"seed {seed} {rounding} {dtype} symbols {symbols}, box {box}:"
                f" {seen[:, box].max():.6g} above {cert.per_box[box].max():.6g}"
            )
        tally.counts["certificates"] += len(domain)
        tally.counts["points"] += len(domain) * len(x)
        tally.counts["finite"] += int(cert.per_box.isfinite().all(dim=1).sum())
        tally.counts[f"rounding {rounding}"] += len(domain)
        tally.counts["few symbols"] += len(domain) * any("got no" in a for a in cert.assumptions)
    return tally


def _exactly(seed: int, methods: tuple[str, ...]) -> Tally:
    tally = Tally()
    dtype = (torch.float32, torch.float64)[seed // 3 % 2]
    f, other = computed.draw(50_000 + seed, dtype)
    g = torch.Generator().manual_seed(seed)
    centre = torch.randn(1, f.inputs, generator=g).to(dtype).double()
    half = 10.0 ** -int(torch.randint(7, (), generator=g))
    lo, hi = box = (centre - half, centre + half)
    share = torch.rand(5, f.inputs, generator=g).double()
    share[:3] = share[:3].round()
    for rounding in ("auto", True):
        cert = certify(f, other, box=box, methods=list(methods), rounding=rounding, steps=4)
        for x in (cert.worst_input.reshape(1, -1), *(lo + s * (hi - lo) for s in share)):
            if rounding is True:
                x = x.to(dtype)
                if not bool(((x >= lo) & (x <= hi)).all()):
                    continue
                with torch.no_grad():
                    gaps = (f(x).double() - other(x).double()).abs().flatten().tolist()
            else:
                pairs = zip(computed.exact(f, x[0]), computed.exact(other, x[0]), strict=True)
                gaps = [abs(a - b) for a, b in pairs]
            if any(gap > bound for gap, bound in zip(gaps, cert.per_output.tolist(), strict=True)):
                tally.violations.append(f"seed {seed} {rounding}: {gaps} above {cert.bound}")
            tally.counts["points"] += 1
        tally.counts["certificates"] += 1
        tally.counts["against 600 bits"] += rounding == "auto"
    return tally
