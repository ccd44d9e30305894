"""How long a study will take: a few steps of each training are timed, nothing is kept."""

from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter

from secateurs.step import Step
from secateurs.study.config import Study
from secateurs.study.keeping.row import ENDED, Row
from secateurs.study.key import canonical, full_settings
from secateurs.study.pipeline.bench import Bench
from secateurs.study.runs import Run
from secateurs.study.watching.words import clock

STEPS = 12
"""Steps that are timed, after as many to warm up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Runs and seconds. `seconds` is for one worker; done runs are left out."""

    runs: int
    done: int
    seconds: float

    def told(self, workers: int) -> str:
        """In one line."""
        left, share = self.runs - self.done, self.seconds / max(1, workers)
        done = f" ({self.done} done already)" if self.done else ""
        plural = "s" if workers != 1 else ""
        return (
            f"{left} runs{done}, about {clock(share)} with {workers} worker{plural}"
        )


def estimate(study: Study, rows: dict[str, Row], bench: Bench) -> Estimate:
    """Time a few steps of every kind of training in the study, and add up. An estimate, not a
    promise.
    """
    runs = study.runs()
    left = [
        run for run in runs if run.key not in rows or rows[run.key].state not in ENDED
    ]
    known: dict[str, float] = {}
    for run in left:
        kind = _kind(run)
        if kind not in known:
            known[kind] = per_step(run, bench)
    # A tenth of a second for what a run does besides its steps.
    seconds = sum(known[_kind(run)] * steps(run, bench) + 0.1 for run in left)
    return Estimate(runs=len(runs), done=len(runs) - len(left), seconds=seconds)


def steps(run: Run, bench: Bench) -> int:
    """Optimizer steps of a run."""
    examples, batch = len(bench.data(run.data)[0].train_y), run.train.batch
    until = getattr(run.method, "until", None) or run.train.length
    return Step.parse(until).iterations(-(-examples // batch))


def per_step(run: Run, bench: Bench) -> float:
    """Seconds of one step of this training, the least of a few."""
    from secateurs.study.pipeline.trainers import Job, held
    from secateurs.train import Loop

    data, _ = bench.data(run.data)
    model = bench.network(run.model, data, run.seed)
    job = Job(
        run=run, model=model, data=data, masks=None, per_epoch=1, total=2 * STEPS
    )
    times: list[float] = []
    Loop(
        model=model,
        data=data,
        # A tiny rate: steps take as long as with the real one, and nothing can diverge.
        optimizer=held(
            replace(job, run=replace(run, train=run.train.but({"lr": 1e-6})))
        ).optimizer,
        length=2 * STEPS,
        batch=min(run.train.batch, len(data.train_y)),
        # Nothing but steps is to be timed.
        evaluate_every=0,
        callbacks=[lambda moment: times.append(perf_counter())],
    ).run()
    gaps = sorted(after - before for before, after in pairwise(times))
    # The lower quartile, because whatever else runs here can only make steps longer.
    return gaps[len(gaps) // 4] if gaps else 0.0


def _kind(run: Run) -> str:
    # Only what makes a step longer or shorter; rates and strengths do not.
    shown = full_settings(run)
    return canonical(
        [
            shown["data"],
            shown["model"],
            run.train.batch,
            run.train.augment,
            run.train.precision,
        ]
    )
