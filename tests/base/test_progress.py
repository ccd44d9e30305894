"""The line that long calls show: on a terminal, after a second, and nowhere else."""

import io
import logging
import sys
import threading

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.base import progress
from secateurs.base.progress import show_progress, silent


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(progress, "_terminal", lambda: stream)
    monkeypatch.setattr(progress, "AFTER", 0.01)
    monkeypatch.setenv("COLUMNS", "40")
    return stream


def wait_until_shown(stream):
    waited = threading.Event()
    for _ in range(1000):
        if stream.getvalue():
            return
        waited.wait(0.01)
    raise AssertionError("nothing was shown within ten seconds")


def screen(text):
    """What a terminal shows after this text: a carriage return goes back, blanks overwrite."""
    cells, at = [], 0
    for sign in text:
        if sign == "\r":
            at = 0
            continue
        cells[at : at + 1] = [sign]
        at += 1
    return "".join(cells).rstrip(), at


def test_the_line_is_rewritten_and_wiped(terminal):
    with show_progress(None, "certify") as say:
        say("both networks are read")
        wait_until_shown(terminal)
        assert screen(terminal.getvalue())[0] == "certify: both networks are read"
        say("affine")
        assert screen(terminal.getvalue())[0] == "certify: affine"
    assert screen(terminal.getvalue()) == ("", 0) and "\n" not in terminal.getvalue()


def test_a_first_step_that_takes_long_is_shown_by_the_name_of_the_call(terminal):
    with show_progress(None, "accelerate"):
        wait_until_shown(terminal)
        assert screen(terminal.getvalue())[0] == "accelerate"


def test_what_is_over_within_a_second_shows_nothing(terminal, monkeypatch):
    monkeypatch.setattr(progress, "AFTER", 60)
    with show_progress(None, "certify") as say:
        say("done")
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(10)
            assert not thread.is_alive()
    assert terminal.getvalue() == ""


def test_a_long_name_stays_on_its_line_and_cannot_steer_the_terminal(terminal):
    with show_progress(None, "prune_file") as say:
        wait_until_shown(terminal)
        say("\x1b[2J" + "x" * 100)
        shown, _ = screen(terminal.getvalue())
        assert len(shown) == 39 and "\x1b" not in shown


def test_after_an_error_the_line_is_gone_and_the_next_call_has_one(terminal):
    for _ in range(2):
        terminal.seek(0)
        terminal.truncate()
        with pytest.raises(KeyboardInterrupt), show_progress(None, "certify"):
            wait_until_shown(terminal)
            raise KeyboardInterrupt
        assert screen(terminal.getvalue()) == ("", 0)


def test_what_is_logged_meanwhile_stands_on_a_line_of_its_own(terminal):
    log, handler = logging.getLogger("secateurs.ship"), logging.StreamHandler(terminal)
    log.addHandler(handler)
    try:
        with show_progress(None, "accelerate") as say:
            wait_until_shown(terminal)
            log.warning("no gain")
            say("timing")
            above, below = terminal.getvalue().split("\n")
            assert screen(above)[0] == "no gain" and screen(below)[0] == "accelerate: timing"
        assert not log.filters
    finally:
        log.removeHandler(handler)


def test_what_a_call_calls_says_nothing(terminal):
    with show_progress(None, "accelerate"), show_progress(None, "compact") as say:
        assert say is silent


@pytest.mark.parametrize("stream", [None, io.StringIO(), "closed", "another"])
def test_where_standard_error_is_no_terminal_of_our_own_it_is_quiet(monkeypatch, stream):
    real = Terminal() if isinstance(stream, str) else stream
    monkeypatch.setattr(sys, "__stderr__", real)
    if stream == "closed":
        real.close()
    # What stands in the place of the real one may call itself a terminal, as a display of rich.
    monkeypatch.setattr(sys, "stderr", Terminal() if stream == "another" else real)
    monkeypatch.setattr(progress, "AFTER", 0.0)
    with show_progress(None, "certify") as say:
        assert say is silent


def test_a_terminal_of_our_own_is_one(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "__stderr__", stream)
    with show_progress(None, "certify") as say:
        assert say is not silent


def test_a_function_that_is_given_is_called_in_the_place_of_the_line(terminal):
    told = []
    with show_progress(told.append, "certify") as say:
        say("affine")
    assert told == ["affine"] and terminal.getvalue() == ""


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_calls_show_their_steps_without_being_asked(terminal, monkeypatch):
    """The line of each long call, by what it last said before it was wiped."""
    lines = []
    monkeypatch.setattr(progress._Line, "say", lambda self, text: lines.append(self._call))
    dense, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval(), torch.rand(9, 4)
    sparse = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    sparse.load_state_dict(dense.state_dict())
    sc.prune_(sparse, "magnitude", sparsity=0.5)
    sc.certify(dense, sparse, around=x[:1], radius=0.1)
    sc.reconstruct_(sparse, dense, batch=x)
    sc.prune_blocks_(Blocks(), "wanda", scope="row", sparsity=0.5, batch=x)
    sc.accelerate(sparse, x[:1])
    assert list(dict.fromkeys(lines)) == ["certify", "reconstruct_", "prune_blocks_", "accelerate"]
