"""What it means that nothing is left of a parameter."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor, nn

from secateurs.errors import SecateursError

if TYPE_CHECKING:
    from secateurs.graph import Example

Judge: TypeAlias = Callable[[nn.Module, Sequence[str]], Mapping[str, str]]
"""`(model, names of collapsed parameters) -> what it means, per name`. The table prints it."""


def verdicts_of(
    model: nn.Module,
    collapsed: Sequence[str],
    *,
    example: "Example | None",
    masks: Mapping[str, Tensor] | None = None,
    judge: Judge | None = None,
) -> Mapping[str, str]:
    """What the loss of these parameters means; nothing where nothing is lost or neither example nor
    judge is given.
    """
    if judge is None and example is not None:
        # The analysis of paths is loaded only here: hardly any count asks for it.
        from secateurs.paths import lost_layers

        judge = lost_layers(example, masks=masks)
    if judge is None or not collapsed:
        return {}
    try:
        return judge(model, collapsed)
    except SecateursError as error:
        # A count is asked for, not a proof: say what is not known and why.
        return dict.fromkeys(
            collapsed,
            f"whether it matters cannot be told: {str(error).partition('. ')[0]}",
        )
