"""Every experiment as published begins: its first two optimizer steps, on random data."""

from dataclasses import replace

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from experiments.catalogue import EXPERIMENTS
from secateurs_lab.data import DATA, from_tensors

SHAPES = {
    "mnist": (1, 28, 10),
    "kmnist": (1, 28, 10),
    "fashion-mnist": (1, 28, 10),
    "cifar-10": (3, 32, 10),
    "cifar-100": (3, 32, 100),
    "tiny-imagenet": (3, 64, 200),
    "covertype": (54, 1, 7),
}
LONG = (
    "path-pruning",
    "sketching-pictures",
    "sketching-tables",
    "weight-factorization-beyond",
    "weight-factorization-layers",
    "weight-factorization-posthoc",
)
"""Large networks, or scores over a hundred rounds: seconds each."""
UNTRAINED = ("probabilistic-norms", "probabilistic-vgg")
"""At full scale these train nothing."""
NAMES = [name for name in EXPERIMENTS.names() if name not in UNTRAINED]
MARKED = [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in NAMES]


class Enough(Exception):
    """Two steps were taken."""


def noise(name):
    """Sixteen images of the data set's own shape and number of classes."""
    channels, side, classes = SHAPES[name]
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(16, channels, side, side, generator=draw)
    y = torch.randint(classes, (16,), generator=draw)
    return from_tensors(name, train_x=x, train_y=y, test_x=x, test_y=y, classes=classes)


@pytest.mark.parametrize("name", MARKED)
def test_the_first_two_steps_as_published(name, monkeypatch):
    for data in SHAPES:
        made = replace(DATA[data], read=lambda *_, data=data: noise(data))
        monkeypatch.setitem(DATA._rules, data, made)
    moved = []

    def after(optimizer, args, kwargs):
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        assert all(bool(p.isfinite().all()) for p in weights)
        moved.append([p.detach().clone() for p in weights])
        if len(moved) == 2:
            raise Enough

    hook = register_optimizer_step_post_hook(after)
    try:
        with pytest.raises(Enough):
            # The last of these is the published network; the first one is ours.
            which = -1 if name == "path-pruning" else 0
            list(EXPERIMENTS[name].jobs("full")[which].work())
    finally:
        hook.remove()
    # Dead units may be cut out between two epochs: then the shapes tell.
    first, second = moved
    assert any(
        a.shape != b.shape or not torch.equal(a, b) for a, b in zip(first, second, strict=True)
    )


def test_what_trains_nothing_is_at_full_scale_what_it_is_at_cpu():
    scales = (EXPERIMENTS["probabilistic-norms"].jobs(s) for s in ("full", "cpu"))
    names = [[job.name for job in jobs] for jobs in scales]
    assert names[0] == names[1]
