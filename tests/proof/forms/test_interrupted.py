"""A Ctrl-C inside of `torch.func` waits until that is over."""

import signal

import pytest
import torch

from secateurs.proof.forms import lift


def test_a_ctrl_c_within_vmap_leaves_the_next_one_whole(heard):
    seen = []

    def pressed(x):
        signal.raise_signal(signal.SIGINT)
        seen.append("the rest")
        return 2 * x

    with pytest.raises(KeyboardInterrupt):
        lift(pressed, torch.ones(3, 2))
    assert seen == ["the rest"]
    assert torch.equal(lift(lambda x: 2 * x, torch.ones(3, 2)), torch.full((3, 2), 2.0))
