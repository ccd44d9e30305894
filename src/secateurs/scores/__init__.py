"""How important is each weight: `score`, `Scorer`, the registry `SCORES`, `score_rule` for your
own, and probes.
"""

from secateurs.scores.probes import PROBES, l1, probe
from secateurs.scores.rules import (
    grasp,
    jacobian,
    magnitude,
    path,
    path_draw,
    random,
    snip,
    synflow,
    taylor,
    wanda,
)
from secateurs.scores.scorer import Scorer, score
from secateurs.scores.task import (
    SCORES,
    Batch,
    Convention,
    Inputs,
    Loss,
    Mode,
    Rule,
    ScoreRule,
    Task,
    score_rule,
)

__all__ = [
    "PROBES",
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
    "grasp",
    "jacobian",
    "l1",
    "magnitude",
    "path",
    "path_draw",
    "probe",
    "random",
    "score",
    "score_rule",
    "snip",
    "synflow",
    "taylor",
    "wanda",
]
