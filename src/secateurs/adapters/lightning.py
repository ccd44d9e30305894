"""Pruning inside the Trainer of Lightning."""

from typing import Any

from secateurs.adapters.gradual import Pruner, When
from secateurs.errors import ArgumentError, MissingExtra
from secateurs.prune import Recipe

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    # Said when a callback is made, so that the module can be looked at without.
    Callback = object


class LightningPruning(Callback):  # type: ignore[misc]
    """Prune gradually while a Lightning `Trainer` trains, hold the zeros, log the sparsity.

    Args:
        recipe: What to prune, as for `prune_`: score, amount, scope, pattern, where.
        start, end: When, as shares of the run.
        cuts: In how many cuts.
        given: What the score needs: example, batch, loss, generator, within.

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
        gradual = self._pruner.gradual
        return {} if gradual is None else gradual.masks

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The optimizer is there: begin to hold."""
        if len(trainer.optimizers) != 1:
            raise ArgumentError(
                f"{type(pl_module).__name__} has {len(trainer.optimizers)} optimizers: pruning"
                " needs one that trains all chosen parameters."
            )
        steps = int(trainer.estimated_stepping_batches)
        self._seen = trainer.global_step
        self._pruner.begin(pl_module, trainer.optimizers[0], steps)

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
