"""Forward bounds that feed backward ones: sound at every effort and number of symbols, and worth
it.
"""

from dataclasses import replace

import pytest
import torch

import secateurs as sc
from proof.pairs import deep
from secateurs.proof import linear, methods
from secateurs.proof.domain import ball_domain
from secateurs.proof.methods import run_methods
from secateurs.proof.problem import Pace, TimeLimit, read_problem
from tiny_networks import KINDS, pruned, randomize

LIMITS = {
    "all": {},
    "few symbols": {"symbols": 40},
    "little effort": {"effort": 3e3},
    "both": {"symbols": 40, "effort": 3e3},
}


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_limit_makes_a_bound_unsound(kind, limits, generator):
    make, shape = KINDS[kind]
    for radius in (0.05, 0.6):
        dense = randomize(make().double(), generator)
        sparse = pruned(dense, generator)
        x = torch.randn(4, *shape, generator=generator, dtype=torch.float64)
        problem = replace(read_problem(dense, sparse, x[:1]), **LIMITS[limits])
        proven, _ = run_methods(problem, ball_domain(x, radius), ["affine", "linear"])
        share = 2 * torch.rand(80, *x.shape, generator=generator).double() - 1
        share[::2] = share[::2].sign()
        points = (x + radius * share).flatten(0, 1)
        with torch.no_grad():
            seen = (dense(points) - sparse(points)).abs().reshape(80, 4, -1).amax(0)
        for name, reach in proven.items():
            assert bool((seen <= reach.per_output + 1e-12).all()), name


def test_a_ball_does_not_depend_on_its_company(generator):
    """Each box counts its own symbols and its own effort."""
    make, shape = KINDS["max-pool"]
    dense = randomize(make().double(), generator)
    sparse = pruned(dense, generator)
    x = torch.randn(5, *shape, generator=generator, dtype=torch.float64)
    problem = replace(read_problem(dense, sparse, x[:1]), symbols=24, effort=4e3)
    domain = ball_domain(x * torch.tensor([0.1, 5, 0.1, 1, 1]).reshape(5, 1, 1, 1), 0.2)
    for name in ("affine", "linear"):
        together = run_methods(problem, domain, [name])[0][name].per_output
        alone = [run_methods(problem, one, [name])[0][name].per_output for one in domain.split(1)]
        torch.testing.assert_close(together, torch.cat(alone), rtol=1e-9, atol=1e-12)


def test_more_effort_is_spent_where_most_is_lost(generator):
    dense, sparse, x = deep(generator)
    problem = read_problem(dense, sparse, x[:1])
    domain = ball_domain(x, 0.1)
    bounds = []
    for effort in (4e3, 2e4, 1e9):
        limited = replace(problem, effort=effort, symbols=20)
        reach = run_methods(limited, domain, ["linear"])[0]["linear"]
        assert bool(reach.remarks) == (effort < 1e9)
        bounds.append(float(reach.per_output.log().mean()))
    assert bounds[0] > bounds[1] > bounds[2]


def test_a_search_keeps_to_its_time_and_says_where_it_is(generator):
    dense = randomize(KINDS["residual"][0]().double(), generator)
    sparse = pruned(dense, generator)
    x = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    lines: list[str] = []
    full = sc.certify(dense, sparse, around=x, radius=0.5, progress=lines.append)
    starts = [line for line in lines if line.startswith("search: start")]
    assert len(starts) == 5 and "start 5 of 5" in starts[-1]
    lines.clear()
    hasty = sc.certify(dense, sparse, around=x, radius=0.5, seconds=1e-9, progress=lines.append)
    assert sum(line.startswith("search: start") for line in lines) == 1
    assert hasty.lower_bound <= full.lower_bound and hasty.bound >= full.bound


def test_dear_forms_are_left_out_where_linear_makes_all_its_passes(generator, monkeypatch):
    """Not where it cannot serve, and not where they are asked for alone."""
    make, shape = KINDS["batch norm"]
    dense = randomize(make().double(), generator)
    sparse = pruned(dense, generator)
    x = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    problem, domain = read_problem(dense, sparse, x[:1]), ball_domain(x, 0.1)
    both = ["affine", "linear"]
    assert set(run_methods(problem, domain, both)[0]) == set(both)
    monkeypatch.setattr(methods, "_DEAR", 1.0)
    proven, skipped = run_methods(problem, domain, both)
    assert set(proven) == {"linear"} and "makes all its passes" in skipped["affine"]
    assert set(run_methods(problem, domain, ["affine"])[0]) == {"affine"}
    # An effort that pays for the outputs alone, or not even for these.
    for effort in (2 * methods.output_cells(problem), 1.0):
        poor = replace(problem, effort=effort, symbols=10**6)
        proven, skipped = run_methods(poor, domain, both)
        assert "affine" in proven or "the same forms" in skipped["affine"]


