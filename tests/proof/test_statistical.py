"""Held-out inputs: limits against scipy's own test, coverage by simulation with a computed failure
probability.
"""

import json
import math

import pytest
import torch
from scipy.stats import binom, binomtest
from torch import nn

import secateurs as sc
from secateurs.base.hashing import state_hash
from secateurs.errors import ArgumentError, DomainError, StructureMismatch
from secateurs.proof import statistical
from secateurs.proof.statistical import (
    clopper_pearson,
    conformal_level,
    first_tensor,
    predictions,
)


@pytest.mark.parametrize(("k", "n"), [(0, 1), (0, 100), (3, 50), (49, 50), (50, 50), (500, 10_000)])
@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.5])
def test_clopper_pearson_is_the_exact_upper_limit(k, n, alpha):
    """The limit p solves P(Binomial(n, p) ≤ k) = α; scipy's own interval agrees."""
    limit = clopper_pearson(k, n, alpha=alpha)
    if k < n:
        assert binom.cdf(k, n, limit) == pytest.approx(alpha, rel=1e-6)
    other = binomtest(k, n, alternative="less").proportion_ci(1 - alpha, method="exact")
    assert limit == pytest.approx(other.high, rel=1e-9)


def test_clopper_pearson_covers():
    """Over 2,000 draws at p = 0.1, n = 60 the limit misses with probability ≤ 5 %.

    More than 140 misses have probability < 1e-4 even if it missed exactly that often.
    """
    counts = torch.distributions.Binomial(60, torch.tensor(0.1)).sample((2000,)).int().tolist()
    misses = sum(clopper_pearson(k, 60, alpha=0.05) < 0.1 for k in counts)
    assert binom.sf(140, 2000, 0.05) < 1e-4
    assert misses <= 140


def test_the_conformal_level_covers():
    """A fresh uniform exceeds the level with probability exactly 2/20 for n = 19, β = 0.1: the 18th
    of 19.
    """
    draws = torch.rand(4000, 20, dtype=torch.float64)
    levels = draws[:, :19].sort(dim=1).values
    assert all(conformal_level(row, beta=0.1) == float(row[17]) for row in levels[:5])
    misses = int((draws[:, 19] > levels[:, 17]).sum())
    assert binom.sf(480, 4000, 0.1) < 1e-4 and binom.cdf(320, 4000, 0.1) < 1e-4
    assert 320 < misses <= 480


@pytest.mark.parametrize(
    ("n", "beta", "rank"),
    [(19, 0.05, 19), (18, 0.05, None), (99, 0.1, 90), (9, 0.1, 9)],
)
def test_the_conformal_rank(n, beta, rank):
    values = torch.arange(1.0, n + 1)
    assert conformal_level(values, beta=beta) == (math.inf if rank is None else rank)


def test_a_frozen_value():
    one, two = (
        nn.Linear(1, 2, bias=False).double(),
        nn.Linear(1, 2, bias=False).double(),
    )
    one.weight.data = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    two.weight.data = torch.tensor([[1.0], [1.5]], dtype=torch.float64)
    x = torch.arange(-10, 11, dtype=torch.float64).reshape(-1, 1) / 10
    result = statistical(one, two, data=x, beta=0.1)
    assert (result.samples, result.changed, result.largest) == (21, 20, 1.5)
    assert result.change_bound == pytest.approx(0.99756, abs=1e-5)
    assert result.deviation_level == 1.5
    assert json.loads(result.to_json())["changed"] == 20


class Answers(nn.Module):
    """Says its logits in the way of the test."""

    def __init__(self, form, shift=0.0):
        super().__init__()
        self.form, self.shift = form, shift
        self.dropout = nn.Dropout(0.5)

    def forward(self, x=None, **rest):
        logits = self.dropout(x) + self.shift
        forms = {
            "tensor": logits,
            "dict": {"logits": logits},
            "tuple": (logits, x),
            "named": type("O", (), {})(),
        }
        forms["named"].logits = logits
        return forms[self.form]


@pytest.mark.parametrize("form", ["tensor", "dict", "tuple", "named"])
def test_any_module_and_any_batches(form):
    one, two = Answers(form), Answers(form, 0.25)
    x, y = torch.randn(40, 3), torch.zeros(40)
    results = [
        statistical(one, two, data=data)
        for data in (
            x,
            (x, y),
            [(x[:10], y[:10]), (x[10:], y[10:])],
            [{"x": x, "labels": y}],
            [x[:20], x[20:]],
        )
    ]
    assert {r.samples for r in results} == {40}
    assert all(r.largest == pytest.approx(0.25) and r.changed == 0 for r in results)
    assert one.training and one.dropout.training


