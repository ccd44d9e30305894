"""What a pruning did to a network, against what the theorems of Qian & Klabjan (2021) bound."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from secateurs import random
from secateurs.errors import ArgumentError, ParameterError, StructureMismatch
from secateurs.parameters import Where, owned, prunable
from secateurs.theory import conv_operator_norm, spectral_norms


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChange:
    """One layer: `change` = ‖W* − W‖₂ beside the theorems' thresholds d^{−α} (magnitude) and d^{−α/4} (random).

    α is read off the number of pruned entries: D^{1−α} of D; d is the smaller side of the layer. `kind` says what
    the norms are: of the matrix, of the convolution on its map, or of the unfolded kernel (no example given).
    """

    name: str
    kind: str
    norm: float
    change: float
    pruned: int
    alpha: float | None
    magnitude_bound: float | None
    random_bound: float | None

    @property
    def within(self) -> bool | None:
        """‖W* − W‖₂ ≤ d^{−α}? None when nothing was pruned."""
        return None if self.magnitude_bound is None else self.change <= self.magnitude_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningMeasurement:
    """`sup_error` is a lower bound on sup_{‖x‖≤1}‖f(x) − F(x)‖, found by gradient search; `product_bound` an upper one.

    `probability` is the share of random points of the unit ball with an error of at most `epsilon`, between `low` and
    `high` with the stated confidence (Clopper–Pearson). `product_bound` is L·(Π(‖W*‖+‖W*−W‖) − Π‖W*‖), given for
    stacks of linear layers without biases and 1-Lipschitz activations; None otherwise.
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
    """Compare a network and its pruned copy: norms of what was removed, the worst input found, how often it matters.

    `example` (one input with a batch axis) gives the input's shape and the map sizes of convolutions; without it
    inputs of stacks of linear layers are guessed from the first, and convolutions are measured by their kernels.
    Both models run in evaluation mode and are left as they were.

    >>> from torch import nn
    >>> import copy
    >>> dense = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False))
    >>> measure_pruning(dense, copy.deepcopy(dense), epsilon=0.1).sup_error
    0.0
    """
    before, after = _pair(dense, sparse, where)
    if points < 1 or restarts < 1 or steps < 0 or not 0 < confidence < 1:
        raise ArgumentError(f"points = {points}, restarts = {restarts}, steps = {steps}, confidence = {confidence:g}.")
    if epsilon is not None and not epsilon > 0:
        raise ArgumentError(f"epsilon = {epsilon:g} is not positive.")
    maps = {} if example is None else _map_sizes(dense, example)
    owners = {name: owner for name, _, owner in owned(dense)}
    layers = tuple(_change(name, owners[name], before[name], after[name], maps.get(name)) for name in before)
    shape = _input_shape(dense, example)
    found = None if shape is None else _Errors(dense=dense, sparse=sparse, shape=shape)
    low = high = share = None
    if found is not None and epsilon is not None:
        share, low, high = _probability(found, epsilon, points, confidence, generator)
    return PruningMeasurement(
        layers=layers,
        sup_error=None if found is None else found.search(restarts, steps, generator),
        product_bound=_product(dense, layers),
        epsilon=epsilon,
        probability=share,
        low=low,
        high=high,
        confidence=confidence,
        points=points,
    )


