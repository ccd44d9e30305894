"""From small to zero: thresholds, masks, reports."""

import math

import pytest
import torch
from torch import nn

from secateurs.errors import ArgumentError, MaskError
from secateurs.masks import apply_
from secateurs.optim import FactorizedSGD, hold
from secateurs.optim.factorized.collapse import gap, quantile, threshold_of
from secateurs.optim.factorized.maths import EPS


def optimizer_with(weights, **options):
    layer = nn.Linear(len(weights), 1, bias=False)
    layer.weight.data = torch.tensor([weights])
    return layer, FactorizedSGD(
        layer.named_parameters(), init="pretrained", zeros="frozen", **options
    )


def test_collapse_zeroes_what_is_below_machine_epsilon():
    layer, optimizer = optimizer_with([1.0, -1e-8, EPS * 1.01, 0.0, -2.0])
    collapsed = optimizer.collapse_()
    assert collapsed.masks["weight"].tolist() == [[True, False, True, False, True]]
    assert layer.weight[0, 1] == 0
    assert not optimizer.factors("weight")[:, 0, 1].any()
    assert collapsed.threshold == EPS
    assert collapsed.compression == pytest.approx(5 / 3)
    assert collapsed.sparsity == pytest.approx(0.4)
    assert (collapsed.kept, collapsed.total) == (3, 5)
    layer(torch.ones(1, 5)).sum().backward()
    optimizer.step()
    assert layer.weight[0, 1] == 0


def test_names_come_from_the_model():
    model = nn.Sequential(nn.Linear(2, 2))
    assert sorted(FactorizedSGD(model.parameters()).collapse_().masks) == ["0", "1"]
    assert sorted(FactorizedSGD(model.parameters()).collapse_(model).masks) == [
        "0.bias",
        "0.weight",
    ]


def test_numbered_masks_say_where_their_names_are():
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = FactorizedSGD(model.parameters())
    numbered = optimizer.collapse_().masks
    for use in (
        lambda: apply_(model, numbered),
        lambda: hold(model, numbered, optimizer),
    ):
        with pytest.raises(
            MaskError,
            match=r"no parameter '0'.*without names. Pass the model, collapse_\(model\)",
        ):
            use()
    apply_(model, optimizer.collapse_(model).masks)
    with pytest.raises(MaskError, match="no parameter '2'. Known: 0, 1"):
        apply_(
            nn.ParameterList([torch.ones(2), torch.ones(2)]),
            {"2": torch.ones(2, dtype=torch.bool)},
        )


def test_what_is_not_factorized_counts_as_dense():
    model = nn.Linear(9, 1)
    optimizer = FactorizedSGD(
        [{"params": [model.weight]}, {"params": [model.bias], "depth": None}], lr=0.1
    )
    collapsed = optimizer.collapse_(model, threshold=1e9)
    assert collapsed.compression == 10
    assert list(collapsed.masks) == ["weight"]


@pytest.mark.parametrize(("low", "high"), [(-12, -5), (-7.5, -4), (-6, -3)])
def test_gap_finds_the_valley(low, high):
    generator = torch.Generator().manual_seed(0)
    dead = 10 ** (low + (high - low) * torch.rand(5000, generator=generator, dtype=torch.float64))
    alive = 10 ** (-1 + torch.rand(300, generator=generator, dtype=torch.float64))
    threshold = gap([torch.cat([dead, -alive])])
    assert float(dead.max()) < threshold < float(alive.min())


def test_gap_never_cuts_what_the_net_lives_on():
    """A few large biases at the top, well apart from everything else: they are not the
    survivors.
    """
    draw = torch.Generator().manual_seed(0)
    smooth = 10 ** (-6 + 5.5 * torch.rand(20_000, generator=draw))
    biases = torch.full((17,), 3.0)
    threshold = gap([torch.cat([smooth, biases])])
    kept = torch.cat([smooth[smooth >= threshold], biases])
    assert kept.square().sum() >= 0.99 * torch.cat([smooth, biases]).square().sum()


