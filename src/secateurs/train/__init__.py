"""Training in one plain loop, evaluation, schedules, and checkpoints without pickles."""

from secateurs.safefile import replacing
from secateurs.train.checkpoint import load_model_, read_checkpoint, save_model
from secateurs.train.denormals import flushed_denormals
from secateurs.train.evaluate import Evaluation, evaluate
from secateurs.train.fit import Checkpoint, Loop, check_fit, fit_
from secateurs.train.moment import Callback, Epoch, Fitted, Moment, Standing, every
from secateurs.train.ranks import Ranks
from secateurs.train.schedules import Clock, Schedule, constant, cosine, step_decay

__all__ = [
    "Callback",
    "Checkpoint",
    "Clock",
    "Epoch",
    "Evaluation",
    "Fitted",
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
    "load_model_",
    "read_checkpoint",
    "replacing",
    "save_model",
    "step_decay",
]
