"""Pruning whole channels: budgets are met, floors hold, and the compacted network is as small as
said."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import architectures
import secateurs as sc
from secateurs.channels.prune import channels
from secateurs.errors import ArgumentError, EmptySelectionError, ShipError, UnknownNameError
from secateurs.prune import cut_channels
from secateurs.prune.channels import ranked_channels


def net():
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
    )
    more = (
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return nn.Sequential(*layers, *more, nn.Linear(32, 5)).eval()


EXAMPLE = torch.zeros(1, 3, 8, 8)


BIG = [
    pytest.param(name, marks=pytest.mark.slow) for name in ("resnet18", "mobilenet", "densenet121")
]


@pytest.mark.parametrize("name", ["huggingface-resnet", "unet-nearest", *BIG])
def test_a_budget_in_multiplications_is_what_compact_leaves(name):
    model, example = architectures.build(name)
    pruned = sc.prune_channels_(model, example, macs=0.3)
    small = sc.compact(model, example)
    assert small.compaction.macs[1].dense == pruned.macs[0]
    assert 0.25 < pruned.macs[0] / pruned.macs[1] <= 0.3
    assert small.compaction.removed == small.compaction.dead > 0
    assert small.compaction.parameters[1] < 0.7 * small.compaction.parameters[0]


@pytest.mark.parametrize("scope", ["global", "uniform"])
@pytest.mark.parametrize(("budget", "part"), [("density", "entries"), ("channels", "channels")])
def test_budgets_are_met_from_below_by_less_than_a_channel(scope, budget, part):
    pruned = cut_channels(net(), EXAMPLE, scope=scope, **{budget: 0.5})
    kept, total = getattr(pruned, part)
    assert 0.42 < kept / total <= 0.5


def test_sparsity_and_compression_state_the_same():
    one, other = (
        cut_channels(net(), EXAMPLE, sparsity=0.75),
        cut_channels(net(), EXAMPLE, compression=4),
    )
    assert one.entries == other.entries and one.channels == other.channels


def test_uniform_keeps_the_same_share_of_every_layer():
    masks = cut_channels(net(), EXAMPLE, channels=0.25).masks
    assert int(masks["0.weight"].flatten(1).any(1).sum()) == 4
    assert int(masks["3.weight"].flatten(1).any(1).sum()) == 8


def test_scales_of_norms_are_scores_too():
    model = net()
    model[1].weight.data.copy_(torch.randperm(16) + 1.0)
    pruned = sc.prune_channels_(model, EXAMPLE, channels=0.5, where=["1.weight", "3.weight"])
    assert pruned.masks["1.weight"].sum() == 8
    assert model[1].weight[pruned.masks["1.weight"]].min() >= 9


def test_every_layer_keeps_its_floor():
    masks = cut_channels(net(), EXAMPLE, scope="global", channels=0.3, floor=0.25).masks
    for name, size in (("0.weight", 16), ("3.weight", 32)):
        kept = int(masks[name].flatten(1).any(1).sum()) if name in masks else size
        assert kept >= size // 4
    with pytest.raises(ArgumentError, match="cannot be reached"):
        cut_channels(net(), EXAMPLE, channels=0.1, floor=8)


@pytest.mark.parametrize("floor", [1, 3, 0.5])
@pytest.mark.parametrize("scope", ["global", "uniform"])
def test_of_equal_channels_the_earlier_stays(scope, floor):
    found = channels(net(), EXAMPLE)
    g = torch.Generator().manual_seed(1)
    tied = torch.randint(1, 4, found.labels.shape, generator=g).double()
    # As if each were a little larger than those after it.
    told_apart = tied - 1e-9 * torch.arange(len(tied), dtype=torch.float64)
    orders = [ranked_channels(found, s, scope, floor).order for s in (tied, told_apart)]
    assert torch.equal(*orders) and 0 < len(orders[0]) < len(tied)


def test_nothing_changes_before_apply_and_only_masked_entries_after():
    model = net()
    before = {name: p.clone() for name, p in model.named_parameters()}
    pruned = cut_channels(model, EXAMPLE, channels=0.5)
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    sc.prune_channels_(model, EXAMPLE, channels=0.5)
    for name, p in model.named_parameters():
        mask = pruned.masks.get(name, torch.ones_like(p, dtype=torch.bool))
        assert torch.equal(p, before[name] * mask)


def test_a_budget_in_time_is_measured():
    pruned = cut_channels(net(), torch.zeros(1, 3, 32, 32), latency=0.9)
    assert pruned.latency is not None and "milliseconds" in str(pruned)


def test_what_cannot_be_asked_is_refused():
    for budget in ({}, {"macs": 0.5, "density": 0.5}):
        with pytest.raises(ArgumentError, match="exactly one of"):
            cut_channels(net(), EXAMPLE, **budget)
    for keyword, meant in (("chanels", "channels"), ("sope", "scope")):
        told = f"no keyword of prune_channels_ '{keyword}'. Did you mean '{meant}'"
        with pytest.raises(UnknownNameError, match=told):
            cut_channels(net(), EXAMPLE, **{keyword: 0.5})
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        cut_channels(net(), EXAMPLE, macs=1.5)
    with pytest.raises(ArgumentError, match="scope="):
        cut_channels(net(), EXAMPLE, macs=0.5, scope="layer")
    with pytest.raises(EmptySelectionError):
        cut_channels(nn.Linear(3, 2).eval(), torch.zeros(1, 3), macs=0.5)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.branch = nn.Sequential(
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 8, 3, padding=1),
            nn.BatchNorm2d(8),
        )
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        x = self.stem(x).relu()
        return self.head((x + self.branch(x)).relu().mean((2, 3)))


def test_blocks_that_are_dead_before_are_named(caplog):
    """A norm that begins at zero, as in fresh networks: `compact` takes the whole branch."""
    torch.manual_seed(0)
    model, example = Residual().eval(), torch.zeros(1, 3, 8, 8)
    assert cut_channels(model, example, channels=0.5).idle == ()
    assert "before any cut" not in caplog.text
    nn.init.zeros_(model.branch[4].weight)
    pruned = cut_channels(model, example, channels=0.5)
    assert "All of 'branch.4.weight' is zero" in caplog.text
    assert any("adds nothing" in line for line in pruned.idle)
    assert "dead before" in str(pruned)
    sc.apply_(model, pruned.masks)
    small = sc.compact(model, example)
    assert small.compaction.parameters[1] < pruned.entries[0] / 2


def test_a_stream_keeps_its_share_like_the_layers_beside_it():
    masks = cut_channels(Residual().eval(), EXAMPLE, channels=0.5).masks
    kept = {
        name: int(mask.flatten(1).any(1).sum()) for name, mask in masks.items() if mask.ndim > 1
    }
    assert kept["stem.weight"] == kept["branch.3.weight"] == 4 and kept["branch.0.weight"] == 8


# Cuts that change outputs.


class Tower(nn.Module):
    """A transformer of all the parts that stand on a stream: token and position embeddings, a class
    token, norms before and after, torch's own attention, a mean over channels."""

    def __init__(self, norm=nn.LayerNorm, width=16, heads=4):
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, width), nn.Embedding(8, width)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norms = nn.ModuleList(norm(width) for _ in range(3))
        self.up, self.down = nn.Linear(width, 24), nn.Linear(24, width)
        self.head = nn.Linear(width, 3)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        x = torch.cat([self.first.expand(len(ids), 1, -1), x], 1)
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = self.norms[1](x + self.down(F.gelu(self.up(x))))
        x = x - x.mean(-1, keepdim=True)
        return self.head(self.norms[2](x)[:, 0])