def test_a_transformer_is_covered():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
    )
    one = transformers.ViTForImageClassification(config)
    two = transformers.ViTForImageClassification(config)
    two.load_state_dict(one.state_dict())
    sc.apply_(two, sc.select(sc.score(two, "magnitude"), sparsity=0.5))
    seen = statistical(one, two, data=[{"pixel_values": torch.randn(32, 3, 8, 8)}])
    assert seen.samples == 32
    assert seen.largest == float(seen.per_output.max()) > 0


def test_what_was_seen_is_said_per_output_and_at_the_worst_input():
    x = torch.randn(600, 3)
    one, two = nn.Linear(3, 2), nn.Linear(3, 2)
    seen = statistical(one, two, data=x, norm=2)
    with torch.no_grad():
        gap = (one(x).double() - two(x).double()).abs()
    worst = int(gap.norm(dim=1).argmax())
    assert torch.equal(seen.worst_input, x[worst])
    assert torch.allclose(seen.per_output, gap.amax(dim=0))
    told = json.loads(seen.to_json())
    assert told["per_output"] == seen.per_output.tolist() and "worst_input" not in told
    assert told["states"] == {"dense": state_hash(one), "sparse": state_hash(two)}


def test_an_output_is_chosen_by_its_name_or_by_a_function():
    """The others are named only where the function picks one of those that have names."""
    x = torch.randn(20, 3)
    one, two = Answers("dict"), Answers("dict", 0.25)
    with pytest.raises(ArgumentError, match="no output 'aux'; the model returns logits"):
        statistical(one, two, data=x, output="aux")
    pair = Answers("tuple"), Answers("tuple", 0.25)
    assert statistical(*pair, data=x, output=1).largest == 0
    chosen = statistical(*pair, data=x, output=lambda out: out[1])
    assert any("output '1' alone" in text and "'0'" in text for text in chosen.assumptions)
    made = statistical(*pair, data=x, output=lambda out: out[0] + out[1])
    assert made.largest == pytest.approx(0.25)
    assert not any("alone" in text for text in made.assumptions)


@pytest.mark.parametrize(
    ("shape", "rows"),
    [((4, 3), 1), ((4, 1), 1), ((4,), 1), ((4, 5, 3), 5), ((4, 3, 2, 2), 4)],
)
def test_predictions_per_position(shape, rows):
    assert predictions(torch.randn(*shape)).shape == (4, rows)


def test_errors():
    one = nn.Linear(3, 2)
    x = torch.randn(5, 3)
    with pytest.raises(
        ArgumentError, match=r"alpha=0, beta=1: a level lies strictly between 0 and 1"
    ):
        statistical(one, one, data=x, alpha=0, beta=1)
    with pytest.raises(ArgumentError, match="norm=3"):
        statistical(one, one, data=x, norm=3)
    with pytest.raises(DomainError, match="data holds no input"):
        statistical(one, one, data=[])
    with pytest.raises(DomainError, match="data holds no input"):
        statistical(one, one, data=x[:0])
    with pytest.raises(StructureMismatch, match=r"\(5, 2\) and \(5, 4\)"):
        statistical(one, nn.Linear(3, 4), data=x)
    with pytest.raises(DomainError, match="NaN or infinite on input 2"):
        statistical(
            one,
            one,
            data=torch.where(torch.arange(5).unsqueeze(1) == 2, torch.nan, x),
        )
    with pytest.raises(ArgumentError, match="data is int"):
        statistical(one, one, data=3)
    with pytest.raises(ArgumentError, match="holds no tensor; give output="):
        first_tensor(object())


def test_the_confident_level_holds_for_almost_every_sample():
    """Of 400 samples of 300 uniform deviations, at most about α lie below the true quantile.

    Binomial(400, 0.05) exceeds 40 with probability 2e-5; the conformal level fails in about half.
    """
    from secateurs.proof.statistical import confident_level, conformal_level

    g = torch.Generator().manual_seed(0)
    drawn = torch.rand(400, 300, generator=g, dtype=torch.float64).sort(dim=1).values
    confident = [confident_level(row, alpha=0.05, beta=0.05) for row in drawn]
    average = [conformal_level(row, beta=0.05) for row in drawn]
    assert sum(level < 0.95 for level in confident) <= 40
    assert 120 <= sum(level < 0.95 for level in average) <= 260
