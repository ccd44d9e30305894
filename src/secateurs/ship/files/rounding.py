"""Values stored in fewer bits than they have, and what that does to the function."""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, SecateursError
from secateurs.paths import certify
from secateurs.ship.files.line import ROUNDED

VALUES = ("exact", *ROUNDED)
"""How `save_sparse` can store values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounded:
    """A tensor as it is stored, with its scales per row ("int8" only), and as it will be read."""

    stored: Tensor
    scales: Tensor | None
    restored: Tensor


def rounded(name: str, tensor: Tensor, values: str) -> Rounded | None:
    """A weight in fewer bits; None where it stays exact: biases, norms, integers, and what is as
    short already.

    "bf16" and "fp16" round to nearest, ties to even. "int8" stores w ≈ s·q with q in −127…127 and
    one float32 scale s = max|w| / 127 per row, a row being an output of the layer.
    """
    if (
        values == "exact"
        or tensor.ndim < 2
        or not tensor.is_floating_point()
        or not tensor.numel()
        # As short already. Float8 comes no further: torch cannot even ask whether it is finite.
        or tensor.element_size() <= (1 if values == "int8" else 2)
    ):
        return None
    # The extremes stand for all: they are NaN if any number is, and cost a fifth of asking each.
    extremes = torch.stack(torch.aminmax(tensor))
    if not bool(torch.isfinite(extremes).all()):
        raise ArgumentError(
            f"{name!r} has values that are not finite: save it with values='exact'."
        )
    if values == "int8":
        return _int8(tensor)
    short = torch.bfloat16 if values == "bf16" else torch.float16
    # Rounding keeps the order: if the extremes stay finite, all do.
    if not bool(torch.isfinite(extremes.to(short)).all()):
        raise ArgumentError(
            f"{name!r} has values up to {float(tensor.abs().max()):.3g}, too large for {values}: "
            "use values='bf16'."
        )
    stored = tensor.to(short)
    return Rounded(stored=stored, scales=None, restored=stored.to(tensor.dtype))


def spread(stored: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """s·q per row, in float32, as the dtype of the tensor."""
    return (stored.float() * scales.view(-1, *[1] * (stored.ndim - 1))).to(dtype)


def _int8(tensor: Tensor) -> Rounded:
    rows = tensor.float().flatten(1)
    scales = rows.abs().amax(dim=1) / 127
    # A row of zeros: any scale will do, but none that divides by zero.
    scales[scales == 0] = 1.0
    if _rounded_before(rows, scales):
        scales = _same_again(rows, scales, tensor.dtype)
    stored = _nearest(rows, scales).to(torch.int8).view(tensor.shape)
    return Rounded(
        stored=stored, scales=scales, restored=spread(stored, scales, tensor.dtype)
    )


def _nearest(rows: Tensor, scales: Tensor) -> Tensor:
    return (rows / scales[:, None]).round().clamp(-127, 127)


def _rounded_before(rows: Tensor, scales: Tensor) -> bool:
    """Whether these are weights that were read from such a file, as far as their quotients tell.

    They are to come back as they are, but the largest of a row is 127 times a scale that dividing
    by 127 need not give back.
    """
    # A few rows tell nearly always that they are not, for a thousandth of the time.
    for part in (slice(0, 16), slice(None)):
        quotients = rows[part] / scales[part, None]
        if not bool((quotients - quotients.round()).abs_().max() < 1e-3):
            return False
    return True


def _same_again(rows: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Of each scale and its neighbours the one that gives a row back, where one does."""
    best = scales
    wanted = rows.to(dtype)
    open_ = (spread(_nearest(rows, scales), scales, dtype) != wanted).any(dim=1)
    for end in (torch.inf, -torch.inf):
        other = torch.nextafter(scales, torch.full_like(scales, end))
        again = (spread(_nearest(rows, other), other, dtype) == wanted).all(dim=1)
        best = torch.where(open_ & again, other, best)
    return best


def what_changed(
    model: nn.Module | Mapping[str, Tensor],
    changed: Mapping[str, tuple[Tensor, Tensor]],
    *,
    values: str,
    example: Tensor | None,
    radius: float | None,
) -> dict[str, Any]:
    """The largest change of a weight; with a model and inputs, a certificate of the change of the
    outputs."""
    differences = {name: _largest_change(a, b) for name, (a, b) in changed.items()}
    worst = max(differences, key=lambda name: differences[name], default="")
    facts: dict[str, Any] = {"values": values, "tensors": len(changed)}
    facts |= {
        "largest_change": differences.get(worst, 0.0),
        "in": worst,
        "certificate": None,
    }
    if isinstance(model, nn.Module) and example is not None:
        facts |= _certified(
            model, {name: b for name, (_, b) in changed.items()}, example, radius
        )
    return facts


def _largest_change(before: Tensor, after: Tensor) -> float:
    # A number and its rounding are within a factor of two of each other, or the rounding is zero:
    # their difference is exact in their own dtype (Sterbenz), which saves two copies in float64.
    if before.element_size() < 4:
        before, after = before.double(), after.double()
    return float((before - after).abs_().max())


def _certified(
    model: nn.Module,
    restored: Mapping[str, Tensor],
    example: Tensor,
    radius: float | None,
) -> dict[str, Any]:
    """With a radius for every input of the balls, without one for these inputs and, by counting,
    for fresh ones."""
    other = deepcopy(model).eval()
    named = dict(other.named_parameters(remove_duplicate=False)) | dict(
        other.named_buffers()
    )
    with torch.no_grad():
        for name, value in restored.items():
            named[name].copy_(value)
    region: dict[str, Any] = (
        {"data": example} if radius is None else {"around": example, "radius": radius}
    )
    try:
        proven = certify(deepcopy(model).eval(), other, **region)
    except SecateursError as error:
        # The file is right all the same: say what is not known and why.
        return {"not_certified": str(error)}
    return {"certificate": json.loads(proven.to_json(boxes=False))}
