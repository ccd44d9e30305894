"""Work is begun only where it would end in time, and what ends is told now and then."""

from secateurs.proof import problem as module
from secateurs.proof.problem import Pace, TimeLimit


def paced(monkeypatch, seconds, told):
    """A pace under a clock that the test moves."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now, Pace(clock=TimeLimit(seconds=seconds, start=100.0, tell=told.append))


def test_the_first_step_begins_and_a_later_one_only_if_it_ends(monkeypatch):
    now, pace = paced(monkeypatch, 10.0, [])
    assert pace.allows(1000)
    now[0] += 4
    pace.done("a thousand cells")
    # Six seconds are left, and a thousand cells take four.
    assert pace.allows(1500)
    assert not pace.allows(1501)
    assert Pace(clock=pace.clock).allows(10**9)
    longer = pace.under(TimeLimit(seconds=12.0, start=100.0))
    assert longer.allows(2000) and not longer.allows(2001)
    now[0] += 6.5
    assert not pace.allows(1)
    assert not Pace(clock=pace.clock).allows(1)


def test_without_a_limit_everything_begins(monkeypatch):
    now, pace = paced(monkeypatch, float("inf"), [])
    assert pace.allows(1)
    now[0] += 1e6
    pace.done("slow")
    assert pace.allows(1e9)


def test_lines_are_a_second_apart(monkeypatch):
    told = []
    now, pace = paced(monkeypatch, 10.0, told)
    for text in "abcdef":
        pace.say(text)
        now[0] += 0.6
    assert told == ["a", "c", "e"]
    late = pace.late("on the way")
    now[0] += 1
    assert not late() and told[-1] == "on the way"
    now[0] += 10
    assert late()
