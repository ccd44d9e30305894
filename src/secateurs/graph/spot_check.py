"""Compares a graph with the model it was read from, on random inputs.

Reading a model goes through a tracer, a resolution of in-place changes and a rule per operator. A
slip in any of them would make every later number wrong in silence, so the result is always checked.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from secateurs.base.copies import call_with
from secateurs.errors import CaptureError, ParameterError, first_line
from secateurs.graph.export import Call, outputs_of
from secateurs.graph.ir import Graph, kind_of
from secateurs.graph.primitives import Activation, Affine, Opaque
from secateurs.graph.propagate import Evaluate, propagate
from secateurs.graph.replay import Seen
from secateurs.graph.untouched import keeping

# The outputs of the model itself, in a dtype of our choice.


def own_answer(
    model: nn.Module,
    call: Call,
    graph: Graph,
    dtype: torch.dtype,
    *,
    cast: Mapping[str, Tensor],
) -> tuple[Tensor, bool]:
    """The model's outputs, and whether they were computed in this dtype (else in the model's own
    precision).

    `cast` is as for `answers`.
    """
    if not graph.casts:
        try:
            return answers(model, call, dtype, cast=cast)[graph.output_name], True
        except Exception:  # a plain tensor or a dtype written in the code meets float64
            pass
    try:
        return answers(model, call, None)[graph.output_name], False
    except Exception as error:
        raise CaptureError(
            f"{kind_of(model)} was traced, but does not run on a random input of shape"
            f" {call.shapes}: {first_line(error)}."
        ) from error


@torch.no_grad()
def answers(
    model: nn.Module,
    call: Call,
    dtype: torch.dtype | None,
    *,
    cast: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """All outputs of a call with copies of the parameters and buffers in this dtype, in float64.

    `cast` holds tensors of the model that somebody has cast to this dtype and no longer needs: they
    are used where they are copies, and the call may write into them.
    """
    state = _state(model, dtype, cast or {})
    with keeping(model):
        result = _run(model, call, dtype, state)
    return {name: t.double() for name, t in outputs_of(result).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotRun:
    """One of several calls: what is fed, and whether gradients are recorded meanwhile, or not even
    prepared for.
    """

    call: Call
    gradients: bool
    inference: bool = False


def answers_in_turn(
    model: nn.Module, runs: Sequence[SpotRun], dtype: torch.dtype | None
) -> list[dict[str, Tensor] | Exception]:
    """All outputs of consecutive calls, each on the state that the one before left; where a call
    raises, its error takes the place of its outputs.

    The random states differ from those with which any other run begins.
    """
    # Gradients are not recorded in inference mode, whatever is asked.
    with torch.inference_mode(False), keeping(model):
        return [*_in_turn(model, runs, dtype)]


def _in_turn(
    model: nn.Module, runs: Sequence[SpotRun], dtype: torch.dtype | None
) -> Iterator[dict[str, Tensor] | Exception]:
    state = _state(model, dtype, {})
    own = dict(model.named_parameters())
    # What the model's code sees when a user calls it: parameters, with their gradients.
    for name, parameter in own.items():
        state[name] = nn.Parameter(state[name], parameter.requires_grad)
    for number, run in enumerate(runs):
        _seed(4711 + number)
        try:
            with (
                torch.inference_mode(run.inference),
                torch.set_grad_enabled(run.gradients),
            ):
                result = _run(model, run.call, dtype, state)
            found = outputs_of(result)
            yield {name: t.detach().double() for name, t in found.items()}
        except Exception as error:
            yield error


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def _state(
    model: nn.Module, dtype: torch.dtype | None, cast: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Copies of all parameters and buffers: a forward pass may write into a buffer."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    state = {}
    for name, tensor in own.items():
        ready = cast.get(name)
        # A cast to the tensor's own dtype copies nothing: that is the model's own memory.
        if ready is None or ready.dtype == tensor.dtype:
            ready = _copy(tensor, dtype)
        state[name] = ready
    return state


def _run(
    model: nn.Module,
    call: Call,
    dtype: torch.dtype | None,
    state: Mapping[str, Tensor],
) -> object:
    moved = call.replaced([_cast(t, dtype) for t in call.tensors])
    return call_with(model, state, moved.args, moved.kwargs)


def _copy(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A copy in this dtype, made once: a cast and then a clone would move every weight twice."""
    wanted = dtype if dtype and tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to(wanted, copy=True)


def _cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def coarsest(model: nn.Module, graph: Graph) -> float:
    """The largest machine epsilon the model computes in."""
    dtypes = [p.dtype for p in model.parameters()] + [cast.target for cast in graph.casts]
    return max((torch.finfo(d).eps for d in dtypes), default=torch.finfo(torch.float32).eps)


