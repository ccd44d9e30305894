"""Two models read as one graph with two parameter vectors: what every certificate method works
on.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.base.parameters import check_model
from secateurs.errors import DomainError, ParameterError
from secateurs.graph import Graph, State, affines, capture, evaluate, joint, propagate
from secateurs.graph.ir import Ending
from secateurs.proof.domain import Domain
from secateurs.proof.ending import carry, error_of
from secateurs.proof.forms import Bounds, ParameterPair
from secateurs.proof.rounding import Evaluation, Radii, Rounding, radii_of

OWN_UNIT = 2.0**-53
"""The rounding unit of the certificates' own float64 arithmetic."""


_EVALUATION = 32
"""Passes for the errors of one evaluation may take this many times the cells of `effort`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedNetwork:
    """One network as it was read, with its own graph and parameters."""

    graph: Graph
    state: State

    def __call__(self, x: Tensor) -> Tensor:
        """The outputs of its graph, flat per input, in float64."""
        return evaluate(self.graph, [x], self.state).flatten(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """How far f and g are apart at some inputs, flat per input.

    Attributes:
        x: The inputs.
        seen: |f(x) − g(x)| as float64 evaluates it.
        least: What is left of it after all that rounding can have done.
    """

    x: Tensor
    seen: Tensor
    least: Tensor


@dataclass(frozen=True, kw_only=True)
class NetworkPair:
    """f and g over one graph; each is evaluated through the graph it was read into.

    Attributes:
        unit: Outward rounding of our own arithmetic.
        effort: Cells of backward passes per box.
        symbols: The maximal number of symbols in an affine form; None: what fits into 64 MB for the
            widest value of one box.
        clock: The time that the proof may take.
        output: The output of the models that it is about, as passed by the caller.
        evaluated: The precision whose evaluation the bound will have to cover; None for real
            numbers.
        shared: Objects computed once for both networks; the same for copies with another clock.
    """

    graph: Graph
    pair: ParameterPair
    dtype: torch.dtype
    # Differences are evaluated through each network's own graph, so that a wrong match in the joint
    # one could not hide them.
    own: tuple[CapturedNetwork, CapturedNetwork]
    unit: float = OWN_UNIT
    effort: float = 1e9
    symbols: int | None = None
    clock: "TimeLimit" = field(default_factory=lambda: TimeLimit())
    output: str | int | None = None
    evaluated: torch.dtype | None = None
    shared: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def outputs(self) -> int:
        """How many numbers the networks return for one input."""
        return math.prod(self.graph.by_name[self.graph.output].shape)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the output for one input."""
        if self.ending is not None:
            return self.ending.shape[1:]
        return tuple(self.graph.by_name[self.graph.output].shape[1:])

    @property
    def ending(self) -> Ending | None:
        """What both models do with the outputs of the graph. All else here is about those outputs,
        but for `difference` and `differences`, which are of what the models return.
        """
        return self.graph.ending

    @cached_property
    def widest(self) -> int:
        """The largest number of values of one node."""
        return max(math.prod(node.shape) for node in self.graph.nodes)

    @property
    def boxes_at_a_time(self) -> int:
        """So many that a method holds at most 2²¹ cells of the widest value: 16 MB in float64."""
        return max(1, min(64, 2**21 // self.widest))

    @property
    def room(self) -> int:
        """How many times as many numbers as on a processor are worked on at once: a GPU waits for
        launches else.
        """
        return 16 if any(value.is_cuda for value in self.pair.f.values()) else 1

    def dense(self, x: Tensor) -> Tensor:
        """f(x), flat per input, in float64."""
        return self.own[0](x)

    def difference(self, x: Tensor) -> Tensor:
        """f(x) − g(x), flat per input, in float64."""
        return self.returned(self.own[0](x)) - self.returned(self.own[1](x))

    def returned(self, y: Tensor) -> Tensor:
        """What the models return for these outputs of the graph, flat per input."""
        return y if self.ending is None else self.ending(y)

    def carried(self, change: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Bounds on what the models return, flat per box, from those on outputs of the graph, and
        from ends of these outputs in f.
        """
        return change if self.ending is None else carry(self.ending, change, low, high)

    @cached_property
    def signs(self) -> "Signs":
        """Whether θθ' ≥ 0 and |θ'| ≤ |θ| hold for every effective weight and bias."""
        return compare_signs(self.graph, self.pair)

    def flow_input(self, domain: Domain) -> tuple[Tensor, Tensor]:
        """The boxes as the flows take them: (boxes, *shape of the graph's input, batch of one
        included).
        """
        return domain.lo.unsqueeze(1), domain.hi.unsqueeze(1)

    def added_errors(self, domain: Domain, rounding: bool | str) -> Tensor:
        """Per box and output, what `rounding` of `certify` adds to a bound of the networks as they
        were read: the error of evaluation in the models' own precision, or that of computed
        weights.
        """
        if rounding is True:
            return self.rounding_errors(domain)
        if rounding is False:
            return domain.lo.new_zeros(len(domain), self.outputs)
        of_f, of_g = self.weight_errors(domain)
        return of_f + of_g

    def weight_radii(self) -> tuple[Radii, Radii]:
        """Around the computed weights of f and of g, by the nodes of the joint graph."""
        found = [self._radii(which, torch.float64) for which in (0, 1)]
        names = [{own: joint for joint, own in self._names(which)} for which in (0, 1)]
        of_f, of_g = (
            {name[node]: radius for node, radius in radii.items()}
            for name, radii in zip(names, found, strict=True)
        )
        return of_f, of_g

    def _names(self, which: int) -> list[tuple[str, str]]:
        """Nodes of the joint graph and of a network's own, which has them in the same order."""
        pairs = zip(self.graph.nodes, self.own[which].graph.nodes, strict=True)
        return [(joint.name, own.name) for joint, own in pairs]

    def rounding_errors(self, domain: Domain) -> Tensor:
        """Per box and output, how far both evaluations in the models' own precision can be from
        real arithmetic, by what `evaluate_on` has found where that is less; infinite if a value
        may overflow.
        """
        found = self._errors_of(0, domain, self.dtype) + self._errors_of(1, domain, self.dtype)
        for lo, hi, errors in self.shared.get("evaluated", ()):
            here = ((domain.lo == lo) & (domain.hi == hi)).flatten(1).all(dim=1, keepdim=True)
            found = torch.where(here, torch.minimum(found, errors), found)
        return found

    def evaluate_on(self, box: Domain, known: dict[str, Bounds]) -> None:
        """Narrow the errors of evaluation on one box by passes, on these bounds of all nodes."""
        total = box.lo.new_zeros(1, self.outputs)
        for which in (0, 1):
            of_node = {own: known[joint] for joint, own in self._names(which)}
            if which:
                of_node = {name: b.exchanged() for name, b in of_node.items()}
            total = total + self._errors_of(which, box, self.dtype, of_node)
        self.shared.setdefault("evaluated", []).append((box.lo, box.hi, total))

    def weight_errors(self, domain: Domain) -> tuple[Tensor, Tensor]:
        """Per box and output, how far each network of real numbers can be from the one whose
        computed weights are the float64 numbers that were read.
        """
        return self._errors_of(0, domain, None), self._errors_of(1, domain, None)

    def differences(self, x: Tensor) -> "Differences":
        """|f(x) − g(x)| as float64 evaluates it, and a lower bound of it."""
        (y, of_f), (z, of_g) = (self._near_returned(which, x) for which in (0, 1))
        gap = (y - z).abs()
        if not self.unit:
            # Without rounding, float64 counts as exact.
            return Differences(x=x, seen=gap, least=gap)
        least: Tensor = (gap - (of_f + of_g + 4 * OWN_UNIT * gap)).relu()
        # NaN after an overflow: nothing is known.
        return Differences(x=x, seen=gap, least=least.nan_to_num(nan=0.0, posinf=0.0))

    def near(self, which: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs of one network, 0 for f, flat per input, and how far the real ones can be
        from them.
        """
        own, size = self.own[which], max(1, 2**22 // (8 * self.widest))
        if not self.unit:
            exact = own(x)
            return exact, torch.zeros_like(exact)
        flow = Evaluation(self._radii(which, torch.float64))
        with torch.no_grad():
            parts = [
                propagate(own.graph, flow, [part.unsqueeze(1)], own.state)
                for part in torch.split(x.detach(), size)
            ]
        y, e = (torch.cat([getattr(p, k).flatten(1) for p in parts]) for k in ("y", "e"))
        return y.expand(len(x), -1), e.nan_to_num(nan=math.inf, posinf=math.inf).expand(len(x), -1)

    def _near_returned(self, which: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same of what the network returns."""
        y, error = self.near(which, x)
        if self.ending is None:
            return y, error
        own = error_of(self.ending, y, self.unit)
        return self.ending(y), (carry(self.ending, error, y, y) + own).nan_to_num(nan=math.inf)

    def _radii(self, which: int, precision: torch.dtype) -> Radii:
        """Around the computed weights of one network."""
        key = f"radii {which} {precision}"
        if key not in self.shared:
            own = self.own[which]
            with torch.no_grad():
                self.shared[key] = radii_of(own.graph, own.state, precision)
        found: Radii = self.shared[key]
        return found

    @cached_property
    def _same(self) -> bool:
        """Whether both are one network: then they differ nowhere, however a weight is computed."""
        one, two = self.own
        return (
            one.graph.describe() == two.graph.describe()
            and one.state.keys() == two.state.keys()
            and all(torch.equal(t, two.state[name]) for name, t in one.state.items())
        )

    def _errors_of(
        self,
        which: int,
        domain: Domain,
        dtype: torch.dtype | None,
        known: dict[str, Bounds] | None = None,
    ) -> Tensor:
        """The errors of one network, along the graph it was read into."""
        own, radii = self.own[which], self._radii(which, dtype or torch.float64)
        if dtype is None and (not radii or self._same):
            return domain.lo.new_zeros(len(domain), self.outputs)
        pace = Pace(clock=self.clock)
        flow = Rounding(dtype, radii, known=known, effort=_EVALUATION * self.effort, pace=pace)
        pair = ParameterPair(f=own.state, g=own.state)
        with torch.set_grad_enabled(known is not None):
            y = propagate(own.graph, flow, [self.flow_input(domain)], pair)
        # NaN comes from ∞ · 0 after an overflow, where nothing is known.
        flat = flow.narrowest(y).flatten(1).expand(len(domain), -1)
        return flat.nan_to_num(nan=math.inf, posinf=math.inf)


def read_problem(
    dense: nn.Module,
    sparse: nn.Module,
    example: Tensor,
    *,
    output: str | int | None = None,
    ending: bool = False,
    **options: Any,
) -> NetworkPair:
    """Capture both models, match their graphs, and read both parameter vectors in float64.

    ending: as in `capture`.
    """
    for model in (dense, sparse):
        check_model(model)
        _refuse_without_float64({t.device for t in (*model.parameters(), *model.buffers())})
    graphs = (
        capture(dense, example, output=output, ending=ending),
        capture(sparse, example, output=output, ending=ending),
    )
    if len(graphs[0].inputs) != 1:
        raise DomainError(
            f"the model takes {len(graphs[0].inputs)} inputs; a certificate needs exactly one "
            "input tensor."
        )
    with torch.no_grad():
        # One float64 copy for all methods: float32 weights convert exactly.
        states = (
            _detached(graphs[0].state(dense), dense),
            _detached(graphs[1].state(sparse), sparse),
        )
        both = joint(*graphs, states)
    return NetworkPair(
        graph=both.graph,
        pair=ParameterPair(f=both.first, g=both.second),
        dtype=_coarsest(dense, sparse),
        own=(
            CapturedNetwork(graph=graphs[0], state=states[0]),
            CapturedNetwork(graph=graphs[1], state=states[1]),
        ),
        output=output,
        **options,
    )


def _refuse_without_float64(devices: set[torch.device]) -> None:
    """Metal has no float64, in which every bound is computed."""
    if any(device.type == "mps" for device in devices):
        raise ParameterError(
            "the model is on an MPS device, which has no float64, and bounds are computed in it."
            " Give a copy on the CPU: copy.deepcopy(model).cpu()."
        )


def _coarsest(*models: nn.Module) -> torch.dtype:
    """The dtype with the fewest digits among the parameters."""
    dtypes = {p.dtype for model in models for p in model.parameters()}
    return max(dtypes, key=lambda d: torch.finfo(d).eps, default=torch.get_default_dtype())


def _detached(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Copies of the tensors, since the model may be trained further while they are kept."""
    theirs = {t.data_ptr() for t in (*model.parameters(), *model.buffers())}
    return {
        # Those of a float64 model are not yet copies.
        name: value.detach().clone() if value.data_ptr() in theirs else value.detach()
        for name, value in state.items()
    }


# Whether two parameter vectors have one sign pattern, and whether one is dominated.


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """Whether the two parameter vectors have one sign pattern, and whether g's is dominated by
    f's.
    """

    same: bool
    dominated: bool
    differing: int
    first: str


def compare_signs(graph: Graph, pair: ParameterPair) -> Signs:
    """Compare every effective weight and bias of the graph (batch norm folded to a slope and an
    offset).
    """
    differing, dominated, first = 0, True, ""
    for node in affines(graph):
        both = [pair.weights(node), pair.biases(node)]
        for one, two in (
            (a, b) for a, b in (x for x in both if x is not None) if a is not None and b is not None
        ):
            # A tensor that both networks share needs no comparison. Signs first: the product of two
            # tiny weights underflows to −0.
            opposite = int((one.sign() * two.sign() < 0).sum()) if one is not two else 0
            first = first or (str(node.place) if opposite else "")
            differing += opposite
            dominated &= bool((two.abs() <= one.abs()).all())
    return Signs(
        same=differing == 0,
        dominated=dominated and differing == 0,
        differing=differing,
        first=first,
    )


# How long a proof may take, and where it reports progress.


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimit:
    """How long the proof may take, and where it reports progress."""

    seconds: float = math.inf
    # Monotonic: the wall clock may be set back while a proof runs.
    start: float = field(default_factory=time.monotonic)
    tell: Callable[[str], None] | None = None

    def late(self) -> bool:
        """Whether the time is up."""
        return self.left() < 0

    def left(self) -> float:
        """The seconds that are left, negative once the time is up."""
        return self.seconds - (time.monotonic() - self.start)

    def within(self, share: float) -> "TimeLimit":
        """A clock that starts now and ends when this share of the remaining time is used up."""
        return TimeLimit(seconds=max(0.0, self.left()) * share, tell=self.tell)

    def report(self, text: str) -> None:
        """Report what was done."""
        if self.tell is not None:
            self.tell(text)


@dataclass(slots=True, kw_only=True)
class Pace:
    """The speed of the work, so that no step is started that would not end in time; finished steps
    are reported, at most one per second.
    """

    clock: TimeLimit
    _work: float = 1.0
    _began: float = 0.0
    # Seconds of a unit of work, unknown before the first step.
    _price: float = 0.0
    _reported: float = -math.inf

    def allows(self, work: float) -> bool:
        """Whether a step of this much work, started now, would end in time."""
        self._work, self._began = max(work, 1.0), time.monotonic()
        left = self.clock.left()
        return left >= 0 and left >= self._price * self._work

    def done(self, text: str) -> None:
        """The step has ended."""
        self._price = (time.monotonic() - self._began) / self._work
        self.say(text)

    def under(self, clock: TimeLimit) -> "Pace":
        """The known pace, under another clock."""
        return Pace(clock=clock, _price=self._price, _reported=self._reported)

    def say(self, text: str) -> None:
        """Report it, unless something was reported within the last second."""
        if time.monotonic() - self._reported > 1:
            self._reported = time.monotonic()
            self.clock.report(text)

    def late(self, text: str) -> Callable[[], bool]:
        """Whether the time is up; also reports that work is in progress."""

        def is_late() -> bool:
            self.say(text)
            return self.clock.late()

        return is_late
