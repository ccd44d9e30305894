"""What goes with a channel, and that it really goes."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import architectures
import secateurs as sc
from secateurs.channels.prune import _keep_best, channels
from secateurs.errors import ShipError


def test_everything_that_belongs_to_a_channel_is_masked():
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 1)).eval()
    found = channels(net, torch.zeros(1, 1, 5, 5))
    masks = found.masks(torch.tensor([True, False, True]))
    assert sorted(masks) == ["0.bias", "0.weight", "1.bias", "1.weight", "3.weight"]
    assert masks["3.weight"].shape == (2, 3, 1, 1) and not masks["3.weight"][:, 1].any()
    assert not masks["0.weight"][1].any() and masks["0.weight"][0].all()


def test_axes_come_from_the_operator_that_uses_the_weight():
    """A transposed convolution writes along dimension 1; a transposed weight is read along
    dimension 0."""
    up = nn.Sequential(nn.ConvTranspose2d(2, 5, 2), nn.ReLU(), nn.Conv2d(5, 1, 1)).eval()
    masks = channels(up, torch.zeros(1, 2, 3, 3)).masks(torch.arange(5) != 3)
    assert not masks["0.weight"][:, 3].any() and masks["0.weight"][:, :3].all()

    class Transposed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4))
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return self.head((x @ self.weight).relu())

    masks = channels(Transposed().eval(), torch.zeros(1, 3)).masks(torch.arange(4) != 1)
    assert not masks["weight"][:, 1].any() and masks["weight"][:, 0].all()


def test_a_skip_connection_ties_all_that_write_to_it():
    model, example = architectures.build("huggingface-resnet")
    found = channels(model, example)
    kept = torch.ones(len(found.labels), dtype=torch.bool)
    sizes = [len(found.masks(kept.index_fill(0, torch.tensor([i]), False))) for i in (0, 5)]
    assert max(sizes) > 8


def test_the_work_left_is_that_of_the_compacted_network():
    model, example = architectures.build("unet-transposed")
    found = channels(model, example)
    kept = torch.rand(len(found.labels), generator=torch.Generator().manual_seed(0)) < 0.5
    left = found.macs(kept)
    sc.apply_(model, found.masks(kept))
    small = sc.compact(model, example)
    assert small.compaction.macs[1].dense == left
    assert small.compaction.removed == small.compaction.dead


class Padded(nn.Module):
    """A shortcut without parameters, as in the ResNets of CIFAR-10: zeros on both sides."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.c, self.head = nn.Conv2d(8, 16, 3, padding=1), nn.Linear(16, 2)

    def forward(self, x):
        x = self.a(x).relu()
        x = (x + self.b(x)).relu()
        x = (nn.functional.pad(x, (0, 0, 0, 0, 4, 4)) + self.c(x)).relu()
        return self.head(x.mean((2, 3)))


def test_of_a_padded_shortcut_what_is_padded_goes_and_the_zeros_stay():
    torch.manual_seed(0)
    model, example = Padded().eval(), torch.zeros(1, 3, 6, 6)
    done = sc.prune_channels_(model, example, macs=0.5)
    small = sc.compact(model, example)
    assert small.compaction.macs[1].dense == done.macs[0] <= 0.5 * done.macs[1]
    assert small.compaction.removed == small.compaction.dead > 0
    # Channels of the stream, each gone from all layers; the padded eight are in the code.
    assert small.a.out_channels == small.b.out_channels == small.c.out_channels - 8 < 8


def test_inputs_outputs_and_reorderings_stay():
    net = nn.Sequential(nn.Linear(3, 2)).eval()
    assert len(channels(net, torch.zeros(1, 3)).labels) == 0
    shuffled = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ChannelShuffle(2), nn.Conv2d(4, 2, 1)).eval()
    assert len(channels(shuffled, torch.zeros(1, 1, 2, 2)).labels) == 0


def test_the_score_of_a_channel_is_the_mean_of_what_goes_with_it():
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False)).eval()
    found = channels(net, torch.zeros(1, 2))
    scores = {
        "0.weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        "2.weight": torch.tensor([[6.0, 2]]),
    }
    assert found.score(scores).tolist() == pytest.approx([3.0, 3.0])


