"""Random networks of all operators are attacked; nothing may lie above a bound.

The whole table is made by `benchmarks/attack_certificates.py`; here are a few seeds of each part.
"""

import pytest
import torch

from attack.balls import attack_balls
from attack.cases import Tally, attack_pair, attack_seed, attack_twins, boxes
from attack.endings import attack_ending
from attack.operators import OPERATORS
from attack.programs import all_shapes, changed, one_literal, random_program
from attack.rewriting import REWRITES, attack_rewrite
from attack.splitting import attack_signs, attack_split
from attack.third_party import PYTORCHCV, attack_capture
from attack.zonotopes import attack_zonotopes


def checked(attack, seeds) -> Tally:
    tally = Tally()
    for seed in seeds:
        tally += attack(seed)
    assert not tally.violations, tally.violations
    assert not tally.errors, tally.errors
    return tally


def test_no_deviation_lies_above_a_bound():
    tally = checked(attack_seed, range(2))
    assert tally.counts["cases"] > 90


def test_networks_that_differ_in_one_thing_get_a_bound_or_a_refusal():
    tally = checked(attack_twins, range(8))
    assert tally.counts["twins"] > 3


def test_no_deviation_lies_above_a_split_bound():
    tally = checked(attack_split, range(2))
    assert tally.counts["split certificates"] >= 90 and tally.counts["parts"] > 100


def test_no_deviation_lies_above_a_bound_by_the_signs_of_neurons():
    tally = checked(attack_signs, range(2))
    assert tally.counts["split certificates"] == 32 and tally.counts["cut at a neuron"] > 12


def test_no_deviation_lies_above_the_bound_of_its_ball():
    tally = checked(attack_balls, range(3))
    assert tally.counts["balls"] >= 72


def test_no_deviation_lies_above_a_bound_carried_through_the_last_map():
    tally = checked(attack_ending, range(5))
    assert tally.counts["certificates"] > 300
    assert tally.counts["within a tenth of what is found"] > 30


def test_the_attack_sees_a_bound_that_shrinks_on_the_way(monkeypatch):
    from secateurs.proof import problem

    true = problem.carry
    monkeypatch.setattr(problem, "carry", lambda *given: 0.8 * true(*given))
    assert any(attack_ending(seed).violations for seed in range(8))


def test_the_attack_sees_ends_of_f_that_are_too_narrow(monkeypatch):
    from secateurs.proof import problem

    true = problem.carry

    def narrowed(ending, change, low, high):
        reach = 0.4 * (high - low).nan_to_num(posinf=0.0)
        return true(ending, change, low + reach, high - reach)

    monkeypatch.setattr(problem, "carry", narrowed)
    assert any(attack_ending(seed).violations for seed in range(20))


def test_no_deviation_lies_above_a_bound_by_zonotopes():
    tally = checked(attack_zonotopes, range(6))
    assert tally.counts["certificates"] > 50 and tally.counts["against 600 bits"] == 2


def test_the_attack_sees_a_zonotope_that_is_too_small(monkeypatch):
    from secateurs.proof.zonotope import Pair

    true = Pair.difference
    monkeypatch.setattr(Pair, "difference", lambda pair, unit: 0.8 * true(pair, unit))
    assert any(attack_zonotopes(seed).violations for seed in range(6))


def test_the_attack_sees_passes_below_zonotopes_that_are_too_small(monkeypatch):
    from secateurs.proof.descent import Descent

    true = Descent.above
    monkeypatch.setattr(Descent, "above", lambda *args: true(*args) - 0.2 * true(*args).abs())
    assert any(attack_zonotopes(seed).violations for seed in range(6))


@pytest.mark.slow
def test_two_thousand_certificates_by_zonotopes():
    tally = checked(attack_zonotopes, range(250))
    assert tally.counts["certificates"] >= 2000 and tally.counts["few symbols"] > 50


@pytest.mark.slow
def test_two_thousand_certificates_carried_through_the_last_map():
    tally = checked(attack_ending, range(40))
    assert tally.counts["certificates"] >= 2000


