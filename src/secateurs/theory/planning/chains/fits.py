"""Whether a layer looks like what a theorem assumes of it; that its entries are independent cannot
be seen in it.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

FAR = 6.0
"""Standard errors that the mean of entries of mean zero exceeds with chance about 10⁻⁹."""
CLOSE = 0.02
"""A distance to the uniform law up to this is close enough to speak of uniform entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How well the entries of a matrix fit the laws that the theorems assume.

    Attributes:
        mean_z: The mean in standard errors.
        uniform: The Kolmogorov–Smirnov distance to the uniform law on ±max|w|.
        normal: The distance to the normal law of mean 0 and their root mean square.
        noise: The distance that uniform entries themselves exceed with chance below 10⁻⁶.
    """

    mean_z: float
    uniform: float
    normal: float
    noise: float

    def misfit(self, law: str) -> str | None:
        """What speaks against the law, in words."""
        if abs(self.mean_z) > FAR:
            return f"its mean is {self.mean_z:.1f} standard errors from zero"
        distance = {"uniform": self.uniform, "normal": self.normal}.get(law)
        if distance is not None and distance > CLOSE + self.noise:
            return f"its entries are not {law} (Kolmogorov–Smirnov distance {distance:.3f})"
        return None


def fit_of(weight: Tensor) -> Fit:
    """The fit of one layer's entries.

    >>> fit_of(torch.linspace(-1, 1, 1001).view(7, 143)).misfit("uniform") is None
    True
    """
    values = weight.detach().double().flatten().sort().values
    # `or 1.0`: a layer of zeros is divided by 1.
    count, half = values.numel(), float(values.abs().max()) or 1.0
    ranks = torch.arange(count + 1, dtype=torch.float64, device=values.device) / count
    root = float(values.square().mean().sqrt()) or 1.0

    def distance(law: Tensor) -> float:
        return float(
            # The empirical law jumps at each entry: both sides of the jump are
            # compared.
            torch.maximum((ranks[1:] - law).abs(), (law - ranks[:-1]).abs()).max()
        )

    spread = float(values.std(correction=0)) / math.sqrt(count)
    return Fit(
        mean_z=float(values.mean()) / spread if spread > 0 else 0.0,
        uniform=distance((values / half + 1) / 2),
        normal=distance(torch.special.ndtr(values / root)),
        # Dvoretzky–Kiefer–Wolfowitz: P(sup|F_n − F| > t) ≤ 2e^{−2nt²}.
        noise=math.sqrt(math.log(2e6) / (2 * count)),
    )
