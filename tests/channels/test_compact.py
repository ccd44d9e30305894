"""Compaction: masked and compacted networks are one function, and what stays is said."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import architectures
import secateurs as sc
from dead_filters import dead_filters
from secateurs.channels import verify
from secateurs.channels.labels import leaves
from secateurs.channels.prune import channels
from secateurs.channels.verify import difference_in_every_mode
from secateurs.errors import (
    ArgumentError,
    ShipError,
    UnsupportedOperation,
)
from ship.random_nets import KINDS, random_net


def apart(a, b):
    """The largest relative difference over all tensors of two results."""
    pairs = list(zip(leaves(a), leaves(b), strict=True))
    tiny = torch.finfo(pairs[0][0].dtype).tiny
    return max(float((x - y).abs().max() / x.abs().max().clamp_min(tiny)) for x, y in pairs)


def check_equal(net, small, inputs):
    """Equal at 1e-9 in float64 and at 1e-5 in float32, on every input."""
    for x in inputs:
        with torch.no_grad():
            assert apart(net(*x), small(*x)) <= 1e-9
            single = [t.float() for t in x]
            one, other = copy.deepcopy(net).float(), copy.deepcopy(small).float()
            assert apart(one(*single), other(*single)) <= 1e-5


def check_random(seed):
    net, x, y = random_net(seed)
    before = copy.deepcopy(net.state_dict())
    small = sc.compact(net, x)
    check_equal(net, small, [[x], [y]])
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert type(small) is type(net)


@pytest.mark.parametrize("seed", range(2 * len(KINDS)))
def test_random_nets_stay_the_same_function(seed):
    check_random(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2 * len(KINDS), 320))
def test_many_random_nets_stay_the_same_function(seed):
    check_random(seed)


@pytest.mark.parametrize("name", ["alexnet", "shufflenet", "unet-transposed", "huggingface-resnet"])
def test_named_architectures(name):
    model, example = architectures.build(name)
    dead_filters(model, 0.4)
    small = sc.compact(model, example)
    check_equal(model, small, [example])
    assert small.compaction.parameters[1] < small.compaction.parameters[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(architectures.ZOO))
def test_every_architecture(name):
    model, example = architectures.build(name)
    dead_filters(model, 0.4)
    small = sc.compact(model, example)
    check_equal(model, small, [example])


def chain(*layers):
    return nn.Sequential(*layers).double().eval()


def test_a_dead_channel_with_a_bias_moves_into_the_next_bias():
    net = chain(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    net[0].weight.data[1] = 0
    net[0].bias.data[1] = 2.0
    small = sc.compact(net, torch.zeros(1, 3))
    assert small[0].weight.shape == (3, 3) and small[2].weight.shape == (2, 3)
    assert torch.allclose(small[2].bias, net[2].bias + 2 * net[2].weight[:, 1])
    assert small[0].out_features == 3 and small[2].in_features == 3


def test_a_channel_with_no_scale_emits_its_shift():
    """γ = 0 with β ≠ 0: a constant, removed through the next convolution's new bias."""
    conv = nn.Conv2d(3, 2, 1, bias=False)
    net = chain(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), conv)
    net[1].weight.data[0], net[1].bias.data[0] = 0, 1.5
    small = sc.compact(net, torch.zeros(1, 2, 4, 4))
    assert small[0].weight.shape[0] == 2 and small[1].num_features == 2
    assert small.compaction.new == ("3.bias",)
    check_equal(net, small, [[torch.randn(2, 2, 5, 7, dtype=torch.float64)]])


def test_constants_go_into_the_running_mean_before_a_new_bias():
    net = chain(
        nn.Conv2d(2, 3, 1),
        nn.ReLU(),
        nn.Conv2d(3, 4, 1, bias=False),
        nn.BatchNorm2d(4),
    )
    net[0].weight.data[2], net[0].bias.data[2] = 0, 1.0
    small = sc.compact(net, torch.zeros(1, 2, 4, 4))
    assert small.compaction.new == () and small[2].bias is None
    assert not torch.equal(small[3].running_mean, net[3].running_mean)
    check_equal(net, small, [[torch.randn(2, 2, 4, 4, dtype=torch.float64)]])


