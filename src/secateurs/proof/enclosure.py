"""Where the numbers lie that a model computes from its parameters alone (a folded batch norm, a
weight norm, any arithmetic on weights): a value with a radius, through torch's own operators.

The network of a certificate has the real number γ/√(var + ε), and we hold a float64 near it. An
`Enclosed` tensor is value ± radius, which contains the real number and whatever an evaluation in
`precision` gives, in any order of summation. It runs through the functions of a graph's sources as
any tensor does: each operator has a rule for its radius, and one without is refused by name.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from secateurs.errors import UnsupportedOperation
from secateurs.graph import State
from secateurs.graph.primitives import Source
from secateurs.proof.forms import gamma

aten = torch.ops.aten
_OWN = torch.float64
# Radii are computed in float64, too; this covers their own roundings.
_SPARE = 1 + 1e-12


def enclose(source: Source, state: State, precision: torch.dtype) -> tuple[Tensor, Tensor]:
    """The source's value in float64, and the radius around it.

    The value is the one that a graph's flows read, to the bit.
    """
    value = source(state).detach().double()
    if source.direct is not None:
        return value, _distance(value, precision)
    known = {
        name: Enclosed(tensor.detach().double(), _distance(tensor.double(), precision), precision)
        for name in source.names
        if (tensor := state[name]).is_floating_point()
    }
    with torch.no_grad(), _Constants(precision):
        found: Any = source({**state, **known})
    if not isinstance(found, Enclosed):  # made of comparisons alone, which are decided
        return value, (found.double() - value).abs()
    # Operators may be computed in another order than that of the flows.
    radius = found.radius + (found.value - value).abs()
    return value, radius.nan_to_num(nan=math.inf, posinf=math.inf)


def _distance(value: Tensor, precision: torch.dtype) -> Tensor:
    """How far a given number lies from the one that the model holds: 0 unless it is written in the
    code and has more digits.
    """
    return (value - value.to(precision).double()).abs()


class Enclosed(Tensor):
    """value ± radius, both float64."""

    value: Tensor
    radius: Tensor
    precision: torch.dtype

    @staticmethod
    def __new__(cls, value: Tensor, radius: Tensor, precision: torch.dtype) -> "Enclosed":
        made: Enclosed = Tensor._make_wrapper_subclass(
            cls, value.shape, dtype=value.dtype, device=value.device
        )
        made.value, made.radius, made.precision = value, radius, precision
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        first = next(a for a in pytree.tree_leaves((args, given)) if isinstance(a, Enclosed))
        rule = _RULES.get(func.overloadpacket)
        if rule is not None:
            return rule(_Call(func, args, given, first.precision))
        schema = func._schema
        out_of_place: Any = getattr(
            aten, schema.name.removeprefix("aten::").removesuffix("_"), None
        )
        if schema.is_mutable and out_of_place in _RULES and isinstance(args[0], Enclosed):
            result = out_of_place(*args, **given)
            args[0].value, args[0].radius = result.value, result.radius
            return args[0]
        # Parts of which torch's own decomposition says what they compute. In another precision than
        # ours the model runs a kernel of its own instead, of which nothing is known.
        parts: Any = torch._decomp.decomposition_table.get(func)
        if parts is not None and first.precision == _OWN:
            return parts(*args, **given)
        raise UnsupportedOperation(
            f"a weight is computed by {func}, and nothing is known of its rounding. Make it a plain"
            " parameter (torch.nn.utils.parametrize.remove_parametrizations), or use"
            " rounding=False, which assumes exact arithmetic."
        )


class _Constants(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Encloses what the code makes of numbers or integers alone, too."""

    def __init__(self, precision: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.precision = precision

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, Tensor) or isinstance(result, Enclosed):
            return result
        if not result.is_floating_point():
            return result
        if not any(isinstance(a, Tensor) for a in pytree.tree_leaves((args, kwargs))):
            return _wrapped(result, self.precision)
        args, kwargs = pytree.tree_map(self._enclosed, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _enclosed(self, a: Any) -> Any:
        """A tensor as one without an error; only indices and conditions stay."""
        if not isinstance(a, Tensor) or isinstance(a, Enclosed) or a.dtype == torch.bool:
            return a
        return Enclosed(a.double(), torch.zeros_like(a, dtype=_OWN), self.precision)


class _Call:
    """One operator on enclosed tensors: its arguments, and results with their radii."""

    def __init__(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], precision: torch.dtype
    ) -> None:
        self.func, self.args, self.kwargs, self.precision = func, args, kwargs, precision
        limits = torch.finfo(precision)
        self.unit, self.tiny = limits.eps / 2, limits.tiny

    def run(self, part: str) -> Any:
        """The operator on the values or on the radii of its arguments."""
        args, kwargs = pytree.tree_map(
            lambda a: getattr(a, part) if isinstance(a, Enclosed) else a, (self.args, self.kwargs)
        )
        return self.func(*args, **kwargs)

    def ball(self, a: Any) -> tuple[Tensor, Tensor]:
        """An argument as value and radius; numbers are rounded as the model would."""
        if isinstance(a, Enclosed):
            return a.value, a.radius
        if isinstance(a, Tensor):
            made = _wrapped(a, self.precision)
            return made.value, made.radius
        value = torch.tensor(float(a), dtype=_OWN)
        return value, _distance(value, self.precision)

    def give(self, value: Tensor, radius: Tensor) -> Enclosed:
        return Enclosed(value, (radius * _SPARE).expand(value.shape), self.precision)

    def rounded(self, value: Tensor, radius: Tensor, exact: Tensor) -> Enclosed:
        """A result of one operation, rounded unless it is exact."""
        exact = exact & (radius == 0) & (value == value.to(self.precision).double())
        own = self.unit * (value.abs() + radius) + self.tiny
        return self.give(value, radius + torch.where(exact, 0.0, 2 * own))


