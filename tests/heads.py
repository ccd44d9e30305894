"""A network with sizes in attributes and blocks in lists, as transformers are written."""

from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class Config:
    """The two things of a configuration that count blocks."""

    num_hidden_layers: int = 4
    layer_types: list[str] = field(default_factory=lambda: ["a", "b", "c", "d"])

    def to_dict(self):
        return vars(self)


class Attention(nn.Module):
    """Heads counted by an attribute."""

    def __init__(self, width, index):
        super().__init__()
        self.num_heads, self.split_size, self.layer_idx = 4, width, index
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, steps, _ = x.shape
        parts = self.qkv(x).split(self.split_size, dim=2)
        q, k, v = (p.view(batch, steps, self.num_heads, -1).transpose(1, 2) for p in parts)
        weights = torch.softmax(q @ k.transpose(2, 3), -1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, steps, -1))


class Heads(nn.Module):
    """Blocks of attention and a head; `config` says how many blocks there are."""

    def __init__(self, config=None, width=8):
        super().__init__()
        self.config = config or Config()
        self.into = nn.Linear(3, width)
        self.blocks = nn.ModuleList(
            Attention(width, index) for index in range(self.config.num_hidden_layers)
        )
        self.out = nn.Linear(width, 2)

    def forward(self, x):
        x = self.into(x)
        for block in self.blocks[: self.config.num_hidden_layers]:
            x = x + block(x)
        return self.out(x)
