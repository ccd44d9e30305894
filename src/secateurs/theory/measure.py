"""What a pruning did to a network, against the bounds of Qian & Klabjan (2021)."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.module import register_module_forward_hook

from secateurs.base import random
from secateurs.base.copies import call_with, evaluating
from secateurs.base.prunable import Where, owned_parameters, prunable
from secateurs.base.singular_values import spectral_norms
from secateurs.errors import ArgumentError, ParameterError, StructureMismatch
from secateurs.graph.untouched import keeping
from secateurs.theory.chain import leaves_of
from secateurs.theory.convolutions import multiplicity, padding_of
from secateurs.theory.operator_norms import conv_operator_norm

# The norm of what one parameter does in a network: of a matrix, or of every convolution that uses
# it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A convolution and the size of a map it was given (of a transposed one: of its output)."""

    conv: _ConvNd
    size: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorm:
    """lower ≤ ‖W‖₂ ≤ upper, and of what."""

    kind: str
    lower: float
    upper: float


def layer_norm(owner: nn.Module, weight: Tensor, uses: frozenset[Use]) -> LayerNorm:
    """The largest over all uses; without any, a bound that holds on every map."""
    if isinstance(owner, _ConvNd) and uses:
        found = [_norm(use, weight) for use in uses]
        # One bracket among the uses makes the largest a bracket too.
        exact = all(one.kind == "convolution" for one in found)
        return LayerNorm(
            kind="convolution" if exact else "convolution, upper bound",
            lower=max(one.lower for one in found),
            upper=max(one.upper for one in found),
        )
    value = float(spectral_norms(weight.flatten(1)).values)
    if isinstance(owner, _ConvNd):
        # Extracting patches repeats an entry once per tap at most, padding some times
        # more; the norm of both is the root of that.
        bound = value * math.sqrt(math.prod(weight.shape[2:]) * _repeats(owner))
        return LayerNorm(kind="unfolded kernel, upper bound", lower=0.0, upper=bound)
    return LayerNorm(
        kind="matrix" if weight.ndim == 2 else "unfolded tensor",
        lower=value,
        upper=value,
    )


def _norm(use: Use, weight: Tensor) -> LayerNorm:
    """A transposed convolution is the adjoint of the convolution with the same arguments, from
    output to input.
    """
    conv = use.conv
    found = conv_operator_norm(
        weight,
        use.size,
        padding=padding_of(conv),
        padding_mode=conv.padding_mode,
        stride=conv.stride,
        dilation=conv.dilation,
        groups=conv.groups,
        certify=True,
    )
    kind = "convolution" if found.exact else "convolution, upper bound"
    return LayerNorm(kind=kind, lower=found.lower, upper=found.upper)


def _repeats(conv: _ConvNd) -> int:
    """‖padding‖² on the map where it is largest; maps longer than both borders and two repeat no
    more.
    """
    mode, worst = conv.padding_mode, 1
    for pair in padding_of(conv):
        first = {"circular": max(1, *pair), "reflect": max(pair) + 1}.get(mode, 1)
        worst *= max(multiplicity(mode, n, pair) for n in range(first, first + sum(pair) + 3))
    return worst


# What a pruning changed in one layer, beside the thresholds of the theorems.


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChange:
    """One layer: `change` = ‖W* − W‖₂ beside the theorems' thresholds d^{−α} (magnitude) and
    d^{−α/4} (random).

    α is read off the number of pruned entries: D^{1−α} of D; d is the smaller side of the layer.
    `kind` says what the norms are: of the matrix; of the convolution on its maps (the largest, if
    it is used on several); of the unfolded kernel (no example given, or the layer not run by it).
    Where `kind` says "upper bound", `norm` and `change` are one, and `norm_lower`, `change_lower`
    are proven too; elsewhere the two agree.
    """

    name: str
    kind: str
    norm: float
    change: float
    pruned: int
    alpha: float | None
    magnitude_bound: float | None
    random_bound: float | None
    norm_lower: float = 0.0
    change_lower: float = 0.0

    @property
    def within(self) -> bool | None:
        """‖W* − W‖₂ ≤ d^{−α}? None when nothing was pruned."""
        return None if self.magnitude_bound is None else self.change <= self.magnitude_bound


