"""A Ctrl-C waits until a block is over; a second one does not."""

import signal
import threading

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.base.interrupts import Uninterrupted

pytestmark = pytest.mark.usefixtures("heard")


def press():
    signal.raise_signal(signal.SIGINT)


def test_one_waits_until_the_block_is_over():
    steps = []
    with pytest.raises(KeyboardInterrupt):
        with Uninterrupted():
            press()
            steps.append("the rest")
        steps.append("what follows")
    assert steps == ["the rest"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_one_does_not_wait():
    with pytest.raises(KeyboardInterrupt), Uninterrupted():
        press()
        press()
        pytest.fail("the second did not stop it")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_of_two_blocks_it_waits_for_the_outer_one():
    steps = []
    with pytest.raises(KeyboardInterrupt), Uninterrupted():
        with Uninterrupted():
            press()
        steps.append("the outer block")
    assert steps == ["the outer block"]
    with pytest.raises(KeyboardInterrupt), Uninterrupted(), Uninterrupted():
        press()
        press()
        pytest.fail("the second did not stop it")


def test_an_error_of_the_block_is_the_context_of_what_waited():
    with pytest.raises(KeyboardInterrupt) as caught, Uninterrupted():
        press()
        raise ValueError("of the block")
    assert isinstance(caught.value.__context__, ValueError)


def test_one_that_comes_while_it_begins_waits(monkeypatch):
    real, presses = signal.getsignal, [press]

    def getsignal(number):
        if presses:
            presses.pop()()
        return real(number)

    monkeypatch.setattr(signal, "getsignal", getsignal)
    steps = []
    with pytest.raises(KeyboardInterrupt), Uninterrupted():
        steps.append("the block")
    assert steps == ["the block"]
    assert real(signal.SIGINT) is signal.default_int_handler


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Uninterrupted():
            press()
            press()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_nothing_is_touched():
    seen = []

    def run():
        with Uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


class Pressed(nn.Module):
    """Somebody presses Ctrl-C while its forward pass is traced."""

    def __init__(self):
        super().__init__()
        self.layer, self.ended = nn.Linear(4, 4), 0

    def forward(self, x):
        if torch.compiler.is_compiling():
            press()
            press_ended.append(True)
        return self.layer(x)


press_ended = []


def test_a_trace_is_not_interrupted_and_the_next_one_works():
    press_ended.clear()
    model, x = Pressed().eval(), torch.rand(1, 4)
    with pytest.raises(KeyboardInterrupt):
        sc.paths.path_norm(model, x)
    assert press_ended
    assert sc.paths.path_norm(nn.Sequential(nn.Linear(4, 2)), x) > 0
