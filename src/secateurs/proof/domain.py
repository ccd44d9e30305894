"""The set of inputs that a certificate is about: one or more boxes, all with the shape of one model
input.
"""

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from secateurs.errors import ArgumentError, DomainError

BoxEnds: TypeAlias = tuple[Tensor | float, Tensor | float]
"""(lo, hi): tensors with the batch dimension of a model's input, or numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Boxes lo ≤ x ≤ hi in float64, batched: box i is `lo[i]`, `hi[i]`.

    Attributes:
        lo, hi: Both ends of every box.
        center: The centres; for balls, the inputs they were put around.
        radius: That of the balls; None if the boxes are not balls.
        description: In words.
        clip: The range of valid inputs that balls were cut to, None for none.
    """

    lo: Tensor
    hi: Tensor
    center: Tensor
    radius: float | None
    description: str
    clip: tuple[float, float] | None = None

    def __len__(self) -> int:
        return len(self.lo)

    def __getitem__(self, index: slice | Tensor) -> "Domain":
        """Some of the boxes."""
        ends = {name: getattr(self, name)[index] for name in ("lo", "hi", "center")}
        return replace(self, **ends)

    def to(self, device: torch.device) -> "Domain":
        """The same boxes on another device."""
        ends = {name: getattr(self, name).to(device) for name in ("lo", "hi", "center")}
        return replace(self, **ends)

    def split(self, size: int) -> list["Domain"]:
        """The boxes in parts of at most this many."""
        return [self[i : i + size] for i in range(0, len(self), size)]

    @property
    def magnitude(self) -> Tensor:
        """The largest |x| of each coordinate of each box."""
        return torch.maximum(self.lo.abs(), self.hi.abs())

    @property
    def widths(self) -> Tensor:
        """Half the width of each coordinate of each box."""
        return (self.hi - self.lo) / 2

    @property
    def example(self) -> Tensor:
        """One input of the models, with its batch dimension of one."""
        return self.center[:1]

    def contains(self, x: Tensor) -> Tensor:
        """Which of these inputs lie in some box, without any tolerance."""
        rows = []
        # Point by point: all points against all boxes at once may not fit in memory.
        for point in x.double().unsqueeze(1):
            # The closed box, without any tolerance, since the proof says nothing about a point
            # outside it.
            inside = (point >= self.lo) & (point <= self.hi)
            rows.append(inside.flatten(1).all(dim=1).any())
        return torch.stack(rows)


def box_domain(box: BoxEnds, *, example: Tensor | None = None) -> Domain:
    """The box lo ≤ x ≤ hi; numbers need an example, which gives their shape."""
    if not isinstance(box, (tuple, list)) or len(box) != 2:
        raise DomainError(
            f"box is {type(box).__name__}; give a pair (lo, hi) of tensors or numbers."
        )
    lo, hi = (_bound(end, side, example) for end, side in zip(box, ("lo", "hi"), strict=True))
    lo, hi = _common_shape(lo, hi, example)
    _check_order(lo, hi)
    return Domain(
        lo=lo,
        hi=hi,
        center=(lo + hi) / 2,
        radius=None,
        description=_describe_box(lo, hi),
    )


def ball_domain(
    around: Any, radius: float | None, *, clip: tuple[float, float] | None = None
) -> Domain:
    """The ℓ∞-balls of one radius around the inputs of a batch, cut to the valid range `clip`, if
    given.
    """
    if not isinstance(around, Tensor):
        raise DomainError(
            f"around is {type(around).__name__}; give a tensor, one model input per row."
        )
    radius = check_radius(radius)
    center = _check_tensor(around.unsqueeze(0) if around.ndim == 1 else around, "around")
    lo, hi = center - radius, center + radius
    if clip is not None:
        low, high = _check_clip(clip, center)
        lo, hi = lo.clamp(low, high), hi.clamp(low, high)
    cut = "" if clip is None else f", cut to [{clip[0]:g}, {clip[1]:g}]"
    many = f"{len(center)} ℓ∞-balls" if len(center) > 1 else "ℓ∞-ball"
    return Domain(
        lo=lo,
        hi=hi,
        center=center,
        radius=radius,
        description=f"{many} of radius {radius:g}{cut}",
        clip=None if clip is None else (low, high),
    )


