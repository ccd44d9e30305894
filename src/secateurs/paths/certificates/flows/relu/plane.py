"""A plane over a pre-activation and its difference, and the planes around one ReLU."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """The function p·z + q·δ + c, per neuron."""

    p: Tensor
    q: Tensor
    c: Tensor

    def at(self, z: Tensor, d: Tensor) -> Tensor:
        """Its value."""
        return self.p * z + self.q * d + self.c

    def leaky(self, slope: float, *, difference: bool) -> "Plane":
        """The plane for slope·z + (1 − slope)·relu(z), or for the difference of two of these; needs
        slope ≤ 1.
        """
        rest = 1 - slope
        if difference:
            return Plane(p=rest * self.p, q=slope + rest * self.q, c=rest * self.c)
        return Plane(p=slope + rest * self.p, q=rest * self.q, c=rest * self.c)


def relu_above(l: Tensor, h: Tensor) -> Plane:
    """The chord: relu(z) ≤ h(z − l)/(h − l) on an unstable neuron; exact on a stable one."""
    zero = torch.zeros_like(l)
    slope = torch.where(
        l >= 0, torch.ones_like(l), torch.where(h <= 0, zero, share(h, h - l))
    )
    return Plane(p=slope, q=zero, c=torch.where((l < 0) & (h > 0), -slope * l, zero))


def relu_below(l: Tensor, h: Tensor) -> Plane:
    """relu(z) ≥ z or ≥ 0, whichever loses less area; exact on a stable neuron."""
    zero = torch.zeros_like(l)
    # The area lost is l²/2 above z and h²/2 above 0; a tie takes 0.
    return Plane(p=(h > -l).to(l.dtype), q=zero, c=zero)


def share(part: Tensor, whole: Tensor) -> Tensor:
    """part/whole where whole > 0, else 0."""
    return torch.where(
        whole > 0,
        # `where` computes both sides; the clamp keeps a division by 0 out of the tape.
        part / whole.clamp(min=torch.finfo(whole.dtype).tiny),
        torch.zeros_like(part),
    )
