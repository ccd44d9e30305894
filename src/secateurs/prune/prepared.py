"""A recipe made ready for one model: what was checked is what is executed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from secateurs.masks.ranking.question import Choice
from secateurs.parameters import Params
from secateurs.prune.axes.order import Orders
from secateurs.prune.fields import Fields
from secateurs.prune.rounds import Masks, Round, cuts
from secateurs.prune.targets import Target
from secateurs.scores import Scorer


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A recipe made ready for one model: what was checked is what is executed, built once.

    Attributes:
        parameters: The chosen parameters by name.
        scorer: The score on a private copy of the model.
        choice: What the last round is to keep.
        targets: What each round is to keep.
        within: Masks of an earlier pruning.
        orders: Which dimensions are outputs and inputs, where that matters.
    """

    parameters: Params
    scorer: Scorer
    choice: Choice
    targets: Sequence[Target]
    within: Params
    orders: Orders

    def rounds(
        self, recipe: Fields, generator: torch.Generator | None
    ) -> Iterator[tuple[Masks, Round]]:
        """The masks after each round. Masks are chosen on (outputs, inputs, *rest)."""
        orders = self.orders
        found = cuts(
            recipe,
            lambda masks: orders.lay(self.scorer.scores(orders.restore(masks))),
            self.targets,
            parameters=orders.lay(detached(self.parameters)),
            within=orders.lay(self.within),
            generator=generator,
        )
        for masks, entry in found:
            yield orders.restore(masks), entry


def detached(parameters: Params) -> Params:
    """The values alone."""
    return {name: parameter.detach() for name, parameter in parameters.items()}
