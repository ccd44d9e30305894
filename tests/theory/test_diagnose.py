"""Diagnosis against known laws, measurement against exact norms, and both against bad input."""

import copy
import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import secateurs as sc
from secateurs.errors import ArgumentError, EmptySelectionError, ParameterError, StructureMismatch
from secateurs.theory.measure import clopper_pearson


def law(name, generator, shape=(128, 64)):
    draw = torch.randn(shape, generator=generator)
    return {
        "normal": draw / 8,
        "uniform": (torch.rand(shape, generator=generator) * 2 - 1) * 1.5 / math.sqrt(128),
        "shifted": draw / 8 + 0.1,
        "laplace": stats.laplace.ppf(torch.rand(shape, generator=generator).double().numpy()) / 8,
        "heavy": torch.from_numpy(
            stats.t(2.1).ppf(torch.rand(shape, generator=generator).double().numpy())
        ),
    }[name]


def test_moments_and_distances_are_those_of_scipy(generator):
    weight = law("normal", generator)
    layer = sc.diagnose({"w": weight}).layers[0]
    values = weight.double().numpy().ravel()
    assert layer.mean == pytest.approx(values.mean()) and layer.variance == pytest.approx(
        values.var()
    )
    assert layer.kurtosis == pytest.approx(stats.kurtosis(values, fisher=False))
    assert layer.ks_normal == pytest.approx(
        stats.kstest(values, "norm", (values.mean(), values.std())).statistic
    )
    half = math.sqrt(3) * values.std()
    fitted = (values.mean() - half, 2 * half)
    assert layer.ks_uniform == pytest.approx(stats.kstest(values, "uniform", fitted).statistic)
    assert sum(layer.counts) == values.size and len(layer.edges) == len(layer.counts) + 1
    assert layer.k1 == pytest.approx((values**2).mean() * 128) and layer.k2 == pytest.approx(
        (values**4).mean() * 128**2
    )


@pytest.mark.parametrize(
    ("name", "magnitude", "random"),
    [
        ("normal", False, True),
        ("uniform", True, True),
        ("shifted", False, False),
        ("laplace", False, True),
    ],
)
def test_verdicts(name, magnitude, random, generator):
    layer = sc.diagnose({"w": torch.as_tensor(law(name, generator))}).layers[0]
    assert (layer.magnitude, layer.random, layer.filters) == (
        magnitude,
        random,
        False,
    ), layer.notes


@pytest.mark.parametrize("seed", range(10))
def test_infinite_fourth_moments_are_seen(seed):
    """Student's t with 2.1 degrees of freedom, whatever the sample makes of it; the note has the
    numbers.
    """
    layer = sc.diagnose(
        {"w": law("heavy", torch.Generator().manual_seed(seed), (256, 256))}
    ).layers[0]
    assert not layer.random and not layer.magnitude
    heavy = (
        f"E w^4 = {layer.k2 / layer.k1**2:.3g} (E w^2)^2 (at most 144), {100 * layer.carried:.0f} %"
        " of it one"
    )
    assert any("Theorem 2 does not apply" in note and heavy in note for note in layer.notes)


