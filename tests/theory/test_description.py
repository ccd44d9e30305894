"""A network as a message: its length counted by hand, and bounds that hold as often as they say."""

import itertools
import math

import pytest
import torch
from scipy.stats import binom
from torch import nn

import secateurs as sc
from secateurs.errors import ArgumentError
from secateurs.theory import description_length, generalization_bounds
from secateurs.theory.description import largest_error


def sparse_net(seed=0, density=0.1):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    sc.prune_(model, "magnitude", density=density)
    return model


def samples(count=300, inputs=12, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, inputs, generator=generator)
    return x, torch.randint(classes, (count,), generator=generator)


@pytest.mark.parametrize("wrong", [0, 1, 7, 50, 99])
@pytest.mark.parametrize("chance", [0.3, 0.05, 1e-9])
def test_the_tail_is_inverted_from_above(wrong, chance):
    """At the bound the exact tail is at most the chance, and just below it is not far above."""
    bound = largest_error(wrong, 100, math.log(chance))
    assert binom.cdf(wrong, 100, bound) <= chance * (1 + 1e-6)
    if bound < 1 and wrong < 90:
        assert binom.cdf(wrong, 100, 0.999 * bound) > chance


@pytest.mark.parametrize("wrong", [0, 3, 400, 900])
def test_tails_too_small_for_a_float_are_bounded_within_a_thousandth(wrong):
    """Seen in logarithms, by the largest term and Chernoff's bound on both sides."""
    samples, chance = 1000, -700.0
    bound = largest_error(wrong, samples, chance)
    share = wrong / samples

    def entropy(p):
        first = share * math.log(share / p) if share else 0.0
        return first + (1 - share) * math.log((1 - share) / (1 - p))

    # P(Bin ≤ wrong) ≤ exp(−n kl), and no less than its largest term.
    assert binom.logpmf(wrong, samples, bound) <= chance
    assert samples * entropy(0.999 * bound) <= -chance


def test_all_wrong_and_a_chance_too_small_bound_nothing():
    assert largest_error(100, 100, math.log(0.05)) == 1.0
    assert largest_error(3, 100, -1e6) == pytest.approx(1.0)


def test_the_parts_by_hand():
    """Two weights of equal value in a matrix of 2 × 4, both in one row."""
    model = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 1.0, 0, 0], [0, 0, 0, 0]]))
    x, y = samples(50, 4, 2)
    found = description_length(model, x, y, levels=1)
    # One of 256 values; flat: how many of 8 (9 ways), which two; by rows and columns: one row of
    # two, two of four columns, two of those two entries.
    flat = math.log2(9) + math.log2(28)
    rows = math.log2(3 * 2) + math.log2(5 * 6) + math.log2(3)
    assert found.parts["values"] == pytest.approx(math.log2(2 * 257) + 8)
    assert found.parts["places in weight"] == pytest.approx(math.log2(3) + min(flat, rows))
    assert found.parts["which value where"] == pytest.approx(0)
    assert found.parts["order of hidden units"] == 0
    assert found.bits == pytest.approx(sum(found.parts.values()))


def test_kraft_every_small_network_has_its_share_once():
    """The shares 2^-L of all networks of one layer with values of one sign sum to at most one.

    Every placement of up to four weights of one value in a 2 × 2 matrix: for each value of the 256
    of the format the length is the same.
    """
    x, y = samples(4, 2, 2)
    total = 0.0
    for pattern in itertools.product([0.0, 1.0], repeat=4):
        model = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            model.weight.copy_(torch.tensor(pattern).reshape(2, 2))
        found = description_length(model, x, y, levels=1)
        values = 1 if not any(pattern) else 256
        total += values * 2.0**-found.bits
    assert total <= 1


def test_the_order_of_hidden_units_is_given_back_once_for_each_different_order():
    model = sparse_net()
    x, y = samples()
    found = description_length(model, x, y)
    weights = found.weights
    # All messages that say this function: the orders of the first layer times those of the second.
    seen = set()
    for first in itertools.permutations(range(8)):
        rows = tuple(
            map(
                tuple,
                torch.cat([weights["0.weight"], weights["0.bias"][:, None]], 1)[
                    list(first)
                ].tolist(),
            )
        )
        seen.add(rows)
    second = torch.cat([weights["2.weight"], weights["2.bias"][:, None]], 1)
    alike = torch.unique(second, dim=0, return_counts=True)[1].tolist()
    orders = math.factorial(6) / math.prod(map(math.factorial, alike))
    assert -found.parts["order of hidden units"] == pytest.approx(
        math.log2(len(seen)) + math.log2(orders)
    )


class Shared(nn.Module):
    """One matrix in two layers: exchanging its units would have to exchange its inputs."""

    def __init__(self):
        super().__init__()
        self.inner, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.inner(self.inner(x).relu()).relu())


class Reversed(nn.Module):
    """Parameters in another order than their layers."""

    def __init__(self):
        super().__init__()
        self.last, self.first = nn.Linear(6, 3), nn.Linear(6, 6)

    def forward(self, x):
        return self.last(self.first(x).relu())


