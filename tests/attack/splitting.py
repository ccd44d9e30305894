"""Split certificates of random chains against search, corners and random points."""

import copy
import itertools
import math
from unittest import mock

import torch
from torch import Tensor, nn

from attack.cases import Tally, boxes
from secateurs.proof import dense_chain
from secateurs.proof.domain import Domain
from secateurs.proof.methods import run_methods
from secateurs.proof.problem import TimeLimit, read_problem
from secateurs.proof.search import search
from secateurs.proof.splitting import split
from secateurs.proof.top_class import TopClass

SECONDS = 0.4


def chain(g: torch.Generator) -> tuple[nn.Module, nn.Module]:
    """A network of one to five layers, and a changed one."""

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=g))

    sizes = [draw(1, 4), *(draw(1, 12) for _ in range(draw(0, 4))), draw(2, 4)]
    f = nn.Sequential()
    for ins, outs in itertools.pairwise(sizes):
        f.append(nn.Linear(ins, outs))
        if draw(0, 5):
            f.append(nn.ReLU())
    if isinstance(f[-1], nn.ReLU):
        f.pop(-1)
    scale = 10.0 ** draw(-1, 2)
    for p in f.parameters():
        p.data = scale * torch.randn(p.shape, generator=g) / max(1, p.shape[-1]) ** 0.5
        if draw(0, 3) == 0 and len(p) > 1:
            # Rows that nearly cancel.
            p.data[1:] = -p.data[:1] * (1 + 1e-6)
    other = copy.deepcopy(f)
    kind, by = draw(0, 3), scale * 10.0 ** draw(-6, 0)
    for p in other.parameters():
        noise = torch.randn(p.shape, generator=g)
        if kind == 0:
            p.data[noise.abs() < 0.3] = 0
        elif kind == 1:
            p.data = p.data.bfloat16().float()
        else:
            p.data += by * noise
    return f.eval().double(), other.eval().double()


def wide_chain(g: torch.Generator) -> tuple[nn.Module, nn.Module]:
    """The same, of 13 to 20 inputs and two or three hidden layers: neurons are cut."""

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=g))

    sizes = [draw(13, 20), *(draw(3, 12) for _ in range(draw(2, 3))), draw(1, 3)]
    f = nn.Sequential(
        *(m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU()))
    )[:-1]
    scale = 10.0 ** draw(-1, 1)
    for p in f.parameters():
        p.data = scale * torch.randn(p.shape, generator=g) / max(1, p.shape[-1]) ** 0.5
    other = copy.deepcopy(f)
    kind, by = draw(0, 2), scale * 10.0 ** draw(-4, -1)
    for p in other.parameters():
        noise = torch.randn(p.shape, generator=g)
        if kind == 0:
            p.data[noise.abs() < 0.3] = 0
        elif kind == 1:
            p.data = p.data.bfloat16().float()
        else:
            p.data += by * noise
    return f.eval().double(), other.eval().double()


def attack_signs(seed: int) -> Tally:
    """16 boxes of many inputs, split at neurons for targets between what is found and what is
    proven whole, against search, corners and random points. Every third seed in torch.
    """
    g = torch.Generator().manual_seed(seed)
    tally = Tally()
    f, other = wide_chain(g)
    inputs = f[0].in_features
    middle = torch.randn(16, inputs, generator=g).double()
    radius = 10.0 ** (torch.rand(16, 1, generator=g).double() * 2.5 - 2.5)
    lo, hi = middle - radius, middle + radius
    domain = Domain(lo=lo, hi=hi, center=middle, radius=None, description="")
    problem = read_problem(f, other, torch.zeros(1, inputs, dtype=torch.float64))
    share = torch.rand(400, inputs, generator=g).double()
    share[:200] = share[:200].round()
    x = lo.unsqueeze(1) + share * (hi - lo).unsqueeze(1)
    with torch.no_grad():
        values = [net(x) for net in (f, other)]
        proven, _ = run_methods(problem, domain, ["linear"])
    climbed = search(problem.difference, lo, hi, restarts=2, steps=8, generator=g)
    gaps = (values[0] - values[1]).abs().amax(dim=1).maximum(climbed.per_output).amax(dim=1)
    per_box = proven["linear"].per_output
    part = 0.05 + 0.9 * torch.rand(16, generator=g).double()
    target = gaps + part * (per_box.amax(dim=1) - gaps)
    limited = copy.copy(problem)
    object.__setattr__(limited, "clock", TimeLimit(seconds=SECONDS))
    slack = 1e-11 * (1 + sum(v.abs().amax(dim=(1, 2)) for v in values))
    with mock.patch.object(
        dense_chain,
        "compiled_bounds",
        (lambda: None) if seed % 3 == 0 else dense_chain.compiled_bounds,
    ):
        options = {"norm": math.inf, "methods": ["linear"], "refuting": math.inf}
        found = split(limited, domain, per_box, target=target, **options)
        again = split(problem, domain, per_box, target=target, plan=found.parts, **options)
    for number in (gaps > found.balls + slack).nonzero().flatten().tolist():
        tally.violations.append(
            f"seed {seed}, box {number}: {float(gaps[number])} above {float(found.balls[number])}"
        )
    if not bool((again.balls <= found.balls * (1 + 1e-9)).all()) or found.share > 1 + 1e-9:
        tally.violations.append(f"seed {seed}: the parts do not prove it again")
    tally.counts["split certificates"] += len(domain)
    tally.counts["parts"] += sum(map(len, found.parts))
    tally.counts["cut at a neuron"] += sum(max(tree.cuts) > inputs for tree in found.parts)
    tally.counts["targets proven"] += int((found.balls <= target).sum())
    return tally