def layer_change(
    name: str,
    owner: nn.Module,
    before: Tensor,
    after: Tensor,
    uses: frozenset[Use] | None,
) -> LayerChange:
    """The norms of one layer and of what was taken from it, with the α that its pruned entries
    stand for.
    """
    norm, change = (
        layer_norm(owner, weight, uses or frozenset()) for weight in (before, before - after)
    )
    # Entries that were zero before were not pruned.
    pruned = int(((after == 0) & (before != 0)).sum())
    alpha = (
        1 - math.log(pruned) / math.log(before.numel())
        # ln 0, and a division by ln 1.
        if pruned and before.numel() > 1
        else None
    )
    width = min(before.shape[:2])
    return LayerChange(
        name=name,
        kind=norm.kind,
        norm=norm.upper,
        change=change.upper,
        pruned=pruned,
        alpha=alpha,
        magnitude_bound=None if alpha is None else float(width) ** -alpha,
        random_bound=None if alpha is None else float(width) ** (-alpha / 4),
        norm_lower=norm.lower,
        change_lower=change.lower,
    )


def clopper_pearson(successes: int, trials: int, *, confidence: float) -> tuple[float, float]:
    """The exact confidence interval of a binomial probability.

    >>> clopper_pearson(0, 10, confidence=0.95)[0]
    0.0
    """
    tail = (1 - confidence) / 2
    low = (
        0.0
        # Beta(0, ·) does not exist; without a success the lower end is 0.
        if successes == 0
        else float(stats.beta.ppf(tail, successes, trials - successes + 1))
    )
    high = (
        1.0
        if successes == trials
        # isf, not ppf(1 − tail): 1 − tail rounds to 1 for very high confidence.
        else float(stats.beta.isf(tail, successes + 1, trials - successes))
    )
    return low, high


# Runs a user's model on our own inputs, in evaluation mode; errors say what failed.

_REFUSALS = (
    RuntimeError,
    TypeError,
    ValueError,
    IndexError,
    KeyError,
    AttributeError,
    AssertionError,
)
"""What a forward pass raises when it does not take its input."""


def check_output(model: nn.Module, x: Tensor, name: str, hint: str) -> Tensor:
    """The output in evaluation mode: one finite tensor with the batch in front, or an error that
    says what else.
    """
    try:
        output: object = evaluate(model, x)
    except _REFUSALS as error:
        first = str(error).strip().partition("\n")[0]
        raise ArgumentError(
            f"{name} does not take an input of shape {tuple(x.shape)}: {first}. {hint}"
        ) from error
    if not isinstance(output, Tensor) or not output.is_floating_point():
        kind = (
            f"a tensor of {output.dtype}"
            if isinstance(output, Tensor)
            else f"a {type(output).__name__}"
        )
        raise ArgumentError(
            f"{name} returns {kind}: wrap it in a module that returns one floating-point tensor."
        )
    if output.ndim == 0 or len(output) != len(x):
        raise ArgumentError(
            f"{name} returns shape {tuple(output.shape)} for {len(x)} inputs: expected one row per "
            "input."
        )
    if not bool(torch.isfinite(output).all()):
        raise ParameterError(
            f"{name} gives NaN or infinite outputs for finite inputs, and its parameters are"
            " finite: look at its buffers, such as running variances."
        )
    return output


def evaluate(model: nn.Module, x: Tensor) -> object:
    """The output in evaluation mode, on detached copies of parameters and buffers: the model is
    left as it was.
    """
    state = {
        name: value.detach().clone()
        # Buffers too: batch norm would write its running statistics into the user's.
        for name, value in (*model.named_parameters(), *model.named_buffers())
    }
    with evaluating(model), keeping(model):
        return call_with(model, state, (x,))