class Summed(nn.Module):
    """A matrix that is computed from a parameter of its shape."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        hidden = nn.functional.linear(x, self.first.weight.cumsum(0), self.first.bias)
        return self.last(hidden.relu())


@pytest.mark.parametrize("kind", [Shared, Reversed, Summed])
def test_nothing_is_given_back_where_units_cannot_change_places(kind):
    torch.manual_seed(0)
    model = kind()
    sc.prune_(model, "magnitude", density=0.5)
    found = description_length(model, *samples(inputs=6), levels=4)
    assert found.parts["order of hidden units"] == 0


def test_values_that_became_one_are_counted_as_one():
    """Tuning may make two values equal: the message is that of the weights as they are then."""
    model, (x, y) = sparse_net(), samples()
    tuned = description_length(
        model, x, y, levels=60, tune=30, generator=torch.Generator().manual_seed(0)
    )
    model.load_state_dict(tuned.weights)
    values = torch.cat([w.flatten() for w in tuned.weights.values()])
    assert tuned.levels == len(values[values != 0].unique())


def test_units_in_another_order_have_the_same_length():
    model, (x, y) = sparse_net(), samples()
    other = sparse_net()
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        other[0].weight.copy_(model[0].weight[order])
        other[0].bias.copy_(model[0].bias[order])
        other[2].weight.copy_(model[2].weight[:, order])
    one, two = (description_length(net, x, y) for net in (model, other))
    assert one.bits == pytest.approx(two.bits)
    assert one.errors == two.errors


def test_the_claim_is_about_the_rounded_network_and_the_model_stays():
    model, (x, y) = sparse_net(), samples()
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = description_length(model, x, y, levels=3)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    values = torch.cat([w.flatten() for w in found.weights.values()])
    assert 1 <= len(values[values != 0].unique()) == found.levels <= 3
    model.load_state_dict(found.weights)
    assert int((model.eval()(x).argmax(1) != y).sum()) == found.errors
    assert found.kept == sum(int((p != 0).sum()) for p in model.parameters())


def test_values_that_are_tuned_fit_better_where_the_same_weights_are_equal():
    x, _ = samples(600)
    model = sparse_net(density=0.6).eval()
    with torch.no_grad():
        for layer in model[::2]:
            layer.bias.zero_()
    y = model(x).argmax(1)

    def described(**how):
        found = description_length(model, x, y, levels=2, **how)
        other = sparse_net(density=0.6).eval()
        other.load_state_dict(found.weights)
        assert int((other(x).argmax(1) != y).sum()) == found.errors
        return found, float(nn.functional.cross_entropy(other(x).detach(), y))

    plain, loss = described()
    tuned, lower = described(tune=200, generator=torch.Generator().manual_seed(0))
    again, _ = described(tune=200, generator=torch.Generator().manual_seed(0))
    assert lower < loss
    assert again.bound == tuned.bound
    for name, weight in plain.weights.items():
        assert torch.equal(weight != 0, tuned.weights[name] != 0)
    values = torch.cat([w.flatten() for w in tuned.weights.values()])
    assert len(values[values != 0].unique()) <= 2


def test_the_bound_fails_no_more_often_than_it_says_and_would_without_the_price():
    """Labels are coin flips, so the test error of everything is one half. The learner takes the
    best of all networks of one weight: its training error is far below, as it searched.
    """
    inputs, count, confidence = 30, 60, 0.8
    worlds, fails, free = 60, 0, 0
    for seed in range(worlds):
        x, y = samples(count, inputs, 2, seed)
        wrong = ((x > 0).long() != y[:, None]).sum(0)
        flipped = count - wrong
        place = int(torch.minimum(wrong, flipped).argmin())
        sign = 1.0 if wrong[place] <= flipped[place] else -1.0
        model = nn.Linear(inputs, 2, bias=False)
        with torch.no_grad():
            model.weight.zero_()
            model.weight[1, place] = sign
        found = description_length(model, x, y, levels=1, confidence=confidence)
        fails += found.bound < 0.5
        free += largest_error(found.errors, count, math.log1p(-confidence)) < 0.5
    assert fails <= worlds * (1 - confidence)
    # What the choice was not paid for: the search makes the same bound wrong nearly always.
    assert free > worlds * 0.9


def test_the_row_of_the_comparison():
    model, (x, y) = sparse_net(), samples()
    bounds = generalization_bounds(
        model, x[:1], samples=300, input_bound=4.0, loss_lipschitz=1.0, data=(x, y)
    )
    row = bounds["description length"]
    found = description_length(model, x, y)
    assert row.value == pytest.approx(found.bound - found.training_error)
    assert row.verdict.startswith("vacuous")
    assert f"{found.bound:.2%}" in row.verdict
    # With more samples of a question that the network answers it says something.
    model, (x, y) = nn.Linear(4, 2, bias=False), samples(2000, 4)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0]]))
    many = generalization_bounds(
        model,
        x[:1],
        samples=2000,
        input_bound=4.0,
        loss_lipschitz=1.0,
        data=(x, (x[:, 0] < 0).long()),
    )
    assert many["description length"].verdict.startswith("says something")
    with pytest.raises(ArgumentError, match="samples=200, but data= has 2000"):
        generalization_bounds(
            model, x[:1], samples=200, input_bound=4.0, loss_lipschitz=1.0, data=(x, y)
        )


def test_convolutions_and_buffers_are_paid_for():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    )
    sc.prune_(model, "magnitude", density=0.05)
    x, y = torch.randn(40, 1, 8, 8), torch.randint(3, (40,))
    found = description_length(model, x, y, alternatives=8)
    assert found.parts["buffers"] == 32 * 8 + 64
    assert found.parts["choice of architecture"] == 3
    assert found.parts["order of hidden units"] == 0
    assert found.assumptions[-1].startswith("nothing is gained")
    assert "weights" not in found.as_dict()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"labels": torch.zeros(3)}, "one class for each training sample"),
        ({"labels": torch.zeros(300)}, "labels of torch.float32"),
        ({"confidence": 1.0}, "confidence=1.0 is not between 0 and 1"),
        ({"levels": 300}, "levels=300 is not between 1 and 256"),
        ({"tune": -1}, "tune=-1: give a number of steps"),
        ({"alternatives": 0}, "alternatives=0: give at least 1"),
    ],
)
def test_bad_arguments_are_refused_by_name(change, text):
    x, y = samples()
    given = {"inputs": x, "labels": y} | change
    with pytest.raises(ArgumentError, match=text):
        description_length(sparse_net(), **given)


def test_a_network_that_is_no_classifier_or_not_finite_is_refused():
    x, y = samples()
    with pytest.raises(ArgumentError, match=r"must return \(N, classes\)"):
        description_length(nn.Sequential(nn.Linear(12, 3), nn.Flatten(0)), x, y)
    model = sparse_net()
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    with pytest.raises(ArgumentError, match="NaN or infinite"):
        description_length(model, x, y)


class Plain(nn.Module):
    """The numbers of a network as plain tensors, which are neither parameters nor buffers."""

    def __init__(self, weights):
        super().__init__()
        self.last = nn.Linear(2, 2, bias=False)
        nn.init.eye_(self.last.weight)
        self.weights = [w.detach() for w in weights]

    def forward(self, x):
        w, b, v, c = self.weights
        return self.last(torch.relu(x @ w.T + b) @ v.T + c)


def memorised():
    """A network that has learnt labels that are noise."""
    torch.manual_seed(0)
    x, y = torch.randn(100, 20), torch.randint(0, 2, (100,))
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(200):
        adam.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        adam.step()
    return model, x, y


def test_weights_that_are_no_parameters_are_paid_for():
    model, x, y = memorised()
    weights = list(model.parameters())
    found = description_length(Plain(weights), x, y)
    numbers = sum(w.numel() for w in weights)
    assert found.parts["tensors that are neither parameters nor buffers"] == 32 * numbers
    assert found.errors == 0 and found.bound > 0.9
    for closure in (
        lambda t: torch.relu(t @ weights[0].T + weights[1]) @ weights[2].T + weights[3],
        lambda t: torch.relu(t @ torch.tensor(weights[0].tolist()).T) @ weights[2].T,
    ):
        other = nn.Linear(2, 2, bias=False)
        other.register_forward_pre_hook(lambda _, args, f=closure: (f(args[0]),))
        assert description_length(other, x, y).bits > 32 * 20 * 64
    none = description_length(model, x, y).parts
    assert none["tensors that are neither parameters nor buffers"] == 0


def test_a_parameter_that_is_read_past_its_rounding_is_paid_for():
    model, x, y = memorised()
    model.past = [model[0].weight]
    model.register_forward_pre_hook(lambda m, args: (args[0] + 0 * m.past[0].sum(),))
    found = description_length(model, x, y)
    assert found.parts["tensors that are neither parameters nor buffers"] == 32 * 20 * 64


@pytest.mark.filterwarnings("ignore")
def test_packed_weights_are_refused():
    model, x, y = memorised()
    packed = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    with pytest.raises(ArgumentError, match="holds packed.*before it is quantized"):
        description_length(packed, x, y)


def test_the_bound_is_where_so_few_errors_have_the_chance_of_the_message():
    """P(Bin(n, p) ≤ wrong) = (1 − confidence)·2^{−L} at p = bound."""
    x = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0]]))
    for confidence in (0.5, 0.95, 0.999):
        found = description_length(model, x, (x[:, 0] < 0.1).long(), confidence=confidence)
        assert found.errors > 0
        chance = binom.cdf(found.errors, 500, found.bound)
        assert chance == pytest.approx((1 - confidence) * 2.0**-found.bits, rel=1e-6)


def test_one_sample_is_enough_to_ask_and_says_nothing():
    model, x = nn.Linear(3, 2), torch.zeros(1, 3)
    found = description_length(model, x, torch.tensor([0]))
    assert found.samples == 1 and found.bound > 0.9
    with pytest.raises(ArgumentError, match="at least one sample"):
        description_length(model, x[:0], torch.zeros(0, dtype=torch.long))