def _wrapped(a: Tensor, precision: torch.dtype) -> Enclosed:
    """A constant made by the code from no tensor: whole multiples of 2⁻²⁰ are exact, others (the
    steps of a linspace) err by a few units of the largest.
    """
    value = a.double()
    scaled = value * 2**20
    exact = (scaled == scaled.round()) & (value.abs() < 2**20)
    if not value.numel():
        return Enclosed(value, value, precision)
    far = 8 * torch.finfo(precision).eps * value.abs().amax()
    return Enclosed(value, torch.where(exact, 0.0, far), precision)


_RULES: dict[Any, Callable[[_Call], Any]] = {}


def _rule(*operators: Any) -> Callable[[Callable[[_Call], Any]], Callable[[_Call], Any]]:
    def add(rule: Callable[[_Call], Any]) -> Callable[[_Call], Any]:
        _RULES.update(dict.fromkeys(operators, rule))
        return rule

    return add


@_rule(
    *(aten.view, aten._unsafe_view, aten.reshape, aten.permute, aten.transpose, aten.t),
    *(aten.expand, aten.unsqueeze, aten.squeeze, aten.slice, aten.select, aten.cat, aten.stack),
    *(aten.clone, aten.detach, aten.alias, aten.flip, aten.roll, aten.index, aten.gather),
    *(aten.index_select, aten.unbind, aten.split, aten.split_with_sizes, aten.diagonal),
    *(aten.repeat, aten.tril, aten.triu, aten.lift_fresh, aten.lift_fresh_copy, aten.unfold),
)
def _move(call: _Call) -> Any:
    """Copies and reorders."""
    plain = [a for a in pytree.tree_leaves(call.args) if isinstance(a, Tensor)]
    if any(a.is_floating_point() and not isinstance(a, Enclosed) for a in plain):
        call.args = pytree.tree_map(
            lambda a: (
                _wrapped(a, call.precision)
                if isinstance(a, Tensor) and a.is_floating_point() and not isinstance(a, Enclosed)
                else a
            ),
            call.args,
        )
    values, radii = call.run("value"), call.run("radius")
    if isinstance(values, Tensor):
        return call.give(values, radii)
    return type(values)(call.give(v, r) for v, r in zip(values, radii, strict=True))


@_rule(aten.constant_pad_nd)
def _pad(call: _Call) -> Enclosed:
    x, pad, *_ = call.args
    return call.give(call.run("value"), aten.constant_pad_nd(x.radius, pad))