def test_at_a_border_one_constant_stands_for_all():
    net = chain(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 2, 3, padding=1))
    net[0].weight.data[1:5] = 0
    net[0].bias.data[1:5] = torch.tensor([1.0, 2.0, 3.0, 0.0])
    small = sc.compact(net, torch.zeros(1, 1, 6, 6))
    assert small[0].weight.shape[0] == 3
    assert any("stands for all constants" in kept.why for kept in small.compaction.kept)
    inputs = [[torch.randn(1, 1, size, size, dtype=torch.float64)] for size in (1, 2, 6, 13)]
    check_equal(net, small, inputs)


def test_one_pixel_in_the_example_does_not_hide_the_border():
    """On a map of one pixel a padded convolution looks like a linear layer; on a larger map it is
    none."""
    net = chain(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.AvgPool2d(3, 1, 1),
    )
    net[0].weight.data[1:3] = 0
    net[2].weight.data[0] = 0
    small = sc.compact(net, torch.zeros(1, 1, 1, 1))
    check_equal(
        net,
        small,
        [[torch.randn(1, 1, size, size, dtype=torch.float64)] for size in (1, 5)],
    )


def test_depthwise_and_grouped_layers_lose_whole_groups():
    net = chain(
        *(
            nn.Conv2d(2, 6, 1),
            nn.Conv2d(6, 6, 3, padding=1, groups=6),
            nn.ReLU(),
            nn.Conv2d(6, 4, 1),
        ),
        *(nn.Conv2d(4, 8, 1, groups=2), nn.Conv2d(8, 1, 1)),
    )
    net[3].weight.data[:, 4:] = 0
    net[5].weight.data[:, :4] = 0
    small = sc.compact(net, torch.zeros(1, 2, 5, 5))
    assert small[0].out_channels == 4 and small[1].groups == 4
    assert small[4].groups == 1 and small[4].weight.shape == (4, 2, 1, 1)
    check_equal(net, small, [[torch.randn(2, 2, 5, 5, dtype=torch.float64)]])


def test_a_network_that_carries_nothing_keeps_one_channel_and_says_so():
    net = chain(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    net[2].weight.data.zero_()
    small = sc.compact(net, torch.zeros(1, 3))
    assert [small[i].weight.shape for i in (0, 2, 4)] == [(1, 3), (1, 1), (2, 1)]
    text = str(small.compaction)
    assert "the output does not depend on the input" in text and "last channel of a layer" in text


def test_a_block_whose_branch_is_dead_is_named():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 5), nn.Linear(5, 4)

        def forward(self, x):
            return x + self.two(self.one(x).relu())

    net = chain(nn.Linear(2, 4), Block(), nn.Linear(4, 2))
    net[1].two.weight.data.zero_()
    net[1].two.bias.data.zero_()
    small = sc.compact(net, torch.zeros(1, 2))
    assert small[1].one.weight.shape == (1, 4)
    assert "a branch of 1 adds nothing" in small.compaction.idle


def test_tied_and_shared_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.first, self.last = (
                nn.Linear(5, 5),
                nn.Linear(3, 5),
                nn.Linear(5, 2),
            )
            self.again = nn.Linear(5, 5)
            self.again.weight = self.inner.weight

        def forward(self, x):
            return self.last(self.again(self.inner(self.first(x)).relu()).relu())

    net = Tied().double().eval()
    with torch.no_grad():
        for layer in (net.inner, net.first):
            layer.weight[2:4], layer.bias[2:4] = 0, 0
        net.inner.weight[:, 2:4] = 0
        net.again.bias[2:4] = 0
    small = sc.compact(net, torch.zeros(1, 3))
    assert small.again.weight is small.inner.weight and small.inner.weight.shape == (
        3,
        3,
    )
    check_equal(net, small, [[torch.randn(4, 3, dtype=torch.float64)]])


