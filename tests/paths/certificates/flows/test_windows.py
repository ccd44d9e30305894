"""Which entries of a window can lead: by enumeration."""

import pytest
import torch
from torch import nn

from secateurs.graph import Pool, capture
from secateurs.paths.certificates.flows.pair import lift
from secateurs.paths.certificates.flows.windows import can_lead, chosen, runner_up


@pytest.mark.parametrize("stride", [2, 1])
def test_windows_by_enumeration(stride, generator):
    """The leader, the best of the others, and who can lead; on the safe side where shared."""
    model = nn.MaxPool2d(2, stride=stride)
    x = torch.randn(3, 1, 2, 4, 4, generator=generator, dtype=torch.float64)
    node = next(n for n in capture(model, x[0]).nodes if isinstance(n, Pool))
    high = x + torch.rand(x.shape, generator=generator, dtype=torch.float64)
    other = torch.randn(x.shape, generator=generator, dtype=torch.float64)

    def windows(values):
        return nn.functional.unfold(
            values.reshape(6, 1, 4, 4), 2, stride=stride
        )  # 6, entries, windows

    flat, leader = windows(high), windows(x).argmax(1, keepdim=True)
    picked = windows(other).gather(1, leader).flatten()
    torch.testing.assert_close(chosen(node, x, other).flatten(), picked)
    best = flat.scatter(1, leader, -torch.inf).amax(1).flatten()
    found = runner_up(node, x, high).flatten()
    assert bool((found >= best).all())
    assert torch.equal(found, best) == (stride == 2)
    may = windows(can_lead(node, x, high).double()).bool()
    truth = flat >= windows(x).amax(1, keepdim=True)
    assert bool((may >= truth).all())
    assert torch.equal(may, truth) == (stride == 2)
    assert torch.equal(lift(node.maximum, x), chosen(node, x, x))
