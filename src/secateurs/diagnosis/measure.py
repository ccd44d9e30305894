"""What a pruning did to a network, against what the theorems of Qian & Klabjan (2021) bound."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from secateurs.diagnosis.chain import product_bound
from secateurs.diagnosis.norms import Use, layer_norm
from secateurs.diagnosis.outputs import OutputErrors, checked_output
from secateurs.errors import ArgumentError, ParameterError, StructureMismatch
from secateurs.parameters import Where, owned, prunable


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
        return (
            None
            if self.magnitude_bound is None
            else self.change <= self.magnitude_bound
        )


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
    before, after = _pair(dense, sparse, where)
    if points < 1 or restarts < 1 or steps < 0 or not 0 < confidence < 1:
        raise ArgumentError(
            f"points = {points}, restarts = {restarts}, steps = {steps}, confidence ="
            f" {confidence:g}."
        )
    # `not … > 0` refuses NaN as well.
    if epsilon is not None and not epsilon > 0:
        raise ArgumentError(f"epsilon = {epsilon:g} is not positive.")
    found = _errors(
        dense, sparse, None if example is None else _example(example, dense)
    )
    uses = {} if example is None else _uses(dense, _example(example, dense))
    owners = {name: owner for name, _, owner in owned(dense)}
    layers = tuple(
        _change(name, owners[name], before[name], after[name], uses.get(name))
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


def _pair(
    dense: nn.Module, sparse: nn.Module, where: Where
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
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
        name
        for name, p in chosen.items()
        if name not in other or other[name].shape != p.shape
    ]
    if wrong:
        raise StructureMismatch(
            f"the models differ: {', '.join(wrong[:4])} missing or of another shape in the second."
        )
    for which, model in models.items():
        bad = [
            repr(name)
            for name, p in model.named_parameters()
            if not bool(torch.isfinite(p).all())
        ]
        if bad:
            raise ParameterError(
                f"{', '.join(bad[:4])} hold NaN or infinite weights in the {which} model: mend them"
                " before measuring."
            )
    return {n: p.detach() for n, p in chosen.items()}, {
        n: other[n].detach() for n in chosen
    }


def _example(example: Tensor, model: nn.Module) -> Tensor:
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


def _errors(
    dense: nn.Module, sparse: nn.Module, example: Tensor | None
) -> OutputErrors | None:
    """The models beside one another on inputs of the example's shape, or the guessed one; None
    without either.
    """
    if example is not None:
        hint = "example= needs the shape of one input with a batch axis in front."
        found = OutputErrors(
            dense=dense, sparse=sparse, shape=tuple(example.shape[1:]), hint=hint
        )
    else:
        first = next(
            (
                m
                for m in dense.modules()
                if next(m.children(), None) is None and [*m.parameters()]
            ),
            None,
        )
        if not isinstance(first, nn.Linear):
            return None
        hint = (
            "Its inputs were guessed from the linear layer defined first: give example=, one input"
            " with a batch axis."
        )
        found = OutputErrors(
            dense=dense, sparse=sparse, shape=(first.in_features,), hint=hint
        )
    with torch.no_grad():
        # One point now, so that a wrong shape is told before minutes of measuring.
        found.at(found.ball(1, torch.Generator().manual_seed(0)))
    return found


def _uses(model: nn.Module, example: Tensor) -> dict[str, frozenset[Use]]:
    """By parameter name, every convolution with that weight and every map size it meets in one
    forward pass.
    """
    names = {id(parameter): name for name, parameter, _ in owned(model)}
    seen: dict[str, set[Use]] = {}

    def note(
        name: str, conv: _ConvNd
    ) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def see(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            # A transposed convolution is the adjoint of one on its own output's map.
            mapped = output if conv.transposed else inputs[0]
            size = tuple(mapped.shape[-len(conv.kernel_size) :])
            seen.setdefault(name, set()).add(Use(conv=conv, size=size))

        return see

    convs = [
        m for m in model.modules() if isinstance(m, _ConvNd) and id(m.weight) in names
    ]
    hooks = [
        conv.register_forward_hook(note(names[id(conv.weight)], conv))
        for conv in convs
    ]
    try:
        with torch.no_grad():
            checked_output(
                model,
                example,
                "the dense model",
                "example= is one input with a batch axis in front.",
            )
    finally:
        # Also when the forward pass fails: the user's model keeps no hook.
        for hook in hooks:
            hook.remove()
    return {name: frozenset(uses) for name, uses in seen.items()}


def _change(
    name: str,
    owner: nn.Module,
    before: Tensor,
    after: Tensor,
    uses: frozenset[Use] | None,
) -> LayerChange:
    norm, change = (
        layer_norm(owner, weight, uses or frozenset())
        for weight in (before, before - after)
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