def uses_of(model: nn.Module, example: Tensor) -> dict[str, frozenset[Use]]:
    """By parameter name, every convolution with that weight and every map size it meets in one
    forward pass.
    """
    names = {id(parameter): name for name, parameter, _ in owned_parameters(model)}
    convs = {
        module: names[id(module.weight)]
        for module in model.modules()
        if isinstance(module, _ConvNd) and id(module.weight) in names
    }
    seen: dict[str, set[Use]] = {}

    def see(conv: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(conv, _ConvNd) and conv in convs:
            # A transposed convolution is the adjoint of one on its own output's map.
            mapped = output if conv.transposed else inputs[0]
            size = tuple(mapped.shape[-len(conv.kernel_size) :])
            seen.setdefault(convs[conv], set()).add(Use(conv=conv, size=size))

    # Of all modules and not of the model's own: what hangs on the model is put back after a run,
    # what a hook has noted as well.
    hook = register_module_forward_hook(see)
    try:
        with torch.no_grad():
            check_output(
                model,
                example,
                "the dense model",
                "example= is one input with a batch axis in front.",
            )
    finally:
        hook.remove()
    return {name: frozenset(uses) for name, uses in seen.items()}


# How far the outputs of two networks are apart: at random points of the unit ball, and at the
# worst one found.


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputErrors:
    """‖f(x) − F(x)‖₂ as a function of x, both models in evaluation mode. `hint` says how to give
    another input.
    """

    dense: nn.Module
    sparse: nn.Module
    shape: tuple[int, ...]
    hint: str

    def at(self, x: Tensor) -> Tensor:
        """One error for each point."""
        one, other = (
            check_output(model, x, f"the {name} model", self.hint)
            for name, model in (("sparse", self.sparse), ("dense", self.dense))
        )
        if one.shape != other.shape:
            raise StructureMismatch(
                f"the dense model returns {tuple(other.shape)}, the sparse one {tuple(one.shape)}."
            )
        return _lengths(one - other)

    def ball(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Uniform points of the unit ball."""
        like = next(self.dense.parameters())
        points = random.normal(like.new_empty(count, *self.shape), generator=generator)
        # The volume within radius r grows as r^n, so the radius of a uniform point is
        # u^(1/n).
        radius = random.uniform(like.new_empty(count), generator=generator) ** (
            1 / math.prod(self.shape)
        )
        return points / _norms(points) * radius.to(points).view(-1, *(1 for _ in self.shape))

    def search(self, restarts: int, steps: int, generator: torch.Generator | None) -> float:
        """Projected gradient ascent from random points of the ball; the best error seen."""
        x, best = self.ball(restarts, generator), 0.0
        for step in range(steps):
            x = x.detach().requires_grad_()
            errors = self.at(x)
            best = max(best, float(errors.detach().max()))
            # Points do not touch each other: the gradient of the sum holds each one's
            # own.
            (slope,) = torch.autograd.grad(errors.sum(), x, allow_unused=True)
            size = _norms(slope) if slope is not None else None
            if slope is None or size is None or not bool((size > 0).any()):
                return best
            # A step of fixed length that shrinks slowly: the size of the gradient does not show how
            # far away the boundary is. The clamp keeps points with no gradient where they are.
            moved = x.detach() + slope / size.clamp_min(1e-30) / (1 + 0.2 * step)
            # Back onto the ball; points inside stay.
            x = moved / _norms(moved).clamp_min(1.0)
        return max(best, float(self.at(x.detach()).max()))

    def probability(
        self,
        epsilon: float,
        points: int,
        confidence: float,
        generator: torch.Generator | None,
    ) -> tuple[float, float, float]:
        """The share of random points with an error of at most ε, and its confidence interval."""
        with torch.no_grad():
            within = sum(
                int(
                    (
                        # 256 at a time, so that memory does not grow with the number of
                        # points.
                        self.at(self.ball(min(256, points - start), generator)) <= epsilon
                    ).sum()
                )
                for start in range(0, points, 256)
            )
        return within / points, *clopper_pearson(within, points, confidence=confidence)


def _norms(x: Tensor) -> Tensor:
    return _lengths(x).view(-1, *(1 for _ in x.shape[1:]))


def _lengths(x: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(x.reshape(len(x), -1), dim=1)
    return lengths


# The product bound on what a pruning changes: only for networks it is proven for, and never below
# the truth.

Norms: TypeAlias = Mapping[str, tuple[float, float]]
"""‖W*‖ and ‖W* − W‖ by parameter name."""

_ROOM = 1e-5
"""The norms are Lanczos values, which may lie below the truth by a part of this."""


def product_bound(dense: nn.Module, sparse: nn.Module, norms: Norms) -> float | None:
    """Π(‖W*‖+‖W*−W‖) − Π‖W*‖ over the layers in the order they run, a reused one as often as it is
    used.

    Needs a chain of linear layers without biases and activations with σ(0) = 0 that are 1-Lipschitz
    in evaluation mode, in `nn.Sequential`s, the same chain twice, and a norm for every weight; None
    otherwise.
    """
    before, after = ([leaf for _, leaf in leaves_of(model)] for model in (dense, sparse))
    names = {id(parameter): name for name, parameter, _ in owned_parameters(dense)}
    same = len(before) == len(after) and all(map(_same_kind, before, after))
    if not same or _has_hooks(dense) or _has_hooks(sparse):
        return None
    twin = dict(sparse.named_parameters(remove_duplicate=False))
    error, reach = 0.0, 1.0
    for one, other in zip(before, after, strict=True):
        if not isinstance(one, nn.Linear) or not isinstance(other, nn.Linear):
            continue
        # Twins are matched by name, and must really be the weight that runs.
        name = names.get(id(one.weight), "")
        if name not in norms or not torch.equal(other.weight, twin[name]):
            return None
        # Both are rounded up: the product has to stay above the truth.
        norm, change = (value * (1 + _ROOM) for value in norms[name])
        # Builds Π(n + c) − Πn term by term. As a difference of the two products, a
        # small change would be lost to cancellation.
        error, reach = error * (norm + change) + reach * change, reach * norm
    return error


def _same_kind(one: nn.Module, other: nn.Module) -> bool:
    """The same admitted module; its settings show in its text."""
    admitted = _ADMITTED.get(type(one))
    same = type(one) is type(other) and str(one) == str(other)
    return same and admitted is not None and admitted(one)


_ADMITTED: dict[type[nn.Module], Callable[..., bool]] = {
    nn.Linear: lambda linear: linear.bias is None,
    nn.LeakyReLU: lambda leaky: abs(leaky.negative_slope) <= 1,
    # σ(0) = 0 only where the clipped range holds 0.
    nn.Hardtanh: lambda hard: hard.min_val <= 0 <= hard.max_val,
    # start_dim 0 would mix the inputs of a batch.
    nn.Flatten: lambda flatten: flatten.start_dim >= 1,
    **dict.fromkeys((nn.ReLU, nn.ReLU6, nn.Tanh, nn.Identity, nn.Dropout), lambda module: True),
}
"""Beside a constant of at most 1 (`LIPSCHITZ` of theory/chain.py) the product bound asks for
σ(0) = 0 and for no numbers of its own, which the text of a module would not show."""


def _has_hooks(model: nn.Module) -> bool:
    """Whether a hook may change what a module returns."""
    tables: Iterable[Mapping[int, object]] = (
        table for m in model.modules() for table in (m._forward_hooks, m._forward_pre_hooks)
    )
    return any(tables)


# Two models that may be compared: same weights by name, finite values, an input that fits.


def pair_of(
    dense: nn.Module, sparse: nn.Module, where: Where
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The chosen weights of both models by name, or an error that says why the models cannot be
    compared.
    """
    models = {"dense": dense, "sparse": sparse}
    foreign = [
        f"{name} is a {type(m).__name__}"
        for name, m in models.items()
        if not isinstance(m, nn.Module)
    ]
    if foreign:
        raise ArgumentError(
            f"{' and '.join(foreign)}, not a module: load weights into a copy of the model first, "
            "copy.deepcopy(model).load_state_dict(weights)."
        )
    chosen = prunable(dense, where)
    other = dict(sparse.named_parameters(remove_duplicate=False))
    wrong = [
        name for name, p in chosen.items() if name not in other or other[name].shape != p.shape
    ]
    if wrong:
        raise StructureMismatch(
            f"the models differ: {', '.join(wrong[:4])} missing or of another shape in the sparse"
            " one."
        )
    for which, model in models.items():
        bad = [
            repr(name) for name, p in model.named_parameters() if not bool(torch.isfinite(p).all())
        ]
        if bad:
            raise ParameterError(
                f"{', '.join(bad[:4])} hold NaN or infinite weights in the {which} model: repair "
                "them before measuring."
            )
    return {n: p.detach() for n, p in chosen.items()}, {n: other[n].detach() for n in chosen}


def example_for(example: Tensor, model: nn.Module) -> Tensor:
    """A floating-point input with a batch axis, where the model is."""
    if not isinstance(example, Tensor) or not example.is_floating_point():
        kind = (
            f"holds {example.dtype}"
            if isinstance(example, Tensor)
            else f"is a {type(example).__name__}"
        )
        raise ArgumentError(
            f"example {kind}; errors are measured over the unit ball of real inputs. Give one"
            " floating-point tensor (for a model that reads tokens, measure the part after its"
            " embedding)."
        )
    if example.ndim < 2 or example.numel() == 0:
        raise ArgumentError(
            f"example has shape {tuple(example.shape)}: give one input with a batch axis in front."
        )
    return example.to(next(model.parameters()))


# The measurement itself.


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningMeasurement:
    """`sup_error` is a lower bound on sup_{‖x‖≤1}‖f(x) − F(x)‖, found by gradient search;
    `product_bound` an upper one.

    `probability` is the share of random points of the unit ball with an error of at most `epsilon`,
    between `low` and `high` with the stated confidence (Clopper–Pearson). `product_bound` is
    Π(‖W*‖+‖W*−W‖) − Π‖W*‖ over the layers in the order they run (a reused one counts each time),
    given for (nested) `nn.Sequential`s of linear layers without biases and 1-Lipschitz activations
    with σ(0) = 0; None otherwise.
    """

    layers: tuple[LayerChange, ...]
    sup_error: float | None
    product_bound: float | None
    epsilon: float | None
    probability: float | None
    low: float | None
    high: float | None
    confidence: float
    points: int


def measure_pruning(
    dense: nn.Module,
    sparse: nn.Module,
    *,
    example: Tensor | None = None,
    epsilon: float | None = None,
    points: int = 1_000,
    restarts: int = 8,
    steps: int = 60,
    confidence: float = 0.99,
    where: Where = None,
    generator: torch.Generator | None = None,
) -> PruningMeasurement:
    """Compare a network and its pruned copy: norms of what was removed, the worst input found, how
    often it matters.

    `example` (one input with a batch axis) gives the input's shape and the map sizes of
    convolutions; without it inputs of stacks of linear layers are guessed from the first, and
    convolutions are measured by their kernels. Both models run in evaluation mode and are left as
    they were.

    >>> from torch import nn
    >>> import copy
    >>> dense = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False))
    >>> measure_pruning(dense, copy.deepcopy(dense), epsilon=0.1).sup_error
    0.0
    """
    before, after = pair_of(dense, sparse, where)
    if points < 1 or restarts < 1 or steps < 0 or not 0 < confidence < 1:
        raise ArgumentError(
            f"points={points}, restarts={restarts}, steps={steps}, confidence={confidence:g}: give"
            " at least one point and one restart, no negative number of steps, and a confidence"
            " between 0 and 1."
        )
    # `not … > 0` refuses NaN as well.
    if epsilon is not None and not epsilon > 0:
        raise ArgumentError(
            f"epsilon={epsilon:g} is not positive: give the error that would be too large."
        )
    found = _errors(dense, sparse, None if example is None else example_for(example, dense))
    uses = {} if example is None else uses_of(dense, example_for(example, dense))
    owners = {name: owner for name, _, owner in owned_parameters(dense)}
    layers = tuple(
        layer_change(name, owners[name], before[name], after[name], uses.get(name))
        for name in before
    )
    low = high = share = None
    if found is not None and epsilon is not None:
        share, low, high = found.probability(epsilon, points, confidence, generator)
    return PruningMeasurement(
        layers=layers,
        sup_error=None if found is None else found.search(restarts, steps, generator),
        product_bound=product_bound(
            dense,
            sparse,
            {layer.name: (layer.norm, layer.change) for layer in layers},
        ),
        epsilon=epsilon,
        probability=share,
        low=low,
        high=high,
        confidence=confidence,
        points=points,
    )


def _errors(dense: nn.Module, sparse: nn.Module, example: Tensor | None) -> OutputErrors | None:
    """The models beside one another on inputs of the example's shape, or the guessed one; None
    without either.
    """
    if example is not None:
        hint = "example= needs the shape of one input with a batch axis in front."
        found = OutputErrors(dense=dense, sparse=sparse, shape=tuple(example.shape[1:]), hint=hint)
    else:
        first = next(
            (m for m in dense.modules() if next(m.children(), None) is None and [*m.parameters()]),
            None,
        )
        if not isinstance(first, nn.Linear):
            return None
        hint = (
            "Its inputs were guessed from the linear layer defined first: give example=, one input"
            " with a batch axis."
        )
        found = OutputErrors(dense=dense, sparse=sparse, shape=(first.in_features,), hint=hint)
    with torch.no_grad():
        # One point now, so that a wrong shape is reported before minutes of measuring.
        found.at(found.ball(1, torch.Generator().manual_seed(0)))
    return found
