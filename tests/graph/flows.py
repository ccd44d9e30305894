"""A case for every flow of the library: how it is made, fed and read.

A new flow inherits the laws of `laws.py` by an entry here. Without one a test fails and names it:
whatever class has the six methods of `Flow` is found by `every_flow`.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, nn

import secateurs
from secateurs.channels.inexact import InexactFlow
from secateurs.channels.labels import LabelFlow, Labelled
from secateurs.graph import Evaluate, Flow, Graph, propagate
from secateurs.graph.spot_check import _Peak
from secateurs.paths.costs import Recorder
from secateurs.paths.enumeration import Depth
from secateurs.paths.mass import MassFlow, NormFlow
from secateurs.paths.reach import Arrival, Reachability, SpanFlow
from secateurs.proof.affine import AffineForms
from secateurs.proof.descent import Descent, NodeRanges, RangedZonotopes
from secateurs.proof.domain import Domain, ball_domain
from secateurs.proof.forms import ParameterPair
from secateurs.proof.interval import Interval, Known, TwoStream
from secateurs.proof.linear import Probe, Relaxation, Relaxed
from secateurs.proof.lipschitz import LemmaE1
from secateurs.proof.methods import both_ends
from secateurs.proof.metric import DifferenceFlow
from secateurs.proof.normalize import EdgeFlow
from secateurs.proof.normalized import TheoremE1
from secateurs.proof.path_streams import ExactPaths, PathStreams
from secateurs.proof.problem import NetworkPair, read_problem
from secateurs.proof.rounding import Evaluation, Rounding
from secateurs.proof.scaling import Coupling, ScaleFlow, coupling
from secateurs.proof.training import Coarse
from secateurs.proof.zonotope import Pair, Zonotopes, nodes_alone
from secateurs.theory.partition import KindsFlow
from tiny_networks import KINDS, pruned, randomize

METHODS = ("input", "affine", "activation", "pool", "structural", "add")
RADIUS = 0.3


def every_flow() -> set[type]:
    """All classes of the library with the six methods of a flow."""
    found: set[type] = set()
    for module in pkgutil.walk_packages(secateurs.__path__, "secateurs."):
        own = module.name.rpartition(".")[2]
        if module.name.startswith("secateurs.adapters") or own.startswith(("gpu_", "__main__")):
            continue  # needs packages that may be missing; runs the command line
        for kind in vars(importlib.import_module(module.name)).values():
            ours = inspect.isclass(kind) and kind.__module__.startswith("secateurs")
            if ours and all(callable(getattr(kind, name, None)) for name in METHODS):
                found.add(kind)
    return found - {Flow}


class Setting:
    """A network of a kind, its pruned copy, inputs, and the balls around them."""

    def __init__(self, kind: str) -> None:
        make, shape = KINDS[kind]
        generator = torch.Generator().manual_seed(len(kind))
        self.dense: nn.Module = randomize(make().double(), generator)
        self.sparse: nn.Module = pruned(self.dense, generator)
        self.x = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
        self.problem: NetworkPair = read_problem(self.dense, self.sparse, self.x[:1])
        self.graph: Graph = self.problem.graph
        self.state = self.problem.pair.f

    @property
    def domain(self) -> Domain:
        """A ball of `RADIUS` around every input."""
        return ball_domain(self.x, RADIUS)

    @property
    def ones(self) -> Tensor:
        """What path norms are fed with."""
        return torch.ones(1, *self.x.shape[1:], dtype=torch.float64)

    @cached_property
    def samples(self) -> Tensor:
        """Points of each ball, its middle and some corners among them: (points, 3, *shape)."""
        generator = torch.Generator().manual_seed(7)
        noise = torch.randn(24, *self.x.shape, generator=generator, dtype=torch.float64)
        steps = torch.cat([noise.clamp(-1, 1), noise[:8].sign(), noise[:1] * 0])
        return self.x + RADIUS * steps

    def outputs(self, model: nn.Module, points: Tensor) -> Tensor:
        """The model's answers, (…, numbers of the answer)."""
        with torch.no_grad():
            flat = model(points.reshape(-1, *self.x.shape[1:]))
        return flat.reshape(*points.shape[:2], -1)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One flow.

    Attributes:
        make: the flow for a setting.
        feed: what its inputs are.
        params: what it reads weights from.
        law: what its result claims, as the name of a function in `laws.py`.
        read: the flow and its result to the tensor that the claim is about.
        graph: what it is carried through.
    """

    make: Callable[[Setting], Any]
    feed: Callable[[Setting], Any] = lambda s: None
    params: Callable[[Setting], Any] = lambda s: None
    law: str = "describes"
    read: Callable[[Any, Any], Any] = lambda flow, value: value
    graph: Callable[[Setting], Graph] = lambda s: s.graph


def ball(setting: Setting) -> tuple[Tensor, Tensor]:
    return setting.problem.flow_input(setting.domain)


def around_all_balls(setting: Setting) -> tuple[Tensor, Tensor]:
    """One box, which every ball lies in."""
    low, high = ball(setting)
    return low.amin(0, keepdim=True), high.amax(0, keepdim=True)


def largest_of_one_box(y: Pair) -> Tensor:
    """What is claimed of the outputs on a box, for each of the three balls."""
    ends = y.directions(torch.eye(y.f.c.numel(), dtype=torch.float64), 2.0**-52)
    return ends[4:].abs().amax(0).expand(3, -1)


def ranged(setting: Setting) -> RangedZonotopes:
    return RangedZonotopes(unit=2.0**-52, alone=nodes_alone(setting.graph))


def ranges(setting: Setting) -> dict[str, NodeRanges]:
    """What zonotopes prove of every node on the box around all balls."""
    flow = ranged(setting)
    propagate(setting.graph, flow, [around_all_balls(setting)], pair(setting))
    return flow.seen


def passed(flow: Descent, y: Relaxed) -> Tensor:
    """What passes from the outputs on one box claim for each of the three balls."""
    high, low = both_ends(flow, y, torch.arange(y.d[0].numel()))
    return torch.maximum(high, -low).expand(3, -1)


def one_input(setting: Setting) -> Tensor:
    return setting.x[:1]


def middle_and_reach(setting: Setting) -> tuple[Tensor, Tensor]:
    center = setting.x.unsqueeze(1)
    return center, torch.full_like(center, RADIUS)


def own(setting: Setting) -> Any:
    return setting.state


def pair(setting: Setting) -> ParameterPair:
    return setting.problem.pair


def twice(setting: Setting) -> ParameterPair:
    """Rounding looks at one network, given as both of a pair."""
    return ParameterPair(f=setting.problem.own[0].state, g=setting.problem.own[0].state)


def both(setting: Setting) -> tuple[Any, Any]:
    return setting.problem.pair.f, setting.problem.pair.g


def magnitude(setting: Setting) -> Tensor:
    return setting.domain.magnitude.unsqueeze(1)


@cache
def setting(kind: str) -> Setting:
    """One setting for all flows: no law changes it."""
    return Setting(kind)


VALUES = {"feed": one_input, "params": own, "law": "equals_the_model"}
NORMS = {"feed": lambda s: s.ones, "params": own, "law": "bounds_outputs"}
METRICS = {"feed": lambda s: s.ones, "law": "bounds_differences_by_the_norm"}
BOXES = {"feed": ball, "params": pair, "law": "bounds_differences_on_balls"}
CASES: dict[type, Case] = {
    Evaluate: Case(make=lambda s: Evaluate(), **VALUES),
    _Peak: Case(make=lambda s: _Peak(torch.float64), **VALUES),
    Recorder: Case(make=lambda s: Recorder(), **VALUES),
    NormFlow: Case(make=lambda s: NormFlow(), read=lambda f, v: v.plain(), **NORMS),
    MassFlow: Case(make=lambda s: MassFlow(s.graph), read=lambda f, v: v.scaled.plain(), **NORMS),
    DifferenceFlow: Case(
        make=lambda s: DifferenceFlow(),
        params=both,
        read=lambda f, v: v.distance.plain(),
        **METRICS,
    ),
    PathStreams: Case(
        make=lambda s: PathStreams(),
        params=pair,
        read=lambda f, v: v.d,
        **{**METRICS, "feed": lambda s: s.ones.unsqueeze(0)},
    ),
    ExactPaths: Case(
        make=lambda s: ExactPaths(),
        params=pair,
        read=lambda f, v: f.distance(v, 0.0),
        **{**METRICS, "feed": lambda s: s.ones.unsqueeze(0)},
    ),
    LemmaE1: Case(make=lambda s: LemmaE1(), params=pair, read=lambda f, v: v.gap, **METRICS),
    TheoremE1: Case(make=lambda s: TheoremE1(), feed=lambda s: s.ones, params=pair),
    TwoStream: Case(
        make=lambda s: TwoStream(),
        read=lambda f, v: v.d,
        **{**BOXES, "feed": magnitude},
    ),
    Interval: Case(make=lambda s: Interval(), read=lambda f, v: f.bounds(v).largest, **BOXES),
    AffineForms: Case(make=lambda s: AffineForms(), read=lambda f, v: f.bounds(v).largest, **BOXES),
    Zonotopes: Case(
        make=lambda s: Zonotopes(unit=2.0**-52, alone=nodes_alone(s.graph)),
        read=lambda f, v: largest_of_one_box(v),
        **{**BOXES, "feed": around_all_balls},
    ),
    RangedZonotopes: Case(
        make=ranged,
        read=lambda f, v: largest_of_one_box(v),
        **{**BOXES, "feed": around_all_balls},
    ),
    Known: Case(
        make=lambda s: Known({name: one.bounds for name, one in ranges(s).items()}),
        read=lambda f, v: f.bounds(v).largest.flatten(1).expand(3, -1),
        **{**BOXES, "feed": around_all_balls},
    ),
    Descent: Case(
        make=lambda s: Descent(ranges(s), unit=2.0**-52),
        read=passed,
        **{**BOXES, "feed": around_all_balls},
    ),
    Relaxation: Case(make=lambda s: Relaxation(), read=lambda f, v: f.bounds(v).largest, **BOXES),
    # Its results are guesses: no claim is made of them, but that they can be had again.
    Probe: Case(
        make=lambda s: Probe(),
        read=lambda f, v: f.bounds(v).largest,
        **{**BOXES, "law": "describes"},
    ),
    Coarse: Case(
        make=lambda s: Coarse(),
        read=lambda f, v: v.largest,
        **{**BOXES, "feed": middle_and_reach},
    ),
    Rounding: Case(
        make=lambda s: Rounding(torch.float32, {}),
        feed=ball,
        params=twice,
        graph=lambda s: s.problem.own[0].graph,
        law="covers_rounding",
        read=lambda f, v: v.e,
    ),
    Evaluation: Case(
        make=lambda s: Evaluation({}),
        read=lambda f, v: v.y,
        **{**VALUES, "feed": lambda s: s.x[:1].unsqueeze(0)},
    ),
    Depth: Case(make=lambda s: Depth()),
    KindsFlow: Case(make=lambda s: KindsFlow(s.graph, s.state)),
    LabelFlow: Case(make=lambda s: LabelFlow(Labelled(s.graph), s.dense)),
    InexactFlow: Case(make=lambda s: InexactFlow(Labelled(s.graph), s.dense)),
    ScaleFlow: Case(make=lambda s: ScaleFlow(Coupling(s.graph))),
    Arrival: Case(make=lambda s: Arrival(s.graph, Reachability()), params=own),
    SpanFlow: Case(make=lambda s: SpanFlow(s.graph, Reachability()), params=own),
    EdgeFlow: Case(make=lambda s: EdgeFlow(s.graph, coupling(s.graph)), params=own),
}
