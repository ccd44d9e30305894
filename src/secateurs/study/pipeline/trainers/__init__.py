"""How each kind of method trains: its optimizer, what is done after steps, and at the end.

A kind is one function registered in `TRAINERS`: `(job) -> Trainer`. Importing this package
registers them all.
"""

from secateurs.study.pipeline.trainers import factorized, gradual, penalties
from secateurs.study.pipeline.trainers.job import TRAINERS, Job, Sampled, Trainer
from secateurs.study.pipeline.trainers.plain import held
from secateurs.study.pipeline.trainers.settings import recipe_of, schedule_of

__all__ = [
    "TRAINERS",
    "Job",
    "Sampled",
    "Trainer",
    "factorized",
    "gradual",
    "held",
    "penalties",
    "recipe_of",
    "schedule_of",
]
