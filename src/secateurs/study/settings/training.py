"""How a network is trained: one frozen value for every training of a study."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from secateurs.registry import unknown
from secateurs.study.settings.checks import (
    choice,
    each,
    flag,
    number,
    step,
    whole,
)
from secateurs.study.settings.options import (
    Problem,
    known_fields,
    misfits,
    option,
    refuse,
)

OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("cosine", "step", "constant")
PRECISIONS = ("float32", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training from beginning to end.

    Attributes:
        length: "20ep" or "2000it".
        batch: Examples per step.
        lr: The learning rate that `schedule` starts from.
        optimizer: "sgd", "adam" or "adamw"; a method of its own optimizer (dwf) takes its momentum
        from here.
        momentum, nesterov, weight_decay: As in torch.
        schedule: "cosine" to zero, "step" (times `decay_by` at each of `decay_at`) or "constant".
        warmup: A linear rise before the cosine.
        augment: Flips, shifts and rotations.
        drop_last: Leave an incomplete last batch out.
        precision: "float32", or "bf16" for autocast.
        evaluate_every: Epochs between two test evaluations; 0 for the end only.

    >>> Training(length="5ep", lr=0.05).but({"lr": 0.5}).lr
    0.5
    """

    length: str = option("20ep", step)
    batch: int = option(128, whole(1))
    lr: float = option(0.1, number(0.0, above=True))
    optimizer: str = option("sgd", choice("optimizer", *OPTIMIZERS))
    # Below 1, where the velocity would never decay.
    momentum: float = option(0.9, number(0.0, 0.9999999))
    nesterov: bool = option(False, flag)
    weight_decay: float = option(0.0, number())
    schedule: str = option("cosine", choice("schedule", *SCHEDULES))
    warmup: str = option("0it", step)
    decay_at: tuple[str, ...] = option(("80ep", "120ep"), each(step))
    decay_by: float = option(0.1, number(0.0, 1.0))
    augment: bool = option(False, flag)
    drop_last: bool = option(False, flag)
    precision: str = option("float32", choice("precision", *PRECISIONS))
    evaluate_every: int = option(1, whole(0))

    def __post_init__(self) -> None:
        refuse("a training", [*misfits(self), *self._conflicts()])

    def _conflicts(self) -> list[Problem]:
        if self.nesterov and not self.momentum:
            return [Problem(("nesterov",), "nesterov needs a momentum above 0")]
        return []

    def but(self, changes: Mapping[str, Any]) -> "Training":
        """The same training with other values for some fields; an unknown field is refused."""
        refuse("a training", overrides(changes))
        return replace(
            self, **{key: _hashable(value) for key, value in changes.items()}
        )


def overrides(changes: Any) -> list[Problem]:
    """What is wrong with a table of fields of a training."""
    if not isinstance(changes, Mapping):
        return [Problem((), f"{changes!r} is not a table of fields of a training")]
    known, found = known_fields(Training), []
    for key, value in changes.items():
        if key not in known:
            found.append(
                Problem(
                    (str(key),),
                    unknown("field of a training", key, known).rstrip("."),
                )
            )
        elif text := known[key].metadata["check"](value):
            found.append(Problem((key,), text))
    return found


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
