"""Random small networks of every shape compaction has to follow, with random filters, entries and
norms zeroed."""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KINDS = (
    "plain",
    "residual",
    "dense",
    "u-shaped",
    "grouped",
    "depthwise",
    "shared",
    "linear",
)


def pick(g: torch.Generator, *choices):
    return choices[int(torch.randint(len(choices), (), generator=g))]


class Layer(nn.Module):
    """A convolution with or without bias, norm, activation; every border and size."""

    def __init__(
        self,
        inp: int,
        out: int,
        g: torch.Generator,
        *,
        groups: int = 1,
        stride: int = 1,
    ) -> None:
        super().__init__()
        kernel = pick(g, 1, 3, 3, 5)
        mode = pick(g, "zeros", "zeros", "zeros", "reflect", "circular")
        bias = pick(g, True, False)
        options = {
            "padding": kernel // 2,
            "stride": stride,
            "groups": groups,
            "bias": bias,
        }
        self.conv = nn.Conv2d(
            inp, out, kernel, padding_mode=mode if kernel < 5 else "zeros", **options
        )
        self.norm = pick(g, nn.BatchNorm2d, nn.BatchNorm2d, nn.Identity)(out)
        self.act = pick(g, nn.ReLU(), nn.ReLU(inplace=True), nn.LeakyReLU(0.1), nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


class Net(nn.Module):
    def __init__(self, kind: str, g: torch.Generator) -> None:
        super().__init__()
        self.kind = kind
        self.width = width = pick(g, 4, 6, 8)
        groups = {"grouped": 2, "depthwise": width}.get(kind, 1)
        self.stem = Layer(2, width, g)
        wide = 2 * width if kind == "dense" else width
        self.one = Layer(width, width, g, groups=groups)
        self.two = (
            self.one
            if kind == "shared"
            else Layer(wide, width, g, groups=groups if kind != "dense" else 1)
        )
        self.down, self.up = (
            nn.AvgPool2d(2, ceil_mode=True),
            nn.ConvTranspose2d(width, width, 2, 2),
        )
        self.three = Layer({"dense": 3, "u-shaped": 2}.get(kind, 1) * width, width, g)
        self.pool = pick(
            g,
            nn.MaxPool2d(2),
            nn.AvgPool2d(3, 1, 1),
            nn.MaxPool2d(3, 2, 1),
            nn.Identity(),
        )
        self.flat = pick(g, True, False)
        self.head: nn.Module = nn.Linear(width, 3)
        if self.flat:
            self.head = nn.Sequential(nn.Linear(width * 16, 7), nn.ReLU(), nn.Linear(7, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if self.kind == "residual":
            x = F.relu(x + self.one(x))
            x = x + self.two(x)
        elif self.kind == "dense":
            y = torch.cat([x, self.one(x)], 1)
            x = torch.cat([y, self.two(y)], 1)
        elif self.kind == "u-shaped":
            deep = self.up(self.two(self.one(self.down(x))))
            x = torch.cat([x, deep[:, :, : x.shape[2], : x.shape[3]]], 1)
        else:
            x = self.two(self.one(x))
        x = self.pool(self.three(x))
        x = F.adaptive_avg_pool2d(x, 4).flatten(1) if self.flat else x.mean((2, 3))
        return self.head(x)


def linear(g: torch.Generator) -> nn.Module:
    sizes = [5, *[pick(g, 3, 6, 9) for _ in range(pick(g, 1, 2, 3))], 2]
    layers: list[nn.Module] = []
    for inp, out in itertools.pairwise(sizes):
        layers += [
            nn.Linear(inp, out, bias=pick(g, True, False)),
            pick(g, nn.ReLU(), nn.BatchNorm1d(out), nn.Identity()),
        ]
    return nn.Sequential(*layers)


def random_net(seed: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A net, an input, and an input of another resolution; some channels are dead in one of many
    ways."""
    g = torch.Generator().manual_seed(seed)
    kind = KINDS[seed % len(KINDS)]
    net = (linear(g) if kind == "linear" else Net(kind, g)).double().eval()
    shape = (2, 5) if kind == "linear" else (2, 2, pick(g, 8, 9, 11), 8)
    other = shape if kind == "linear" else (2, 2, 12, 17)
    spoil(net, g)
    draw = lambda size: torch.randn(size, generator=g, dtype=torch.float64)  # noqa: E731
    return net, draw(shape), draw(other)


@torch.no_grad()
def spoil(net: nn.Module, g: torch.Generator, share: float | None = None) -> None:
    """Random values; filters, input columns and entries zeroed; γ = 0 with β ≠ 0; some biases
    zero."""
    share = pick(g, 0.2, 0.4, 0.7) if share is None else share
    for module in net.modules():
        for name, tensor in [
            *module.named_parameters(recurse=False),
            *module.named_buffers(recurse=False),
        ]:
            if not tensor.is_floating_point():
                continue
            noise = torch.randn(tensor.shape, generator=g, dtype=torch.float64)
            tensor.copy_(
                noise.abs() + 0.5
                if name == "running_var"
                else noise / max(1, tensor[0].numel()) ** 0.5
            )
            gone = lambda size: torch.rand(size, generator=g) < share  # noqa: E731
            if tensor.ndim > 1:
                way = pick(g, "rows", "columns", "entries", "rows", "rows and columns")
                if "rows" in way:
                    tensor[gone(tensor.shape[0])] = 0
                if "columns" in way:
                    tensor[:, gone(tensor.shape[1])] = 0
                if way == "entries":
                    tensor[gone(tensor.shape)] = 0
            elif name == "weight":
                tensor[gone(tensor.shape) & gone(tensor.shape)] = 0
            elif name == "bias":
                tensor[gone(tensor.shape)] = 0