# Inputs of at most this many numbers are checked at two points and in float64. Larger ones at one
# point: float64 convolutions at 224×224 cost as much as all the reading.
_SMALL = 4096

# Graph and model do the same operations: on seventeen published networks their single-precision
# outputs differ by at most 0.2 units of rounding of the largest value, mostly by none. Within 8
# units, as little as is allowed in double precision (1e-6), they are equal; what differs by more is
# looked at again in double precision.
_SURE = 8 * torch.finfo(torch.float32).eps


class _Peak(Evaluate):
    """Ordinary values in one dtype, and the largest of all: what rounding errors are measured
    against.

    alive: every activation let something through, so that a wrong branch would have been seen.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.peak = 0.0
        self.alive = True

    # A model's code makes tensors in a dtype of its own, such as a grid of positions in float32:
    # beside values of another dtype no layer takes them.

    def affine(self, node: Affine, x: Tensor | None, params: Mapping[str, Tensor]) -> Tensor:
        weight, bias = (
            None if found is None else _cast(found, self.dtype)
            for found in (node.weight_in(params), node.bias_in(params))
        )
        y = node.apply(x, weight, bias)
        self.peak = max(self.peak, _largest(y))
        return y

    def opaque(self, node: Opaque, xs: Sequence[Tensor]) -> Tensor:
        return _cast(super().opaque(node, xs), self.dtype)

    def activation(self, node: Activation, x: Tensor) -> Tensor:
        # A layer that is off on this input gives 0, whatever was misread behind it.
        self.alive &= bool(x.numel()) and bool(x.max() > 0)
        return super().activation(node, x)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """Graph and model on one input.

    Attributes:
        gap: The largest difference of two outputs; NaN where one is.
        scale: The largest output.
        size: The largest value on the way, which rounding is measured against: outputs may cancel
            to far less.
        finite: The model's outputs are finite.
        telling: A misreading would have shown.
        precise: Graph and model ran in the precision asked for.
    """

    gap: float
    scale: float
    size: float
    finite: bool
    telling: bool
    precise: bool

    def within(self, share: float) -> bool:
        """Whether the outputs differ by no more than this share of the largest value."""
        # A NaN is a difference, and so is infinity: a share of an infinite size is infinite too.
        return math.isfinite(self.gap) and self.gap <= share * self.size


def compare(model: nn.Module, call: Call, graph: Graph) -> Seen:
    """Refuse a graph that does not compute what the model computes, whenever it is called: with
    gradients and without, for one input and in a batch, after other calls.
    """
    expected = _Expected(model, graph)
    points = _points(call)
    unseen = _check_points(model, points, expected)
    return Seen(unseen=unseen, alone=_compare_calls(model, points, expected))


@torch.no_grad()
def _compare_calls(model: nn.Module, points: list[Call], expected: "_Expected") -> str:
    """Compare calls in turn; in which way the samples of a batch act on each other."""
    graph, (one, two) = expected.graph, _two_samples(points)
    small = _is_small(one)
    dtype = torch.float64 if small else torch.float32
    together = one.replaced(
        [torch.cat(pair) for pair in zip(one.tensors, two.tensors, strict=True)]
    )
    runs = [
        SpotRun(call=together, gradients=True),
        # The call without gradients was made already.
        SpotRun(call=together, gradients=False, inference=True),
        SpotRun(call=one, gradients=True),
        *([SpotRun(call=two, gradients=False)] if small else []),
    ]
    try:
        wanted = [expected.of(each, dtype) for each in (one, two)]
    except (ParameterError, CaptureError):
        # As in `_check_points`; token ids in another order need not be a sentence.
        return ""
    asked = None if graph.casts else dtype
    found = answers_in_turn(model, runs, asked)
    if asked and any(isinstance(answer, Exception) for answer in found):
        asked = None  # a dtype written in the code meets another
        found = answers_in_turn(model, runs, asked)
    precise = asked is not None and all(each.precise for each in wanted)
    coarse = 0.0 if precise else coarsest(model, graph)
    eps = max(torch.finfo(dtype).eps, coarse)
    share = 1e-6 if precise and asked == torch.float64 else min(0.5, 2000 * eps)
    both, many, name = wanted[0].join(wanted[1]), found[:2], graph.output_name
    for answer, alone in zip(found[2:], wanted, strict=False):
        gap = alone.gap(answer, name)
        # `not … <=`: NaN is a difference.
        if gap is not None and not gap <= share * alone.size:
            raise CaptureError(
                f"{kind_of(model)} does not give the same output for the same input at every call: "
                "while gradients are recorded, or after other calls, its output differs by "
                f"{gap:.3g} (values reach {alone.size:.3g}). No statement about it would hold for "
                "every call. Make forward independent of torch.is_grad_enabled(), of what earlier "
                "calls left behind, and of chance."
            )
    gaps = [gap for answer in many if (gap := both.gap(answer, name)) is not None]
    far = [gap for gap in gaps if not gap <= share * both.size]
    if not far:
        return ""
    return (
        f"{kind_of(model)} lets the samples of a batch act on each other, or counts them: fed"
        f" two at a time its outputs differ by {max(far):.3g} from those for each alone"
        f" (values reach {both.size:.3g})"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """The outputs that the graph gives, and the largest value on the way.

    alive: every activation let something through, so that a misreading would have shown.
    precise: the graph ran in the dtype asked for, else in the model's own.
    """

    answer: Tensor
    size: float
    alive: bool
    precise: bool

    def join(self, other: "_Wanted") -> "_Wanted":
        """Both samples as a batch."""
        answer = torch.cat([self.answer, other.answer]) if self.answer.ndim else self.answer
        size, alive = max(self.size, other.size), self.alive and other.alive
        precise = self.precise and other.precise
        return _Wanted(answer=answer, size=size, alive=alive, precise=precise)

    def gap(self, answers: dict[str, Tensor] | Exception, name: str) -> float | None:
        """The largest difference; None where there is no output, or no finite one."""
        # A model that takes one sample, or no gradients, answers nothing false.
        if isinstance(answers, Exception) or name not in answers:
            return None
        found = answers[name]
        if not bool(found.isfinite().all()):
            return None
        if found.shape != self.answer.shape:
            return math.inf
        return _largest(found - self.answer)


class _Expected:
    """What a graph answers, each call computed once in each dtype."""

    def __init__(self, model: nn.Module, graph: Graph) -> None:
        self.model, self.graph = model, graph
        self._states: dict[torch.dtype, dict[str, Tensor]] = {}
        # By identity; the calls are kept, for that of one that is gone is given to another.
        self._known: dict[tuple[int, torch.dtype], tuple[Call, _Wanted]] = {}

    def state(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The model's tensors in this dtype."""
        if dtype not in self._states:
            self._states[dtype] = self.graph.state(self.model, dtype=dtype)
        return self._states[dtype]

    def release(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The same for the caller alone, who may write into them."""
        state = self.state(dtype)
        del self._states[dtype]
        return state

    def of(self, call: Call, dtype: torch.dtype) -> _Wanted:
        """The outputs of one call, in float64."""
        key = id(call), dtype
        if key not in self._known:
            try:
                wanted = self._run(call, dtype)
            # Kernels of a recurrent layer, and conversions in the code, may know one dtype alone.
            except (RuntimeError, TypeError) as error:
                wanted = self._run_in_own(call, dtype, error)
            self._known[key] = call, wanted
        return self._known[key][1]

    def _run_in_own(self, call: Call, dtype: torch.dtype, error: Exception) -> _Wanted:
        """The outputs in the model's own precision, where the graph does not run in this one."""
        own = next((p.dtype for p in self.model.parameters()), torch.get_default_dtype())
        try:
            if own == dtype:
                raise error
            return replace(self._run(call, own), precise=False)
        except (RuntimeError, TypeError) as last:
            raise CaptureError(
                f"the graph read from {kind_of(self.model)} cannot be compared with the model,"
                f" because it does not run on a random input of shape {call.shapes}:"
                f" {first_line(last)}. Nothing is returned. Analyse the part of the model before"
                " or after this operation."
            ) from last

    def _run(self, call: Call, dtype: torch.dtype) -> _Wanted:
        flow = _Peak(dtype)
        fed = [_cast(t, dtype) for t in call.tensors]
        answer = propagate(self.graph, flow, fed, self.state(dtype)).double()
        size = max(flow.peak, _largest(answer))
        return _Wanted(answer=answer, size=size, alive=flow.alive, precise=True)


def _points(call: Call) -> list[Call]:
    """Two inputs of random numbers."""
    return [call.replaced(tensors) for tensors in _inputs(call)]


def _is_small(call: Call) -> bool:
    return sum(t.numel() for t in call.tensors) <= _SMALL


def _two_samples(points: list[Call]) -> tuple[Call, Call]:
    """Two inputs that differ: ids and flags, which are not drawn, stand in another order."""
    one, two = points
    if any(t.is_floating_point() for t in one.tensors):
        return one, two
    return one, two.replaced([t if t.ndim < 2 else t.roll(1, -1) for t in two.tensors])


@torch.no_grad()
def _check_points(
    model: nn.Module, points: list[Call], expected: _Expected
) -> frozenset[str] | None:
    """Refuse a graph that does not compute what the model computes; else `Seen.unseen`."""
    small = _is_small(points[0])
    points = points if small else points[:1]
    try:
        if not small and _own_dtype(model) == torch.float64:
            unseen = _quick(model, points[0], expected)
            if unseen is not None:
                return unseen
        return _thorough(model, points, expected, small=small)
    except ParameterError:
        # NaN or infinite weights: callers that need values refuse them later.
        return None


def _quick(model: nn.Module, point: Call, expected: _Expected) -> frozenset[str] | None:
    """The comparison in single precision, half as long; None where it proves nothing."""
    unseen = _zeros(expected.graph, expected.state(torch.float32))
    expected.of(point, torch.float32)
    # The model's code may write into what it is given.
    state = expected.release(torch.float32)
    found = _difference(model, point, expected, torch.float32, cast=state)
    # Nothing is ever refused here. Weights may leave the range of float32, the model's code may
    # want float64: then all is looked at in double precision.
    sure = found.precise and found.finite and found.telling
    return unseen if sure and found.within(_SURE) else None


def _thorough(
    model: nn.Module, points: list[Call], expected: _Expected, *, small: bool
) -> frozenset[str] | None:
    """The comparison that decides."""
    dtype = torch.float64 if small else _own_dtype(model)
    seen = [_compare(model, point, expected, dtype) for point in points]
    # A weight of zeros hides what is read wrongly beside it, so such a program is not
    # remembered as checked.
    return _zeros(expected.graph, expected.state(dtype)) if all(seen) else None


def _zeros(graph: Graph, state: dict[str, Tensor]) -> frozenset[str]:
    # Most begin with a number that is not zero, and need not be read to the end.
    return frozenset(
        n
        for n in graph.parameters
        if not (bool(state[n].flatten()[:1].any()) or bool(state[n].any()))
    )


def _own_dtype(model: nn.Module) -> torch.dtype:
    """float32 for models of float32 alone; else float64 (half precision is slow and coarse)."""
    dtypes = {p.dtype for p in model.parameters()}
    return torch.float32 if dtypes == {torch.float32} else torch.float64


def _inputs(call: Call) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        [
            _normal(t, generator) * scale + shift if t.is_floating_point() else t
            for t in call.tensors
        ]
        # Ids and flags stay the example's own: a drawn id may lie outside of a vocabulary.
        # Two draws of different size and middle: what one hides the other may show.
        for scale, shift in ((1.0, 0.0), (0.3, 0.5))
    ]


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randn(like.shape, generator=generator, dtype=torch.float64)
    # Rounded first: both sides see the same numbers.
    return drawn.to(like.dtype).to(like.device)


