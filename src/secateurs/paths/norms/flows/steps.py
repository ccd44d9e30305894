"""What one node leaves on the tape, and the mass that is read off it."""

from dataclasses import dataclass

from torch import Tensor

from secateurs.paths.norms.scaled import Scaled


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One node on the tape: leaves, result, and the exponents that the mantissas leave out."""

    result: Tensor | None
    leaves: tuple[Tensor, ...]
    shifts: tuple[int, ...]
    names: tuple[str, ...]
    weight: Scaled | None = None
    bias: Scaled | None = None
    x_exponent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mass:
    """The mass of one affine node: what flows through its weights, what starts in its biases."""

    weight: Scaled | None
    bias: Scaled | None
    bias_gradient: Scaled | None
