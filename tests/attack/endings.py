"""Networks that end in a softmax, sigmoid or tanh: what is found against the bound on each box that
was carried through that map, in real arithmetic and in the networks' own.
"""

import copy
import math

import torch
from torch import Tensor, nn

from attack.cases import DTYPES, Tally, boxes, deviations, points
from attack.programs import CHANGES, changed, random_program
from secateurs.errors import CaptureError, SecateursError
from secateurs.proof import METHODS
from secateurs.proof.certify import prove
from secateurs.proof.problem import OWN_UNIT, read_problem

FUNCTIONS = {
    "sigmoid": lambda y: torch.sigmoid(y),
    "tanh": lambda y: torch.tanh(y).unsqueeze(-1),
    "softmax": lambda y: torch.softmax(y, y.ndim - 1),
    "softmax over the first": lambda y: torch.softmax(y, min(1, y.ndim - 1)).flatten(1),
    "log_softmax": lambda y: torch.log_softmax(y, y.ndim - 1),
}


class Ended(nn.Module):
    def __init__(self, body: nn.Module, name: str) -> None:
        super().__init__()
        self.body, self.name = body, name

    def forward(self, x: Tensor) -> Tensor:
        return FUNCTIONS[self.name](self.body(x))


def attack_ending(seed: int) -> Tally:
    """One random network, a changed one, and one map behind both."""
    g = torch.Generator().manual_seed(seed)
    body, shape = random_program(g)

    def pick(names):
        return list(names)[int(torch.randint(len(names), (), generator=g))]

    name, kind, dtype = pick(FUNCTIONS), pick(CHANGES), pick(DTYPES)
    label, tally = f"seed {seed} {name} {kind} {dtype}", Tally()
    own = [Ended(m, name).to(dtype).eval() for m in (copy.deepcopy(body), changed(body, kind, g))]
    exact = [copy.deepcopy(m).double() for m in own]
    domain = boxes(shape, g)
    try:
        problem = read_problem(
            *own, domain.center[:1].to(dtype), ending=True, unit=OWN_UNIT, effort=1e6
        )
        x = points(*(flat(m) for m in exact), domain, g)
        for rounding in ("auto", True):
            casts = any(c.rounds for o in problem.own for c in o.graph.casts)
            if rounding is True and (casts or problem.ending.name == "log_softmax"):
                continue
            norm = pick((1, 2, math.inf))
            proof = prove(problem, domain, methods=METHODS.names(), norm=norm, rounding=rounding)
            if rounding is True:
                inside = torch.minimum(torch.maximum(x.half().double(), domain.lo), domain.hi)
                found = deviations(*(flat(m) for m in own), inside, dtype).nan_to_num(nan=math.inf)
            else:
                with torch.no_grad():
                    found = problem.differences(x.flatten(0, 1)).least
                found = found.reshape(*x.shape[:2], -1)
            size = torch.linalg.vector_norm(found, ord=norm, dim=2)
            for what, seen, bound in (
                ("an output", found.amax(dim=0), proof.per_box),
                (f"norm {norm}", size.amax(dim=0), proof.balls * (1 + 1e-12)),
            ):
                if not bool((seen <= bound).all()):
                    gap = float((seen - bound).max())
                    tally.violations.append(f"{label} {rounding}, {what}: {gap:.3g} above")
            tally.counts["certificates"] += len(domain)
            tally.counts[f"{name}, rounding {rounding}"] += len(domain)
            tally.counts["that say something"] += int((proof.per_box.amax(dim=1) < 0.99).sum())
            apart = (found.amax(dim=(0, 2)) > 0.9 * proof.per_box.amax(dim=1)).sum()
            tally.counts["within a tenth of what is found"] += int(apart)
    except CaptureError:
        tally.counts["refused"] += 1
    except (SecateursError, RuntimeError, TypeError, KeyError, ValueError) as error:
        tally.errors.append(f"{label}: {type(error).__name__}: {error}")
    return tally


def flat(model: nn.Module) -> nn.Module:
    """Its outputs flat per input."""
    return nn.Sequential(model, nn.Flatten())
