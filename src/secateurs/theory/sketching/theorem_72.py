"""Theorem 7.2: what a mask drawn at initialisation loses of the trained network's features."""

import math
from dataclasses import dataclass

from torch import Tensor

from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory.checks import check_positive
from secateurs.theory.sketching.inputs import finite, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class NtkConstants:
    """The constants of Theorem 7.2: ‖J‖_F ≤ K and ‖J(θ)−J(θ')‖_F ≤ K‖θ−θ'‖ near θ0, radius constant
    R0, λ_min.
    """

    K: float
    R0: float
    lambda_min: float


def theorem_72(
    theta: Tensor,
    columns: Tensor,
    *,
    constants: NtkConstants,
    s: int,
    as_printed: bool = False,
) -> float:
    """Theorem 7.2: E‖f_lin_t − J(θt)(θt⊙m)‖² ≤ (1/s) K³ ‖θ0‖₁ F(J) (‖θ0‖₁ + 9K²R0²F(θ0)/λ² + 6√d K
    R0/λ).

    F(A) = Σ_k 1/‖A_(k)‖ over the columns of J(θ0) (given by their norms, `columns`) and over the
    entries of θ0, with ‖θt − θ0‖ ≤ 3KR0/λ_min. Print has K⁴ for K² and K³ for K: larger, hence also
    valid, for K > 1 as it assumes; the proof needs the smaller powers only. Infinite F (a zero
    parameter, a dead column) raises.
    """
    check_positive(K=constants.K, R0=constants.R0, lambda_min=constants.lambda_min)
    s, theta, columns = (
        whole("s", s),
        finite("theta", theta).flatten(),
        finite("columns", columns).flatten(),
    )
    _check_invertible(theta, columns, constants)
    size, F_theta, F_J = (
        float(theta.abs().sum()),
        float((1 / theta.abs()).sum()),
        float((1 / columns).sum()),
    )
    K, drift = constants.K, constants.R0 / constants.lambda_min
    # Print has K⁴ and K³ where the proof gives K² and K (docs/errata.md).
    extra = K**2 if as_printed else 1.0
    far = (
        9 * K**2 * extra * drift**2 * F_theta
        + 6 * math.sqrt(theta.numel()) * K * extra * drift
    )
    return K**3 * size * F_J * (size + far) / s


def _check_invertible(
    theta: Tensor, columns: Tensor, constants: NtkConstants
) -> None:
    """One column norm per parameter, none of either zero, and a K that holds for them."""
    if len(theta) != len(columns):
        raise ArgumentError(
            f"theta has {len(theta)} entries, columns {len(columns)}: give one norm per parameter."
        )
    dead = {
        "theta_0": int((theta == 0).sum()),
        "J(theta_0)": int((columns == 0).sum()),
    }
    if any(dead.values()):
        named = ", ".join(
            f"{n} zero entries or columns in {name}" for name, n in dead.items() if n
        )
        raise TheoryError(
            f"Theorem 7.2 divides by them: {named}. The bound is infinite; use the exact"
            " expectation."
        )
    # A tiny slack: K may have been taken from this very norm, printed with few digits.
    if float(columns.norm()) > constants.K * (1 + 1e-6):
        raise TheoryError(
            f"K = {constants.K:g} is below ‖J(theta_0)‖_F = {float(columns.norm()):g}, which it"
            " must bound."
        )
