"""Training in one plain loop, evaluation, schedules, and checkpoints without pickles."""

from secateurs.base.safefile import replacing
from secateurs_lab.train.checkpoint import load_model_, read_checkpoint, save_model
from secateurs_lab.train.denormals import flushed_denormals
from secateurs_lab.train.evaluate import Evaluation, evaluate
from secateurs_lab.train.fit import Checkpoint, Loop, check_fit, fit_
from secateurs_lab.train.moment import Callback, Epoch, Fitted, Moment, Standing, every
from secateurs_lab.train.ranks import Ranks
from secateurs_lab.train.schedules import Clock, Schedule, constant, cosine, step_decay
from secateurs_lab.train.sweep import GridRun, grid

__all__ = [
    "Callback",
    "Checkpoint",
    "Clock",
    "Epoch",
    "Evaluation",
    "Fitted",
    "GridRun",
    "Loop",
    "Moment",
    "Ranks",
    "Schedule",
    "Standing",
    "check_fit",
    "constant",
    "cosine",
    "evaluate",
    "every",
    "fit_",
    "flushed_denormals",
    "grid",
    "load_model_",
    "read_checkpoint",
    "replacing",
    "save_model",
    "step_decay",
]
