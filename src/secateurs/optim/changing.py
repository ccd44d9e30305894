"""Masks that change while a network trains: grown again (RigL, SET), or put on and taken off
(AC/DC).
"""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.base.parameters import Params
from secateurs.base.prunable import Where, prunable
from secateurs.base.random import check_generator, uniform
from secateurs.base.registry import refuse_unknown
from secateurs.base.sharding import laid_as, local, local_mask, one_source, sums, whole, whole_mask
from secateurs.errors import ArgumentError, TrainingError
from secateurs.masks import on_device, select
from secateurs.masks.budget import AmountFields, ScopeLike
from secateurs.masks.pieces import count_each, on_gpu, sound
from secateurs.masks.topk import largest_of_each
from secateurs.optim.attached import (
    StepMethod,
    TrainingCost,
    check_between,
    check_steps,
)
from secateurs.optim.holding import hold

if TYPE_CHECKING:
    from secateurs.graph import Example


class ChangingMasks(StepMethod):
    """Masks held by an optimizer as by `hold`, and changed by it as training goes on."""

    def __init__(
        self,
        model: nn.Module,
        masks: Params,
        optimizer: Optimizer,
        *,
        where: Where,
        generator: torch.Generator | None,
        example: "Example | None",
    ) -> None:
        check_generator(generator)
        self._generator = generator
        # Our hooks first: they see the gradients before `hold` clears those of dropped weights.
        super().__init__(model, optimizer, where)
        try:
            self.held = hold(model, masks, optimizer)
            """The masks held now; it follows averages of the weights."""
            self.cost = TrainingCost(self._parameters, model, example)
            """What the training has cost so far: `cost.share` of dense training."""
            self.cost.take(masks, self.kept)
        except BaseException:
            self.release()
            raise

    @property
    def masks(self) -> dict[str, Tensor]:
        """The masks held now, True = kept."""
        return self.held.masks

    @property
    def kept(self) -> dict[str, int]:
        """How many entries each mask keeps."""
        if self.held.kept is None:
            self.held.kept = count_each(self.masks)
        return self.held.kept

    def release(self) -> None:
        """Stop changing and holding. The zeros stay until the next step moves them."""
        super().release()
        if hasattr(self, "held"):
            self.held.release()

    def state_dict(self) -> dict[str, Any]:
        """Steps, masks, costs and the state of the generator."""
        generator = self._generator
        return {
            **super().state_dict(),
            "masks": self.masks,
            "cost": self.cost.state_dict(),
            "generator": None if generator is None else generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold the saved masks and continue counting."""
        self.change(state["masks"])
        super().load_state_dict(state)
        self.cost.load_state_dict(state["cost"])
        if self._generator is not None and state["generator"] is not None:
            self._generator.set_state(state["generator"].cpu())

    def change(self, masks: Params) -> None:
        """Hold these masks from now on; entries that come back begin at zero."""
        self.held.change(masks)
        own = self.masks
        self.held.kept = count_each(own)
        self.cost.take(own, self.held.kept)

    def after(self, *, skipped: bool) -> None:
        """Count the step."""
        if not skipped:
            self.cost.count()


class RigL(ChangingMasks):
    """Sparse from the first step to the last; every so often the smallest weights are dropped and
    as many grown where the gradient is largest (Evci et al. 2020, algorithm 1).

    At the steps every, 2·every, … below `end`, in each layer: of its n weights the
    ⌊f(t)·n⌋ smallest are dropped, f(t) = fraction/2 · (1 + cos(πt/end)); as many entries with the
    largest |∂L/∂w| grow, among all that are not kept. New ones begin at zero with an optimizer
    state of zeros; one that is dropped and grown at once keeps both. Such a step changes the masks
    *instead of* the weights: all gradients are taken away before the optimizer sees them.

    Args:
        sparsity, density, compression: One of them, of all masked entries together, at all times.
        steps: Optimizer steps of the training.
        end: The step from which masks stay; three quarters of `steps` by default.
        every, fraction: ΔT and α of the paper.
        scope: How the budget is shared out at the start ("erk", "uniform", …); see `select`.
        masks: The first masks, instead of random ones with that budget.
        where: Which parameters; by default the weights that `prune_` would prune.
        generator: Where the first masks are drawn.
        example: An input, to count the costs layer by layer.

    >>> model = nn.Linear(20, 10)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> rigl = RigL(model, optimizer, sparsity=0.9, steps=100, every=10)
    >>> for _ in range(30):
    ...     optimizer.zero_grad()
    ...     model(torch.randn(8, 20)).square().mean().backward()
    ...     optimizer.step()
    >>> int(rigl.masks["weight"].sum()), round(rigl.cost.share, 2)
    (20, 0.12)
    """

    in_pieces = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        steps: int,
        end: int | None = None,
        every: int = 100,
        fraction: float = 0.3,
        scope: ScopeLike = "erk",
        masks: Params | None = None,
        where: Where = None,
        generator: torch.Generator | None = None,
        example: "Example | None" = None,
        **amount: Unpack[AmountFields],
    ) -> None:
        refuse_unknown(RigL, amount, AmountFields.__annotations__)
        check_steps(steps=steps, every=every, end=3 * steps // 4 if end is None else end)
        check_between("fraction", fraction, 0.0, 1.0)
        self.end, self.every, self.fraction = (
            3 * steps // 4 if end is None else end,
            every,
            fraction,
        )
        self._changed = False
        super().__init__(
            model,
            _first_masks(model, where, masks, scope, generator, amount),
            optimizer,
            where=where,
            generator=generator,
            example=example,
        )

    def fraction_at(self, iteration: int) -> float:
        """f(t), the share of the weights that is exchanged at a step.

        >>> model = nn.Linear(4, 4)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> rigl = RigL(model, optimizer, sparsity=0.5, steps=100, end=80)
        >>> [round(rigl.fraction_at(step), 3) for step in (0, 40, 80)]
        [0.3, 0.15, 0.0]
        """
        return self.fraction / 2 * (1 + math.cos(math.pi * iteration / self.end))

    def before(self) -> None:
        """Change the masks where that is due, and let nothing else move in that step."""
        # A step that overflows is done again: the masks change then.
        self._changed = (
            self.iteration > 0
            and self.iteration % self.every == 0
            and self.iteration < self.end
            and not self.overflown
        )
        if not self._changed:
            return
        weights, gradients = dict[str, Tensor](), dict[str, Tensor]()
        for name, p in self._parameters.items():
            if p.grad is not None:
                weights[name], gradients[name] = p, laid_as(p.grad, p)
        _check_finite({"gradient": gradients, "weight": weights}, self.iteration)
        masks, fraction = self.masks, self.fraction_at(self.iteration)
        # Where the counts are known a GPU is not waited for.
        kept = self.kept
        counts = {name: int(fraction * kept[name]) for name in weights}
        for names in _groups(weights):
            held = {name: masks[name] for name in names}
            dropped = _smallest_of_each(weights, counts, within=held)
            left = {name: mask ^ dropped[name] for name, mask in held.items()}
            grown = largest_of_each(
                {name: whole(gradients[name]) for name in names},
                counts,
                within={name: ~mask for name, mask in left.items()},
                absolute=True,
            )
            masks |= {name: mask | grown[name] for name, mask in left.items()}
        # As many are held as before, so that a step costs the same.
        self.held.change(masks, kept=kept)
        for group in self._optimizer.param_groups:
            for p in group["params"]:
                p.grad = None

    def after(self, *, skipped: bool) -> None:
        """Count the step."""
        if not skipped:
            self.cost.count(dense_gradient=self._changed)


class SET(ChangingMasks):
    """Sparse from the first step to the last; after each epoch the weights nearest to zero are
    dropped and as many grown anywhere at random (Mocanu et al. 2018).

    After every `every` steps below `end`, in each layer: the ⌊fraction·n₊⌋ smallest of its n₊
    positive weights (kept zeros among them) and the ⌊fraction·n₋⌋ largest of its n₋ negative ones
    are dropped; as many entries grow, drawn uniformly among all that are not kept then. New ones
    begin at zero, with an optimizer state of zeros; one that is dropped and drawn at once keeps
    both, its value and its state.

    Args:
        every: Steps between two changes: those of an epoch, in the paper.
        fraction: ζ of the paper.
        end: The step from which masks stay; by default none changes in the last `every` steps.
        steps, scope, masks, where, generator, example: As in `RigL`.

    >>> model = nn.Linear(20, 10)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> grown = SET(model, optimizer, density=0.1, steps=40, every=10)
    >>> before = grown.masks["weight"]
    >>> for _ in range(10):
    ...     optimizer.zero_grad()
    ...     model(torch.randn(8, 20)).square().mean().backward()
    ...     optimizer.step()
    >>> int(grown.masks["weight"].sum()), bool((grown.masks["weight"] != before).any())
    (20, True)
    """

    in_pieces = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        steps: int,
        every: int,
        end: int | None = None,
        fraction: float = 0.3,
        scope: ScopeLike = "erk",
        masks: Params | None = None,
        where: Where = None,
        generator: torch.Generator | None = None,
        example: "Example | None" = None,
        **amount: Unpack[AmountFields],
    ) -> None:
        refuse_unknown(SET, amount, AmountFields.__annotations__)
        check_steps(steps=steps, every=every, end=steps if end is None else end)
        check_between("fraction", fraction, 0.0, 1.0)
        self.end, self.every, self.fraction = steps if end is None else end, every, fraction
        super().__init__(
            model,
            _first_masks(model, where, masks, scope, generator, amount),
            optimizer,
            where=where,
            generator=generator,
            example=example,
        )

    def after(self, *, skipped: bool) -> None:
        """Count the step, and change the masks where that is due."""
        super().after(skipped=skipped)
        done = self.iteration + 1
        if skipped or done % self.every or done >= self.end:
            return
        weights, masks = dict[str, Tensor](self._parameters), self.masks
        _check_finite({"weight": weights}, done)
        positive = {n: local_mask(masks[n], w) & (local(w) >= 0) for n, w in weights.items()}
        up, kept = sums(count_each(positive), weights), self.kept
        down = {name: int(self.fraction * (kept[name] - count)) for name, count in up.items()}
        up = {name: int(self.fraction * count) for name, count in up.items()}
        for names in _groups(weights):
            above = {name: whole_mask(positive[name], weights[name]) for name in names}
            below = {name: masks[name] ^ mask for name, mask in above.items()}
            left = {name: masks[name] for name in names}
            for own, counts in ((above, up), (below, down)):
                dropped = _smallest_of_each(weights, counts, within=own)
                left = {name: mask ^ dropped[name] for name, mask in left.items()}
            drawn = _draw({n: weights[n] for n in names}, self._generator, torch.float32)
            grown = largest_of_each(
                drawn,
                {name: up[name] + down[name] for name in names},
                within={name: ~mask for name, mask in left.items()},
            )
            masks |= {name: mask | grown[name] for name, mask in left.items()}
        # As many are held as before, so that a step costs the same.
        self.held.change(masks, kept=kept)


class ACDC(ChangingMasks):
    """Phases of sparse and of dense training in turn; the last one is sparse (Peste et al. 2021).

    After `start` dense steps, phases of `every` steps alternate, sparse first. A sparse phase keeps
    the largest magnitudes of its beginning, in all layers together or layer by layer (`scope`), and
    trains them alone. A dense phase trains everything; what was dropped begins at zero, and all of
    the optimizer's state of the masked weights is zero. The last dense phase lasts the
    `last_dense` steps before `end`; from `end` on the network is sparse.

    By default, of all `steps`: start 10 %, every 5 %, last_dense 10 %, end 85 %, as in the authors'
    runs on ImageNet (100 epochs).

    Args:
        sparsity, density, compression: One of them: what the sparse phases keep.
        steps: Optimizer steps of the training.
        where, example: As in `RigL`.

    >>> model = nn.Linear(20, 10)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> phases = ACDC(model, optimizer, sparsity=0.9, steps=40)
    >>> "".join("sd"[not phases.is_sparse_at(step)] for step in range(40))
    'ddddssddssddssddssddssddssddssddddssssss'
    """

    in_pieces = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        steps: int,
        start: int | None = None,
        every: int | None = None,
        last_dense: int | None = None,
        end: int | None = None,
        scope: ScopeLike = "global",
        where: Where = None,
        example: "Example | None" = None,
        **amount: Unpack[AmountFields],
    ) -> None:
        refuse_unknown(ACDC, amount, AmountFields.__annotations__)
        check_steps(steps=steps)
        self.start = round(0.10 * steps) if start is None else start
        self.every = max(1, round(0.05 * steps)) if every is None else every
        self.last_dense = round(0.10 * steps) if last_dense is None else last_dense
        self.end = round(0.85 * steps) if end is None else end
        check_steps(start=self.start, every=self.every, last_dense=self.last_dense, end=self.end)
        if not self.start <= self.end < steps:
            raise ArgumentError(
                f"start={self.start}, end={self.end}, steps={steps}: the last phase must not begin "
                "before `start`, and before the training ends."
            )
        self._selection: dict[str, Any] = {**amount, "scope": scope}
        parameters = prunable(model, where, pieces=True)
        # A wrong amount or scope is refused now, not after the dense steps.
        first = self._largest(parameters)
        if not self.is_sparse_at(0):
            first = {name: torch.ones_like(mask) for name, mask in first.items()}
        super().__init__(model, first, optimizer, where=where, generator=None, example=example)

    def is_sparse_at(self, iteration: int) -> bool:
        """Whether the step after this many belongs to a sparse phase."""
        if iteration >= self.end:
            return True
        if iteration < self.start or iteration >= self.end - self.last_dense:
            return False
        return (iteration - self.start) // self.every % 2 == 0

    def _largest(self, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
        weights = {name: whole(p) for name, p in parameters.items()}
        return dict(select(weights, absolute=True, **self._selection))

    def after(self, *, skipped: bool) -> None:
        """Count the step, and begin the phase that is due."""
        super().after(skipped=skipped)
        if skipped or self.is_sparse_at(self.iteration + 1) == self.is_sparse_at(self.iteration):
            return
        if self.is_sparse_at(self.iteration + 1):
            _check_finite({"weight": self._parameters}, self.iteration + 1)
            self.change(self._largest(self._parameters))
            return
        self.change({name: torch.ones_like(mask) for name, mask in self.masks.items()})
        for p in self._parameters.values():
            # Step counts stay: they tell how far Adam's averages can be trusted.
            for value in self._optimizer.state.get(p, {}).values():
                if isinstance(value, Tensor) and value.shape == p.shape and p.ndim:
                    value.zero_()


def _draw(
    parameters: Params, generator: torch.Generator | None, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """Uniform numbers for whole parameters, the same on every process that holds pieces of them."""
    with one_source(parameters.values(), generator) as source:
        return {n: uniform(p, generator=source, dtype=dtype) for n, p in parameters.items()}


def _first_masks(
    model: nn.Module,
    where: Where,
    masks: Params | None,
    scope: ScopeLike,
    generator: torch.Generator | None,
    amount: AmountFields,
) -> Params:
    """The masks given, or random ones."""
    parameters = prunable(model, where, pieces=True)
    if masks is None:
        return select(_draw(parameters, generator), scope=scope, **amount)
    stated = [name for name, value in amount.items() if value is not None]
    if stated:
        raise ArgumentError(f"masks= already determines how much is kept: leave {stated[0]}= out.")
    if missing := sorted(parameters.keys() - masks.keys()):
        raise ArgumentError(
            f"masks= has no mask for {', '.join(map(repr, missing))}: give one, or leave the "
            "parameter out with where=."
        )
    return {name: masks[name] for name in parameters}


def _check_finite(tensors: Mapping[str, Params], iteration: int) -> None:
    """Refuse to rank NaN or infinite values of any parameter, first of all its gradient; on every
    process, wherever they lie.
    """
    named = {
        f"the {what} of {name!r}": tensor
        for what, some in tensors.items()
        for name, tensor in some.items()
    }
    here = {name: local(tensor) for name, tensor in named.items()}
    fine = sound(here)
    strange = {n: int(n not in fine and not bool(p.isfinite().all())) for n, p in here.items()}
    for name, count in sums(strange, named).items():
        if count:
            raise TrainingError(
                f"{name} is not finite after {iteration} steps: the masks were not changed. Lower"
                " the learning rate, or go back to a checkpoint."
            )


def _groups(weights: Params) -> Iterator[list[str]]:
    """Names of weights that are ranked at once: on a GPU many small ones are as dear as one, and
    of large ones no more is written on the way than has to be.
    """
    if any(map(on_gpu, weights.values())):
        yield from on_device.groups(weights)
    else:
        yield from ([name] for name in weights)


def _smallest_of_each(
    weights: Params, counts: Mapping[str, int], *, within: Params
) -> dict[str, Tensor]:
    """Masks of the weights nearest to zero, where they may be."""
    sizes = torch._foreach_abs([whole(weights[name]).detach() for name in within])
    torch._foreach_neg_(sizes)
    return largest_of_each(dict(zip(within, sizes, strict=True)), counts, within=within)