IDS = torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(0))


def tower(**options):
    torch.manual_seed(0)
    return Tower(**options).eval()


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_an_inexact_cut_takes_streams_embeddings_and_heads(norm):
    model = tower(norm=norm)
    own = dict(model.named_parameters())
    before = {name: p.detach().clone() for name, p in own.items()}
    pruned = sc.prune_channels_(model, {"ids": IDS}, channels=0.5, exact=False)
    assert not pruned.exact and "outputs change: fine-tune" in str(pruned)
    # The same objects, narrowed to what the masks kept.
    for name, p in model.named_parameters():
        assert p is own[name]
        mask = pruned.masks.get(name)
        kept = before[name] if mask is None else before[name][mask].reshape(p.shape)
        assert torch.equal(p, kept)
    assert model.tokens.weight.shape == (11, 8) and model.tokens.embedding_dim == 8
    assert model.places.weight.shape == (8, 8) and model.first.shape == (1, 1, 8)
    assert (model.attention.num_heads, model.attention.embed_dim) == (2, 8)
    assert model.norms[0].normalized_shape == (8,) and model.up.weight.shape == (12, 8)
    assert sum(p.numel() for p in own.values()) == pruned.entries[0]


def test_what_compact_leaves_is_what_was_fine_tuned():
    model = tower()
    sc.prune_channels_(model, {"ids": IDS}, channels=0.5, exact=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    before = F.cross_entropy(model(IDS), torch.tensor([0, 1]))
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(IDS), torch.tensor([0, 1]))
        loss.backward()
        optimizer.step()
    assert loss < before
    # What training leaves dead beside that goes exactly.
    with torch.no_grad():
        model.up.weight[3], model.up.bias[3] = 0, 0
    small = sc.compact(model, {"ids": IDS})
    assert small.up.weight.shape == (11, 8)
    assert torch.allclose(small(IDS), model(IDS), atol=1e-6)


