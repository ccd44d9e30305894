"""Rewinding: what one training sees of the rounds, and the state stored at the rewinding point."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.errors import ArgumentError, TrainingError
from secateurs.masks import apply_
from secateurs.optim import Held, hold
from secateurs.prune.rounds import Masks


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Copies of every parameter, buffer (batch-norm statistics, counters) and gradient, and each
    module's mode.
    """

    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    modes: Mapping[str, bool]

    @classmethod
    @torch.no_grad()
    def of(cls, model: nn.Module) -> "Snapshot":
        """The state of the model now."""
        return cls(
            parameters={name: p.detach().clone() for name, p in model.named_parameters()},
            buffers={name: b.clone() for name, b in model.named_buffers()},
            gradients={
                n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
            },
            modes={name: module.training for name, module in model.named_modules()},
        )

    @torch.no_grad()
    def restore_(self, model: nn.Module) -> None:
        """Put parameters, buffers and modes back, in place; no gradients are left."""
        # Checked before anything is written: half a restored model would be worse than
        # an error.
        problems = self._changed(model)
        if problems:
            raise TrainingError(
                f"{', '.join(map(repr, problems))} appeared, vanished or changed shape since the "
                "snapshot, so the model cannot be put back: run one forward pass beforehand, and "
                "do not replace tensors during training."
            )
        self.undo_(model)
        model.zero_grad(set_to_none=True)

    @torch.no_grad()
    def undo_(self, model: nn.Module) -> None:
        """After an error, put back everything that is still there, gradients too."""
        # Never raises: it runs while another error is on its way, which is the one to report.
        changed = self._changed(model)
        for name, parameter in model.named_parameters():
            if name not in changed:
                # In place: optimizers and users hold references to these very
                # parameters.
                parameter.copy_(self.parameters[name])
                gradient = self.gradients.get(name)
                parameter.grad = None if gradient is None else gradient.clone()
        for name, buffer in model.named_buffers():
            if name not in changed:
                buffer.copy_(self.buffers[name])
        for name, module in model.named_modules():
            module.training = self.modes.get(name, module.training)

    def _changed(self, model: nn.Module) -> list[str]:
        """Names that are new, missing, or of another shape."""
        saved, current = (
            {name: value.shape for name, value in tensors}
            for tensors in (
                (*self.parameters.items(), *self.buffers.items()),
                (*model.named_parameters(), *model.named_buffers()),
            )
        )
        return [name for name in sorted(saved | current) if saved.get(name) != current.get(name)]


Rewind: TypeAlias = Literal["weights", "learning-rate"]


class ImpRun:
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
        masks: Masks,
        memory: "RewindPoint",
        round: int,
        rounds: int,
    ):
        self.round, self.rounds, self.masks = round, rounds, masks
        self.start = memory.iteration if round else 0
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


class RewindPoint:
    """The dense run at the rewinding point."""

    def __init__(self, model: nn.Module, iteration: int, rewind: Rewind, optimizer: bool) -> None:
        if rewind not in ("weights", "learning-rate"):
            raise ArgumentError(f"rewind={rewind!r}; it is 'weights' or 'learning-rate'.")
        self.model, self.iteration = model, iteration
        self.rewind, self.with_optimizer = rewind, optimizer
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
                    copy.deepcopy(optimizer.state_dict()) if self.with_optimizer else None
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
        """The snapshot; an error if the dense training never reached its point."""
        if self.snapshot is None:
            raise TrainingError(
                f"the dense training took {self.steps} optimizer steps that run.hold counted and "
                f"never reached the rewinding point {self.iteration}it: call run.hold(optimizer) "
                "before the first step, train longer or rewind to an earlier point."
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
