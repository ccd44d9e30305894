"""Forms with little room, and computed once."""

from dataclasses import replace

from proof.pairs import deep
from secateurs.proof.domain import ball_domain
from secateurs.proof.methods import run_methods
from secateurs.proof.problem import read_problem


def test_a_form_without_room_still_beats_an_interval(generator):
    """Symbols for the inputs alone, for some neurons, for all: the rest goes into the remainder."""
    dense, sparse, x = deep(generator)
    problem = read_problem(dense, sparse, x[:1])
    domain = ball_domain(x, 0.1)
    bounds = []
    for symbols in (20, 40, 4000):
        limited = replace(problem, symbols=symbols)
        proven, _ = run_methods(limited, domain, ["affine"])
        bounds.append(proven["affine"].per_output.sum())
    interval = run_methods(problem, domain, ["interval"])[0]["interval"].per_output.sum()
    assert bounds[2] < bounds[1] < bounds[0] <= interval
    _, skipped = run_methods(replace(problem, symbols=19), domain, ["affine"])
    assert "20 open inputs need a symbol each, 19 are allowed" in skipped["affine"]


def test_forms_are_not_computed_twice(generator):
    """With little effort `linear` carries the forms along; then `affine` is told to rest."""
    dense, sparse, x = deep(generator)
    problem = replace(read_problem(dense, sparse, x[:1]), effort=4e3)
    domain = ball_domain(x, 0.1)
    proven, skipped = run_methods(problem, domain, ["affine", "linear"])
    assert "linear computes the same forms" in skipped["affine"] and set(proven) == {"linear"}
    alone = run_methods(problem, domain, ["affine"])[0]["affine"].per_output
    assert bool((proven["linear"].per_output <= alone * (1 + 1e-12)).all())
