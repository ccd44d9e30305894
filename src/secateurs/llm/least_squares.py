"""Weights on a fixed mask that keep a layer's outputs: one least-squares problem for each row."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

STEPS = 500
"""At most this many steps of conjugate gradients; some fifty are usual."""
RESIDUAL = 1e-3
"""A row is solved when its residual has fallen to this share of its first one: what is left to gain
is some millionth of what was gained."""


def solve_rows(weights: Tensor, mask: Tensor, gram: Tensor, damping: float) -> Tensor:
    """argmin over V on the mask of tr((V − W) H (V − W)ᵀ) + δ‖V − W‖² there, row by row.

    `gram` is H = XᵀX of the layer's inputs, `damping` is δ. Row r has the solution V[S] = (H[S, S]
    + δI)⁻¹ (H[S, :] W + δ W[S]), S what the mask keeps. This is the definition, exact and slow.
    """
    solved = torch.zeros_like(weights)
    for row, kept in enumerate(mask):
        inputs = kept.nonzero().ravel()
        eye = torch.eye(len(inputs), dtype=gram.dtype, device=gram.device)
        system = gram[inputs][:, inputs] + damping * eye
        wanted = gram[inputs] @ weights[row] + damping * weights[row, inputs]
        solved[row, inputs] = torch.linalg.solve(system, wanted)
    return solved


def solve_together(
    weights: Tensor, mask: Tensor, gram: Tensor, damping: Tensor, pull: Tensor | None = None
) -> tuple[Tensor, bool]:
    """The same by conjugate gradients on all these rows at once, preconditioned by the diagonal;
    and whether every row converged.

    Everything has a first dimension of groups, whose rows meet inputs of their own: `weights` is
    (groups, rows, inputs), `gram` (groups, inputs, inputs), `damping` (groups, 1, 1). One matrix
    product a step serves all rows, where each alone would need a factorization of its own. H itself
    is not changed or copied; four matrices of the size of the rows are held, and where half of them
    are solved as many of half the size.

    `pull` is W(C − H), where what a row shall answer is not XW but ZW for other inputs Z, and
    C = ZᵀX.
    """
    diagonal = gram.diagonal(dim1=1, dim2=2)[:, None] + damping
    # An input that never occurs has no equation: its weights stay as they are.
    scale = torch.where(diagonal > 0, 1 / diagonal, 0.0)

    gone = ~mask
    # Everything is computed in these four and in place: with new matrices at every step most of
    # what a block needs were those.
    solved = weights.masked_fill(gone, 0.0)
    residual = (weights - solved) @ gram
    if pull is not None:
        residual += pull
    residual.masked_fill_(gone, 0.0)
    # From the masked weights: the damping pulls towards them, so it adds nothing to the residual.
    direction = residual * scale
    size = products(residual, direction)
    rows = _Rows(
        solved=solved,
        residual=residual,
        direction=direction,
        gone=gone,
        size=size,
        enough=RESIDUAL**2 * size,
    )
    return solved, _descend(rows, gram, damping, scale, STEPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Where the rows are on their way: matrices of (groups, rows, inputs), and columns."""

    solved: Tensor
    residual: Tensor
    direction: Tensor
    gone: Tensor
    size: Tensor
    enough: Tensor

    def some(self, chosen: Tensor) -> "_Rows":
        """Copies of some rows, of the only group."""
        held = {field.name: getattr(self, field.name)[:, chosen] for field in fields(self)}
        return _Rows(**held)


def _descend(rows: _Rows, gram: Tensor, damping: Tensor, scale: Tensor, steps: int) -> bool:
    """Solve for the rows in place; whether all converged."""
    image = torch.empty_like(rows.residual)
    size = rows.size
    for taken in range(steps):
        open_ = size > rows.enough
        count = int(open_.sum())
        if not count:
            return True
        if len(gram) == 1 and 2 * count <= open_.numel():
            # Rows need forty to a hundred steps: the products would be half for those that stand.
            chosen = open_[0, :, 0]
            left = replace(rows, size=size).some(chosen)
            del image
            done = _descend(left, gram, damping, scale, steps - taken)
            rows.solved[:, chosen] = left.solved
            return done
        torch.mul(rows.direction, damping, out=image)
        image.baddbmm_(rows.direction, gram).masked_fill_(rows.gone, 0.0)
        curvature = products(rows.direction, image)
        # Rows that are solved stand still: 0/0 is not a step.
        step = torch.where(open_ & (curvature > 0), size / curvature, 0.0)
        rows.solved.addcmul_(step, rows.direction)
        rows.residual.addcmul_(step, image, value=-1)
        scaled = torch.mul(rows.residual, scale, out=image)
        after = products(rows.residual, scaled)
        turn = torch.where(open_ & (size > 0), after / size, 0.0)
        rows.direction.mul_(turn).add_(scaled)
        size = torch.where(open_, after, size)
    return not bool((size > rows.enough).any())


def products(a: Tensor, b: Tensor) -> Tensor:
    """a · b of every row, as a column."""
    return (a[..., None, :] @ b[..., None])[..., 0]


def energies(rows: Tensor, gram: Tensor) -> Tensor:
    """‖X wᵀ‖² of every row w: the size of its outputs on the inputs that H was made of."""
    return products(rows @ gram, rows)[..., 0].clamp(min=0)
