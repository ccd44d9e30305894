"""What a training method runs with when nothing else is said, and the options of its own."""

from dataclasses import dataclass
from typing import Any

from secateurs.errors import ArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """What a method runs with when nothing else is said, and the options of its own."""

    length: str = "20ep"
    batch: int = 128
    lr: float = 0.1
    takes: frozenset[str] = frozenset({"momentum", "weight_decay"})


FACTORS = frozenset(
    {"momentum", "depth", "strength", "strength_schedule", "target_sparsity"}
)


USUAL = {
    "sgd": Usual(),
    "adam": Usual(lr=1e-3, takes=frozenset({"weight_decay"})),
    "dwf": Usual(length="75ep", batch=256, lr=0.5, takes=FACTORS),
}
"""By method; another method runs with those of sgd."""


def own(method: str, **options: Any) -> dict[str, Any]:
    """The options that were given; an error names those that this method would not look at."""
    given = {name: value for name, value in options.items() if value is not None}
    # An option without effect is refused: whoever gives it expects that it does
    # something.
    idle = sorted(given.keys() - USUAL.get(method, Usual()).takes)
    if idle:
        written = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
        users = ", ".join(
            name for name, usual in USUAL.items() if usual.takes & set(idle)
        )
        raise ArgumentError(
            f"{written}: --method {method} does not use it ({users} would)."
        )
    return given
