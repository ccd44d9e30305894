"""Networks around a strange layer: kind × position × shape, all built from a seed."""

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from strange.kinds import ENDS, KINDS

WIDTH = 4
POSITIONS = ("input", "hidden", "branch", "output")
SHAPES = ("dense", "image", "sequential")


@dataclass(frozen=True, slots=True)
class Case:
    """One network, its twin with other floats, and whether it was called before."""

    kind: str
    position: str
    shape: str
    called: bool
    seed: int

    def __str__(self) -> str:
        called = "called" if self.called else "fresh"
        return f"{self.kind}-{self.position}-{self.shape}-{called}-{self.seed}"

    def build(self, *, other: bool = False) -> nn.Module:
        """The network in evaluation mode; `other` is the second one."""
        g = torch.Generator().manual_seed(2 * self.seed + other)
        state = torch.get_rng_state()
        model = _SHAPES[self.shape](self, g, KINDS.get(self.kind)).eval()
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=g)
            parameter.data = drawn / max(1, parameter[0].numel()) ** 0.5
        # A dead channel, so that there is something to compact; dead in both networks.
        first = next(p for p in model.parameters() if p.ndim > 1)
        first.data[1] = 0
        torch.set_rng_state(state)
        return model

    def fresh(self, *, other: bool = False) -> nn.Module:
        """The network as the library meets it."""
        model = self.build(other=other)
        if self.called:
            torch.manual_seed(7)
            random.seed(7)
            # As training code calls it: with gradients.
            model(self.inputs(1, seed=5))
        return model

    def inputs(self, batch: int, *, seed: int = 0) -> Tensor:
        """Random inputs of a batch size."""
        g = torch.Generator().manual_seed(seed)
        size = (2, 4, 4) if self.shape == "image" else (3,)
        return torch.randn(batch, *size, generator=g)


class Net(nn.Module):
    """A body with a strange layer at one of four places."""

    def __init__(self, case: Case, body: dict[str, nn.Module], layer: object) -> None:
        super().__init__()
        self.case = case
        for name, module in body.items():
            setattr(self, name, module)
        if layer is not None:
            self.strange = layer

    def at(self, position: str, h: Tensor) -> Tensor:
        """The strange layer where it belongs."""
        if position != self.case.position or not hasattr(self, "strange"):
            return h
        return h + self.strange(h) if position == "branch" else self.strange(h)

    def forward(self, x: Tensor) -> object:
        x = self.at("input", x)
        h = self.first(x).relu()
        h = self.at("branch", self.at("hidden", h))
        h = self.second(h).relu()
        y = self.at("output", self.head(self.pooled(h)))
        end = ENDS.get(self.case.kind)
        return y if end is None else end(y, self.pooled(h))

    def pooled(self, h: Tensor) -> Tensor:
        """One row per sample."""
        return h.mean((2, 3)) if h.ndim == 4 else h


def _layer(case: Case, g: torch.Generator, layer: object, first: int) -> object:
    widths = {"input": first, "output": 3}
    return layer(widths.get(case.position, WIDTH), g) if callable(layer) else None


def _dense(case: Case, g: torch.Generator, layer: object) -> nn.Module:
    body = {
        "first": nn.Linear(3, WIDTH),
        "second": nn.Linear(WIDTH, 5),
        "head": nn.Linear(5, 3),
    }
    return Net(case, body, _layer(case, g, layer, 3))


def _image(case: Case, g: torch.Generator, layer: object) -> nn.Module:
    norm = nn.BatchNorm2d(WIDTH)
    norm.running_mean.normal_(generator=g)
    body = {
        "first": nn.Sequential(nn.Conv2d(2, WIDTH, 3, padding=1), norm),
        "second": nn.Conv2d(WIDTH, 5, 3, stride=2),
        "head": nn.Linear(5, 3),
    }
    return Net(case, body, _layer(case, g, layer, 2))


def _sequential(case: Case, g: torch.Generator, layer: object) -> nn.Module:
    """Plain containers: the strange layer is a module like any other."""
    if case.kind in ENDS or case.position == "branch":
        return _dense(case, g, layer)
    strange = _layer(case, g, layer, 3)
    steps: list[object] = [strange] if case.position == "input" else []
    steps += [nn.Linear(3, WIDTH), nn.ReLU()]
    steps += [strange] if case.position == "hidden" else []
    steps += [nn.Sequential(nn.Linear(WIDTH, 5), nn.ReLU()), nn.Linear(5, 3)]
    steps += [strange] if case.position == "output" else []
    return nn.Sequential(*[step for step in steps if step is not None])


_SHAPES = {"dense": _dense, "image": _image, "sequential": _sequential}


def draw(count: int, *, seed: int = 0) -> list[Case]:
    """Cases of every kind in turns; place, shape and history of each are drawn at random."""
    g = torch.Generator().manual_seed(seed)

    def one(*choices: object) -> object:
        return choices[int(torch.randint(len(choices), (), generator=g))]

    kinds = [*KINDS, *ENDS]
    order = [kinds[i] for i in torch.randperm(len(kinds), generator=g).tolist()]
    cases = []
    for number in range(count):
        name = order[number % len(order)]
        place = "output" if name in ENDS else one(*POSITIONS)
        cases.append(Case(name, place, one(*SHAPES), one(True, False), seed * 1000 + number))
    return cases
