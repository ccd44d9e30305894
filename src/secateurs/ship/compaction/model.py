"""The model as it is read before a compaction, and smaller copies of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from secateurs.errors import ScoreError, ShipError
from secateurs.graph import Example, Graph, capture
from secateurs.graph.checking.programs import COMPARED
from secateurs.masks import apply_
from secateurs.parameters import Params
from secateurs.scores.copies import private
from secateurs.ship.channels import regrouped
from secateurs.ship.compaction.following import set_
from secateurs.ship.compaction.labels import Labelled, labelled
from secateurs.ship.compaction.narrow import narrow_, resize_
from secateurs.ship.compaction.outputs import AllOutputs
from secateurs.ship.compaction.reach import reach
from secateurs.ship.compaction.reach.known import Reach
from secateurs.ship.compaction.removal import (
    Removal,
)


@dataclass(slots=True, kw_only=True)
class ReadModel:
    """The masked model in its own dtype and in float64, and what is known of its channels."""

    original: nn.Module
    sparse: AllOutputs
    exact: AllOutputs
    graph: Graph
    state: dict[str, Tensor]
    found: Labelled
    known: Reach


def read_model(model: nn.Module, example: Example, masks: Params) -> ReadModel:
    """A private copy with the masks applied, and what is known of its channels."""
    sparse = copied(model)
    if masks:
        apply_(sparse, masks)
    # What is decided and compared must not depend on
    # the rounding of the model's own dtype.
    exact = AllOutputs(copied(sparse).double().cpu())
    COMPARED.share(exact, model)
    try:
        graph = capture(exact, example, opaque=True)
    except RuntimeError as error:
        raise ShipError(
            f"{type(model).__name__} does not run in float64, in which compaction decides and"
            f" compares ({error}). Its code or its library names single precision somewhere: let"
            " it follow the dtype of its weights, or bring the library up to date."
        ) from error
    found = labelled(graph, regrouped=lambda node: regrouped(exact, node))
    state = {name: value.detach() for name, value in graph.state(exact).items()}
    return ReadModel(
        original=model,
        sparse=AllOutputs(sparse),
        exact=exact,
        graph=graph,
        state=state,
        found=found,
        known=reach(found, state),
    )


def copied(model: nn.Module) -> nn.Module:
    """A copy of the model, or an error that says why there is none."""
    try:
        return private(model)
    except ScoreError as error:
        raise ShipError(
            f"{type(model).__name__} cannot be copied, and the input model is to stay as it is: "
            f"{error.__cause__}."
        ) from error


def applied(
    model: AllOutputs, read: ReadModel, choice: Removal, small: Mapping[str, Tensor]
) -> AllOutputs:
    """A smaller copy of the model."""
    copy = AllOutputs(copied(model.inner))
    narrow_(copy, small, set(choice.folds.fresh))
    resize_(copy, read.found)
    set_(copy, choice.resized)
    return copy
