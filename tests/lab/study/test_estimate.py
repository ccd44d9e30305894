"""How long a study takes: what is counted, and who waits for whom."""

from time import sleep

import pytest

from secateurs_lab.study import (
    Certify,
    Data,
    Dwf,
    Gradual,
    Imp,
    Net,
    Prune,
    Study,
    Training,
    measure,
    stages,
)
from secateurs_lab.study import estimate as estimate_module
from secateurs_lab.study.estimate import Cost, Estimate, TrialTimes, estimate, trial
from secateurs_lab.study.measure import Bench


def study(*methods, **options):
    return Study(
        model=Net(name="lenet-300-100"),
        data=Data(name="digits", train=256, test=50),
        methods=list(methods),
        compressions=[4],
        train=Training(length="6ep", batch=64),
        **options,
    )


def costs(**seconds_and_needs):
    return tuple(
        Cost(key=key, seconds=seconds, needs=needs)
        for key, (seconds, *needs) in seconds_and_needs.items()
    )


def test_runs_wait_for_those_they_need_and_for_a_worker(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    chain = costs(dense=[10], one=[5, "dense"], two=[5, "dense"], last=[1, "one"])
    found = Estimate(runs=4, done=0, costs=chain)
    # One after the other; then `two` beside `one`; a third worker has nothing to do.
    assert [found.seconds(n) for n in (1, 2, 3)] == [21, 16, 16]
    # What is done is waited for by nobody.
    rest = Estimate(runs=4, done=1, costs=chain[1:], begin=3, once=2)
    assert rest.seconds(2) == 5 + 6
    # Eight processors hold two workers of four threads.
    many = Estimate(runs=8, done=0, costs=costs(**{f"r{n}": [1] for n in range(8)}))
    assert many.seconds(8, threads=4) == 4
    assert "8 runs, about 4 s with 8 workers" in many.describe(8, threads=4)
    assert Estimate(runs=2, done=2, costs=(), begin=9).seconds(1) == 0


def test_a_run_is_steps_tests_cuts_and_what_it_does_once():
    made = TrialTimes(fixed=100.0, step=1.0, test=10.0, cut=1000.0, once=0.0)
    bench = Bench()
    runs = {run.method.kind: run for run in study(Prune(), Gradual(every="8it")).runs()}
    # 6 epochs of 4 steps; a test an epoch; a gradual run cuts every eight steps.
    assert made.seconds(runs["dense"], bench) == 100 + 24 + 60
    assert made.seconds(runs["gradual"], bench) == 100 + 24 + 60 + 3000


@pytest.mark.parametrize("method", [Prune(), Imp(rewind="1ep"), Gradual(), Dwf(target=True)])
def test_every_stage_of_every_method_is_counted(method, monkeypatch, recwarn, caplog):
    """Cut and certificates take a fifth of a second here; both are seen, and nothing is said."""

    def slowly(function, seconds):
        def call(*args):
            sleep(seconds)
            return function(*args)

        return call

    monkeypatch.setattr(stages, "cut", slowly(stages.cut, 0.2))
    proven = slowly(lambda dense, sparse, data, how: ((), []), 0.0)
    asked = []
    monkeypatch.setattr(
        measure,
        "certificates",
        lambda *a: (asked.append(a[3].images), sleep(0.1 * a[3].images), proven(*a))[-1],
    )
    run = study(method, certify=Certify(radius=0.1, images=5)).runs()[-1]
    found = trial(run, Bench())
    assert found.step > 0 and found.test > 0
    proofs = run.parent is not None
    assert asked == ([1, 1, 2] if proofs else [])
    assert found.fixed > 0.2 + (0.4 if proofs else 0)
    assert not recwarn.list and not caplog.records


def test_runs_of_one_kind_are_tried_once(monkeypatch):
    tried = []

    def counted(run, bench):
        tried.append(run.method.kind)
        return TrialTimes(fixed=1.0, step=0.0, test=0.0, cut=0.0, once=0.5)

    monkeypatch.setattr(estimate_module, "trial", counted)
    asked = study(Prune(), Dwf(strength=[1e-4, 1e-3]), seeds=[0, 1, 2])
    found = estimate(asked, {}, Bench(), begin=2.0)
    assert sorted(tried) == ["dense", "dwf", "prune"]
    assert found.runs == len(found.costs) == 12
    assert found.seconds(1) == pytest.approx(2 + 1.5 + 12 * (1 + estimate_module.KEEPING), abs=1)


@pytest.mark.slow
def test_the_estimate_is_near_what_the_runs_then_take():
    """Within a factor of three on a machine that does other work, too."""
    from tempfile import mkdtemp
    from time import perf_counter

    from secateurs_lab.study import run

    asked = study(
        Prune(),
        Prune(score="synflow", rounds=50, after="init"),
        Dwf(target=True),
        certify=Certify(radius=0.02, images=8),
    )
    guess = estimate(asked, {}, Bench()).seconds(1)
    start = perf_counter()
    with run(asked, mkdtemp(), watchers=()) as done:
        assert {row.state for row in done.rows()} == {"done"}
    took = perf_counter() - start
    assert took / 3 < guess < 3 * took