def test_convolutions_are_judged_by_theorem_3(generator):
    """d circular channels onto d, uniform entries of any size: yes; else what is in the way is
    named.
    """
    circular = {"padding": 1, "padding_mode": "circular"}
    layer = sc.diagnose(nn.Conv2d(16, 16, 3, **circular)).layers[0]
    assert (
        layer.kind == "convolution" and layer.filters and not layer.magnitude and not layer.random
    )
    limit = 1 / math.sqrt(16 * 9)  # torch draws from U[-limit, limit]
    assert layer.c1 == pytest.approx(16 * limit**2 / 3, rel=0.1)
    assert layer.c2 == pytest.approx(16**2 * limit**4 / 5, rel=0.1)
    assert "filters (Thm 3)" in str(sc.diagnose(nn.Conv2d(16, 16, 3, **circular)))
    for conv, words, explicit in (
        (
            nn.Conv2d(16, 16, 3, padding=1),
            "its padding holds zeros, not the map again",
            True,
        ),
        (
            nn.Conv2d(16, 16, 3, padding_mode="circular"),
            r"its padding (0, 0) does not keep the map",
            True,
        ),
        (nn.Conv2d(16, 16, 3, stride=2, **circular), "stride = (2, 2)", True),
        (nn.Conv2d(16, 32, 3, **circular), "16 channels onto 32, not as many", True),
        (nn.Conv2d(16, 16, 3, groups=2, **circular), "groups = 2", False),
        (
            nn.Conv2d(16, 16, (1, 3), padding=(0, 1), padding_mode="circular"),
            "a kernel of 1×3, not square",
            True,
        ),
    ):
        layer = sc.diagnose(conv).layers[0]
        (note,) = [note for note in layer.notes if "as stated does not apply" in note]
        assert words in note and not layer.filters and ("plan(scheme='filters'" in note) == explicit
    heavy = nn.Conv2d(64, 64, 3, padding="same", padding_mode="circular")
    heavy.weight.data = law("heavy", generator, heavy.weight.shape).float()
    layer = sc.diagnose(heavy).layers[0]
    assert not layer.filters and any(
        note.startswith("Theorem 3 does not apply: no fourth") for note in layer.notes
    )


def test_what_is_no_layer_of_a_chain_gets_no_verdict():
    models = (
        nn.LSTM(16, 16),
        nn.MultiheadAttention(16, 2),
        nn.Bilinear(8, 8, 16),
        nn.Conv1d(16, 16, 3),
    )
    for model in models:
        for found in (
            sc.diagnose(model),
            sc.diagnose({f"a.{n}": p for n, p in model.named_parameters() if p.ndim > 1}),
        ):
            for layer in found.layers:
                assert layer.kind == "other" and not (
                    layer.magnitude or layer.random or layer.filters
                ), layer
                assert any(
                    "no layer of a chain, no theorem applies" in note for note in layer.notes
                )
    unseen = sc.diagnose({"w": nn.Conv2d(16, 16, 3).weight}).layers[0]
    assert (
        unseen.filters
        and "stride 1, one group, which a checkpoint does not tell" in unseen.notes[-1]
    )


def test_the_fitted_uniform_is_the_one_drawn(generator):
    assert sc.diagnose({"w": law("uniform", generator)}).layers[0].k == pytest.approx(1.5, rel=0.02)


def test_pruned_entries_are_left_out(generator):
    weight = law("uniform", generator)
    weight[:, :32] = 0
    layer = sc.diagnose({"w": weight}).layers[0]
    assert (
        layer.pruned_share == 0.5
        and layer.magnitude
        and "50.0 % of the entries are zero" in layer.notes[-1]
    )


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e30, 1e200, 1e308])
def test_scales_and_dtypes(scale, generator):
    """Moments that float64 cannot hold are 0 or infinite; the verdict stands."""
    weight = law("normal", generator).double()
    one, other = (sc.diagnose({"w": w}).layers[0] for w in (weight, weight * scale))
    assert other.kurtosis == pytest.approx(one.kurtosis) and other.ks_normal == pytest.approx(
        one.ks_normal
    )
    assert other.variance == pytest.approx(one.variance * scale * scale, rel=1e-9)
    assert (other.magnitude, other.random, other.counts) == (
        one.magnitude,
        one.random,
        one.counts,
    )
    assert other.edges == pytest.approx([edge * scale for edge in one.edges], rel=1e-9)


