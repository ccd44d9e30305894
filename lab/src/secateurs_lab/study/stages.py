"""The pipeline of a run: begin, cut, train, collapse, certify, measure, record.

Every stage starts with "done? return", so that resuming needs no code of its own. The result of a
stage is kept, unless it is quick to compute again.
"""

import logging
from collections.abc import Callable
from time import monotonic, perf_counter
from typing import Any

import torch
import torch.nn.functional as F

from secateurs.base.prunable import prunable
from secateurs.base.random import generator
from secateurs.errors import StoreError, TrainingError
from secateurs.masks import apply_
from secateurs.prune import cut as cut_by
from secateurs_lab.study import measure
from secateurs_lab.study.checkpoint import State, Tensors, put_weights_, under, weights_of
from secateurs_lab.study.config import Run, waiting_row
from secateurs_lab.study.database import Row
from secateurs_lab.study.database import State as End
from secateurs_lab.study.fitting import train
from secateurs_lab.study.jobs import Interrupted, JobContext
from secateurs_lab.study.measure import Bench
from secateurs_lab.study.methods import Gradual, Prune
from secateurs_lab.study.own import weights_hash
from secateurs_lab.study.store import now
from secateurs_lab.study.work import Hopeless, Work
from secateurs_lab.train import evaluate

SLOW = 2.0
"""The result of a cut is kept if it took at least this many seconds; a quicker one is done again
after a crash.
"""


def begin(run: Run, bench: Bench, context: JobContext) -> Work:
    """The data, and the network: fresh, or the one that the run needs."""
    start = perf_counter()
    data, data_hash = bench.data(run.data)
    model = bench.network(run.model, data, run.seed)
    work = Work(run=run, bench=bench, context=context, model=model, data=data, data_hash=data_hash)
    if run.parent is not None:
        put_weights_(model, work.needed("parent"))
    # Dropout draws from torch's own generator, which depends on the run, not on earlier runs.
    torch.manual_seed(generator(run.seed, "training").initial_seed())
    work.timings["begin"] = perf_counter() - start
    return work


def cut(work: Work) -> None:
    """Score and cut; then rewind, if the method does."""
    method = work.run.method
    if (
        not isinstance(method, Prune)
        or isinstance(method, Gradual)
        # Training has started, and its checkpoint holds the masks.
        or work.held("checkpoint")
    ):
        return
    kept = work.held("cut")
    if kept is not None:
        put_weights_(work.model, kept.part("model"))
        work.masks, work.metrics = kept.part("mask"), dict(kept.values["metrics"])
        return
    start = monotonic()
    work.masks = select_masks(work, method)
    if work.run.rewind is not None:
        # Only the weights are rewound: the mask stays that of the trained network.
        put_weights_(work.model, work.needed("rewind"))
    apply_(work.model, work.masks)
    work.metrics["accuracy_before"] = evaluate(work.model, work.data).accuracy
    if monotonic() - start > SLOW:
        tensors = {
            **under("model", weights_of(work.model)),
            **under("mask", work.masks),
        }
        work.context.put("cut", State(tensors=tensors, values={"metrics": work.metrics}).pack())


def select_masks(work: Work, method: Prune) -> Tensors:
    """The masks chosen within the earlier ones."""
    images, labels = (
        work.data.train_x[: method.examples],
        work.data.train_y[: method.examples],
    )
    zeros = {name: weight != 0 for name, weight in prunable(work.model, method.where).items()}
    pruned = cut_by(
        work.model,
        method.recipe(work.run.compression),
        example=images[:1],
        batch=(images, labels),
        loss=F.cross_entropy,
        generator=generator(work.run.seed, "draw"),
        # Weights that an earlier cut removed must not come back, whatever their scores.
        within=None if all(bool(mask.all()) for mask in zeros.values()) else zeros,
    )
    work.notes.extend(pruned.notes)
    return dict(pruned.masks)


def certify(work: Work) -> None:
    """Compute what is known about the distance to the dense network."""
    how = work.run.certify
    if how is None or work.certificates or work.run.parent is None:
        return
    dense = work.bench.network(work.run.model, work.data, work.run.seed)
    put_weights_(dense, work.needed("dense"))
    work.certificates, notes = measure.certificates(dense, work.model, work.data, how)
    work.notes.extend(notes)