@pytest.mark.slow
def test_two_thousand_balls():
    tally = checked(attack_balls, range(90))
    assert tally.counts["balls"] >= 2000 and tally.counts["tightest: linear"] > 60


@pytest.mark.slow
def test_two_thousand_split_certificates():
    tally = checked(attack_split, range(60))
    assert tally.counts["split certificates"] >= 2000
    assert tally.counts["targets proven"] > 1000
    assert tally.counts["top class proven"] > 5


@pytest.mark.slow
def test_two_thousand_certificates_split_at_neurons():
    tally = checked(attack_signs, range(130))
    assert tally.counts["split certificates"] >= 2000
    assert tally.counts["cut at a neuron"] > 1000 and tally.counts["targets proven"] > 50


def test_the_attack_sees_a_split_bound_that_is_too_small(monkeypatch):
    from attack import splitting
    from secateurs.proof.splitting import split

    def nearly(*args, **options):
        found = split(*args, **options)
        object.__setattr__(found, "balls", 0.7 * found.balls)
        return found

    monkeypatch.setattr(splitting, "split", nearly)
    assert any(attack_split(seed).violations for seed in range(3))


@pytest.mark.slow
def test_ten_thousand_cases():
    tally = checked(attack_seed, range(130))
    assert tally.counts["cases"] >= 10_000


@pytest.mark.slow
def test_five_hundred_twins():
    tally = checked(attack_twins, range(900))
    assert tally.counts["twins"] >= 500


def test_the_attack_sees_a_bound_that_is_too_small(monkeypatch):
    """A harness that cannot fail proves nothing: a method that gives 0.9 of its bound is caught."""
    from attack import cases
    from secateurs.proof.methods import MethodBounds

    def nearly(problem, domain, names):
        seen = problem.difference(domain.center).abs()
        return {"linear": MethodBounds(per_output=0.9 * seen)}, {}

    monkeypatch.setattr(cases, "run_methods", nearly)
    assert attack_seed(0).violations


def test_random_programs_use_every_operator():
    used = set()
    for seed in range(80):
        model, _ = random_program(torch.Generator().manual_seed(seed))
        used |= {step.operator for step in model.steps}
    assert used == set(OPERATORS)


def test_one_literal_differs_and_nothing_else():
    g = torch.Generator().manual_seed(0)
    found = 0
    for _ in range(30):
        model, _ = random_program(g)
        made = one_literal(model, g)
        if made is None:
            continue
        found += 1
        pairs = zip(model.steps, made[0].steps, strict=True)
        differing = [
            name
            for one, two in pairs
            for name in one.literals
            if one.literals[name] != two.literals[name]
        ]
        assert len(differing) == 1 and all_shapes(model) == all_shapes(made[0])
        assert all(a is b for a, b in zip(model.parameters(), made[0].parameters(), strict=True))
    assert found > 10


def test_a_pair_that_cannot_be_read_is_counted_as_refused():
    g = torch.Generator().manual_seed(3)
    model, shape = random_program(g)
    other, _ = random_program(g)
    while other.input_shape != shape:
        other, _ = random_program(g)
    domain = boxes(shape, g)
    options = {"dtype": torch.float64, "label": "others"}
    assert attack_pair(model, other, domain, g, **options).counts["refused"] == 1
    same = attack_pair(model, changed(model, "tuned", g), domain, g, **options)
    assert same.counts["cases"] == len(domain)


@pytest.mark.parametrize("name", REWRITES)
def test_rewriting_keeps_the_function(name):
    tally = checked(lambda seed: attack_rewrite(name, seed), range(4))
    assert sum(tally.counts.values()) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("name", REWRITES)
def test_rewriting_keeps_the_function_of_300_networks(name):
    tally = checked(lambda seed: attack_rewrite(name, seed), range(300))
    assert tally.counts[f"{name}: kept its function"] > 200


@pytest.mark.slow
def test_sixty_published_networks_are_captured_as_they_are():
    pytest.importorskip("pytorchcv")
    tally = Tally()
    for name in PYTORCHCV:
        tally += attack_capture(name)
    assert not tally.violations and tally.counts["captured and equal"] >= 60
