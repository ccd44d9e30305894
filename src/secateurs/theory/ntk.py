"""Sketching the linearised features of a network: Theorem 7.2 and the exact expectations behind it.

Source: Bar & Giryes (2023), section 7 and appendix B.6. f_lin(x) = J(θ)θ with J the Jacobian of all outputs on all
inputs; the mask is drawn by Algorithm 1 with p_k ∝ ‖J_(k)‖|θ_k|, J_(k) the k-th column.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, TheoryError
from secateurs.parameters import Where, prunable
from secateurs.theory.guarantee import check_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class NtkConstants:
    """The constants of Theorem 7.2: ‖J‖_F ≤ K and ‖J(θ)−J(θ')‖_F ≤ K‖θ−θ'‖ near θ0, radius constant R0, λ_min."""

    K: float
    R0: float
    lambda_min: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NtkSketch:
    """Exact expected squared errors of the masked linearised features; `energy` is ‖J(θ)θ‖².

    `expected` and `uniform` are for masks drawn by p and uniformly; `bound` is Theorem 7.2's, None without
    constants. `frobenius` = ‖J(θ0)‖_F, a lower bound on any valid K.
    """

    probabilities: dict[str, Tensor]
    expected: float
    uniform: float
    energy: float
    frobenius: float
    bound: float | None

    @property
    def relative(self) -> float:
        """Expected squared error over ‖J(θ)θ‖²; above 1, the zero mask is better."""
        return self.expected / self.energy if self.energy > 0 else math.inf


def ntk_sketch(
    model: nn.Module,
    x: Tensor,
    s: int,
    *,
    where: Where = None,
    trained: nn.Module | None = None,
    uniform: float = 0.0,
    constants: NtkConstants | None = None,
    chunk_size: int = 64,
) -> NtkSketch:
    """How well s random parameters carry the linearised features J(θ)θ of the model on x.

    The mask's probabilities come from the model (θ0); the error is that of `trained` (θt) with its own Jacobian,
    or of the model itself: E‖Jθ − J(θ⊙m)‖² = (1/s)Σ_k ‖J_(k)‖²θ_k²/p_k − (1/s)‖Jθ‖² (Lemma 4.3, exact).
    Modules run in evaluation mode; nothing of the model changes. J is never held whole: rows in chunks.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.constant_(model.weight, 1.0)
    >>> ntk_sketch(model, torch.eye(2), s=1).expected  # (1 + 1)² − 2
    2.0
    """
    if s < 1:
        raise ArgumentError(f"s = {s}: the number of draws must be at least 1.")
    if not 0 <= uniform <= 1:
        raise ArgumentError(f"uniform = {uniform:g} is not a share in [0, 1].")
    start = _linearise(model, x, where, chunk_size)
    end = start if trained is None else _linearise(trained, x, where, chunk_size)
    p = _mixed(start.scores, uniform)
    lost = (p == 0) & (end.scores > 0)
    if bool(lost.any()):
        raise TheoryError(
            f"{int(lost.sum())} parameters matter to the trained features and have probability 0: the mask is biased. "
            "Mix in uniform mass (uniform=0.1)."
        )
    first = float(torch.where(p > 0, end.scores.square() / p.clamp_min(1e-300), 0.0).sum())
    bound = None if constants is None else theorem_72(start.theta, start.columns, constants=constants, s=s)
    return NtkSketch(
        probabilities=_unflatten(p, start.shapes),
        expected=(first - end.energy) / s,
        uniform=(p.numel() * float(end.scores.square().sum()) - end.energy) / s,
        energy=end.energy,
        frobenius=float(start.columns.norm()),
        bound=bound,
    )


def theorem_72(theta: Tensor, columns: Tensor, *, constants: NtkConstants, s: int, as_printed: bool = False) -> float:
    """Theorem 7.2: E‖f_lin_t − J(θt)(θt⊙m)‖² ≤ (1/s) K³ ‖θ0‖₁ F(J) (‖θ0‖₁ + 9K²R0²F(θ0)/λ² + 6√d K R0/λ).

    F(A) = Σ_k 1/‖A_(k)‖ over the columns of J(θ0) (given by their norms, `columns`) and over the entries of θ0, with
    ‖θt − θ0‖ ≤ 3KR0/λ_min. Print has K⁴ for K² and K³ for K: larger, hence also valid, for K > 1 as it assumes;
    the proof needs the smaller powers only. Infinite F (a zero parameter, a dead column) raises.
    """
    check_positive(K=constants.K, R0=constants.R0, lambda_min=constants.lambda_min, s=s)
    theta, columns = theta.double().flatten(), columns.double().flatten()
    dead = {"theta_0": int((theta == 0).sum()), "J(theta_0)": int((columns == 0).sum())}
    if any(dead.values()):
        named = ", ".join(f"{n} zero entries or columns in {name}" for name, n in dead.items() if n)
        raise TheoryError(f"Theorem 7.2 divides by them: {named}. The bound is infinite; use the exact expectation.")
    if float(columns.norm()) > constants.K * (1 + 1e-6):
        raise TheoryError(
            f"K = {constants.K:g} is below ‖J(theta_0)‖_F = {float(columns.norm()):g}, which it must bound."
        )
    size, F_theta, F_J = float(theta.abs().sum()), float((1 / theta.abs()).sum()), float((1 / columns).sum())
    K, drift = constants.K, constants.R0 / constants.lambda_min
    extra = K**2 if as_printed else 1.0
    far = 9 * K**2 * extra * drift**2 * F_theta + 6 * math.sqrt(theta.numel()) * K * extra * drift
    return K**3 * size * F_J * (size + far) / s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Linear:
    """θ, the column norms ‖J_(k)‖ and ‖Jθ‖², flat over the chosen parameters."""

    theta: Tensor
    columns: Tensor
    energy: float
    shapes: dict[str, torch.Size]

    @property
    def scores(self) -> Tensor:
        return self.columns * self.theta.abs()


def _linearise(model: nn.Module, x: Tensor, where: Where, chunk_size: int) -> _Linear:
    chosen = {name: parameter.detach() for name, parameter in prunable(model, where).items()}
    theta = torch.cat([value.flatten() for value in chosen.values()]).double()
    squares, energy = torch.zeros_like(theta), 0.0
    for rows in _jacobian_rows(model, chosen, x, chunk_size):
        squares += rows.square().sum(0)
        energy += float((rows @ theta).square().sum())
    shapes = {name: value.shape for name, value in chosen.items()}
    return _Linear(theta=theta, columns=squares.sqrt(), energy=energy, shapes=shapes)


def _jacobian_rows(model: nn.Module, chosen: Mapping[str, Tensor], x: Tensor, chunk_size: int) -> Iterator[Tensor]:
    """Rows of J, a few outputs at a time, in double precision."""
    modes = {module: module.training for module in model.modules()}
    rest = {name: value.detach().clone() for name, value in (*model.named_parameters(), *model.named_buffers())}

    def output(parameters: Mapping[str, Tensor]) -> Tensor:
        result: Tensor = torch.func.functional_call(model, {**rest, **parameters}, (x,))
        return result.flatten()

    model.eval()
    try:
        values, pull = torch.func.vjp(output, dict(chosen))[:2]
        basis = torch.eye(values.numel(), dtype=values.dtype, device=values.device)
        for part in torch.split(basis, chunk_size):
            (grads,) = torch.func.vmap(pull)(part)
            yield torch.cat([grads[name].flatten(1) for name in chosen], 1).double()
    finally:
        for module, training in modes.items():
            module.training = training


def _mixed(scores: Tensor, uniform: float) -> Tensor:
    total = float(scores.sum())
    if not 0 < total < math.inf:
        raise TheoryError(f"the scores ‖J_(k)‖·|θ_k| sum to {total:g}: no probability can be formed.")
    return (1 - uniform) * scores / total + uniform / scores.numel()


def _unflatten(flat: Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    parts = torch.split(flat, [shape.numel() for shape in shapes.values()])
    return {name: part.reshape(shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}
