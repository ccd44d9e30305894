"""P*P of a circular convolution at every frequency, cheaply: few tables for the kernel, one real
matrix a frequency.

P(ω) = Σ_a K_a e^{−i⟨ω,a⟩} is a trigonometric polynomial with few coefficients, so P*P is one too:
P*P = Σ_l e^{−i⟨ω,l⟩} C_l over lags l between taps, C_l = Σ_{b−a=l} K_aᵀ K_b and C_{−l} = C_lᵀ. A
Hermitian R + iJ (R symmetric, J antisymmetric) is kept as the real matrix H = (R + J)/2, half of
its size: R = H + Hᵀ, J = H − Hᵀ. The sum is taken axis by axis as in a fast Fourier transform: the
last axis once for all frequencies of the others. 512 channels, 3×3, 32×32: 12 GFLOP for C, 3 for
all H; 584 for one product each.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateurs.theory.operator_norms.frequencies.lags import (
    autocorrelation,
    even_and_odd,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grams:
    """P*P on the half spectrum (the rest are conjugates), from tables C + Cᵀ and C − Cᵀ grouped by
    the leading lags.
    """

    size: tuple[int, ...]
    side: int
    leads: tuple[tuple[int, ...], ...]
    lasts: tuple[Tensor, ...]
    tables: tuple[Tensor, ...]

    @classmethod
    def of(cls, kernel: Tensor, size: Sequence[int]) -> "Grams":
        """Of a kernel (out, in, …) on maps of `size`."""
        groups: dict[tuple[int, ...], dict[int, Tensor]] = {}
        for lag, matrix in autocorrelation(kernel).items():
            # Grouped by leading lags, so that the sum over the last axis is shared by
            # all.
            groups.setdefault(lag[:-1], {})[lag[-1]] = matrix
        return cls(
            size=tuple(size),
            side=kernel.shape[1],
            leads=tuple(groups),
            # Angles in float64 although the tables are float32: a phase is a product of
            # an angle and a lag, and its error would be that of every entry.
            lasts=tuple(
                torch.tensor(list(group), dtype=torch.float64)
                for group in groups.values()
            ),
            tables=tuple(even_and_odd(group) for group in groups.values()),
        )

    def chunks(
        self, count: int, *, stride: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """(angles, H) of at most `count` frequencies at once; with a stride, of a coarse grid of
        them.
        """
        axes = [
            torch.arange(0, n, stride, dtype=torch.float64) * (2 * math.pi / n)
            for n in self.size
        ]
        points = (
            torch.cartesian_prod(*axes[:-1]).reshape(-1, len(axes) - 1)
            if axes[:-1]
            else torch.zeros(1, 0)
        )
        # Half of the last axis; the tolerance keeps the angle π itself when it is
        # rounded up.
        for lasts in torch.split(axes[-1][axes[-1] <= math.pi + _ROUNDING], _LASTS):
            for last, rows in zip(lasts, self._sum_last_axis(lasts), strict=True):
                for part in torch.split(points.double(), count):
                    angles = torch.cat((part, last.expand(len(part), 1)), dim=1)
                    yield angles, self._sum_leading_axes(part, rows)

    def _sum_last_axis(self, angles: Tensor) -> Tensor:
        """For each angle and leading lag a two rows: the factors of cos⟨ω,a⟩ and of sin⟨ω,a⟩ in
        H.
        """
        rows = []
        for last, table in zip(self.lasts, self.tables, strict=True):
            cos, sin = (angles[:, None] * last).cos(), (angles[:, None] * last).sin()
            factors = torch.stack(
                (torch.cat((cos, -sin), 1), torch.cat((-sin, -cos), 1)), dim=1
            ).to(table)
            rows.append((factors.flatten(0, 1) @ table).view(len(angles), 2, -1))
        return torch.cat(rows, dim=1)

    def _sum_leading_axes(self, points: Tensor, rows: Tensor) -> Tensor:
        angles = (
            points
            @ torch.tensor(self.leads, dtype=torch.float64)
            .reshape(len(self.leads), -1)
            .T
        )
        factors = torch.stack((angles.cos(), angles.sin()), dim=2).flatten(1)
        return (factors.to(rows) @ rows).view(-1, self.side, self.side)


_ROUNDING = 1e-9
_LASTS = 2
"""Angles of the last axis at once: products with two rows are slow, and large results cost page
faults.
"""
