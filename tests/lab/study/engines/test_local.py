"""Workers of several GPUs: each sees one."""

import os
import time
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from secateurs_lab.study import How
from secateurs_lab.study.engines import local


def seen(tools, context):
    """What a worker sees, after a while in which the others begin."""
    time.sleep(0.2)
    return os.environ.get("CUDA_VISIBLE_DEVICES", ""), os.getpid()


@pytest.mark.parametrize(
    ("device", "count", "visible", "cards"),
    [
        ("", 1, None, []),
        ("", 0, None, []),
        ("cuda", 3, None, ["0", "1", "2"]),
        ("", 2, "4,7", ["4", "7"]),
        ("cuda:1", 3, None, []),
        ("cpu", 3, None, []),
    ],
)
def test_cards_are_those_that_are_visible(device, count, visible, cards, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert local._cards(device) == cards


def test_workers_are_spread_over_the_cards(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    sweep = SimpleNamespace(
        how=How(workers=3), store=SimpleNamespace(folder=tmp_path), tools=None, tell=None, hold=None
    )
    workers = local.Processes(sweep)
    try:
        first = [workers.submit(SimpleNamespace(key=str(i), work=seen), {}) for i in range(3)]
        found = [future.result(60) for future in first]
        assert sorted(Counter(card for card, _ in found).items()) == [("4", 2), ("7", 1)]
        # A worker that takes another job keeps its card.
        again = workers.submit(SimpleNamespace(key="4", work=seen), {}).result(60)
        assert again in found
    finally:
        workers.close()
