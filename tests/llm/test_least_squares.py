"""Rows solved on a mask: the definition, and the fast way beside it."""

import pytest
import torch

from secateurs.llm import least_squares
from secateurs.llm.least_squares import energies, solve_rows


def solve_together(weights, mask, gram, damping):
    """The fast way for one group of rows."""
    damping = torch.as_tensor(damping, dtype=gram.dtype).view(1, 1, 1)
    solved, done = least_squares.solve_together(weights[None], mask[None], gram[None], damping)
    return solved[0], done


def problem(kind="60 %", *, dtype=torch.float64, rows=48, inputs=64):
    """Weights, a mask and H of inputs that are far from independent."""
    source = torch.Generator().manual_seed(0)
    mix = torch.randn(inputs, inputs, generator=source, dtype=torch.float64)
    x = torch.randn(512, inputs, generator=source, dtype=torch.float64) @ mix
    weights = torch.randn(rows, inputs, generator=source, dtype=torch.float64)
    gram = x.T @ x
    score = weights.abs() * gram.diagonal().sqrt()
    groups, keep = (score.view(rows, -1, 4), 2) if kind == "2:4" else (score, round(0.4 * inputs))
    mask = torch.zeros_like(groups, dtype=torch.bool)
    mask = mask.scatter(-1, groups.topk(keep, -1).indices, True).view_as(weights)
    return weights.to(dtype), mask, gram.to(dtype), 1e-2 * float(gram.diagonal().mean())


def test_no_other_weights_on_the_mask_have_a_smaller_error():
    weights, mask, gram, damping = problem()
    solved = solve_rows(weights, mask, gram, damping)
    # The derivative of tr((V − W) H (V − W)ᵀ) + δ‖(V − W) on the mask‖² vanishes on the mask.
    slope = ((solved - weights) @ gram + damping * (solved - weights))[mask]
    assert slope.abs().max() < 1e-9 * gram.abs().max()
    assert not solved[~mask].any()


@pytest.mark.parametrize("kind", ["60 %", "2:4"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_all_rows_at_once_end_where_each_alone_does(kind, dtype):
    exact = solve_rows(*problem(kind))
    weights, mask, gram, damping = problem(kind, dtype=dtype)
    fast, done = solve_together(weights, mask, gram, damping)
    assert done and fast.dtype == dtype and not fast[~mask].any()
    changed = (weights * mask, exact.to(dtype), fast)
    errors = [float(energies(each - weights, gram).sum().sqrt()) for each in changed]
    assert errors[2] <= 1.001 * errors[1] < errors[0]


def test_directions_are_conjugate(monkeypatch):
    """In exact arithmetic k weights are solved in k steps; steepest descent takes far more."""
    weights, mask, gram, damping = problem("2:4", rows=8, inputs=32)
    monkeypatch.setattr(least_squares, "STEPS", 20)  # 16 are kept
    solved, done = solve_together(weights, mask, gram, damping)
    assert done
    exact = solve_rows(weights, mask, gram, damping)
    errors = [float(energies(each - weights, gram).sum().sqrt()) for each in (exact, solved)]
    assert errors[1] <= 1.0001 * errors[0]


def test_damping_holds_the_weights_where_they_were(monkeypatch):
    monkeypatch.setattr(least_squares, "RESIDUAL", 1e-5)
    weights, mask, gram, damping = problem()
    moved = [
        (solve_together(weights, mask, gram, each)[0] - weights)[mask].norm()
        for each in (damping, 100 * damping, 1e6 * damping)
    ]
    assert moved[0] > moved[1] > 100 * moved[2]
    for each in (damping, 100 * damping):
        solved, _ = solve_together(weights, mask, gram, each)
        assert torch.allclose(solved, solve_rows(weights, mask, gram, each), atol=1e-3)


def test_an_input_that_never_comes_leaves_its_weights():
    weights, mask, gram, _ = problem()
    gram[:, :8] = 0
    gram[:8] = 0
    solved, done = solve_together(weights, mask, gram, 0.0)
    assert done and torch.equal(solved[:, :8], (weights * mask)[:, :8])
    nothing, done = solve_together(weights, mask, torch.zeros_like(gram), 0.0)
    assert done and torch.equal(nothing, weights * mask)


def test_what_does_not_converge_is_said(monkeypatch):
    monkeypatch.setattr("secateurs.llm.least_squares.STEPS", 2)
    solved, done = solve_together(*problem())
    assert not done and solved.isfinite().all()


def test_rows_that_are_solved_leave_the_products(monkeypatch):
    """Half of the rows have nothing to solve; the others are not changed by leaving these out."""
    weights, mask, gram, damping = problem()
    easy = torch.arange(len(weights)) % 4 != 0
    mask[easy] = True
    seen = []
    descend = least_squares._descend

    def watch(rows, *args):
        seen.append((rows.solved.shape[1], args[-1]))
        return descend(rows, *args)

    monkeypatch.setattr(least_squares, "_descend", watch)
    solved, done = solve_together(weights, mask, gram, damping)
    assert done and seen[:2] == [(48, 500), (12, 500)] and seen[-1][1] < 500
    assert torch.equal(solved[easy], weights[easy])
    exact = solve_rows(weights, mask, gram, damping)
    assert float(energies(solved - exact, gram).sum()) < 1e-4 * float(
        energies(weights * mask - exact, gram).sum()
    )
    # A row that is not solved says so, from whichever matrix it is solved in.
    monkeypatch.setattr(least_squares, "STEPS", 5)
    assert not solve_together(weights, mask, gram, damping)[1]
