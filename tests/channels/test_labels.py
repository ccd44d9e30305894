"""Labels are united as the network ties channels, and the smallest of a group stands for it."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import secateurs as sc
from secateurs.channels.labels import NOTHING, Groups


def roots(groups: Groups) -> list[int]:
    return groups.roots(torch.arange(len(groups))).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_the_components_of_all_ties(seed):
    generator = torch.Generator().manual_seed(seed)
    groups, naive = Groups(), list(range(41))
    groups.new(40)
    for _ in range(6):
        pairs = torch.randint(41, (2, 4), generator=generator)
        groups.unite(*pairs)
        for one, two in pairs.T.tolist():
            low, high = sorted((naive[one], naive[two]))
            naive = [low if root == high else root for root in naive]
        assert roots(groups) == naive


def test_what_is_pinned_stays_and_is_told_by_the_ties_beside_it():
    groups = Groups()
    a, b = groups.new(2), groups.new(2)
    groups.unite(a, b)
    groups.pin(b[:1], "is an output")
    assert roots(groups) == [0, 0, 2, 0, 2]
    assert groups.unpinned(torch.arange(5)).tolist() == [0, 1, 2, 1, 2]
    assert groups.reasons() == {1: "is an output"}


def test_nothing_ties_nothing():
    groups = Groups()
    labels = groups.new(2)
    nothing = torch.tensor([NOTHING, NOTHING])
    groups.unite(labels, nothing)
    groups.pin(nothing, "is padding")
    assert roots(groups) == [0, 1, 2]
    assert groups.roots(nothing).tolist() == [NOTHING, NOTHING]
    # A row takes the label of what is known of it.
    assert groups.shared(torch.tensor([[NOTHING, 2], [1, NOTHING]])).tolist() == [2, 1]


class PaddedFirst(nn.Module):
    """A sum whose first part is padded: behind the padding the others are tied to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 2), nn.Linear(3, 4), nn.Linear(3, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(F.pad(self.a(x), (0, 2)) + self.b(x) + self.c(x)))


def test_channels_that_meet_behind_padding_share_a_scale(generator):
    model, x = PaddedFirst().double(), torch.randn(5, 3, dtype=torch.float64)
    before = model(x).detach()
    done = sc.proof.rescale_random_(model, x[:1], factors=(0.5, 2.0, 8.0), generator=generator)
    assert done.channels == 4
    torch.testing.assert_close(model(x).detach(), before)
