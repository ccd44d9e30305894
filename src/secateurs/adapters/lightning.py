"""Pruning inside the Trainer of Lightning."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from secateurs.adapters.gradual import Pruner, When, read_state
from secateurs.errors import ArgumentError, MissingExtra, TrainingError
from secateurs.prune import Recipe

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    # Raised when a callback is made, so that the module can be imported without Lightning.
    Callback = object


class LightningPruning(Callback):  # type: ignore[misc]
    """Prune gradually while a Lightning `Trainer` trains, hold the zeros, log the sparsity.

    Args:
        recipe: What to prune, as for `prune_`: score, amount, scope, pattern, where.
        start, end: When, as shares of the run.
        cuts: In how many cuts.
        given: What the score needs: example, batch, loss, generator, within.

    Every checkpoint holds the masks and the state of the schedule, and a resumed run goes on from
    them; where they are missing or do not fit the weights, it is refused.

    >>> from secateurs import Recipe
    >>> callback = LightningPruning(Recipe(sparsity=0.9), cuts=20)  # doctest: +SKIP
    >>> # Trainer(max_epochs=5, callbacks=[callback]).fit(module, loader)
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        start: float = 0.1,
        end: float = 0.7,
        cuts: int = 20,
        **given: Any,
    ) -> None:
        if Callback is object:
            raise MissingExtra.of("lightning", extra="lightning")
        super().__init__()
        self._pruner = Pruner(recipe, When(start=start, end=end, cuts=cuts), given)
        self._seen = 0

    @property
    def masks(self) -> dict[str, Any]:
        """The masks held, by parameter name, True = kept."""
        return self._pruner.masks

    @property
    def state_key(self) -> str:
        """The name of the state in a checkpoint: callbacks for other parameters have others."""
        where = json.dumps(self._pruner.recipe.as_dict().get("where"))
        key: str = self._generate_state_key(where=where)
        return key

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: the masks, one bit per entry, and the state of the schedule."""
        state = self._pruner.state()
        return {} if state is None else {**state, "masks": _packed(state["masks"])}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From a checkpoint; it is taken up when the training begins."""
        try:
            masks = _unpacked(state_dict["masks"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TrainingError(
                f"the masks of the checkpoint cannot be read ({type(error).__name__}: {error})."
                " Resume from another checkpoint."
            ) from None
        self._pruner.saved = read_state(state_dict, masks, "the checkpoint")

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """A checkpoint replaces what is remembered, also where it knows nothing of pruning."""
        self._pruner.saved = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The optimizer is there: begin to hold, or go on from a checkpoint."""
        if len(trainer.optimizers) != 1:
            raise ArgumentError(
                f"{type(pl_module).__name__} has {len(trainer.optimizers)} optimizers: pruning"
                " needs one that trains all chosen parameters."
            )
        steps = int(trainer.estimated_stepping_batches)
        self._seen = trainer.global_step
        self._pruner.begin(pl_module, trainer.optimizers[0], steps, done=self._seen)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After each batch: cut where the optimizer has stepped and a cut is due."""
        # Counted by Lightning's own counter: with gradient accumulation most batches
        # take no step.
        while self._seen < trainer.global_step:
            self._seen += 1
            self._pruner.step()
        self._pruner.report(pl_module.log_dict)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop holding."""
        self._pruner.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Let go: a hold that stays would clear the weights of a checkpoint that is loaded next."""
        self._pruner.release()


def _packed(masks: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "shape": list(mask.shape),
            "bits": torch.from_numpy(np.packbits(mask.cpu().numpy().reshape(-1))),
        }
        for name, mask in masks.items()
    }


def _unpacked(masks: Mapping[str, Mapping[str, Any]]) -> dict[str, Tensor]:
    return {
        name: torch.from_numpy(
            np.unpackbits(packed["bits"].cpu().numpy(), count=int(np.prod(packed["shape"]))).astype(
                bool
            )
        ).reshape(packed["shape"])
        for name, packed in masks.items()
    }
