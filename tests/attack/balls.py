"""Batches of balls around inputs of many entries: each ball's own bound against search and points,
and against the bound of that ball alone.
"""

import copy
import itertools

import torch
from torch import nn

from attack.cases import Tally
from secateurs.proof.certify import certify
from secateurs.proof.search import search

BALLS = 24


def network(g: torch.Generator) -> tuple[nn.Module, nn.Module]:
    """A network of two to five layers over 8 to 60 inputs, and a changed one."""

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=g))

    sizes = [draw(8, 60), *(draw(4, 24) for _ in range(draw(1, 4))), draw(2, 6)]
    layers: list[nn.Module] = []
    for ins, outs in itertools.pairwise(sizes):
        layers += [nn.Linear(ins, outs), nn.ReLU()]
    f = nn.Sequential(*layers[: -1 if draw(0, 2) else None])
    for p in f.parameters():
        p.data = torch.randn(p.shape, generator=g) * 2 / max(1, p.shape[-1]) ** 0.5
    other = copy.deepcopy(f)
    kind = draw(0, 2)
    for p in other.parameters():
        noise = torch.randn(p.shape, generator=g)
        if kind == 0:
            p.data[p.abs() < 0.1] = 0
        elif kind == 1:
            p.data = p.data.half().float()
        else:
            p.data += 0.01 * noise
    return f.eval().double(), other.eval().double()


def attack_balls(seed: int) -> Tally:
    """One batch of balls, cut to a valid range for every second seed."""
    g = torch.Generator().manual_seed(seed)
    tally = Tally()
    f, other = network(g)
    x = torch.rand(BALLS, f[0].in_features, generator=g, dtype=torch.float64)
    radius = 10.0 ** float(-3 + 3 * torch.rand((), generator=g))
    ball = {"radius": radius, "clip": (0.0, 1.0) if seed % 2 else None}
    cert = certify(f, other, around=x, restarts=1, steps=4, generator=g, **ball)
    domain, problem = cert.region, cert.problem
    climbed = search(problem.difference, domain.lo, domain.hi, restarts=2, steps=8, generator=g)
    share = torch.rand(100, *x.shape, generator=g, dtype=torch.float64)
    share[::2] = share[::2].round()
    inside = (domain.lo + share * (domain.hi - domain.lo)).clamp(domain.lo, domain.hi)
    with torch.no_grad():
        seen = (f(inside) - other(inside)).abs().amax(dim=0).maximum(climbed.per_output)
        slack = 1e-12 * (1 + f(x).abs().amax())
    for number, output in (seen > cert.per_box + slack).nonzero().tolist():
        tally.violations.append(
            f"seed {seed}, ball {number}, output {output}: {float(seen[number, output])} above"
            f" {float(cert.per_box[number, output])}"
        )
    for number in (0, BALLS // 2):
        alone = certify(f, other, around=x[number : number + 1], restarts=0, **ball)
        if not float(cert.balls[number]) <= alone.bound * (1 + 1e-9):
            tally.violations.append(f"seed {seed}, ball {number}: looser than alone")
    tally.counts["balls"] += BALLS
    tally.counts["points"] += BALLS * len(share)
    tally.counts[f"tightest: {cert.method}"] += 1
    return tally