def check_radius(radius: float | None) -> float:
    """The radius as a number ≥ 0, or a DomainError."""
    if radius is None:
        raise DomainError(
            "around= needs radius=: the half width of the ball, in the units of the input."
        )
    value = float(radius)
    # This form also refuses NaN.
    if not 0 <= value < float("inf"):
        raise DomainError(f"radius={radius!r}: a radius is a finite number ≥ 0.")
    return value


def _bound(end: Any, side: str, example: Tensor | None) -> Tensor:
    if isinstance(end, Tensor) and end.ndim:
        return _check_tensor(
            end.unsqueeze(0)
            # A single dimension means one input without its batch, unless the example has one as
            # well.
            if end.ndim == 1 and (example is None or example.ndim > 1)
            else end,
            side,
        )
    if not isinstance(end, (int, float, Tensor)):
        raise DomainError(f"{side} is {type(end).__name__}; give a tensor or a number.")
    if example is None:
        raise ArgumentError(
            f"{side}={float(end):g} is a number: give example=, one model input, to say its shape."
        )
    return _check_tensor(torch.full_like(example[:1], float(end), dtype=torch.float64), side)


def _common_shape(lo: Tensor, hi: Tensor, example: Tensor | None) -> tuple[Tensor, Tensor]:
    """A common shape; the batch dimension may be missing if an example has it."""
    if example is not None:
        lo, hi = (end.unsqueeze(0) if end.shape == example.shape[1:] else end for end in (lo, hi))
    if lo.shape != hi.shape:
        raise DomainError(
            f"lo has shape {tuple(lo.shape)} and hi {tuple(hi.shape)}; they must have the same "
            "shape."
        )
    if example is not None and lo.shape[1:] != example.shape[1:]:
        raise DomainError(
            f"the box has shape {tuple(lo.shape)}, but the example has {tuple(example.shape)}."
        )
    return lo, hi


def _check_order(lo: Tensor, hi: Tensor) -> None:
    wrong = (lo > hi).nonzero()
    if len(wrong):
        place = tuple(wrong[0].tolist())
        raise DomainError(
            f"lo > hi at {len(wrong)} coordinates, first at {place}: {float(lo[place]):g} >"
            f" {float(hi[place]):g}. Give the smaller bound first."
        )


def _check_tensor(x: Tensor, name: str) -> Tensor:
    if x.is_complex() or x.is_meta:
        raise DomainError(
            f"{name} is a tensor of {x.dtype} on {x.device}; give a real-valued tensor that holds "
            "its values."
        )
    if not bool(x.isfinite().all()):
        raise DomainError(f"{name} holds NaN or infinity; an input domain must be bounded.")
    if not x.numel():
        raise DomainError(f"{name} has shape {tuple(x.shape)}, so it holds no input.")
    # float64 from here on, which represents every float32 input exactly.
    return x.detach().double()


def _check_clip(clip: tuple[float, float], center: Tensor) -> tuple[float, float]:
    low, high = (float(end) for end in clip)
    if not low <= high:
        raise DomainError(f"clip=({low:g}, {high:g}): give the smaller bound first.")
    # Cutting a ball whose centre is outside could leave it empty.
    if bool(((center < low) | (center > high)).any()):
        raise DomainError(
            f"around has values outside clip=({low:g}, {high:g}), the range of valid inputs."
        )
    return low, high


def _describe_box(lo: Tensor, hi: Tensor) -> str:
    many = f"{len(lo)} boxes" if len(lo) > 1 else "box"
    return f"{many} within [{float(lo.min()):g}, {float(hi.max()):g}]"
