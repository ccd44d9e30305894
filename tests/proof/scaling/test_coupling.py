"""Which channels are tied."""

import torch
from torch import nn

import secateurs as sc
from architectures import build


def test_all_hidden_channels_of_a_plain_net_are_free_and_skip_connections_tie(
    generator,
):
    plain, x = (
        nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)),
        torch.zeros(1, 3),
    )
    assert sc.proof.rescale_random_(plain, x, generator=generator).channels == 9
    model, inputs = build("resnet18")
    free = sc.proof.rescale_random_(model, inputs, generator=generator).channels
    # Inner channels of blocks, and each stage's stream.
    assert free == 2 * (64 + 128 + 256 + 512) + 64 + 128 + 256 + 512
