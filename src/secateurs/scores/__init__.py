"""How important is each weight: `score`, `Scorer`, the registry `SCORES` and `score_rule` for your own."""

from secateurs.scores import magnitude, random, snip, synflow
from secateurs.scores.base import SCORES, Convention, Loss, Mode, Rule, ScoreRule, Task, score_rule
from secateurs.scores.batches import Batch, Inputs
from secateurs.scores.scorer import Scorer, score

__all__ = [
    "SCORES",
    "Batch",
    "Convention",
    "Inputs",
    "Loss",
    "Mode",
    "Rule",
    "ScoreRule",
    "Scorer",
    "Task",
    "magnitude",
    "random",
    "score",
    "score_rule",
    "snip",
    "synflow",
]
