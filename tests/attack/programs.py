"""Random networks: a list of steps, each reading earlier values; and the changes made to them."""

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attack.operators import OPERATORS, Draw, Op

SHAPES = ((4,), (6,), (2, 5), (3, 4), (1, 4, 4), (2, 3, 3), (2, 4, 5))
LARGEST = 80


@dataclass(frozen=True)
class Step:
    """One operator with its literals, the values it reads, and the names of its parameters."""

    operator: str
    literals: dict[str, Any]
    reads: tuple[int, ...]
    parameters: tuple[str, ...]


class Program(nn.Module):
    """x, then one value per step; the answer is a linear map of the last."""

    def __init__(self, steps: list[Step], ops: list[Op], shapes: dict[str, tuple[int, ...]]):
        super().__init__()
        self.steps, self.ops = steps, ops
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for step, op in zip(self.steps, self.ops, strict=True):
            own = [getattr(self, name) for name in step.parameters]
            values.append(op.call([values[i] for i in step.reads], own))
        return nn.functional.linear(values[-1].flatten(1), self.head, self.bias)


def random_program(g: torch.Generator) -> tuple[Program, tuple[int, ...]]:
    """A network of three to eight steps in float64, and the shape of its input."""
    shape = SHAPES[int(torch.randint(len(SHAPES), (), generator=g))]
    values = [torch.zeros(1, *shape)]
    steps: list[Step] = []
    ops: list[Op] = []
    shapes: dict[str, tuple[int, ...]] = {}
    positive: set[str] = set()
    wanted = int(torch.randint(3, 9, (), generator=g))
    names = list(OPERATORS)
    for _ in range(200):
        if len(steps) == wanted:
            break
        name = names[int(torch.randint(len(names), (), generator=g))]
        # Mostly the last value; at times an earlier one, which makes skips and dead ends.
        last = len(values) - 1
        at = (
            last
            if torch.rand((), generator=g) < 0.8
            else int(torch.randint(last + 1, (), generator=g))
        )
        draw = Draw(g)
        made = _tried(name, draw, values, at, g)
        if made is None:
            continue
        op, reads, result = made
        own = tuple(f"p{len(shapes) + i}" for i in range(len(op.parameters)))
        shapes |= dict(zip(own, op.parameters, strict=True))
        positive |= {own[i] for i in op.positive}
        steps.append(Step(name, draw.known, reads, own))
        ops.append(op)
        values.append(result)
    shapes |= {"head": (3, values[-1].numel()), "bias": (3,)}
    model = Program(steps, ops, shapes)
    model.input_shape = shape
    fill(model, g, positive)
    return model.double().eval(), shape


def _tried(name: str, draw: Draw, values: list[Tensor], at: int, g: torch.Generator) -> Any:
    shape = tuple(values[at].shape)
    op = OPERATORS[name](draw, shape)
    if op is None:
        return None
    alike = [i for i, v in enumerate(values) if v.shape == values[at].shape]
    reads = (
        at,
        *(alike[int(torch.randint(len(alike), (), generator=g))] for _ in range(op.reads - 1)),
    )
    try:
        result = op.call([values[i] for i in reads], [torch.ones(s) for s in op.parameters])
    except (RuntimeError, IndexError, ValueError):
        return None
    ok = result.ndim >= 2 and 0 < result.numel() <= LARGEST
    return (op, reads, result) if ok else None


@torch.no_grad()
def fill(model: Program, g: torch.Generator, positive: set[str]) -> None:
    """Random values of a size that keeps outputs near 1; variances positive; some entries zero."""
    for name, tensor in model.named_parameters():
        drawn = torch.randn(tensor.shape, generator=g)
        fan = tensor[0].numel() ** 0.5 if tensor.ndim > 1 else 2.0
        tensor.copy_(drawn.abs() + 0.5 if name in positive else drawn / max(fan, 1.0))
        if name not in positive and torch.rand((), generator=g) < 0.2:
            tensor[torch.rand(tensor.shape, generator=g) < 0.5] = 0
    model.positive = positive


def pruned(t: Tensor, g: torch.Generator) -> Tensor:
    return t * (torch.rand(t.shape, generator=g) > 0.3)


def rounded(t: Tensor, g: torch.Generator) -> Tensor:
    step = t.abs().max().clamp(min=1e-9) / 7
    return (t / step).round() * step