@_rule(aten.zeros_like, aten.ones_like, aten.full_like, aten.empty_like, aten.new_zeros)
def _plain(call: _Call) -> Any:
    return call.run("value")


@_rule(aten._to_copy)
def _convert(call: _Call) -> Any:
    """A conversion to fewer digits, as the model makes it: never falling, so its ends are those of
    the result."""
    x = call.args[0]
    value = call.run("value")
    if not value.is_floating_point():
        _refuse_undecided(call, bool((x.radius == 0).all()))
        return value
    low, high = _ends(x.value, x.radius)
    low, high = (end.to(value.dtype).double() for end in (low, high))
    near = value.double()
    radius = torch.where(x.radius == 0, 0.0, torch.maximum(high - near, near - low))
    return call.give(value, radius)


@_rule(aten.neg, aten.abs)
def _sign(call: _Call) -> Enclosed:
    return call.give(call.run("value"), call.args[0].radius)


@_rule(aten.relu, aten.clamp, aten.clamp_min, aten.clamp_max)
def _clip(call: _Call) -> Enclosed:
    """Clipping moves nothing further apart; a limit is rounded as the model would."""
    x, *limits = call.args
    ends = [call.ball(a) for a in (*limits, *call.kwargs.values()) if a is not None]
    radius = sum((r for _, r in ends), x.radius)
    return call.give(call.run("value"), radius)


@_rule(aten.amax, aten.amin, aten.max, aten.min, aten.maximum, aten.minimum)
def _extreme(call: _Call) -> Any:
    """Of entries each of which moves by no more than the largest radius."""
    radius = torch.stack([call.ball(a)[1].amax() for a in call.args if isinstance(a, Tensor)])
    values = call.run("value")
    if isinstance(values, Tensor):
        return call.give(values, radius.amax())
    # Which entry is the largest.
    _refuse_undecided(call, not bool(radius.any()))
    return call.give(values[0], radius.amax()), values[1]


@_rule(aten.where)
def _where(call: _Call) -> Enclosed:
    condition, *both = call.args
    (a, ra), (b, rb) = (call.ball(one) for one in both)
    return call.give(torch.where(condition, a, b), torch.where(condition, ra, rb))


@_rule(aten.gt, aten.ge, aten.lt, aten.le, aten.eq, aten.ne)
def _compare(call: _Call) -> Tensor:
    (a, ra), (b, rb) = (call.ball(one) for one in call.args)
    result: Tensor = call.func(a, b) if isinstance(call.args[1], Tensor) else call.run("value")
    far = ra + rb
    _refuse_undecided(call, bool(((far == 0) | ((a - b).abs() > far)).all()))
    return result


@_rule(aten.sign, aten.sgn, aten.round, aten.floor, aten.ceil, aten.trunc)
def _step(call: _Call) -> Enclosed:
    x = call.args[0]
    value = call.run("value")
    ends = [call.func(end, *call.args[1:]) for end in _ends(x.value, x.radius)]
    _refuse_undecided(call, all(bool((end == value).all()) for end in ends))
    return call.give(value, torch.zeros_like(value))


@_rule(
    *(aten.fake_quantize_per_channel_affine, aten.fake_quantize_per_channel_affine_cachemask),
    *(aten.fake_quantize_per_tensor_affine, aten.fake_quantize_per_tensor_affine_cachemask),
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams,
)
def _quantize(call: _Call) -> Any:
    """Which multiple of the scale is decided as the model does it; left is that it is rounded."""
    given = [a for a in pytree.tree_leaves((call.args, call.kwargs)) if isinstance(a, Enclosed)]
    _refuse_undecided(call, not any(bool(a.radius.any()) for a in given))
    # torch takes scales in float32 alone; a graph hands on weights in their own precision.
    args, kwargs = pytree.tree_map(
        lambda a: _shortest(a.value) if isinstance(a, Enclosed) else a, (call.args, call.kwargs)
    )
    results = call.func(*args, **kwargs)
    value, *masks = (results,) if isinstance(results, Tensor) else results
    found = call.give(value.double(), 2 * call.unit * value.double().abs() + call.tiny)
    return found if isinstance(results, Tensor) else (found, *masks)


