"""Sketching the linearised features of a network: Theorem 7.2 and the exact expectations behind it.

Source: Bar & Giryes (2023), section 7 and appendix B.6. f_lin(x) = J(θ)θ with J the Jacobian of all
outputs on all inputs; the mask is drawn by Algorithm 1 with p_k ∝ ‖J_(k)‖|θ_k|, J_(k) the k-th
column.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateurs.naming import renamed
from secateurs.parameters import Where
from secateurs.theory.sketching.drawing import (
    check_drawn,
    chosen_parameters,
    mixed,
    unflatten,
)
from secateurs.theory.sketching.inputs import check_share, whole
from secateurs.theory.sketching.jacobian import Run, linearise
from secateurs.theory.sketching.same_network import check_same
from secateurs.theory.sketching.theorem_72 import NtkConstants, theorem_72


@dataclass(frozen=True, slots=True, kw_only=True)
class NtkSketch:
    """Exact expected squared errors of the masked linearised features; `energy` is ‖J(θ)θ‖².

    `expected` and `uniform` are for masks drawn by p and uniformly; `bound` is Theorem 7.2's, None
    without constants. `frobenius` = ‖J(θ0)‖_F, a lower bound on any valid K.
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


@renamed(x="example")
def ntk_sketch(
    model: nn.Module,
    example: Tensor,
    s: int,
    *,
    where: Where = None,
    trained: nn.Module | None = None,
    uniform: float = 0.0,
    constants: NtkConstants | None = None,
    chunk_size: int = 64,
    dtype: torch.dtype = torch.float64,
) -> NtkSketch:
    """How well s random parameters carry the linearised features J(θ)θ of the model on x.

    θ is all trainable parameters, biases and norms included, as in Theorem 7.2; `where` restricts
    it (names, globs, types or predicates, as in `prune_`; `nn.Linear` are the weights of linear
    layers), and J to their columns. The mask's probabilities come from the model (θ0); the error is
    that of `trained` (θt) with its own Jacobian, or of the model itself: E‖Jθ − J(θ⊙m)‖² = (1/s)Σ_k
    ‖J_(k)‖²θ_k²/p_k − (1/s)‖Jθ‖² (Lemma 4.3, exact). Modules run in evaluation mode on copies of
    their parameters in `dtype`; nothing of the model changes. J is never held whole: rows in
    chunks.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.constant_(model.weight, 1.0)
    >>> ntk_sketch(model, torch.eye(2), s=1).expected  # (1 + 1)² − 2
    2.0
    """
    s = whole("s", s)
    check_share(uniform)
    names = list(chosen_parameters(model, where))
    start = end = linearise(
        model,
        names,
        example,
        Run(name="the model", chunk_size=chunk_size, dtype=dtype),
    )
    if trained is not None:
        check_same(model, trained)
        end = linearise(
            trained,
            names,
            example,
            Run(name="trained=", chunk_size=chunk_size, dtype=dtype),
        )
    p = mixed(start.scores, uniform)
    check_drawn(p, start, end)
    first = float(
        # p_k = 0 was checked to meet a score of 0 only.
        torch.where(p > 0, end.scores.square() / p.clamp_min(1e-300), 0.0).sum()
    )
    bound = (
        None
        if constants is None
        else theorem_72(start.theta, start.columns, constants=constants, s=s)
    )
    return NtkSketch(
        probabilities=unflatten(p, start.shapes),
        expected=(first - end.energy) / s,
        uniform=(p.numel() * float(end.scores.square().sum()) - end.energy) / s,
        energy=end.energy,
        frobenius=float(start.columns.norm()),
        bound=bound,
    )