def points(lo: Tensor, hi: Tensor, g: torch.Generator) -> Tensor:
    """Corners and inner points of each box, (boxes, points, inputs)."""
    n = lo.shape[1]
    corners = torch.tensor([*itertools.product([0.0, 1.0], repeat=n)])
    share = torch.cat([corners, torch.rand(200, n, generator=g)]).double()
    return lo.unsqueeze(1) + share * (hi - lo).unsqueeze(1)


def attack_split(seed: int) -> Tally:
    """48 boxes of all sizes, split for targets between what is found and what is proven whole; then
    for one top class. Every third seed in torch, the others compiled.
    """
    g = torch.Generator().manual_seed(seed)
    tally = Tally()
    f, other = chain(g)
    inputs = f[0].in_features
    domain = boxes((inputs,), g)
    problem = read_problem(f, other, torch.zeros(1, inputs, dtype=torch.float64))
    x = points(domain.lo, domain.hi, g)
    with torch.no_grad():
        values = [net(x) for net in (f, other)]
        proven, _ = run_methods(problem, domain, ["interval"])
    climbed = search(problem.difference, domain.lo, domain.hi, restarts=2, steps=5, generator=g)
    gaps = (values[0] - values[1]).abs().amax(dim=1).maximum(climbed.per_output).amax(dim=1)
    per_box = proven["interval"].per_output
    share = 0.02 + 0.6 * torch.rand(len(domain), generator=g).double()
    target = gaps + share * (per_box.amax(dim=1) - gaps)
    limited = copy.copy(problem)
    object.__setattr__(limited, "clock", TimeLimit(seconds=SECONDS))
    slack = 1e-11 * (1 + sum(v.abs().amax(dim=(1, 2)) for v in values))
    with mock.patch.object(
        dense_chain,
        "compiled_bounds",
        (lambda: None) if seed % 3 == 0 else dense_chain.compiled_bounds,
    ):
        options = {"norm": math.inf, "methods": ["interval"]}
        found = split(limited, domain, per_box, target=target, refuting=math.inf, **options)
        again = split(
            problem,
            domain,
            per_box,
            target=target,
            refuting=math.inf,
            plan=found.parts,
            **options,
        )
        margin = float(torch.rand((), generator=g) * 2 * gaps.median())
        claim = TopClass(margin=margin)
        object.__setattr__(limited, "clock", TimeLimit(seconds=SECONDS))
        zeros = torch.zeros(len(domain), dtype=torch.float64)
        same = split(limited, domain, per_box, target=zeros, refuting=0.0, claim=claim, **options)
    for number in (gaps > found.balls + slack).nonzero().flatten().tolist():
        tally.violations.append(
            f"seed {seed}, box {number}: {float(gaps[number])} above {float(found.balls[number])}"
        )
    if not bool((again.balls <= found.balls * (1 + 1e-9)).all()) or found.share > 1 + 1e-9:
        tally.violations.append(f"seed {seed}: the parts do not prove it again")
    wrong = claim.violation(*(v.flatten(0, 1) for v in values)).max()
    if same.complete and float(wrong) > float(slack.max()):
        tally.violations.append(f"seed {seed}: another class within a claim that is proven")
    if same.witness is not None:
        there = claim.violation(*(own(same.witness.unsqueeze(0)) for own in problem.own))
        if not float(there) > 0:
            tally.violations.append(f"seed {seed}: the witness is none")
    tally.counts["split certificates"] += len(domain)
    tally.counts["parts"] += sum(map(len, found.parts))
    tally.counts["targets proven"] += int((found.balls <= target).sum())
    tally.counts[f"top class {'proven' if same.complete else 'refuted or open'}"] += 1
    return tally