def test_outputs_that_time_does_not_reach_keep_forward_bounds(generator, monkeypatch):
    dense, sparse, x = deep(generator)
    problem, domain = read_problem(dense, sparse, x[:1]), ball_domain(x, 0.1)
    # By the tape: a chain of dense layers would need none.
    monkeypatch.setattr(methods, "all_by_chain", lambda problem: False)
    whole, box = (
        run_methods(problem, domain, [name])[0][name].per_output for name in ("linear", "interval")
    )
    times = iter((True, False))

    class Hasty(Pace):
        def allows(self, work):
            return next(times)

    under = Pace.under

    def hasty(self, clock):
        # Only the outputs are passed back under the problem's own clock.
        return Hasty(clock=clock) if clock is problem.clock else under(self, clock)

    monkeypatch.setattr(Pace, "under", hasty)
    monkeypatch.setattr(methods, "rows_at_a_time", lambda problem, boxes: 1)
    with torch.no_grad():
        cut = methods.linear(problem, domain)
    assert cut.remarks == ("linear: time was up after 1 of 3 outputs",)
    torch.testing.assert_close(cut.per_output[:, :1], whole[:, :1])
    # Intervals from improved bounds of the neurons lie between.
    rest = cut.per_output[:, 1:]
    assert bool(((whole[:, 1:] < rest) & (rest <= box[:, 1:])).all())


@pytest.mark.parametrize(
    ("kind", "limits"),
    [
        *((kind, "both") for kind in KINDS),
        *(("residual", name) for name in LIMITS if name != "both"),
    ],
)
def test_asked_again_passes_from_neurons_are_not_made_again(kind, limits, generator, monkeypatch):
    make, shape = KINDS[kind]
    dense = randomize(make().double(), generator)
    sparse = pruned(dense, generator)
    x = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    problem = replace(read_problem(dense, sparse, x[:1]), **LIMITS[limits])
    # Enough for the outputs, whatever the network.
    problem = replace(problem, effort=max(problem.effort, 1.2 * methods.output_cells(problem)))
    domain = ball_domain(x, 0.2)
    counted = []
    improve = linear.Relaxation._improve

    def counting(self, *args):
        counted.append(args)
        return improve(self, *args)

    monkeypatch.setattr(linear.Relaxation, "_improve", counting)
    first = methods.linear(replace(problem, shared={"all by chain": False}), domain)
    problem.shared["all by chain"] = False
    assert torch.equal(first.per_output, methods.linear(problem, domain).per_output)
    made = len(counted)
    # Another clock, other tensors of the same numbers: the same question.
    same = replace(domain, lo=domain.lo.clone(), hi=domain.hi.clone())
    again = methods.linear(replace(problem, clock=TimeLimit(seconds=1e9)), same)
    assert len(counted) == made > 0
    assert torch.equal(first.per_output, again.per_output) and first.remarks == again.remarks
    # Whatever else differs is asked anew: one end of the boxes, or one setting.
    for other, asked in (
        (problem, replace(domain, lo=domain.lo - 0.01)),
        (problem, replace(domain, hi=domain.hi + 0.01)),
        (replace(problem, effort=problem.effort * 2), domain),
        (replace(problem, unit=problem.unit * 2), domain),
        (replace(problem, symbols=41), domain),
    ):
        made = len(counted)
        methods.linear(other, asked)
        assert len(counted) > made


def test_what_time_cut_short_is_not_kept(generator, monkeypatch):
    dense, sparse, x = deep(generator)
    problem = read_problem(dense, sparse, x[:1])
    problem.shared["all by chain"] = False
    with monkeypatch.context() as late:
        late.setattr(Pace, "allows", lambda self, work: False)
        flow, _ = methods.relax(problem, ball_domain(x, 0.2))
        assert flow.hurried
    hasty = float(flow.proven[-1].dh.sum())
    flow, _ = methods.relax(problem, ball_domain(x, 0.2))
    assert not flow.hurried and float(flow.proven[-1].dh.sum()) < hasty


@pytest.mark.parametrize("seconds", [1e9, torch.inf])
def test_forms_that_gave_up_may_have_lacked_time_if_there_was_a_limit(
    seconds, generator, monkeypatch
):
    """Too many symbols would be too many again; too little time would not."""
    dense, sparse, x = deep(generator)
    problem = replace(read_problem(dense, sparse, x[:1]), effort=3e3)
    relax_with = methods.relax_with

    def give_up(problem, domain, effort, inner, *known):
        if inner is not None:
            raise methods.TooLarge("no symbols left")
        return relax_with(problem, domain, effort, inner, *known)

    monkeypatch.setattr(methods, "relax_with", give_up)
    limited = replace(problem, clock=TimeLimit(seconds=seconds))
    flow, _ = methods.relax(limited, ball_domain(x, 0.2))
    assert flow.hurried is (seconds < torch.inf)
    assert len(problem.shared["relaxed"].kept) == (seconds == torch.inf)


def test_few_relaxations_are_kept(generator):
    dense, sparse, x = deep(generator)
    problem = read_problem(dense, sparse, x[:1])
    for radius in range(1, 20):
        methods.relax(problem, ball_domain(x, radius / 20))
    assert len(problem.shared["relaxed"].kept) == 8