def tuned(t: Tensor, g: torch.Generator) -> Tensor:
    return t + 0.05 * torch.randn(t.shape, generator=g).to(t)


def one_entry(t: Tensor, g: torch.Generator) -> Tensor:
    t = t.clone()
    t.view(-1)[int(torch.randint(t.numel(), (), generator=g))] *= -1
    return t


def barely(t: Tensor, g: torch.Generator) -> Tensor:
    return t * (1 + 1e-12)


CHANGES = {
    "pruned": pruned,
    "rounded": rounded,
    "tuned": tuned,
    "one sign": one_entry,
    "by 1e-12": barely,
}


@torch.no_grad()
def changed(model: Program, kind: str, g: torch.Generator) -> Program:
    """A copy with other weights; variances stay positive."""
    other = copy.deepcopy(model)
    for name, tensor in other.named_parameters():
        if name not in model.positive:
            tensor.copy_(CHANGES[kind](tensor, g))
    return other


def one_literal(model: Program, g: torch.Generator) -> tuple[Program, str] | None:
    """The same weights and code, but for one literal, index, flag or alias."""
    places = [(i, name) for i, step in enumerate(model.steps) for name in step.literals]
    if not places:
        return None
    at, name = places[int(torch.randint(len(places), (), generator=g))]
    step = model.steps[at]
    shape = shape_before(model, at)
    draw = Draw(g, step.literals)
    OPERATORS[step.operator](draw, shape)
    others = [c for c in draw.choices.get(name, ()) if c != step.literals[name]]
    if not others:
        return None
    value = others[int(torch.randint(len(others), (), generator=g))]
    op = OPERATORS[step.operator](Draw(g, step.literals | {name: value}), shape)
    if op is None or op.parameters != model.ops[at].parameters or op.reads != model.ops[at].reads:
        return None
    other = copy.copy(model)
    other._parameters = dict(model._parameters)
    other.steps = [
        replace(s, literals=s.literals | {name: value}) if i == at else s
        for i, s in enumerate(model.steps)
    ]
    other.ops = [op if i == at else o for i, o in enumerate(model.ops)]
    try:
        same = all_shapes(other) == all_shapes(model)
    except (RuntimeError, IndexError, ValueError):
        return None
    return (other, f"{step.operator}: {name}") if same else None


def one_read(model: Program, g: torch.Generator) -> tuple[Program, str] | None:
    """One step reads another value of the same shape, or another parameter (a tie)."""
    at = int(torch.randint(len(model.steps), (), generator=g))
    step, shapes = model.steps[at], {n: p.shape for n, p in model.named_parameters()}
    other = copy.copy(model)
    other._parameters = dict(model._parameters)
    if step.parameters and torch.rand((), generator=g) < 0.6:
        slot = int(torch.randint(len(step.parameters), (), generator=g))
        old = step.parameters[slot]
        alike = [
            n
            for n, s in shapes.items()
            if s == shapes[old] and n != old and (n in model.positive) == (old in model.positive)
        ]
        if not alike:
            return None
        new = alike[int(torch.randint(len(alike), (), generator=g))]
        parameters = tuple(new if n == old else n for n in step.parameters)
        other.steps = [
            replace(s, parameters=parameters) if i == at else s for i, s in enumerate(model.steps)
        ]
        return other, "tie"
    values = all_shapes(model)
    slot = int(torch.randint(len(step.reads), (), generator=g))
    alike = [
        i for i in range(at + 1) if values[i] == values[step.reads[slot]] and i != step.reads[slot]
    ]
    if not alike:
        return None
    reads = tuple(alike[0] if k == slot else r for k, r in enumerate(step.reads))
    other.steps = [replace(s, reads=reads) if i == at else s for i, s in enumerate(model.steps)]
    return other, "value read"


def all_shapes(model: Program) -> list[tuple[int, ...]]:
    """The shape of the input and of every value."""
    values = [torch.zeros(1, *model.input_shape, dtype=torch.float64)]
    for step, op in zip(model.steps, model.ops, strict=True):
        own = [getattr(model, name).detach() for name in step.parameters]
        values.append(op.call([values[i] for i in step.reads], own))
    return [tuple(v.shape) for v in values]


def shape_before(model: Program, at: int) -> tuple[int, ...]:
    """The shape of what one step reads."""
    return all_shapes(model)[model.steps[at].reads[0]]