def test_edges_and_report():
    flat = sc.diagnose(
        {
            "w": torch.zeros(3, 3),
            "v": torch.ones(2, 2),
            "u": torch.ones(1, 1),
            "t": torch.full((9, 9), 0.1),
        }
    )
    assert all(not layer.magnitude and not layer.random for layer in flat.layers)
    assert all(
        "  none; all entries are equal: no theorem applies" in line
        for line in str(flat).splitlines()[1:]
    )
    json.dumps(flat.rows())
    assert any(
        "only 4 entries" in note for note in sc.diagnose({"w": torch.randn(2, 2)}).layers[0].notes
    )
    text = str(sc.diagnose(nn.Sequential(nn.Linear(10, 10), nn.Conv2d(2, 3, 3))))
    assert "0.weight" in text and "1.weight" in text
    with pytest.raises(EmptySelectionError, match="none of the 1 tensors"):
        sc.diagnose({"bias": torch.ones(3)})
    with pytest.raises(ParameterError, match="'w' holds NaN"):
        sc.diagnose({"w": torch.full((2, 2), float("nan"))})


def pruned(model, share, seed=0):
    sparse = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in sparse.parameters():
            if parameter.ndim > 1:
                limit = (
                    parameter.abs()
                    .flatten()
                    .kthvalue(max(1, int(share * parameter.numel())))
                    .values
                )
                parameter[parameter.abs() <= limit] = 0
    return sparse


@pytest.fixture
def linear():
    return nn.Sequential(nn.Linear(12, 20, bias=False), nn.Identity(), nn.Linear(20, 6, bias=False))


def test_layer_norms_are_exact_and_the_search_meets_the_exact_sup(linear, generator):
    """Without activations the sup-error is the norm of the difference of the products."""
    sparse = pruned(linear, 0.5)
    found = sc.measure_pruning(linear, sparse, epsilon=0.05, generator=generator)
    exact = torch.linalg.matrix_norm(
        linear[2].weight @ linear[0].weight - sparse[2].weight @ sparse[0].weight, 2
    ).item()
    assert found.sup_error <= exact * (1 + 1e-5) and found.sup_error > 0.97 * exact
    assert found.product_bound >= exact
    for layer, index in zip(found.layers, (0, 2), strict=True):
        change = torch.linalg.matrix_norm(linear[index].weight - sparse[index].weight, 2).item()
        assert layer.change == pytest.approx(change, rel=1e-5) and layer.kind == "matrix"
        total = linear[index].weight.numel()
        assert layer.pruned == pytest.approx(total ** (1 - layer.alpha)) == total // 2
        assert layer.magnitude_bound == pytest.approx(
            min(linear[index].weight.shape) ** -layer.alpha
        )
        assert layer.within == (change <= layer.magnitude_bound)


def test_probability_and_its_interval(linear, generator):
    """Uniform points of the ball: the interval holds the share of a second, independent sample of
    20,000.
    """
    sparse = pruned(linear, 0.5)
    found = sc.measure_pruning(
        linear,
        sparse,
        epsilon=0.08,
        points=2_000,
        confidence=1 - 1e-7,
        generator=generator,
    )
    x = torch.randn(20_000, 12)
    x = x / x.norm(dim=1, keepdim=True) * torch.rand(20_000, 1) ** (1 / 12)
    share = float(((sparse(x) - linear(x)).norm(dim=1) <= 0.08).float().mean())
    assert 0.01 < share < 0.99 and found.low < share < found.high
    assert found.low <= found.probability <= found.high


def test_clopper_pearson_covers():
    """Exact coverage over all outcomes of 30 trials is at least the confidence."""
    for p in (0.01, 0.3, 0.5, 0.97):
        intervals = [clopper_pearson(k, 30, confidence=0.9) for k in range(31)]
        chances = stats.binom.pmf(np.arange(31), 30, p)
        assert (
            sum(c for c, (low, high) in zip(chances, intervals, strict=True) if low <= p <= high)
            >= 0.9
        )