def measured(work: Work) -> None:
    """Final figures, and the remaining weights of each layer."""
    if work.layers:
        return
    test = _test(work)
    work.metrics.update(measure.figures(work.model, work.data, test, own=work.bench.metrics))
    work.layers = measure.layers(work.model, work.data.train_x[:1])
    if not work.metrics["kept"]:
        raise Hopeless("no weight is left.")


def _test(work: Work) -> tuple[float, float]:
    """Accuracy and loss on the test examples."""
    last = work.tested
    if last is None or last.test_accuracy is None or last.test_loss is None:
        test = evaluate(work.model, work.data)
        return test.accuracy, test.loss
    return last.test_accuracy, last.test_loss


STAGES = (cut, train, certify, measured)


# The row of a run that came to an end.


def row_of_end(run: Run, bench: Bench, work: Work | None, end: tuple[End, str], begun: str) -> Row:
    """The row of a run that came to an end."""
    state, reason = end
    found: dict[str, Any] = {"provenance": _provenance(run, bench, work, begun)}
    if work is not None:
        # The weights of a diverged network are not numbers, so none of them are kept.
        if state in ("done", "collapsed"):
            found |= _weights(work)
            _measured_anyway(work)
        found |= {
            "history": work.history,
            "layers": work.layers,
            "certificates": work.certificates,
        }
        found |= {
            "timings": work.timings,
            "metrics": work.metrics,
            "seconds": sum(work.timings.values()),
        }
        figures = ("accuracy", "compression", "sparsity", "kept", "total")
        found |= {name: work.metrics[name] for name in figures if name in work.metrics}
    first = waiting_row(run)
    # What was known beforehand, updated with the results of the run.
    known = {name: getattr(first, name) for name in ("settings", *first.summary)}
    return Row(**{**known, **found, "state": state, "reason": reason, "progress": 1.0})


def _measured_anyway(work: Work) -> None:
    """Measure a collapsed network, too, though it did not reach this stage."""
    try:
        measured(work)
    except Hopeless:
        return


def _weights(work: Work) -> dict[str, str]:
    """Keep the final weights under their own names, so that any tool can read them."""
    weights = weights_of(work.model)
    name = work.context.put("weights", State(tensors=weights).pack())
    return {"weights": name, "weights_hash": weights_hash(weights)}


def _provenance(run: Run, bench: Bench, work: Work | None, begun: str) -> dict[str, Any]:
    more = {"data_hash": work.data_hash, "notes": work.notes} if work is not None else {}
    named = {
        "seed": run.seed,
        "precision": run.train.precision,
        "begun": begun,
        "ended": now(),
    }
    return {**bench.provenance(), **named, **more}


def one_line(error: BaseException) -> str:
    """The error in one line: its kind and first line."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}"[:500]


# Does a run from its current state: its stages in order, timed; its row says how it ended.


def perform(run: Run, bench: Bench, context: JobContext) -> Row:
    """Do the run from its current state; returns its row.

    Any error in the run is written into the row; only `Interrupted` and errors of the store are
    raised.
    """
    begun, work = now(), None
    try:
        work = begin(run, bench, context)
        with NotedWarnings(work.notes):
            for stage in STAGES:
                _timed(work, stage)
        end: tuple[End, str] = ("done", "")
    except (Interrupted, StoreError):
        raise
    # Before TrainingError, of which it is a subclass.
    except Hopeless as error:
        end = ("collapsed", str(error))
    except TrainingError as error:
        end = ("diverged", str(error))
    except (MemoryError, torch.OutOfMemoryError) as error:
        end = ("failed", f"out of memory: {one_line(error)}")
    except SystemExit as error:
        # It would end the driver, and with it all other runs.
        end = (
            "failed",
            f"the network, data or metric called sys.exit({error.code!r})",
        )
    except Exception as error:
        # A user's network, data set or metric may raise anything.
        end = ("failed", one_line(error))
    return row_of_end(run, bench, work, end, begun)


class NotedWarnings(logging.Handler):
    """Sends the optimizers' warnings into the notes of the run instead of the screen."""

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
        # Also for a stage that fails, since the time was spent.
        work.timings[stage.__name__] = (
            work.timings.get(stage.__name__, 0.0) + perf_counter() - start
        )
