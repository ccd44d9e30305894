"""Random convolutions, and the dense matrix of the map."""

import torch
from torch.nn import functional as F

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def dense(weight, size, *, padding, stride=1, dilation=1, groups=1):
    """The matrix of the map, one basis vector at a time: the independent oracle."""
    channels = weight.shape[1] * groups
    basis = torch.eye(channels * int(torch.tensor(size).prod()), dtype=torch.float64).reshape(
        -1, channels, *size
    )
    reach = [dilation * (k - 1) for k in weight.shape[2:]]
    if padding == "circular":
        basis = F.pad(basis, [side for r in reversed(reach) for side in (0, r)], mode="circular")
        pad = 0
    else:
        pad = [r // 2 for r in reach] if padding == "zeros" else padding
    conv = CONV[len(size)]
    return (
        conv(
            basis,
            weight.double(),
            stride=stride,
            padding=pad,
            dilation=dilation,
            groups=groups,
        )
        .flatten(1)
        .T
    )


def draw(index):
    """The index-th of 200 convolutions: shapes, strides, dilations, groups and paddings in turn."""
    g = torch.Generator().manual_seed(index)

    def pick(*values):
        return values[int(torch.randint(len(values), (), generator=g))]

    groups, stride, dilation = pick(1, 1, 2), pick(1, 1, 2), pick(1, 1, 2)
    kernel, size = (
        pick((3, 3), (1, 1), (2, 2), (3, 2), (5, 5), (3,), (2, 2, 2)),
        pick(4, 5, 6),
    )
    size = [max(size, dilation * (k - 1) + 1) for k in kernel] if len(kernel) < 3 else [3, 3, 4]
    weight = torch.randn(
        groups * pick(1, 2, 3), pick(1, 2), *kernel, generator=g, dtype=torch.float64
    )
    odd = all(k % 2 for k in kernel)
    padding = pick("circular", "circular", "zeros" if odd else 1, 0)
    return (
        weight,
        size,
        {
            "padding": padding,
            "stride": stride,
            "dilation": dilation,
            "groups": groups,
        },
    )