def test_convolutions_are_measured_on_their_maps():
    dense = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(3, 2, 3, padding=1, padding_mode="circular"),
    )
    sparse, x = pruned(dense, 0.5), torch.randn(1, 2, 6, 6)
    with_map = sc.measure_pruning(dense, sparse, example=x, steps=5)
    kernels = sc.measure_pruning(dense, sparse)
    assert [layer.kind for layer in with_map.layers] == [
        "convolution, upper bound",
        "convolution",
    ]
    assert all(
        a.change <= b.change * (1 + 1e-6)
        for a, b in zip(with_map.layers, kernels.layers, strict=True)
    )
    assert with_map.sup_error > 0 and kernels.sup_error is None and with_map.product_bound is None


def module_norm(conv, size):
    count = conv.in_channels * math.prod(size)
    basis = torch.eye(count).reshape(count, conv.in_channels, *size)
    copied = copy.deepcopy(conv).requires_grad_(False)
    return float(torch.linalg.matrix_norm((copied(basis) - copied(basis * 0)).flatten(1), 2))


LAYERS = {
    "wraps four times": (
        {"kernel_size": 1, "padding": 4, "padding_mode": "circular"},
        "convolution",
    ),
    "wraps too far": (
        {"kernel_size": 3, "padding": 2, "padding_mode": "circular"},
        "convolution, upper bound",
    ),
    "does not wrap": (
        {"kernel_size": 3, "padding": 0, "padding_mode": "circular"},
        "convolution, upper bound",
    ),
    "wraps with a stride": (
        {
            "kernel_size": 3,
            "padding": 1,
            "stride": (1, 2),
            "padding_mode": "circular",
        },
        "convolution",
    ),
    "replicate": (
        {"kernel_size": 3, "padding": 1, "padding_mode": "replicate"},
        "convolution, upper bound",
    ),
    "reflect": (
        {"kernel_size": 5, "padding": 2, "padding_mode": "reflect"},
        "convolution, upper bound",
    ),
    "long": ({"kernel_size": (3, 5), "padding": (1, 2)}, "convolution, upper bound"),
    "steps": (
        {"kernel_size": 3, "padding": 1, "stride": (1, 2)},
        "convolution, upper bound",
    ),
    "same, even": ({"kernel_size": 2, "padding": "same"}, "convolution, upper bound"),
    "grouped": (
        {"kernel_size": 3, "padding": 1, "groups": 2, "dilation": 2},
        "convolution, upper bound",
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_called_a_bound_is_one_and_what_is_called_exact_is_exact(name):
    settings, kind = LAYERS[name]
    dense = nn.Conv2d(4, 4, **settings)
    sparse = pruned(dense, 0.5)
    removed = copy.deepcopy(dense)
    removed.weight.data -= sparse.weight.data
    layer = sc.measure_pruning(dense, sparse, example=torch.randn(1, 4, 4, 4), steps=0).layers[0]
    kernel = sc.measure_pruning(dense, sparse).layers[0]
    assert layer.kind == kind and kernel.kind == "unfolded kernel, upper bound"
    for conv, low, high, free in (
        (dense, layer.norm_lower, layer.norm, kernel.norm),
        (removed, layer.change_lower, layer.change, kernel.change),
    ):
        norm = module_norm(conv, (4, 4))
        assert low == pytest.approx(norm, rel=1e-5) and norm <= min(high, free) * (1 + 1e-5)
        assert kind != "convolution" or high == pytest.approx(norm, rel=1e-5)


def test_a_transposed_convolution_is_measured_on_its_output():
    conv = nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1, output_padding=1)
    layer = sc.measure_pruning(
        conv, pruned(conv, 0.5), example=torch.randn(1, 3, 4, 5), steps=0
    ).layers[0]
    norm = module_norm(conv, (4, 5))
    assert layer.kind == "convolution, upper bound"
    assert layer.norm_lower == pytest.approx(norm, rel=1e-5) and norm <= layer.norm * (1 + 1e-5)


class Shuffled(nn.Module):
    """Layers defined out of the order they run in."""

    def __init__(self):
        super().__init__()
        self.head, self.body = nn.Linear(8, 3), nn.Linear(5, 8)

    def forward(self, x):
        return self.head(self.body(x))


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x), x