def _shortest(value: Tensor) -> Tensor:
    """In float32 if that keeps every value."""
    short = value.float()
    return short if torch.equal(short.double(), value) else value


def _refuse_undecided(call: _Call, decided: bool) -> None:
    if not decided:
        raise UnsupportedOperation(
            f"a weight is computed through {call.func}, which rounding may decide either way. Make"
            " it a plain parameter, or use rounding=False, which assumes exact arithmetic."
        )


@_rule(aten.add, aten.sub, aten.rsub)
def _add(call: _Call) -> Enclosed:
    a, b = (call.ball(one) for one in call.args[:2])
    alpha = call.kwargs.get("alpha", 1) if len(call.args) < 3 else call.args[2]
    if alpha != 1:
        scaled = _product(call, b, call.ball(alpha))
        b = scaled.value, scaled.radius
    if call.func.overloadpacket is aten.rsub:
        a, b = b, a
    if call.func.overloadpacket is not aten.add:
        b = -b[0], b[1]
    value = a[0] + b[0]
    # What the sum lost, exactly (Knuth's TwoSum).
    other = value - a[0]
    lost = (a[0] - (value - other)) + (b[0] - other)
    return call.rounded(value, a[1] + b[1], lost == 0)


@_rule(aten.mul)
def _mul(call: _Call) -> Enclosed:
    return _product(call, *(call.ball(one) for one in call.args))


