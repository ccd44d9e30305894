"""Going back: what one training sees of the rounds, and the memory of the rewinding point."""

import copy
from typing import Any, Literal, TypeAlias

from torch import nn
from torch.optim import Optimizer

from secateurs.errors import ArgumentError, TrainingError
from secateurs.masks import apply_
from secateurs.optim import Held, hold
from secateurs.prune.during_training.snapshot import Snapshot
from secateurs.prune.rounds import Masks

Rewind: TypeAlias = Literal["weights", "learning-rate"]


class Run:
    """One training, as `train(model, run)` sees it.

    Attributes:
        round: 0 for the dense training, then 1, 2, ...
        rounds: How many prunings there will be.
        start: The iteration to begin with: 0 at first, the rewinding point later. Learning-rate
            schedules count from here.
        masks: What is kept, True = kept.
        held: What `hold` returned; None before.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        round: int,
        rounds: int,
        start: int,
        masks: Masks,
        memory: "Memory",
    ):
        self.round, self.rounds, self.start, self.masks = round, rounds, start, masks
        self.held: Held | None = None
        self._model, self._memory = model, memory

    def hold(self, optimizer: Optimizer) -> Held:
        """Call this once, before the first step: zeros stay zero, and the dense run is remembered
        where it rewinds.
        """
        if self.held is not None:
            raise TrainingError(
                f"run.hold was called twice in round {self.round}; hold one optimizer, once."
            )
        # The old state first, then the hold, which clears dropped entries of the
        # momentum.
        if self.round:
            self._memory.recall(optimizer)
        self.held = hold(self._model, self.masks, optimizer)
        if not self.round:
            self._memory.watch(optimizer)
        return self.held


class Memory:
    """The dense run at the rewinding point."""

    def __init__(
        self, model: nn.Module, iteration: int, rewind: Rewind, optimizer: bool
    ) -> None:
        if rewind not in ("weights", "learning-rate"):
            raise ArgumentError(
                f"rewind={rewind!r}; it is 'weights' or 'learning-rate'."
            )
        self.model, self.iteration, self.rewind, self.with_optimizer = (
            model,
            iteration,
            rewind,
            optimizer,
        )
        # Rewinding to iteration 0 needs no step to be counted: the model is there now.
        self.snapshot: Snapshot | None = None if iteration else Snapshot.of(model)
        self.optimizer_state: dict[str, Any] | None = None
        self.steps = 0

    def watch(self, optimizer: Optimizer) -> None:
        """Count the steps of the dense run and take the snapshot at the right one."""

        def count(optimizer: Optimizer, *_: object) -> None:
            self.steps += 1
            # Counted here and not by the user's loop, so that skipped steps (AMP) are
            # not counted.
            if self.steps == self.iteration:
                self.snapshot = Snapshot.of(self.model)
                self.optimizer_state = (
                    copy.deepcopy(optimizer.state_dict())
                    if self.with_optimizer
                    else None
                )
                handle.remove()

        handle = optimizer.register_step_post_hook(count)

    def recall(self, optimizer: Optimizer) -> None:
        """Give the optimizer the state it had at the rewinding point, if that was asked for."""
        if self.optimizer_state is not None:
            # A copy: some optimizers keep the tensors they are given and would write
            # into ours.
            optimizer.load_state_dict(copy.deepcopy(self.optimizer_state))

    def found(self) -> Snapshot:
        """The snapshot; an error if the dense training never came to it."""
        if self.snapshot is None:
            raise TrainingError(
                f"the dense training took {self.steps} optimizer steps that run.hold counted and"
                f" never came to the rewinding point {self.iteration}it: call run.hold(optimizer)"
                " before the first step, train longer or rewind to an earlier point."
            )
        return self.snapshot

    def rewind_(self, masks: Masks) -> None:
        """Back to the rewinding point, pruned."""
        snapshot = self.found()
        if self.rewind == "weights":
            snapshot.restore_(self.model)
        else:
            # Learning-rate rewinding keeps the trained weights; old gradients would mix
            # two rounds.
            self.model.zero_grad(set_to_none=True)
        apply_(self.model, masks)