class Twice(nn.Module):
    """One convolution on two map sizes, the larger last."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")

    def forward(self, x):
        return self.conv(nn.functional.interpolate(self.conv(x), scale_factor=3))


def test_a_convolution_used_on_two_maps_is_measured_on_both():
    dense = Twice()
    layer = sc.measure_pruning(
        dense, pruned(dense, 0.5), example=torch.randn(1, 1, 3, 3), steps=0
    ).layers[0]
    assert layer.norm == pytest.approx(
        max(module_norm(dense.conv, (n, n)) for n in (3, 9)), rel=1e-5
    )
    assert layer.norm > 1.01 * module_norm(dense.conv, (3, 3))


def test_an_even_same_convolution_runs_on_one_pixel():
    conv = nn.Conv2d(2, 2, 2, padding="same")
    found = sc.measure_pruning(conv, pruned(conv, 0.5), example=torch.randn(1, 2, 1, 1))
    assert found.layers[0].norm_lower == pytest.approx(module_norm(conv, (1, 1)), rel=1e-5)


def chain(kind):
    tall, wide = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
    for linear in (tall, wide):
        nn.init.orthogonal_(linear.weight)
        linear.weight.data *= 3
    return {
        "reused": nn.Sequential(tall, nn.Identity(), tall),
        "nested": nn.Sequential(
            nn.Sequential(tall, nn.ReLU()), nn.Sequential(nn.LeakyReLU(0.5), wide)
        ),
        "one layer": nn.Sequential(wide),
        "alone": wide,
        "clipped": nn.Sequential(nn.Flatten(), tall, nn.Hardtanh(-2, 1), nn.Dropout(), wide),
        "shifted": nn.Sequential(tall, nn.Hardtanh(1, 2), wide),
        "steep": nn.Sequential(tall, nn.LeakyReLU(-2.0), wide),
        "biased": nn.Sequential(tall, nn.Linear(6, 6)),
        "smooth": nn.Sequential(tall, nn.Softplus(), wide),
    }[kind]


@pytest.mark.parametrize("kind", ["reused", "nested", "one layer", "alone", "clipped"])
def test_the_product_bound_is_above_the_worst_input_found(kind, generator):
    dense = chain(kind)
    found = sc.measure_pruning(dense, pruned(dense, 0.5), generator=generator)
    assert found.product_bound >= found.sup_error > 0.05 * found.product_bound


@pytest.mark.parametrize("kind", ["shifted", "steep", "biased", "smooth"])
def test_no_product_bound_where_none_is_proven(kind):
    dense = chain(kind)
    assert sc.measure_pruning(dense, pruned(dense, 0.5), steps=0).product_bound is None


def test_no_product_bound_between_different_chains():
    """Tied in one model and not in the other; the second runs its layers in another order; a hook;
    a choice.
    """
    dense, torn = chain("reused"), chain("reused")
    torn[2] = copy.deepcopy(torn[0])
    torn[2].weight.data[0] = 0
    assert sc.measure_pruning(dense, torn, steps=0).product_bound is None
    linear = nn.Sequential(nn.Linear(6, 6, bias=False), nn.ReLU(), nn.Linear(6, 6, bias=False))
    swapped = nn.Sequential(linear[0], linear[2], nn.ReLU())
    swapped_names = nn.Sequential()
    for name, module in (("0", swapped[0]), ("2", swapped[1]), ("1", swapped[2])):
        swapped_names.add_module(name, module)
    assert sc.measure_pruning(linear, swapped_names, steps=0).product_bound is None
    assert (
        sc.measure_pruning(linear, pruned(linear, 0.5), where="0.weight", steps=0).product_bound
        is None
    )
    hooked = pruned(linear, 0.5)
    hooked[1].register_forward_hook(lambda module, inputs, output: 2 * output)
    assert sc.measure_pruning(linear, hooked, steps=0).product_bound is None


def test_models_are_untouched_and_nothing_pruned_is_no_change():
    dense = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).train()
    before = copy.deepcopy(dense.state_dict())
    found = sc.measure_pruning(dense, copy.deepcopy(dense), epsilon=0.1, points=10)
    assert (
        found.sup_error == 0
        and found.probability == 1
        and all(layer.within is None for layer in found.layers)
    )
    assert all(torch.equal(before[k], v) for k, v in dense.state_dict().items()) and dense.training
    assert all(p.grad is None for p in dense.parameters())


def test_bad_input(linear):
    with pytest.raises(
        StructureMismatch, match=r"0\.weight, 2\.weight missing or of another shape"
    ):
        sc.measure_pruning(linear, nn.Linear(3, 3))
    with pytest.raises(ArgumentError, match="epsilon=-1"):
        sc.measure_pruning(linear, linear, epsilon=-1.0)
    with pytest.raises(ArgumentError, match="points=0"):
        sc.measure_pruning(linear, linear, points=0)
    broken = copy.deepcopy(linear)
    with torch.no_grad():
        broken[0].weight[0, 0] = float("inf")
    with pytest.raises(
        ParameterError,
        match=r"'0\.weight' hold NaN or infinite weights in the sparse model",
    ):
        sc.measure_pruning(linear, broken)


def test_bad_models():
    biased = nn.Linear(3, 3)
    broken = copy.deepcopy(biased)
    broken.bias.data[1] = float("nan")
    with pytest.raises(
        ParameterError,
        match="'bias' hold NaN or infinite weights in the sparse model",
    ):
        sc.measure_pruning(biased, broken, epsilon=0.1)
    with pytest.raises(
        ArgumentError,
        match=r"sparse is a OrderedDict, not a module: .*load_state_dict",
    ):
        sc.measure_pruning(biased, biased.state_dict())
    with pytest.raises(ArgumentError, match="sparse model returns a tuple: wrap it"):
        sc.measure_pruning(Pair(3, 3), Pair(3, 3))
    with pytest.raises(
        ArgumentError,
        match=r"shape \(1, 8\): .*guessed from the linear layer defined first.*example=",
    ):
        sc.measure_pruning(Shuffled(), Shuffled())
    assert sc.measure_pruning(Shuffled(), Shuffled(), example=torch.randn(1, 5)).sup_error > 0
    normed = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    normed[1].running_var.fill_(float("nan"))
    with pytest.raises(
        ParameterError,
        match="sparse model gives NaN or infinite outputs.*running variances",
    ):
        sc.measure_pruning(normed, normed)
    narrow = nn.Sequential(nn.Linear(3, 3), nn.Flatten(0))
    with pytest.raises(ArgumentError, match=r"returns shape \(3,\) for 1 inputs"):
        sc.measure_pruning(narrow, narrow)


def test_bad_examples():
    linear = nn.Linear(3, 2)
    with pytest.raises(ArgumentError, match=r"example holds torch\.int64.*embedding"):
        sc.measure_pruning(linear, linear, example=torch.ones(1, 3, dtype=torch.long))
    with pytest.raises(
        ArgumentError,
        match=r"example has shape \(3,\): give one input with a batch axis",
    ):
        sc.measure_pruning(linear, linear, example=torch.ones(3))
    with pytest.raises(
        ArgumentError,
        match=r"does not take an input of shape \(1, 4\): .*example= needs the shape",
    ):
        sc.measure_pruning(linear, linear, example=torch.ones(1, 4))
    with pytest.raises(ArgumentError, match="example is a list"):
        sc.measure_pruning(linear, linear, example=[1.0, 2.0, 3.0])
    assert (
        sc.measure_pruning(linear, linear, example=torch.ones(1, 3, dtype=torch.float64)).sup_error
        == 0
    )
