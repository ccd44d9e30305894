"""What is known of a pair of pre-activations: ends of both, and of their difference."""

from dataclasses import dataclass

import torch
from torch import Tensor

FIELDS = ("l", "h", "gl", "gh", "dl", "dh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What is known of a pair of pre-activations: l ≤ z ≤ h, gl ≤ z' ≤ gh, dl ≤ z − z' ≤ dh."""

    l: Tensor
    h: Tensor
    gl: Tensor
    gh: Tensor
    dl: Tensor
    dh: Tensor

    def exchanged(self) -> "Bounds":
        """The same knowledge with the two networks exchanged."""
        return Bounds(
            l=self.gl, h=self.gh, gl=self.l, gh=self.h, dl=-self.dh, dh=-self.dl
        )

    def meet(self, other: "Bounds") -> "Bounds":
        """What follows from both, made consistent: each of z, z', δ also bounds the third."""
        lower = [
            torch.maximum(getattr(self, k), getattr(other, k))
            for k in ("l", "gl", "dl")
        ]
        upper = [
            torch.minimum(getattr(self, k), getattr(other, k))
            for k in ("h", "gh", "dh")
        ]
        return Bounds(
            l=lower[0], h=upper[0], gl=lower[1], gh=upper[1], dl=lower[2], dh=upper[2]
        ).consistent()

    def consistent(self) -> "Bounds":
        """δ = z − z' used in all three directions."""
        # All three right sides use the old ends: each line is sound alone, and so is
        # their meet.
        l, h = (
            torch.maximum(self.l, self.gl + self.dl),
            torch.minimum(self.h, self.gh + self.dh),
        )
        gl, gh = (
            torch.maximum(self.gl, self.l - self.dh),
            torch.minimum(self.gh, self.h - self.dl),
        )
        dl, dh = (
            torch.maximum(self.dl, self.l - self.gh),
            torch.minimum(self.dh, self.h - self.gl),
        )
        return Bounds(l=l, h=h, gl=gl, gh=gh, dl=dl, dh=dh)

    def flattened(self) -> "Bounds":
        """One row per box."""
        return Bounds(**{k: getattr(self, k).flatten(1) for k in FIELDS})

    def reshaped(self, shape: torch.Size) -> "Bounds":
        """In another shape."""
        return Bounds(**{k: getattr(self, k).reshape(shape) for k in FIELDS})

    def at(self, box: Tensor, neuron: Tensor) -> "Bounds":
        """Those of some neurons of some boxes; of flat bounds."""
        return Bounds(**{k: getattr(self, k)[box, neuron] for k in FIELDS})

    def replaced(self, box: Tensor, neuron: Tensor, new: "Bounds") -> "Bounds":
        """With those of some neurons of some boxes exchanged; of flat bounds."""
        return Bounds(
            **{
                k: getattr(self, k).index_put((box, neuron), getattr(new, k))
                for k in FIELDS
            }
        )

    @property
    def sizes(self) -> tuple[Tensor, Tensor, Tensor]:
        """The largest |z|, |z'| and |δ|."""
        return (
            torch.maximum(self.l.abs(), self.h.abs()),
            torch.maximum(self.gl.abs(), self.gh.abs()),
            torch.maximum(self.dl.abs(), self.dh.abs()),
        )

    @property
    def settled(self) -> Tensor:
        """Where both networks' neurons keep one sign: nothing is lost there."""
        return ((self.l >= 0) | (self.h <= 0)) & ((self.gl >= 0) | (self.gh <= 0))

    @property
    def largest(self) -> Tensor:
        """The largest |δ|."""
        return torch.maximum(self.dh, -self.dl)