def test_counts_are_rounded_up_to_a_multiple():
    net = chain(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    net[0].weight.data[5:] = 0
    small = sc.compact(net, torch.zeros(1, 3), multiple_of=4)
    assert small[0].weight.shape == (8, 3)
    assert any("multiple of 4" in kept.why for kept in small.compaction.kept)
    check_equal(net, small, [[torch.randn(4, 3, dtype=torch.float64)]])
    with pytest.raises(ArgumentError, match="multiple_of=0"):
        sc.compact(net, torch.zeros(1, 3), multiple_of=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_dtype_stays_and_unmoved_values_are_bit_equal(dtype):
    net = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)).to(dtype).eval()
    net[2].weight.data[:, 3:] = 0
    net[0].weight.requires_grad_(False)
    small = sc.compact(net, torch.zeros(1, 3))
    assert small[0].weight.dtype is dtype and torch.equal(small[0].weight, net[0].weight[:3])
    assert not small[0].weight.requires_grad and small[2].weight.requires_grad


def test_sizes_written_in_the_code_are_respected():
    class Baked(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(16, 2)

        def forward(self, x):
            return self.head(self.conv(x).relu().view(-1, 16))

    net = Baked().double().eval()
    net.conv.weight.data[1] = 0
    small = sc.compact(net, torch.zeros(1, 1, 4, 4))
    assert small.conv.out_channels == 4
    assert any("view" in kept.why for kept in small.compaction.kept)


def test_slices_that_the_graph_cannot_tell_from_the_code_are_tried_again():
    """`c // 2` is 4 in the graph and 3 in the code once two channels are gone; the comparison finds
    it."""

    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.a, self.b = (
                nn.Conv2d(1, 8, 1),
                nn.Conv2d(4, 3, 1),
                nn.Conv2d(4, 3, 1),
            )

        def forward(self, x):
            x = self.conv(x).relu()
            half = x.shape[1] // 2
            return self.a(x[:, :half]) - self.b(x[:, half:])

    net = Halves().double().eval()
    net.b.weight.data[:, 2:] = 0
    small = sc.compact(net, torch.zeros(1, 1, 4, 4))
    assert small.conv.out_channels == 8
    check_equal(net, small, [[torch.randn(2, 1, 4, 4, dtype=torch.float64)]])


def test_code_that_insists_on_a_size_is_refused_and_nothing_changes():
    class Insists(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            x = self.one(x).relu()
            if x.shape[-1] != 4:
                raise ValueError("four, please")
            return self.two(x)

    net = Insists().eval()
    net.two.weight.data[:, 2:] = 0
    with pytest.raises(ShipError, match="relies on sizes"):
        sc.compact(net, torch.zeros(1, 3))
    assert net.one.weight.shape == (4, 3)


def test_all_outputs_count():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.a, self.b = (
                nn.Linear(3, 4),
                nn.Linear(4, 2),
                nn.Linear(4, 2),
            )

        def forward(self, x):
            x = self.body(x).relu()
            return {"logits": self.a(x), "other": self.b(x)}

    net = Two().double().eval()
    net.a.weight.data[:, :2] = 0
    net.b.weight.data[:, 1:3] = 0
    small = sc.compact(net, torch.zeros(1, 3))
    assert small.body.weight.shape == (3, 3)
    x = torch.randn(5, 3, dtype=torch.float64)
    with torch.no_grad():
        assert apart(net(x), small(x)) < 1e-12


def test_what_mixes_channels_keeps_them_and_says_so():
    net = chain(nn.Linear(3, 4), nn.Softmax(dim=1), nn.Linear(4, 2))
    net[0].weight.data[1], net[0].bias.data[1] = 0, 0
    net[2].weight.data[:, 1] = 0
    small = sc.compact(net, torch.zeros(1, 3))
    # A probability that nobody reads still takes its part from the others.
    assert small[0].weight.shape == (4, 3)
    check_equal(net, small, [[torch.randn(5, 3, dtype=torch.float64)]])


def test_the_account_prints_and_is_plain_data():
    net = chain(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    text = str(sc.compact(net, torch.zeros(1, 3)).compaction)
    assert "no gain" in text and "100.0%" in text
    net[0].weight.data[1] = 0
    account = sc.compact(net, torch.zeros(1, 3)).compaction
    assert account.as_dict()["narrowed"]["0.weight"] == [[4, 3], [3, 3]]
    assert '"difference"' in account.to_json()


def test_steps_are_told():
    told = []
    sc.compact(chain(nn.Linear(3, 2)), torch.zeros(1, 3), progress=told.append)
    assert told[0] == "reading the model" and told[-1] == "done"


def test_it_works_inside_inference_mode():
    """It takes a gradient on the way, which that mode forbids."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * 16, 2)).double()
    net[0].weight.data[1] = 0
    x = torch.randn(2, 1, 4, 4, dtype=torch.float64)
    with torch.inference_mode():
        small = sc.compact(net.eval(), x)
    assert small[0].weight.shape[0] < 4
    check_equal(net, small, [[x]])


class Centred(nn.Module):
    """A convolution whose weight is computed: its mean over some dimensions is taken away."""

    def __init__(self, dims):
        super().__init__()
        self.a = nn.Conv2d(2, 6, 3, padding=1)
        self.w = nn.Parameter(torch.randn(6, 6, 3, 3))
        self.b, self.dims = nn.Linear(6, 3), dims

    def forward(self, x):
        weight = self.w - self.w.mean(self.dims, keepdim=True)
        x = torch.relu(self.a(x))
        x = torch.relu(nn.functional.conv2d(x, weight, padding=1))
        return self.b(x.mean((2, 3)))


@pytest.mark.parametrize(("dims", "left"), [((2, 3), 3), (1, 6)])
def test_a_weight_computed_from_all_channels_keeps_them(dims, left):
    """A mean over the kernel is each channel's own; one over the channels is everybody's."""
    net = Centred(dims).double().eval()
    with torch.no_grad():
        net.a.weight[:3] = net.a.bias[:3] = 0
    small = sc.compact(net, torch.randn(1, 2, 5, 5))
    assert len(small.a.weight) == left
    said = [kept.why for kept in small.compaction.kept]
    assert any("from all channels" in why for why in said) == (left == 6)


class Single(nn.Module):
    """Fills in the smallest number of its dtype, but names no dtype for what it fills."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        lowest = torch.finfo(self.a.weight.dtype).min
        return self.a(x) + torch.full((4,), lowest).clamp(min=0)


def test_a_model_that_does_not_run_in_float64_is_compared_in_its_own_precision():
    net, x = Single(), torch.randn(1, 4)
    small = sc.compact(net, x)
    assert small.compaction.precision == "float32"
    assert torch.equal(small(x), net(x))


class Rounded(nn.Module):
    """Multiplies by a number that differs by 5e-7 between the two precisions."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)) * (1 + 4 * torch.finfo(x.dtype).eps))


class Doubled(Rounded):
    """Does something else in the two precisions."""

    def forward(self, x):
        y = torch.relu(self.a(x))
        return self.b(y[:, :6] if x.dtype == torch.float32 else y.flip(1).flip(1))


def without_a_neuron(net):
    net = net.eval()
    with torch.no_grad():
        net.a.weight[2], net.a.bias[2] = 0, 3
    return net


@pytest.fixture
def traces(monkeypatch):
    """The dtypes of the models that torch.export is given."""
    seen, export = [], torch.export.export

    def counting(model, *args, **kwargs):
        seen.append(next(model.parameters()).dtype)
        return export(model, *args, **kwargs)

    monkeypatch.setattr(torch.export, "export", counting)
    return seen


@pytest.mark.parametrize("net, again", [(Rounded(), [torch.float64]), (Doubled(), [])])
def test_what_differs_between_precisions_is_read_in_float64(net, again, traces):
    net, x = without_a_neuron(net), torch.randn(1, 4)
    small = sc.compact(net, x)
    assert traces == [torch.float32, *again]
    assert small.a.weight.shape == (5, 4)
    with torch.no_grad():
        assert small.compaction.difference <= 1e-9 and apart(net(x), small(x)) <= 1e-5


class Scaled(Rounded):
    """Is another function in float64."""

    def forward(self, x):
        return self.b(torch.relu(self.a(x)) * (1 if x.dtype == torch.float32 else 2))


def test_another_function_in_float64_is_compared_in_float32():
    # Too large an input to be looked at in float64 when it is read.
    net, x = without_a_neuron(Scaled()), torch.randn(1, 1100, 4)
    small = sc.compact(net, x)
    assert small.compaction.precision == "float32" and small.a.weight.shape == (5, 4)
    with torch.no_grad():
        assert apart(net(x), small(x)) <= 1e-5


def test_a_model_is_traced_once_for_pruning_and_compaction(traces):
    net = nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 49, 4)
    ).eval()
    x = torch.randn(1, 2, 9, 9)
    sc.prune_channels_(net, x, "magnitude", channels=0.5)
    small = sc.compact(net, x)
    assert traces == [torch.float32] and small[0].weight.shape[0] == 4
    with torch.no_grad():
        assert small.compaction.difference <= 1e-9 and apart(net(x), small(x)) <= 1e-5


def test_a_group_of_a_transposed_convolution_goes_whole():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 12, 2, groups=2),
        nn.ReLU(),
        nn.Conv2d(12, 2, 1),
    ).eval()
    with torch.no_grad():
        for part in (net[0].weight[:4], net[0].bias[:4], net[2].bias[:6]):
            part.zero_()
    x = torch.randn(1, 3, 5, 5)
    small = sc.compact(net, x)
    assert small[2].weight.shape == (4, 6, 2, 2) and small[2].groups == 1
    assert torch.equal(small[2].weight, net[2].weight[4:]) and apart(net(x), small(x)) <= 1e-5


def test_the_report_lists_tensors_in_the_models_order():
    net = nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4)
    ).eval()
    with torch.no_grad():
        net[0].weight[:3] = 0
        net[0].bias[:3] = 0
        net[1].bias[:3] = -1
    names = [one.name for one in sc.compact(net, torch.randn(1, 2, 9, 9)).compaction.narrowed]
    own = [name for name, _ in (*net.named_parameters(), *net.named_buffers())]
    assert len(names) == 7
    assert names == [name for name in own if name in names]


class AroundRecurrent(nn.Module):
    """What lies before and behind a recurrent layer, which itself stays whole."""

    def __init__(self, kind):
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.before, self.into = nn.Linear(6, 16), nn.Linear(16, 5)
        self.steps = kind(5, 7, batch_first=True)
        self.hidden, self.out = nn.Linear(7, 16), nn.Linear(16, 3)

    def forward(self, ids):
        x = self.into(torch.relu(self.before(self.words(ids))))
        states, last = self.steps(x)
        return self.out(torch.relu(self.hidden(states))), last


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
@pytest.mark.parametrize("budget", ["channels", "macs", "sparsity", "latency"])
def test_networks_are_cut_around_a_recurrent_layer_and_an_embedding(kind, budget):
    torch.manual_seed(0)
    model, ids = AroundRecurrent(kind).eval(), torch.randint(0, 20, (2, 9))
    share = {"channels": 0.5, "macs": 0.8, "sparsity": 0.2, "latency": 0.9}[budget]
    pruned = sc.prune_channels_(model, ids, **{budget: share})
    assert pruned.channels[1] == 32, "those of the two hidden layers"
    small = sc.compact(model, ids)
    assert small.compaction.parameters[1] < small.compaction.parameters[0] or budget == "latency"
    assert small.words.weight.shape == (20, 6) and small.steps.weight_hh_l0.shape[1] == 7
    with torch.no_grad():
        torch.testing.assert_close(small(ids)[0], model(ids)[0])


def test_a_recurrent_layer_that_draws_random_numbers_is_still_refused():
    model = nn.Sequential(nn.GRU(4, 4, num_layers=2, dropout=0.5, batch_first=True)).train()
    with pytest.raises(UnsupportedOperation, match="random"):
        sc.capture(model, torch.zeros(1, 3, 4), opaque=True, output="0")


class Moody(nn.Linear):
    """Adds something in one mode."""

    def __init__(self, mode=None):
        torch.manual_seed(0)
        super().__init__(4, 3)
        self.mode = mode

    def forward(self, x):
        return super().forward(x) + (1.0 if self.mode and self.mode() else 0.0)


def without_gradients():
    return not torch.is_grad_enabled()


MODES = [torch.is_grad_enabled, torch.is_inference_mode_enabled, without_gradients]


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_difference_in_one_mode_is_seen(mode, alike):
    one, other, x = Moody(), Moody(mode), torch.randn(1, 4)
    assert difference_in_every_mode(one, other, x, alike=alike) > 0.1
    # A model that is not alike in all modes is not said to be: `Graph.alone` tells.
    assert difference_in_every_mode(other, one, x) > 0.1
    assert difference_in_every_mode(one, Moody(), x, alike=alike) == 0


def test_a_model_that_is_alike_in_all_modes_answers_once(monkeypatch):
    one, ran = Moody(), []
    monkeypatch.setattr(verify, "run", lambda model, x: ran.append(model) or model(x))
    for alike, times in ((False, 3), (True, 1)):
        ran.clear()
        difference_in_every_mode(one, Moody(), torch.randn(1, 4), alike=alike)
        assert sum(model is one for model in ran) == times


class _Grid(nn.Module):
    """Positions made in float32: the model's code does not run in float64."""

    def __init__(self):
        super().__init__()
        self.conv, self.place = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(1, 8, 1)
        self.mix, self.head = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        grid = torch.linspace(0, 1, x.shape[-1], dtype=torch.float32).expand(1, 1, *x.shape[-2:])
        return self.head(torch.relu(self.mix(torch.relu(self.conv(x) + self.place(grid)))))


def test_a_model_of_float32_alone_is_compared_in_it_and_the_record_says_so():
    model, x = _Grid().eval(), torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        model.mix.weight[:4], model.mix.bias[:4] = 0, -1
    small = sc.compact(model, x)
    assert small.mix.weight.shape == (4, 8, 1, 1)
    done = small.compaction
    assert done.precision == done.as_dict()["precision"] == "float32"
    assert done.tolerance == 2000 * torch.finfo(torch.float32).eps
    assert "(float32, at most 2e-04 allowed)" in str(done)
    assert torch.allclose(small(x), model(x), atol=1e-6)


REARRANGEMENTS = {
    "as it is": lambda w: w,
    "transposed": lambda w: w.t(),
    "turned around": lambda w: w.flip(0),
    "halves dealt out": lambda w: w.view(2, 2, 4).transpose(0, 1).reshape(4, 4),
    "rows by number": lambda w: w[torch.tensor([2, 0, 3, 1])],
    "of a kernel of one": lambda w: w.reshape(4, 4, 1, 1).transpose(0, 1).flatten(1),
}


class Rearranged(nn.Module):
    """A square weight that is put into another order before it is used."""

    def __init__(self, how):
        super().__init__()
        self.first, self.head = nn.Linear(5, 4), nn.Linear(4, 2)
        self.weight, self.how = nn.Parameter(torch.randn(4, 4)), how

    def used(self):
        return REARRANGEMENTS[self.how](self.weight)

    def forward(self, x):
        return self.head(F.linear(self.first(x).relu(), self.used()).relu())


@pytest.mark.parametrize("how", REARRANGEMENTS)
def test_a_square_weight_in_another_order_loses_the_right_channels(how):
    """Sizes alone would say that nothing was moved."""
    model, x = Rearranged(how).double().eval(), torch.randn(6, 5).double()
    found = channels(model, x)
    for channel in range(len(found.labels)):
        again = copy.deepcopy(model)
        with torch.no_grad():
            for name, mask in found.masks(torch.arange(len(found.labels)) != channel).items():
                again.get_parameter(name).mul_(mask)
        first = again.first(x).relu()
        # A channel that was computed is silent.
        silent = [~values.any(0) for values in (first, F.linear(first, again.used()).relu())]
        assert sum(int(each.sum()) for each in silent) >= 1
        small = sc.compact(again, x)
        # The others name their sizes in code, and stay as large as they are.
        sizes = [sum(p.numel() for p in each.parameters()) for each in (small, model)]
        assert sizes[0] < sizes[1] or how in list(REARRANGEMENTS)[3:]
        torch.testing.assert_close(small(x), again(x), rtol=1e-12, atol=1e-14)
    with torch.no_grad():
        model.first.weight[1], model.first.bias[1] = 0, 0
    torch.testing.assert_close(sc.compact(model, x)(x), model(x), rtol=1e-12, atol=1e-14)
