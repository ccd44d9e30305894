"""Doing a run from wherever it stands: its stages in order, timed; its row says how it ended."""

import logging
from collections.abc import Callable
from time import perf_counter

import torch

from secateurs.errors import StoreError, TrainingError
from secateurs.study.keeping.row import Row
from secateurs.study.keeping.row import State as End
from secateurs.study.pipeline.bench import Bench
from secateurs.study.pipeline.desk import Desk, Interrupted
from secateurs.study.pipeline.record import row_of_end, said
from secateurs.study.pipeline.stages import STAGES, begin
from secateurs.study.pipeline.work import Hopeless, Work
from secateurs.study.runs import Run
from secateurs.study.store import now


def perform(run: Run, bench: Bench, desk: Desk) -> Row:
    """Do the run from wherever it stands; returns its row.

    Whatever goes wrong in the run is written into the row; only `Interrupted` and errors of the
    store come out.
    """
    begun, work = now(), None
    try:
        work = begin(run, bench, desk)
        with kept_log(work.notes):
            for stage in STAGES:
                _timed(work, stage)
        end: tuple[End, str] = ("done", "")
    except (Interrupted, StoreError):
        raise
    # Before TrainingError, of which it is a kind.
    except Hopeless as error:
        end = ("collapsed", str(error))
    except TrainingError as error:
        end = ("diverged", str(error))
    except (MemoryError, torch.OutOfMemoryError) as error:
        end = ("failed", f"out of memory: {said(error)}")
    except SystemExit as error:
        # It would end the driver, and with it all other runs.
        end = (
            "failed",
            f"the network, data or metric called sys.exit({error.code!r})",
        )
    except Exception as error:
        # A network, data set or metric of the user's own may raise anything.
        end = ("failed", said(error))
    return row_of_end(run, bench, work, end, begun)


class kept_log(logging.Handler):
    """Warnings of the optimizers go into the notes of the run, not onto the screen."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.notes, self.logger = notes, logging.getLogger("secateurs.optim")

    def emit(self, record: logging.LogRecord) -> None:
        """Note it, once."""
        text = record.getMessage()
        if text not in self.notes:
            self.notes.append(text)

    def __enter__(self) -> None:
        self.before = self.logger.propagate
        self.logger.propagate = False
        self.logger.addHandler(self)

    def __exit__(self, *_: object) -> None:
        self.logger.propagate = self.before
        self.logger.removeHandler(self)


def _timed(work: Work, stage: Callable[[Work], None]) -> None:
    start = perf_counter()
    try:
        stage(work)
    finally:
        # Also for a stage that fails: the time was spent.
        work.timings[stage.__name__] = (
            work.timings.get(stage.__name__, 0.0) + perf_counter() - start
        )
