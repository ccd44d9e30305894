"""What sketches take and refuse: scales, precisions, whole numbers, bad input."""

import math

import pytest
import torch

from secateurs.errors import ArgumentError, TheoryError
from secateurs.theory import (
    lemma_41,
    lemma_42,
    lemma_43,
    lemma_45,
    lemma_b1,
    lemma_b2,
    leverage_scores,
    sketch_error,
    sketch_mask,
    sketch_probabilities,
    theorem_44,
)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_probabilities_do_not_depend_on_scale(case, scale):
    X, w0, _, p = case
    torch.testing.assert_close(sketch_probabilities(X, w0 * scale), p)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda X, w: sketch_mask(torch.tensor([0.5, 0.4]), 2),
            "p sums to 0.90000001, not to 1",
        ),
        (lambda X, w: sketch_mask(torch.tensor([1.5, -0.5]), 2), "smallest is -0.5"),
        (lambda X, w: sketch_mask(torch.tensor([1.0]), 0), "s = 0"),
        (lambda X, w: sketch_error(X, w, s=0), "s = 0"),
        (lambda X, w: sketch_error(X, w[:2], s=1), "give a vector of 4 entries"),
        (lambda X, w: sketch_error(X[0], w, s=1), "give a matrix"),
        (lambda X, w: sketch_error(X, w, s=1, uniform=1.5), "uniform = 1.5"),
        (lambda X, w: sketch_error(X, w * 0, s=1), "sum to 0"),
        (
            lambda X, w: theorem_44(w * torch.tensor([0, 1, 1, 1]), w, s=1),
            "1 entries of w0 are zero",
        ),
        (lambda X, w: lemma_42(w, s=1, examples=0), "examples = 0"),
        (
            lambda X, w: lemma_43(X, w, torch.tensor([0.5, 0.5]), s=1),
            "p has 2 entries, X has 4 rows",
        ),
        (
            lambda X, w: lemma_b1(X, w, torch.tensor([0.5, 0.5])),
            "p has 2 entries, X has 4 rows",
        ),
        (lambda X, w: theorem_44(w, w[:1], s=1), "w has 1 entries, w0 has 4"),
        (lambda X, w: theorem_44(w, w[:3], s=1), "w has 3 entries, w0 has 4"),
        (
            lambda X, w: theorem_44(w[:0], w[:0], s=1),
            r"w0 has no entries \(shape \(0,\)\)",
        ),
        (lambda X, w: leverage_scores(w), r"X has shape \(4,\): give a matrix"),
        (lambda X, w: leverage_scores(X[:0]), r"X has no entries \(shape \(0, 3\)\)"),
        (lambda X, w: leverage_scores(X + 0j), "X has torch.complex128 values"),
        (lambda X, w: sketch_mask(torch.ones(0), 1), r"p has shape \(0,\)"),
    ],
)
def test_bad_input_is_named(case, call, message):
    with pytest.raises((ArgumentError, TheoryError), match=message):
        call(case[0], case[1])


@pytest.mark.parametrize("s", [2.5, math.nan, math.inf, 0, -3, True, "3"])
def test_draws_are_whole_numbers(case, s):
    X, w0, w, p = case
    calls = (
        lambda: sketch_mask(p, s),
        lambda: sketch_error(X, w0, s=s),
        lambda: theorem_44(w0, w, s=s),
        lambda: lemma_41(X, w0, s=s),
        lambda: lemma_42(w0, s=s),
        lambda: lemma_43(X, w, p, s=s),
        lambda: lemma_45(w, s=s),
        lambda: lemma_b2(X, w, p, s=s),
        lambda: lemma_42(w0, s=1, examples=s),
    )
    for call in calls:
        with pytest.raises(ArgumentError, match="is not a whole number of at least 1"):
            call()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_no_numbers_are_named_with_their_place(case, value):
    X, w0, w, p = case
    bad, spoiled = torch.tensor([1.0, value, 1.0, 1.0]), X.clone()
    spoiled[2, 1] = value
    calls = {
        r"w0 has 1 NaN or infinite entries of 4 \(first: \[1\]\)": (
            lambda: sketch_error(X, bad, s=1),
            lambda: theorem_44(bad, w, s=1),
            lambda: lemma_41(X, bad, s=1),
            lambda: lemma_42(bad, s=1),
        ),
        r"w has 1 NaN or infinite entries of 4 \(first: \[1\]\)": (
            lambda: sketch_error(X, w0, s=1, w=bad),
            lambda: theorem_44(w0, bad, s=1),
            lambda: lemma_43(X, bad, p, s=1),
            lambda: lemma_45(bad, s=1),
            lambda: lemma_b1(X, bad, p),
        ),
        r"p has 1 NaN or infinite entries of 4 \(first: \[1\]\)": (
            lambda: sketch_mask(bad, 1),
            lambda: lemma_b1(X, w, bad),
        ),
        r"X has 1 NaN or infinite entries of 12 \(first: \[2, 1\]\)": (
            lambda: leverage_scores(spoiled),
            lambda: sketch_error(spoiled, w0, s=1),
            lambda: lemma_b2(spoiled, w, p, s=1),
        ),
    }
    for message, found in calls.items():
        for call in found:
            with pytest.raises(ArgumentError, match=message):
                call()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [3, 100, 10_000])
def test_probabilities_may_come_in_low_precision(dtype, size, generator):
    """Divided by their sum in their own precision they need not sum to 1 in ours; the weights are
    right even so.
    """
    weights = torch.rand(size, generator=generator).to(dtype) + 0.1
    p = weights / weights.sum()
    m = sketch_mask(p, size, generator)
    assert m.dtype == torch.float32 and bool(m.isfinite().all())
    q = p.double() / p.double().sum()
    counts = m * size * q
    torch.testing.assert_close(counts, counts.round(), rtol=1e-4, atol=1e-4)
    assert int(counts.round().sum()) == size
    with pytest.raises(ArgumentError, match="not to 1"):
        sketch_mask((p * 0.9).to(dtype), 1)


def test_whole_numbers_of_any_kind_pass(case):
    X, w0, _, _ = case
    assert sketch_error(X, w0, s=3.0).expected == sketch_error(X, w0, s=3).expected
    assert leverage_scores(torch.eye(2, dtype=torch.int64)).tolist() == [0.5, 0.5]
