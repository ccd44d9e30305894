"""The row of a run that came to an end."""

from typing import Any

from secateurs.study.keeping.row import Row
from secateurs.study.keeping.row import State as End
from secateurs.study.keeping.start import waiting
from secateurs.study.pipeline.bench import Bench
from secateurs.study.pipeline.checkpoint import (
    State,
    weights_of,
)
from secateurs.study.pipeline.stages import measured
from secateurs.study.pipeline.work import Hopeless, Work
from secateurs.study.runs import Run
from secateurs.study.settings.identity import weights_hash
from secateurs.study.store import now


def row_of_end(
    run: Run, bench: Bench, work: Work | None, end: tuple[End, str], begun: str
) -> Row:
    """The row of a run that came to an end."""
    state, reason = end
    told: dict[str, Any] = {"provenance": _provenance(run, bench, work, begun)}
    if work is not None:
        # The weights of a diverged network are no numbers, so nothing of them is kept.
        if state in ("done", "collapsed"):
            told |= _weights(work)
            _measured_anyway(work)
        told |= {
            "history": work.history,
            "layers": work.layers,
            "certificates": work.certificates,
        }
        told |= {
            "timings": work.timings,
            "metrics": work.metrics,
            "seconds": sum(work.timings.values()),
        }
        figures = ("accuracy", "compression", "sparsity", "kept", "total")
        told |= {name: work.metrics[name] for name in figures if name in work.metrics}
    first = waiting(run)
    # What was known beforehand; what the run has told is laid over it.
    known = {name: getattr(first, name) for name in ("settings", *first.summary)}
    return Row(**{**known, **told, "state": state, "reason": reason, "progress": 1.0})


def _measured_anyway(work: Work) -> None:
    """A collapsed network has figures, too, though it did not come as far as the stage."""
    try:
        measured(work)
    except Hopeless:
        return


def _weights(work: Work) -> dict[str, str]:
    """Keep the final weights under their own names, as any tool reads them."""
    weights = weights_of(work.model)
    name = work.desk.put("weights", State(tensors=weights).pack())
    return {"weights": name, "weights_hash": weights_hash(weights)}


def _provenance(
    run: Run, bench: Bench, work: Work | None, begun: str
) -> dict[str, Any]:
    more = (
        {"data_hash": work.data_hash, "notes": work.notes} if work is not None else {}
    )
    named = {
        "seed": run.seed,
        "precision": run.train.precision,
        "begun": begun,
        "ended": now(),
    }
    return {**bench.provenance(), **named, **more}


def said(error: BaseException) -> str:
    """The error in one line: its kind and first line."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}"[:500]