class Chunked(nn.Module):
    """A block as in YOLO: what a layer writes is shared out in two, and joined again."""

    def __init__(self, pieces=2):
        super().__init__()
        self.pieces = pieces
        self.into, self.more = nn.Conv2d(3, 12, 1), nn.Conv2d(12 // pieces, 12 // pieces, 1)
        self.out = nn.Conv2d(12 + 12 // pieces, 2, 1)

    def forward(self, x):
        parts = list(self.into(x).relu().chunk(self.pieces, 1))
        return self.out(torch.cat([*parts, self.more(parts[-1]).relu()], 1))


@pytest.mark.parametrize("pieces", [2, 3])
def test_equal_pieces_lose_the_same_places(pieces):
    model, example = Chunked(pieces).eval(), torch.zeros(1, 3, 4, 4)
    found = channels(model, example)
    size = 12 // pieces
    # A channel of each piece goes together; the layer behind the last piece is free.
    assert len(found.labels) == 2 * size
    rows = found.rows["into.weight", 0].reshape(pieces, size)
    assert bool((rows == rows[:1]).all())
    pruned = sc.prune_channels_(model, example, channels=0.5)
    small = sc.compact(model, example)
    assert small.into.weight.shape[0] == 6 and small.compaction.kept == ()
    assert small.compaction.parameters[1] == pruned.entries[0]


def test_pieces_of_sizes_in_the_code_stay():
    class Split(Chunked):
        def forward(self, x):
            a, b = self.into(x).relu().split([6, 6], 1)
            return self.out(torch.cat([a, b, self.more(b).relu()], 1))

    found = channels(Split().eval(), torch.zeros(1, 3, 4, 4))
    assert ("into.weight", 0) not in found.rows and ("more.weight", 0) in found.rows


def test_what_a_cat_joins_may_go_from_both_sides():
    """Also where one side is narrower than half of what comes out, as in a U-Net."""

    class Joined(nn.Module):
        def __init__(self):
            super().__init__()
            self.few, self.many = nn.Conv2d(1, 4, 1), nn.Conv2d(1, 12, 1)
            self.out = nn.Conv2d(16, 1, 1)

        def forward(self, x):
            return self.out(torch.cat([self.few(x).relu(), self.many(x).relu()], 1))

    found = channels(Joined().eval(), torch.zeros(1, 1, 2, 2))
    assert len(found.labels) == 16 and {len(each) for each in found.families} == {4, 12}


class _Masked(nn.Module):
    """Some places are replaced by an embedding of their own in training, as in speech models."""

    def __init__(self, hide=True):
        super().__init__()
        self.first, self.norm = nn.Linear(4, 8), nn.LayerNorm(8)
        self.last, self.hidden, self.hide = nn.Linear(8, 2), nn.Parameter(torch.ones(8)), hide

    def forward(self, x):
        y = self.first(x)
        if self.training and self.hide:
            places = torch.zeros(y.shape[:-1], dtype=torch.bool)
            places[:, 0] = True
            y = torch.where(places[..., None], self.hidden, y)
        return self.last(self.norm(y))


def test_a_cut_after_which_training_fails_is_refused():
    model, x = _Masked().eval(), torch.zeros(1, 3, 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ShipError, match="training mode.*hidden is read there alone"):
        sc.prune_channels_(model, x, channels=0.5, exact=False)
    assert not model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    # Where training does not read it, it is nobody's harm.
    other = _Masked(hide=False).eval()
    sc.prune_channels_(other, x, channels=0.5, exact=False)
    assert other.first.weight.shape == (4, 4)
    other.train()(torch.zeros(2, 3, 4)).sum().backward()


def test_channels_behind_weight_norm_go_by_their_norms():
    """A direction without entries would be divided by zero; a factor of zero says the same."""
    torch.manual_seed(0)
    first, last = weight_norm(nn.Conv1d(4, 16, 5, padding=2)), weight_norm(nn.Conv1d(8, 1, 7))
    up = weight_norm(nn.ConvTranspose1d(16, 8, 4, 2, 1))
    model, x = nn.Sequential(first, nn.ReLU(), up, nn.ReLU(), last).eval(), torch.randn(2, 4, 20)
    done = sc.prune_channels_(model, x, channels=0.5)
    direction, factor = (f"0.parametrizations.weight.original{part}" for part in (1, 0))
    assert direction not in done.masks and int(done.masks[factor].sum()) == 8
    assert int((first.weight.flatten(1) == 0).all(1).sum()) == 8
    small = sc.compact(model, x)
    assert small[0].parametrizations.weight.original1.shape == (8, 4, 5)
    assert sum(p.numel() for p in small.parameters()) == done.entries[0]
    torch.testing.assert_close(small(x), model(x))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with sc.hold(model, done.masks, optimizer):
        for _ in range(2):
            model(x).sum().backward()
            optimizer.step()
    torch.testing.assert_close(sc.compact(model, x)(x), model(x))
    assert int((first.weight.flatten(1) == 0).all(1).sum()) == 8


def test_of_equal_channels_of_a_stream_the_earlier_stay():
    members, kept = torch.tensor([1, 2, 4, 5, 7]), torch.zeros(8, dtype=torch.bool)
    rank = torch.tensor([9.0, 3, 3, 9, 3, 3, 9, 3])
    chosen = _keep_best(kept, members, 3, rank)
    assert chosen.nonzero().flatten().tolist() == [1, 2, 4]
    # What is kept already comes first, whatever its rank.
    kept[7] = True
    assert _keep_best(kept, members, 3, rank).nonzero().flatten().tolist() == [1, 2, 7]
