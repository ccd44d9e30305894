"""How long a study will take: does a little of every kind of run as a worker would, times it, and
keeps nothing.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from heapq import heappop, heappush
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.optim import SGD

from secateurs.base.step import Step
from secateurs.errors import SecateursError
from secateurs_lab.study import measure, stages
from secateurs_lab.study.checkpoint import State, weights_of
from secateurs_lab.study.config import Run, Study
from secateurs_lab.study.database import ENDED, Row
from secateurs_lab.study.fitting import loop_of, trainer_of
from secateurs_lab.study.jobs import MemoryContext
from secateurs_lab.study.key import canonical, full_settings
from secateurs_lab.study.measure import Bench
from secateurs_lab.study.methods import Gradual
from secateurs_lab.study.stages import NotedWarnings
from secateurs_lab.study.watching import clock
from secateurs_lab.study.work import Work
from secateurs_lab.train import Moment, evaluate

STEPS = 24
"""Steps of a trial at most; the first third warms up."""
SECONDS = 3.0
"""A trial takes no further step after so long, but for the three that it needs."""
KEEPING = 0.1
"""Seconds for what a run does besides: its row and its weights, durably on the disk."""
GRADUAL_CUTS = 20
"""Cuts of a gradual run that does not say how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One run to be done: its seconds, and the runs it waits for."""

    key: str
    seconds: float
    needs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Runs and what each costs. `begin` is the time every worker needs before its first run, `once`
    that of things done only in its first ones (reading data, compiling kernels, tracing programs).
    """

    runs: int
    done: int
    costs: tuple[Cost, ...]
    begin: float = 0.0
    once: float = 0.0

    def seconds(self, workers: int, *, threads: int = 1) -> float:
        """Seconds until the last run has ended, if a free worker takes the next run that can start.

        More workers than processors do not help.
        """
        if not self.costs:
            return 0.0
        room = max(1, min(workers, (os.cpu_count() or 1) // max(1, threads)))
        left = {cost.key: set(cost.needs) for cost in self.costs}
        known = set(left)
        waiting = list(self.costs)
        going: list[tuple[float, str]] = []
        now = self.begin + self.once
        while waiting or going:
            for cost in list(waiting):
                if len(going) < room and not left[cost.key] & known:
                    waiting.remove(cost)
                    heappush(going, (now + cost.seconds, cost.key))
            now, ended = heappop(going)
            known.discard(ended)
        return now

    def describe(self, workers: int, *, threads: int = 1) -> str:
        """In one line."""
        done = f" ({self.done} done already)" if self.done else ""
        plural = "s" if workers != 1 else ""
        took = clock(self.seconds(workers, threads=threads))
        return f"{self.runs - self.done} runs{done}, about {took} with {workers} worker{plural}"


def estimate(
    study: Study, rows: Mapping[str, Row], bench: Bench, *, begin: float = 0.0
) -> Estimate:
    """Do a little of every kind of run in the study, and add up. It is an estimate, not a promise.

    `begin` is the time that the command and a worker take to start, if there are workers.
    """
    # The first candidate of an undecided choice stands for the one to be chosen.
    runs = study.runs(study.choose(rows.values(), or_first=True))
    left = [run for run in runs if run.key not in rows or rows[run.key].state not in ENDED]
    start = perf_counter()
    for run in left:
        bench.data(run.data)
    # With its first optimizer torch imports its compiler, which is no part of a run.
    SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    once = perf_counter() - start
    tried: dict[str, TrialTimes] = {}
    for run in left:
        kind = _kind(run)
        if kind not in tried:
            tried[kind] = trial(run, bench)
            once += tried[kind].once
    costs = tuple(
        Cost(
            key=run.key,
            seconds=tried[_kind(run)].seconds(run, bench) + KEEPING,
            needs=tuple(needed.key for needed in run.needs),
        )
        for run in left
    )
    return Estimate(
        runs=len(runs),
        done=len(runs) - len(left),
        costs=costs,
        begin=begin,
        once=once,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTimes:
    """Seconds of the parts of a run: what it does once, a step, a test on all test images, a cut
    while it trains; `once` is what only the first of its kind in a worker takes.
    """

    fixed: float
    step: float
    test: float
    cut: float
    once: float

    def seconds(self, run: Run, bench: Bench) -> float:
        """Of the whole run."""
        examples = len(bench.data(run.data)[0].train_y)
        batch = run.train.batch
        epoch = examples // batch if run.train.drop_last else -(-examples // batch)
        until = getattr(run.method, "until", None) or run.train.length
        steps = Step.parse(until).iterations(epoch)
        every = run.train.evaluate_every
        # The end of training is tested even if it does not end an epoch.
        tests = -(-steps // (epoch * every)) if every and steps else 1
        cuts = 0
        if isinstance(run.method, Gradual):
            apart = run.method.every and Step.parse(run.method.every).iterations(epoch)
            cuts = steps // max(1, apart) if apart else GRADUAL_CUTS
        return self.fixed + steps * self.step + tests * self.test + cuts * self.cut


def trial(run: Run, bench: Bench) -> TrialTimes:
    """The stages of the run on a fresh network in place of those it needs, with a few steps of its
    training.
    """
    start = perf_counter()
    fresh = bench.network(run.model, bench.data(run.data)[0], run.seed)
    held = State(tensors=weights_of(fresh), values={}).pack()
    context = MemoryContext(blobs=dict.fromkeys(("parent", "rewind", "dense"), held))
    # A tiny rate: steps take as long as with the real one, but nothing can diverge.
    small = replace(run, train=run.train.but({"lr": 1e-6}))
    work = stages.begin(small, bench, context)
    stages.cut(work)
    begun = perf_counter() - start
    with NotedWarnings(work.notes):
        step, finishing, warm = _steps(work)
    testing = min(_time_call(evaluate, work.model, work.data) for _ in range(2))
    measuring = _time_call(_measure, work)
    proving, traced = _time_certificates(work, fresh)
    chosen = 0.0
    if isinstance(run.method, Gradual):
        chosen = _time_call(stages.select_masks, work, run.method)
    return TrialTimes(
        fixed=begun + finishing + measuring + proving,
        step=step,
        test=testing + _time_call(measure.share_of_zeros, work.model),
        cut=chosen,
        once=max(0.0, warm) + traced,
    )


def _time_certificates(work: Work, dense: nn.Module) -> tuple[float, float]:
    """Seconds of a run's certificates, and of what only the first one for its network takes.

    Certificates of all images can take minutes: one image is proven twice, two if that is quick,
    and the line through them is extrapolated.
    """
    how = work.run.certify
    if how is None or work.run.parent is None:
        return 0.0, 0.0

    def prove(images: int) -> float:
        few = replace(how, images=images)
        return _time_call(measure.certificates, dense, work.model, work.data, few)

    first, one = prove(1), prove(1)
    slope = max(0.0, prove(2) - one) if one < SECONDS else one
    return one + slope * (how.images - 1), max(0.0, first - one)


def _measure(work: Work) -> None:
    measure.layers(work.model, work.data.train_x[:1])
    # A user's metric may not work on a fresh network.
    with suppress(SecateursError):
        own = work.bench.metrics
        measure.figures(work.model, work.data, (0.0, 0.0), own=own)


def _steps(work: Work) -> tuple[float, float, float]:
    """Seconds of a step, of the end of training, and the extra time of the first steps."""
    trainer = trainer_of(work)
    times = [perf_counter()]

    def enough(moment: Moment) -> None:
        times.append(perf_counter())
        if len(times) > 3 and times[-1] - times[0] > SECONDS:
            raise _EnoughSteps

    whole = loop_of(work, trainer)
    stop = min(STEPS, whole.total)
    if not stop:
        return 0.0, _time_call(trainer.finish_), 0.0
    # Only steps are to be timed.
    short = replace(
        whole,
        stop=stop,
        evaluate_every=0,
        callbacks=(*trainer.callbacks, enough),
    )
    with suppress(_EnoughSteps):
        short.run()
    gaps = [after - before for before, after in pairwise(times)]
    # Other work on the machine only makes steps longer, but it will do so in the study, too: hence
    # the median of the steps after the first third.
    step = median(gaps[len(gaps) // 3 :])
    return step, _time_call(trainer.finish_), sum(gaps) - step * len(gaps)


class _EnoughSteps(Exception):
    """The steps have taken long enough."""


def _time_call(function: Any, *args: Any, **options: Any) -> float:
    start = perf_counter()
    function(*args, **options)
    return perf_counter() - start


_SILENT = ("strength", "sigma", "label", "train", "seed")
"""What of a method makes no step longer or shorter."""


def _kind(run: Run) -> str:
    """A key of runs that take equally long, apart from the number of their steps."""
    shown = full_settings(run)
    method = {
        entry.name: shown["method"].get(entry.name)
        for entry in fields(run.method)
        if entry.name not in _SILENT
    }
    return canonical(
        [
            shown["data"],
            shown["model"],
            run.method.kind,
            method,
            run.train.batch,
            run.train.augment,
            run.train.precision,
            shown["certify"],
            run.parent is None,
        ]
    )