def _product(call: _Call, a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Enclosed:
    value = a[0] * b[0]
    radius = a[0].abs() * b[1] + a[1] * (b[0].abs() + b[1])
    # A zero, or a power of two within the normal range, loses no digit: masks stay exact.
    zero = (a[0] == 0) | (b[0] == 0)
    power = (_mantissa(a[0]) == 0.5) | (_mantissa(b[0]) == 0.5)
    return call.rounded(value, radius, zero | (power & (value.abs() >= call.tiny)))


def _mantissa(x: Tensor) -> Tensor:
    return torch.frexp(x)[0].abs()


@_rule(aten.div)
def _div(call: _Call) -> Enclosed:
    if call.kwargs.get("rounding_mode") is not None:
        _refuse_undecided(call, False)
    return _quotient(call, *(call.ball(one) for one in call.args[:2]))


@_rule(aten.reciprocal)
def _reciprocal(call: _Call) -> Enclosed:
    return _quotient(call, call.ball(1.0), call.ball(call.args[0]))


def _quotient(call: _Call, a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Enclosed:
    value = a[0] / b[0]
    least = b[0].abs() - b[1]
    radius = (a[1] + value.abs() * b[1]) / least
    radius = torch.where(least > 0, radius, math.inf)
    power = (_mantissa(b[0]) == 0.5) & (value.abs() >= call.tiny)
    return call.rounded(value, radius, (a[0] == 0) | power)


_EVERYWHERE = (
    *(aten.exp, aten.exp2, aten.expm1, aten.sigmoid, aten.tanh, aten.erf, aten.atan, aten.sinh),
    *(aten.softplus, aten.leaky_relu),
)
_MONOTONE = dict.fromkeys((aten.sqrt, aten.rsqrt, aten.log, aten.log2, aten.log10), 0.0)
_MONOTONE |= {aten.log1p: -1.0} | dict.fromkeys(_EVERYWHERE, -math.inf)
"""Functions that only rise or only fall, with the least number for which they are defined."""

_DIGITS = {aten.sqrt: 2, aten.rsqrt: 4}
"""Units by which torch's functions may err, 16 for those not named; glibc, sleef and MKL state up
to 4.
"""


@_rule(*_MONOTONE)
def _monotone(call: _Call) -> Enclosed:
    least = _MONOTONE[call.func.overloadpacket]
    return _between(
        call, call.args[0], lambda t: call.func(t, *call.args[1:], **call.kwargs), least
    )


def _between(
    call: _Call, x: "Enclosed", function: Callable[[Tensor], Tensor], least: float
) -> Enclosed:
    """A monotone function: its values at both ends enclose it."""
    value = function(x.value)
    low, high = (function(end.clamp(min=least)) for end in _ends(x.value, x.radius))
    radius = torch.maximum((low - value).abs(), (high - value).abs())
    size = torch.maximum(torch.maximum(low.abs(), high.abs()), value.abs())
    digits = _DIGITS.get(call.func.overloadpacket, 16)
    return call.give(value, radius + digits * call.unit * size + call.tiny)


def _ends(value: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Both ends, rounded outwards."""
    far = torch.full_like(value, math.inf)
    low, high = torch.nextafter(value - radius, -far), torch.nextafter(value + radius, far)
    return torch.where(radius == 0, value, low), torch.where(radius == 0, value, high)


@_rule(aten.square)
def _square(call: _Call) -> Enclosed:
    x = call.ball(call.args[0])
    return _product(call, x, x)


@_rule(aten.pow)
def _pow(call: _Call) -> Enclosed:
    x, exponent = call.args
    if not isinstance(x, Enclosed) or isinstance(exponent, Tensor):
        _refuse_undecided(call, False)
    if exponent in (1, 2):
        one = call.ball(1.0), call.ball(x)
        return _product(call, one[int(exponent) - 1], call.ball(x))
    if exponent != int(exponent) or exponent < 0:
        decided = bool((x.value - x.radius > 0).all()) or exponent > 0
        _refuse_undecided(call, decided)
        return _between(call, x, lambda t: t**exponent, 0.0)
    # |xⁿ − yⁿ| ≤ (|x| + r)ⁿ − |x|ⁿ wherever |x − y| ≤ r.
    size = x.value.abs()
    reach = _between(call, Enclosed(size, x.radius, call.precision), lambda t: t**exponent, 0.0)
    return call.give(call.run("value"), reach.radius)


@_rule(aten.sum, aten.mean, aten.cumsum)
def _total(call: _Call) -> Enclosed:
    """γ_n of the sum of absolute values, in any order."""
    x = call.args[0]
    value = call.run("value")
    size = Enclosed(x.value.abs() + x.radius, x.radius, call.precision)
    whole = call.func(size.value, *call.args[1:], **call.kwargs)
    spread = call.func(size.radius, *call.args[1:], **call.kwargs)
    share = gamma(max(1, x.value.numel() // max(1, value.numel())) + 3, call.unit)
    if call.func.overloadpacket is aten.cumsum:
        share = gamma(x.value.numel() + 3, call.unit)
    return call.give(value, spread + share * whole)


@_rule(aten.linalg_vector_norm, aten.norm)
def _norm(call: _Call) -> Enclosed:
    """A norm of a sum is at most the sum of norms."""
    x, *rest = call.args
    value, spread = (call.func(t, *rest, **call.kwargs) for t in (x.value, x.radius))
    order = rest[0] if rest else 2
    if order is not None and not float(order) >= 1:
        _refuse_undecided(call, False)
    return call.give(value, spread + gamma(x.value.numel() + 8, call.unit) * (value + spread))


@_rule(aten._weight_norm_interface)
def _weight_norm(call: _Call) -> tuple[Enclosed, Enclosed]:
    """v · g/‖v‖ over all dimensions but one."""
    v, g, *rest = call.args
    dim = rest[0] if rest else 0
    others = [d for d in range(v.dim()) if d != dim]
    size = torch.linalg.vector_norm(v, 2, others, keepdim=True)
    return v * (g / size), size


@_rule(aten.mm, aten.bmm, aten.mv, aten.dot, aten.vdot)
def _matmul(call: _Call) -> Enclosed:
    (a, ra), (b, rb) = (call.ball(one) for one in call.args)
    value, size_a, size_b = call.func(a, b), a.abs(), b.abs()
    spread = call.func(size_a, rb) + call.func(ra, size_b + rb)
    # A term for each product of one entry of the second factor, at most.
    share = gamma(a.shape[-1] + 3, call.unit)
    return call.give(value, spread + share * call.func(size_a + ra, size_b + rb))


@_rule(aten.addmm, aten.addmv, aten.baddbmm)
def _addmm(call: _Call) -> Any:
    bias, a, b = call.args
    alpha, beta = (call.kwargs.get(name, 1) for name in ("alpha", "beta"))
    return beta * bias + alpha * torch.matmul(a, b)
