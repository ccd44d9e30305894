"""The pipeline of a run: begin, cut, train, collapse, certify, measure, record.

Every stage begins with "done? return", so that resuming is how the code reads. What a stage has
done lies on the desk; what is quick to do again is not kept.
"""

from time import monotonic, perf_counter

import torch
import torch.nn.functional as F

from secateurs.masks import apply_
from secateurs.parameters import prunable
from secateurs.prune import cut as cut_by
from secateurs.random import generator
from secateurs.study.pipeline import measure
from secateurs.study.pipeline.bench import Bench
from secateurs.study.pipeline.checkpoint import (
    State,
    Tensors,
    put_weights_,
    under,
    weights_of,
)
from secateurs.study.pipeline.desk import Desk
from secateurs.study.pipeline.fitting import train
from secateurs.study.pipeline.trainers import recipe_of
from secateurs.study.pipeline.work import Hopeless, Work
from secateurs.study.runs import Run
from secateurs.study.settings.methods import Gradual, Prune
from secateurs.train import evaluate

SLOW = 2.0
"""Seconds from which on the result of a cut is kept: what is quicker is done again after a
crash.
"""


def begin(run: Run, bench: Bench, desk: Desk) -> Work:
    """The data, and the network: fresh, or the one that the run needs."""
    start = perf_counter()
    data, data_hash = bench.data(run.data)
    model = bench.network(run.model, data, run.seed)
    work = Work(
        run=run, bench=bench, desk=desk, model=model, data=data, data_hash=data_hash
    )
    if run.parent is not None:
        put_weights_(model, work.needed("parent"))
    # Dropout draws from torch's own generator: it
    # depends on the run, not on what ran before.
    torch.manual_seed(generator(run.seed, "training").initial_seed())
    work.timings["begin"] = perf_counter() - start
    return work


def cut(work: Work) -> None:
    """Score and cut; then rewind, where the method does."""
    method = work.run.method
    if (
        not isinstance(method, Prune)
        or isinstance(method, Gradual)
        # The training has begun: its checkpoint holds the masks.
        or work.held("checkpoint")
    ):
        return
    kept = work.held("cut")
    if kept is not None:
        put_weights_(work.model, kept.part("model"))
        work.masks, work.metrics = kept.part("mask"), dict(kept.values["metrics"])
        return
    start = monotonic()
    work.masks = chosen(work, method)
    if work.run.rewind is not None:
        # Only the weights go back: the mask stays that of the trained network.
        put_weights_(work.model, work.needed("rewind"))
    apply_(work.model, work.masks)
    work.metrics["accuracy_before"] = measure.accuracy(work.model, work.data)
    if monotonic() - start > SLOW:
        tensors = {
            **under("model", weights_of(work.model)),
            **under("mask", work.masks),
        }
        work.desk.put(
            "cut", State(tensors=tensors, values={"metrics": work.metrics}).pack()
        )


def chosen(work: Work, method: Prune) -> Tensors:
    """What is kept, of what was kept before."""
    images, labels = (
        work.data.train_x[: method.examples],
        work.data.train_y[: method.examples],
    )
    zeros = {
        name: weight != 0
        for name, weight in prunable(work.model, method.where).items()
    }
    pruned = cut_by(
        work.model,
        recipe_of(method, compression=work.run.compression),
        example=images[:1],
        batch=(images, labels),
        loss=F.cross_entropy,
        generator=generator(work.run.seed, "draw"),
        # What an earlier cut removed must not come back, however it is scored.
        within=None if all(bool(mask.all()) for mask in zeros.values()) else zeros,
    )
    work.notes.extend(pruned.notes)
    return dict(pruned.masks)


def certify(work: Work) -> None:
    """What is known of the distance to the dense network."""
    how = work.run.certify
    if how is None or work.certificates or work.run.parent is None:
        return
    dense = work.bench.network(work.run.model, work.data, work.run.seed)
    put_weights_(dense, work.needed("dense"))
    work.certificates, notes = measure.certificates(dense, work.model, work.data, how)
    work.notes.extend(notes)


def measured(work: Work) -> None:
    """Final figures, and what is left of each layer."""
    if work.layers:
        return
    test = _tested(work)
    work.metrics.update(
        measure.figures(work.model, work.data, test, own=work.bench.metrics)
    )
    work.layers = measure.layers(work.model, work.data.train_x[:1])
    if not work.metrics["kept"]:
        raise Hopeless("no weight is left.")


def _tested(work: Work) -> tuple[float, float]:
    """Accuracy and loss on the test examples."""
    last = work.tested
    if last is None or last.test_accuracy is None or last.test_loss is None:
        test = evaluate(work.model, work.data)
        return test.accuracy, test.loss
    return last.test_accuracy, last.test_loss


STAGES = (cut, train, certify, measured)