def test_an_inexactly_cut_model_loads_into_its_class(tmp_path):
    model = tower()
    sc.prune_channels_(model, {"ids": IDS}, channels=0.5, exact=False)
    sc.save_sparse(model, tmp_path / "small.safetensors")
    again = sc.load_sparse(tmp_path / "small.safetensors", into=tower())
    assert torch.equal(again(IDS), model(IDS)) and again.attention.num_heads == 2


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
def test_heads_of_torchs_attention_stay_whole(share):
    layer = nn.TransformerEncoderLayer(24, 6, 32, batch_first=True)
    model = nn.Sequential(nn.Linear(5, 24), nn.TransformerEncoder(layer, 2), nn.Linear(24, 2))
    example = torch.randn(2, 3, 5)
    pruned = sc.prune_channels_(model.eval(), example, channels=share, exact=False)
    attention = model[1].layers[0].self_attn
    assert 4 * attention.num_heads == attention.embed_dim == len(model[0].weight)
    assert share - 0.2 < pruned.channels[0] / pruned.channels[1] <= share
    assert model(example).shape == (2, 3, 2)


def test_what_an_inexact_cut_cannot_take_stays():
    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)

        def forward(self, x):
            return self.down(F.layer_norm(self.up(x), (8,)))

    # A norm without tensors has its width from the code.
    with pytest.raises(ShipError, match="does not run with fewer channels.*the model itself"):
        sc.prune_channels_(model := Rows().eval(), torch.zeros(1, 6), channels=0.5, exact=False)
    assert model.up.weight.shape == (8, 6)

    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 8), nn.Linear(3, 8)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 2)

        def forward(self, x):
            y = self.attention(self.a(x), self.b(x), self.b(x), need_weights=False)[0]
            return self.down(self.up(y).relu())

    pruned = sc.prune_channels_(
        model := Cross().eval(), torch.zeros(1, 4, 3), channels=0.5, exact=False
    )
    assert model.attention.embed_dim == 8 and len(model.up.weight) < 16
    assert not any("attention.in_proj" in name for name in pruned.masks)


def test_an_inexact_cut_of_a_network_without_norms_is_the_exact_one():
    exact, inexact = net(), net()
    one = sc.prune_channels_(exact, EXAMPLE, macs=0.4)
    two = sc.prune_channels_(inexact, EXAMPLE, macs=0.4, exact=False)
    assert one.entries == two.entries
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(sc.compact(exact, EXAMPLE)(x), inexact(x), atol=1e-6)


def test_an_inexact_budget_in_time_is_measured():
    pruned = cut_channels(tower(), {"ids": IDS}, latency=0.98, exact=False)
    assert pruned.latency is not None and not pruned.exact


def test_where_no_channel_can_go_each_layer_says_why():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 8), nn.Linear(6, 2)
            self.rnn = nn.GRU(8, 6, batch_first=True)

        def forward(self, x):
            return self.last(self.rnn(torch.relu(self.first(x)))[0])

    why = r"first.weight: aten.gru.input in rnn mixes all of it; last.weight: is an output"
    with pytest.raises(EmptySelectionError, match=why):
        sc.prune_channels_(Tagger().eval(), torch.zeros(1, 5, 4), channels=0.5)


@pytest.mark.parametrize("length", [(), (3,)])
def test_where_only_an_inexact_cut_could_go_the_refusal_says_so(length):
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)

        def forward(self, x):
            return self.last(self.norm(self.first(x)))

    model, x = Normed().eval(), torch.zeros(1, *length, 4)
    # Over a sequence the norm joins its channels to one, and one stays in every layer.
    why = r"\(first.weight: (its channels go together|.*layer_norm.* mixes).*With exact=False there"
    with pytest.raises(EmptySelectionError, match=why):
        sc.prune_channels_(model, x, channels=0.5)
    sc.prune_channels_(model, x, channels=0.5, exact=False)
    assert model.first.weight.shape == (4, 4)
    # What no cut can have is not promised.
    with pytest.raises(EmptySelectionError, match=r"is an output of the model\)\.$"):
        sc.prune_channels_(nn.Sequential(nn.Linear(4, 2)), torch.zeros(1, 4), channels=0.5)
