"""How important is each weight: `score`, `Scorer`, the registry `SCORES`, `score_rule` for your
own, and probes.
"""

from typing import TYPE_CHECKING

from secateurs.base.lazy import open_on_first_use

if TYPE_CHECKING:
    from secateurs.scores.probes import PROBES, l1, probe
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
    "l1",
    "probe",
    "score",
    "score_rule",
]

open_on_first_use(__name__)
