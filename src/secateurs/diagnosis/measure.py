"""What a pruning did to a network, against the bounds of Qian & Klabjan (2021)."""

import math
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor, nn

from secateurs import random
from secateurs.diagnosis.diagnose import (
    Use,
    check_output,
    layer_norm,
    product_bound,
    uses_of,
)
from secateurs.errors import ArgumentError, ParameterError, StructureMismatch
from secateurs.parameters import Where, owned_parameters, prunable

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
    # Entries that were zero before were not pruned by anybody.
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
        # Beta(0, ·) does not exist; no success says nothing from below.
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
            # A step of fixed length that shrinks slowly: the size of the gradient says
            # nothing of how far the boundary is. The clamp keeps points with no
            # gradient where they are.
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
            f"the models differ: {', '.join(wrong[:4])} missing or of another shape in the second."
        )
    for which, model in models.items():
        bad = [
            repr(name) for name, p in model.named_parameters() if not bool(torch.isfinite(p).all())
        ]
        if bad:
            raise ParameterError(
                f"{', '.join(bad[:4])} hold NaN or infinite weights in the {which} model: mend them"
                " before measuring."
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
            " floating-point tensor (of a model of tokens, measure the part behind its embedding)."
        )
    if example.ndim < 2 or example.numel() == 0:
        raise ArgumentError(
            f"example has shape {tuple(example.shape)}: give one input with a batch axis in front."
        )
    return example.to(next(model.parameters()))


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
            f"points = {points}, restarts = {restarts}, steps = {steps}, confidence ="
            f" {confidence:g}."
        )
    # `not … > 0` refuses NaN as well.
    if epsilon is not None and not epsilon > 0:
        raise ArgumentError(f"epsilon = {epsilon:g} is not positive.")
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