def test_gap_never_empties_a_layer_that_is_small_beside_another():
    """Depth 4, a weak λ: the last layer's weights are a thousand times those of the first, and both
    are needed.
    """
    first = 10 ** (torch.rand(30, 40, generator=torch.Generator().manual_seed(0)) - 1.3)
    last = 300 * (1 + torch.rand(10, 30, generator=torch.Generator().manual_seed(1)))
    assert gap([torch.cat([first.flatten(), last.flatten()])]) > float(first.max()), (
        "one tensor: the first is dead"
    )
    assert gap([first, last]) < float(first.max()) / 2
    assert gap([torch.zeros(3, 3), last]) < 300


def test_gap_without_a_valley_or_without_weights_is_the_lowest():
    smooth = 10 ** torch.linspace(-8, 0, 10_000, dtype=torch.float64)
    assert gap([smooth]) <= 10 ** (-1)
    assert gap([torch.zeros(5)]) == EPS
    assert gap([torch.full((5,), 0.3)]) < 0.3
    tail = torch.cat([10 ** torch.linspace(-9, 0, 10_000), torch.tensor([30.0, 300.0])])
    assert gap([tail]) < 10  # stragglers at the top are not a hump of survivors


@pytest.mark.parametrize("kept", [0, 1, 37, 500, 999, 1000])
def test_quantile_keeps_about_as_many_as_asked(kept):
    sizes = torch.rand(1000, generator=torch.Generator().manual_seed(kept)) + 0.1
    found = int((sizes >= quantile([sizes], kept=kept)).sum())
    assert abs(found - kept) <= max(1, min(1, kept // 50)) + 1


def test_unknown_thresholds():
    options = {"weights": [torch.ones(3)], "total": 3, "target": None}
    with pytest.raises(
        ArgumentError,
        match="threshold='widest' is unknown. Known: a number, 'eps', 'gap', 'target'",
    ):
        threshold_of("widest", **options)
    with pytest.raises(ArgumentError, match="'target' needs target_sparsity="):
        threshold_of("target", **options)
    with pytest.raises(ArgumentError, match="threshold=-1"):
        threshold_of(-1.0, **options)
    for wrong in (True, [1], math.nan, math.inf, None.__class__):
        with pytest.raises(
            ArgumentError,
            match="threshold=.*give a finite number of at least 0",
        ):
            threshold_of(wrong, **options)
    assert threshold_of(0.5, **options) == threshold_of(torch.tensor(0.5), **options) == 0.5
    with pytest.raises(
        ArgumentError,
        match="threshold='gap' needs factorized weights, and there are none",
    ):
        FactorizedSGD([{"params": nn.Linear(2, 2).parameters(), "depth": None}]).collapse_(
            threshold="gap"
        )


def test_gap_is_not_looked_for_among_weights_that_have_diverged():
    sizes = torch.cat([torch.full((500,), 1e9), torch.full((20,), 1e12)])
    assert gap([sizes]) <= 1.0
    assert 1e-4 < gap([torch.cat([torch.full((500,), 1e-5), sizes])]) <= 1.0


def test_what_a_cut_costs_is_measured_and_told(caplog):
    torch.manual_seed(0)
    model = nn.Linear(10, 10)
    x = torch.randn(64, 10)
    target = model(x).detach()
    optimizer = FactorizedSGD(model.named_parameters(), lr=0.1, init="pretrained")

    def measure():
        return nn.functional.mse_loss(model(x), target)

    harmless = optimizer.collapse_(model, measure=measure)
    assert harmless.losses[0] == harmless.losses[1] < 1e-6
    assert harmless.only_cut == 0
    assert "the cut took the loss" not in caplog.text
    result = optimizer.collapse_(model, threshold=0.2, measure=measure)
    before, after = result.losses
    assert before < 1e-6 < 0.05 < after
    assert result.only_cut == sum(int((~mask).sum()) for mask in result.masks.values())
    assert "the cut took the loss from" in caplog.text
    assert optimizer.collapse_(model).losses is None