def _difference(
    model: nn.Module,
    call: Call,
    expected: _Expected,
    dtype: torch.dtype,
    *,
    cast: Mapping[str, Tensor] | None = None,
) -> _Difference:
    """Graph and model on one input, in this precision where the model's code allows."""
    wanted = expected.of(call, dtype)
    ours = wanted.answer
    theirs, precise = own_answer(model, call, expected.graph, dtype, cast=cast or {})
    scale = max(_largest(ours), _largest(theirs))
    same = ours.shape == theirs.shape
    gap = _largest(ours - theirs) if same else float("inf")
    return _Difference(
        gap=gap if ours.numel() else 0.0,
        scale=scale,
        size=max(scale, wanted.size),
        finite=bool(theirs.isfinite().all()),
        telling=wanted.alive and bool(ours.any()),
        precise=precise and wanted.precise,
    )


def _compare(model: nn.Module, call: Call, expected: _Expected, dtype: torch.dtype) -> bool:
    """Raise on a difference; returns whether one would have shown."""
    found = _difference(model, call, expected, dtype)
    # Overflow on this input: nothing to compare.
    if not found.finite:
        return False
    # A model with conversions rounds on the way, whatever dtype it is fed; constants made in
    # float32 by the model's code keep seven digits, whatever runs around them.
    precise = found.precise and dtype == torch.float64
    share = 1e-6 if precise else min(0.5, 2000 * coarsest(model, expected.graph))
    if not found.within(share):
        raise CaptureError(
            f"the graph read from {kind_of(model)} does not compute what the model computes: on a "
            f"random input they differ by {found.gap:.3g} (outputs reach {found.scale:.3g}). "
            "Nothing is returned, because every number from it would be wrong. The usual cause is "
            "a value that is changed in place under several names: write y = f(x) instead of "
            "f_(x)."
        )
    return found.telling


def _largest(tensor: Tensor) -> float:
    """The largest magnitude; NaN where an entry is, 0 of nothing."""
    if not tensor.numel():
        return 0.0
    # No tensor of magnitudes is made.
    low, high = map(float, tensor.aminmax())
    return max(-low, high)