def clopper_pearson(successes: int, trials: int, *, confidence: float) -> tuple[float, float]:
    """The exact confidence interval of a binomial probability.

    >>> clopper_pearson(0, 10, confidence=0.95)[0]
    0.0
    """
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(stats.beta.ppf(tail, successes, trials - successes + 1))
    high = 1.0 if successes == trials else float(stats.beta.isf(tail, successes + 1, trials - successes))
    return low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class _Errors:
    """‖f(x) − F(x)‖₂ as a function of x, both models in evaluation mode."""

    dense: nn.Module
    sparse: nn.Module
    shape: tuple[int, ...]

    def at(self, x: Tensor) -> Tensor:
        """One error for each point."""
        return _lengths(_evaluate(self.sparse, x) - _evaluate(self.dense, x))

    def ball(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Uniform points of the unit ball."""
        like = next(self.dense.parameters())
        points = random.normal(like.new_empty(count, *self.shape), generator=generator)
        radius = random.uniform(like.new_empty(count), generator=generator) ** (1 / math.prod(self.shape))
        return points / _norms(points) * radius.to(points).view(-1, *(1 for _ in self.shape))

    def search(self, restarts: int, steps: int, generator: torch.Generator | None) -> float:
        """Projected gradient ascent from random points of the sphere; the best error seen."""
        x = self.ball(restarts, generator)
        best = float(self.at(x).max())
        for step in range(steps):
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.at(x).sum(), x, allow_unused=True)
            size = _norms(slope) if slope is not None else None
            if slope is None or size is None or not bool((size > 0).any()):
                break
            moved = x.detach() + slope / size.clamp_min(1e-30) / (1 + 0.2 * step)
            x = moved / _norms(moved).clamp_min(1.0)
            best = max(best, float(self.at(x).max()))
        return best


def _norms(x: Tensor) -> Tensor:
    return _lengths(x).view(-1, *(1 for _ in x.shape[1:]))


def _lengths(x: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1)
    return lengths


def _evaluate(model: nn.Module, x: Tensor) -> Tensor:
    """The output in evaluation mode, on detached copies of parameters and buffers: the model is left as it was."""
    modes = {module: module.training for module in model.modules()}
    state = {name: value.detach().clone() for name, value in (*model.named_parameters(), *model.named_buffers())}
    model.eval()
    try:
        output: Tensor = torch.func.functional_call(model, state, (x,))
        return output
    finally:
        for module, training in modes.items():
            module.training = training


def _probability(
    errors: _Errors, epsilon: float, points: int, confidence: float, generator: torch.Generator | None
) -> tuple[float, float, float]:
    with torch.no_grad():
        within = sum(
            int((errors.at(errors.ball(min(256, points - start), generator)) <= epsilon).sum())
            for start in range(0, points, 256)
        )
    return within / points, *clopper_pearson(within, points, confidence=confidence)


def _change(name: str, owner: nn.Module, before: Tensor, after: Tensor, size: tuple[int, ...] | None) -> LayerChange:
    removed = before - after
    kind, norm = _norm(owner, before, size)
    pruned = int(((after == 0) & (before != 0)).sum())
    alpha = 1 - math.log(pruned) / math.log(before.numel()) if pruned and before.numel() > 1 else None
    width = min(before.shape[:2])
    return LayerChange(
        name=name,
        kind=kind,
        norm=norm,
        change=_norm(owner, removed, size)[1],
        pruned=pruned,
        alpha=alpha,
        magnitude_bound=None if alpha is None else float(width) ** -alpha,
        random_bound=None if alpha is None else float(width) ** (-alpha / 4),
    )


def _norm(owner: nn.Module, weight: Tensor, size: tuple[int, ...] | None) -> tuple[str, float]:
    """An upper bound where the exact value is not at hand; what it is comes first."""
    regular = (
        isinstance(owner, _ConvNd) and not owner.transposed and len({*owner.stride}) == len({*owner.dilation}) == 1
    )
    if isinstance(owner, _ConvNd) and regular and size is not None and len({*_pads(owner)}) == 1:
        circular = owner.padding_mode == "circular"
        found = conv_operator_norm(
            weight,
            size,
            padding="circular" if circular else _pads(owner)[0],
            stride=owner.stride[0],
            dilation=owner.dilation[0],
            groups=owner.groups,
        )
        return ("convolution" if found.exact else "convolution, upper bound"), found.upper
    value = float(spectral_norms(weight.flatten(1)).values)
    if weight.ndim == 2:
        return "matrix", value
    return "unfolded kernel, upper bound", value * math.sqrt(math.prod(weight.shape[2:]))


def _pads(owner: _ConvNd) -> tuple[int, ...]:
    if owner.padding == "valid":
        return (0,)
    if owner.padding == "same":
        return tuple(d * (k - 1) // 2 for d, k in zip(owner.dilation, owner.kernel_size, strict=True))
    return tuple(int(p) for p in owner.padding)


def _map_sizes(model: nn.Module, example: Tensor) -> dict[str, tuple[int, ...]]:
    """The spatial size of every convolution's input, seen in one forward pass."""
    sizes: dict[str, tuple[int, ...]] = {}

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def see(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            sizes.setdefault(name, tuple(inputs[0].shape[2:]))

        return see

    convolutions = [(name, module) for name, module in model.named_modules() if isinstance(module, _ConvNd)]
    hooks = [module.register_forward_pre_hook(note(name)) for name, module in convolutions]
    try:
        with torch.no_grad():
            _evaluate(model, example)
    finally:
        for hook in hooks:
            hook.remove()
    return {f"{name}.weight" if name else "weight": size for name, size in sizes.items()}


def _input_shape(model: nn.Module, example: Tensor | None) -> tuple[int, ...] | None:
    if example is not None:
        return tuple(example.shape[1:])
    first = next((m for m in model.modules() if next(m.children(), None) is None and [*m.parameters()]), None)
    return (first.in_features,) if isinstance(first, nn.Linear) else None


_LIPSCHITZ_1 = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Tanh, nn.Hardtanh, nn.Identity, nn.Flatten, nn.Dropout)


def _product(model: nn.Module, layers: Sequence[LayerChange]) -> float | None:
    modules = list(model.children()) if isinstance(model, nn.Sequential) else [model]
    linear = [m for m in modules if isinstance(m, nn.Linear)]
    plain = all(isinstance(m, (nn.Linear, *_LIPSCHITZ_1)) for m in modules) and all(m.bias is None for m in linear)
    leaky = [m.negative_slope for m in modules if isinstance(m, nn.LeakyReLU)]
    if not plain or len(linear) != len(layers) or any(abs(slope) > 1 for slope in leaky):
        return None
    return math.prod(c.norm + c.change for c in layers) - math.prod(c.norm for c in layers)


def _pair(dense: nn.Module, sparse: nn.Module, where: Where) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    chosen = prunable(dense, where)
    other = dict(sparse.named_parameters(remove_duplicate=False))
    wrong = [name for name, p in chosen.items() if name not in other or other[name].shape != p.shape]
    if wrong:
        raise StructureMismatch(f"the models differ: {', '.join(wrong[:4])} missing or of another shape in the second.")
    before, after = ({n: t.detach() for n, t in pair.items()} for pair in (chosen, {n: other[n] for n in chosen}))
    bad = [name for name in chosen if not bool(torch.isfinite(before[name]).all() & torch.isfinite(after[name]).all())]
    if bad:
        raise ParameterError(f"{', '.join(map(repr, bad[:4]))} hold NaN or infinite weights.")
    return before, after
