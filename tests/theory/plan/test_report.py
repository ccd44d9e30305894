"""What a plan says: in plain words, layer by layer, and what binds."""

import json
import math

import pytest

from secateurs.theory import plan, theorem_1_width


def test_plan_says_vacuous_in_plain_words():
    found = plan([784, 64, 64, 64, 64, 10], alpha=0.01, epsilon=0.1)
    assert (
        found.vacuous
        and "vacuous" in str(found)
        and found.binding.startswith("error against a constant")
    )
    random = plan([784, *[256] * 7, 10], alpha=0.01, scheme="random")
    assert random.vacuous and random.smallest_width == math.inf and 0 < random.smallest_alpha < 0.6
    assert "more than 16777216" in str(random)


def test_what_print_says_and_why_it_does_not_apply():
    found = plan([784, 1024, 1024, 10], alpha=0.5, scheme="random")
    assert (
        not found.vacuous
        and found.printed.vacuous
        and found.largest_alpha == pytest.approx(0.3603, abs=1e-4)
    )
    assert "(vacuous; (3) floor(D_2^(1-alpha)) >= d_2 log d_2: 1024 < needed 7097.83)" in str(found)


@pytest.mark.parametrize("scheme", ["magnitude", "random"])
def test_each_layer_has_its_row(scheme):
    """Shares, errors and probabilities of the layers add up to those of the plan, and whole entries
    are counted.
    """
    found = plan([9, 20, 30, 40, 5], alpha=0.2, scheme=scheme, delta=0.1)
    assert [layer.shape for layer in found.layers] == [
        (20, 9),
        (30, 20),
        (40, 30),
        (5, 40),
    ]
    assert sum(layer.contribution for layer in found.layers) == pytest.approx(found.error)
    assert sum(layer.failure for layer in found.layers) == pytest.approx(found.delta)
    assert [layer.removed for layer in found.layers] == [
        0,
        math.floor(600**0.8),
        math.floor(1200**0.8),
        0,
    ]
    inner = found.layers[1:-1]
    assert found.sparsity == pytest.approx(
        (600 * inner[0].sparsity + 1200 * inner[1].sparsity) / 1800
    )
    assert all(f"  {layer.name} " in str(found) for layer in found.layers)
    assert json.loads(found.to_json())["layers"][2]["change"] == found.layers[2].change


def test_the_sparsity_reported_is_what_goes():
    """Of nine entries three go at α = 0.4, and one where a fifth is asked for."""
    assert plan([4, 3, 3, 4], alpha=0.4).sparsity == 3 / 9
    found = plan([4, 3, 3, 4], sparsity=0.2)
    assert found.sparsity == 1 / 9 and found.layers[1].removed == 1
    assert plan([4, 3, 3, 4], sparsity=1 / 9).layers[1].removed == 1


def test_what_binds_is_named():
    """The layer that adds most, and the condition of print that asks for the widest network."""
    found = plan([20, 100, 10, 100, 5], alpha=0.2, epsilon=1e-3)
    most = max(found.layers, key=lambda layer: layer.contribution)
    assert found.binding.endswith(f"of which {most.name} adds {most.contribution:.4g}")
    assert found.needed == theorem_1_width(depth=4, alpha=0.2, epsilon=1e-3, delta=0.05)
    assert f"its binding condition: {found.needed.binding}" in str(found)
    random = plan([64] * 4, alpha=0.2, scheme="random", epsilon=0.1)
    assert random.needed.binding == "probability of the pruned part (27)"
    assert f"the conditions as printed allow it up to {random.largest_alpha:.4g}." in str(random)
    assert json.loads(plan([64] * 4, alpha=0.2, scheme="random", delta=1e-6).to_json())["needed"][
        "log10"
    ]
