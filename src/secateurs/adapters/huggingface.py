"""Pruning inside the Trainer of Hugging Face."""

from typing import Any

from secateurs.adapters.gradual import Pruner, When
from secateurs.errors import MissingExtra
from secateurs.prune import Recipe

try:
    from transformers import TrainerCallback
except ImportError:
    # Said when a callback is made, so that the module can be looked at without.
    TrainerCallback = object


class PruningCallback(TrainerCallback):  # type: ignore[misc]
    """Prune gradually while a `transformers.Trainer` trains, hold the zeros, log the sparsity.

    Args:
        recipe: What to prune, as for `prune_`: score, amount, scope, pattern, where.
        start, end: When, as shares of the run.
        cuts: In how many cuts.
        given: What the score needs: example, batch, loss, generator, within.

    The masks are in `.masks` afterwards; the zeros stay in the weights.

    >>> from secateurs import Recipe
    >>> callback = PruningCallback(Recipe(sparsity=0.9), cuts=20)  # doctest: +SKIP
    >>> # Trainer(model=model, args=args, train_dataset=data, callbacks=[callback]).train()
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
        if TrainerCallback is object:
            raise MissingExtra.of("transformers", extra="hf")
        self._pruner = Pruner(recipe, When(start=start, end=end, cuts=cuts), given)

    @property
    def masks(self) -> dict[str, Any]:
        """The masks held, by parameter name, True = kept."""
        gradual = self._pruner.gradual
        return {} if gradual is None else gradual.masks

    def on_train_begin(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        """The model and the optimizer are there: begin to hold."""
        self._pruner.begin(kwargs["model"], kwargs["optimizer"], state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After each optimizer step."""
        self._pruner.step()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the sparsity beside the loss."""
        # The Trainer has copied the figures into its history by now, so both are told.
        for row in (
            kwargs.get("logs"),
            state.log_history[-1] if state.log_history else None,
        ):
            if row is not None:
                self._pruner.report(row.update)

    def on_train_end(
        self, args: Any, state: Any, control: Any, **kwargs: Any
    ) -> None:
        """Stop holding."""
        self._pruner.end()
