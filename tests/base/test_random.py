"""Draws: their precision where a device has no double."""

import torch

from secateurs.base import random


def test_uniform_numbers_are_double_where_there_are_doubles(monkeypatch):
    like = torch.zeros(100, dtype=torch.float16)
    drawn = random.uniform(like, generator=random.generator(0))
    assert drawn.dtype == torch.float64 and bool((drawn < 1).all())
    # As on Apple's GPUs, of which there is none here.
    monkeypatch.setattr(random, "WITHOUT_FLOAT64", {"cpu"})
    drawn = random.uniform(like, generator=random.generator(0))
    assert drawn.dtype == torch.float32 and bool((drawn < 1).all()) and drawn.unique().numel() > 90
