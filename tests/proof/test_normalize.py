"""A tied channel is normalised where it begins."""

import torch
from torch import nn

import secateurs as sc
from channels.neurons import into
from secateurs.proof.scaling import coupling


class Stages(nn.Module):
    """Two stages of residual blocks; the second begins with a shortcut that has weights."""

    def __init__(self):
        super().__init__()
        sizes = {"stem": (2, 2), "a": (2, 3), "b": (3, 2), "c": (2, 2), "d": (2, 3)}
        sizes |= {"short": (2, 3), "e": (3, 2), "f": (2, 3), "out": (3, 1)}
        for name, size in sizes.items():
            setattr(self, name, nn.Linear(*size))

    def forward(self, x):
        x = self.stem(x).relu()
        x = (x + self.b(self.a(x).relu())).relu()
        x = (self.short(x) + self.d(self.c(x).relu())).relu()
        x = (x + self.f(self.e(x).relu())).relu()
        return self.out(x)


def test_a_tied_channel_is_normalised_where_it_begins_and_cannot_be_later(generator):
    model, x = Stages().double(), torch.ones(1, 2, dtype=torch.float64)
    before, phi = model(x).detach(), sc.paths.lifting(model, x).phi
    found = sc.normalize_(model, x)
    # a, c, e have scales of their own; stem and short + d are where the tied channels begin.
    assert found.channels == 3 + 2 + 2 + 2 + 3
    assert found.left == 2 + 3 + 1  # b, f and the output
    for names in ("a",), ("c",), ("e",), ("stem",), ("short", "d"):
        norm = into(*(getattr(model, name) for name in names))
        torch.testing.assert_close(norm, torch.ones_like(norm))
    torch.testing.assert_close(model(x).detach(), before)
    torch.testing.assert_close(sc.paths.lifting(model, x).phi, phi)
    # The neurons behind b and f have an edge of weight 1 beside those of b and f. A rescaling of
    # the whole network leaves that edge alone: their norms stay above 1 whatever the scales are.
    for _ in range(5):
        assert float((1 + into(model.b)).min()) > 1
        assert float((1 + into(model.f)).min()) > 1
        sc.proof.rescale_random_(model, x, factors=(0.5, 3.0, 1e-3), generator=generator)
        torch.testing.assert_close(model(x).detach(), before)
        ours = coupling(sc.capture(model, x))
        skips = [u for u in ours.uses if u.weight.direct in ("b.weight", "f.weight")]
        starts = [u for u in ours.uses if u.weight.direct in ("stem.weight", "d.weight")]
        for later, first in zip(skips, starts, strict=True):
            assert torch.equal(ours.root_of(later.out), ours.root_of(first.out))
