"""Networks with memories, tricks and company: every answer is right or refused, and nothing is
changed that should not be.
"""

import pytest
import torch
from torch import nn

import secateurs as sc
from strange import answers
from strange.answers import CHECKS, outcome
from strange.kinds import ENDS, GROUPS, KINDS
from strange.networks import draw
from strange.readers import READERS, seen
from strange.snapshot import changes, snapshot

CASES = draw(168)


def refused_or_right(case, names, readers=()) -> int:
    """How many functions answered; fails with everything that is wrong at once."""
    found = {name: outcome(name, case) for name in names}
    found |= {name: seen(name, case) for name in readers}
    wrong = {name: one.wrong for name, one in found.items() if one.wrong}
    assert not wrong, wrong
    return sum(not one.refused for one in found.values())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(12))
def test_a_dozen(number):
    """Two functions each, in turns, on every eleventh network."""
    names = [*CHECKS]
    picked = [names[(2 * number + i) % len(names)] for i in (0, 1)]
    refused_or_right(CASES[11 * number], picked)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_answer_is_right_or_refused(case):
    readers = [*READERS]
    picked = [readers[(2 * case.seed + i) % len(readers)] for i in (0, 1)]
    refused_or_right(case, CHECKS, picked)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["macs", "accelerate"])
@pytest.mark.parametrize("kind", ["CachedOutside", "FrozenByTheCall", "WithText"])
def test_caches_outside_and_outputs_of_text(kind, name):
    """A cache of the process is never left with the tracer's tensors in it; a text stays one; what
    a call freezes trains again."""
    case = next(case for case in CASES if case.kind == kind)
    assert refused_or_right(case, [name]) == 1


def test_every_kind_is_drawn():
    assert len(CASES) >= 150
    assert {case.kind for case in CASES} == {*KINDS, *ENDS}
    assert len({str(case) for case in CASES}) == len(CASES)
    assert {*GROUPS.values()} == {"state", "tracer", "index", "batch"}


def test_a_plain_network_is_answered_everywhere():
    """A harness in which everything is refused proves nothing."""
    plain = next(case for case in draw(400) if case.kind == "Reshaped")
    assert refused_or_right(plain, CHECKS, READERS) >= len(CHECKS) + len(READERS) - 2


@pytest.mark.parametrize("name", ["compact", "accelerate", "normalize_"])
def test_the_harness_sees_a_wrong_answer(name, monkeypatch):
    case = next(case for case in draw(400) if case.kind == "Reshaped")

    def broken(model, x, **options):
        return nn.Sequential(model, nn.Hardtanh(0, 1e-3))

    def shifted(model, x):
        next(model.parameters()).data += 1

    monkeypatch.setattr(sc, name, shifted if name.endswith("_") else broken)
    assert outcome(name, case).wrong


def test_the_harness_sees_a_bound_and_a_norm_that_are_too_small(monkeypatch):
    case = next(case for case in draw(400) if case.kind == "Reshaped")
    norm = sc.path_norm
    monkeypatch.setattr(answers.sc, "path_norm", lambda m, x: 0.01 * float(norm(m, x)))
    assert outcome("path_norm", case).wrong
    bound = type("Bound", (), {"bound": 1e-3, "assumptions": ()})()
    monkeypatch.setattr(answers.sc, "certify", lambda *_, **__: bound)
    assert outcome("certify", case).wrong


def touch_a_buffer(model):
    model.level.add_(1)


def touch_an_attribute(model):
    model.n += 1


def touch_a_container(model):
    model.box["scales"].append(3.0)


def replace_a_parameter(model):
    model.gain = nn.Parameter(model.gain.detach().clone())


def switch_the_mode(model):
    model.train()


def draw_a_number(model):
    torch.rand(1)


@pytest.mark.parametrize(
    "touch",
    [
        touch_a_buffer,
        touch_an_attribute,
        touch_a_container,
        replace_a_parameter,
        switch_the_mode,
        draw_a_number,
    ],
)
def test_a_snapshot_sees_every_change(touch):
    model = KINDS["ScaleInAContainer"](3, torch.Generator().manual_seed(0)).eval()
    model.n = 0
    before = snapshot(model)
    assert not changes(before, snapshot(model))
    touch(model)
    assert changes(before, snapshot(model))
