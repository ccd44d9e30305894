"""What a pruning did to a network, against what the theorems of Qian & Klabjan (2021) bound."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateurs.diagnosis.chain import product_bound
from secateurs.diagnosis.changes import LayerChange, layer_change
from secateurs.diagnosis.outputs import OutputErrors
from secateurs.diagnosis.pairs import example_for, pair_of
from secateurs.diagnosis.uses import uses_of
from secateurs.errors import ArgumentError
from secateurs.parameters import Where, owned


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
    found = _errors(
        dense, sparse, None if example is None else example_for(example, dense)
    )
    uses = {} if example is None else uses_of(dense, example_for(example, dense))
    owners = {name: owner for name, _, owner in owned(dense)}
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
