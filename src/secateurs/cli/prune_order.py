"""What `secateurs prune` was asked for, as plain values; nothing here needs torch."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from secateurs.cli.commands import Source, Which


@dataclass(frozen=True, slots=True)
class Cut:
    """What is cut, where and how much: what a recipe and a bare file have in common."""

    score: str
    sparsity: float | None
    density: float | None
    compression: float | None
    scope: str
    pattern: str
    floor: float
    where: list[str] | None

    def fields(self) -> dict[str, Any]:
        """The arguments of `Recipe`, and of `prune_file`."""
        # No glob is no choice: an empty list would choose nothing.
        return {**asdict(self), "where": self.where or None}


@dataclass(frozen=True, slots=True)
class Rounds:
    """How units are chosen, and in how many rounds."""

    how: str = "topk"
    rounds: int = 1
    schedule: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A pruning: from which file to which, what is cut, and what the score looks at."""

    model: Path
    out: Path
    masks_out: Path | None
    cut: Cut
    rounds: Rounds
    which: Which
    source: Source
    examples: int
    seed: int

    def needless(self) -> list[str]:
        """Options that only mean something with the network, and that were given."""
        usual = Rounds()
        given = {
            "data": self.source.name is not None,
            "rounds": self.rounds.rounds != usual.rounds,
            "schedule": self.rounds.schedule is not None,
            "how": self.rounds.how != usual.how,
            "in-channels": self.which.in_channels is not None,
            "classes": self.which.classes is not None,
            "size": self.which.size is not None,
        }
        return [f"--{name}" for name, there in given.items() if there]
