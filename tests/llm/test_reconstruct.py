"""Blocks whose pruned layers are made to answer as before."""

import copy

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import ScoreError
from secateurs.llm.least_squares import solve_rows

WIDTH = 12


class Attention(nn.Module):
    """Query, key and value of one tensor, then another layer."""

    def __init__(self, fused=False):
        super().__init__()
        self.fused = fused
        if fused:
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        else:
            self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.o = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1) if self.fused else (self.q(x), self.k(x), self.v(x))
        return x + self.o(torch.softmax(q @ k.mT, -1) @ v)


class Routed(nn.Module):
    """Tokens go to the first expert or to the second by a sign; the third gets none."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        out = x.clone()
        for expert, mine in zip(self.experts, (x[..., 0] > 0, x[..., 0] <= 0), strict=False):
            out[mine] = x[mine] + expert(x[mine])
        return out


class Convolving(nn.Module):
    """Positions are mixed by a convolution."""

    def __init__(self):
        super().__init__()
        self.mix, self.out = nn.Conv1d(5, 5, 3, padding=1), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.out(self.mix(x))


class Net(nn.Module):
    def __init__(self, *blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def data(samples=64, generator=None):
    g = torch.Generator().manual_seed(1)
    mix = torch.randn(WIDTH, WIDTH, generator=g)
    return [torch.randn(samples // 4, 5, WIDTH, generator=g) @ mix for _ in range(4)]


def by_hand(model, batches, masks):
    """Every layer in its order: inputs from the pruned model so far, each row solved exactly."""
    model = copy.deepcopy(model).double()
    for name in masks:
        layer = model.get_submodule(name.removesuffix(".weight"))
        met = []
        handle = layer.register_forward_pre_hook(
            lambda _, args, met=met: met.append(args[0].reshape(-1, WIDTH))
        )
        with torch.no_grad():
            for x in batches:
                model(x.double())
            handle.remove()
            gram = torch.cat(met).T @ torch.cat(met)
            damping = 0.01 * float(gram.diagonal().mean())
            layer.weight.copy_(solve_rows(layer.weight, masks[name], gram, damping))
    return model


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"sparsity": 0.5, "scope": "row"},
        {"pattern": "2:4"},
        {"sparsity": 0.5},
        {"pattern": "1x4", "sparsity": 0.5, "scope": "layer"},
    ],
    ids=["rows", "2:4", "global", "1x4"],
)
@pytest.mark.parametrize("score", ["wanda", "magnitude"])
def test_each_layer_is_solved_on_what_the_pruned_ones_give(fused, fields, score, monkeypatch):
    monkeypatch.setattr("secateurs.llm.least_squares.RESIDUAL", 1e-5)
    torch.manual_seed(0)
    model, batches = Net(Attention(fused), Attention(fused)), data()
    own = copy.deepcopy(model)
    done = sc.prune_blocks_(own, score, batch=batches, reconstruct=True, **fields)
    wanted = by_hand(model, batches, done.masks)
    for name, mask in done.masks.items():
        weight = own.get_parameter(name)
        assert not weight[~mask].any() and not torch.signbit(weight[~mask]).any()
        assert torch.allclose(weight.double(), wanted.get_parameter(name), atol=2e-3), name
    assert set(done.reconstructed) == set(done.masks)
    assert all(each.error < each.masked for each in done.reconstructed.values())


def test_masks_of_the_first_block_are_those_without_reconstruction():
    torch.manual_seed(0)
    model, batches = Net(Attention(), Attention()), data()
    plain, solved = copy.deepcopy(model), copy.deepcopy(model)
    before = sc.prune_blocks_(plain, "wanda", batch=batches, scope="row", sparsity=0.5)
    after = sc.prune_blocks_(
        solved, "wanda", batch=batches, scope="row", sparsity=0.5, reconstruct=True
    )
    first = [name for name in before.masks if name.startswith("blocks.0")]
    assert all(torch.equal(before.masks[name], after.masks[name]) for name in first)
    assert not before.reconstructed
    whole = torch.cat([model(x) for x in batches])
    errors = [(torch.cat([net(x) for x in batches]) - whole).norm() for net in (plain, solved)]
    assert errors[1] < 0.9 * errors[0]
    assert "layers reconstructed" in str(after) and "reconstructed" not in str(before)


def test_pieces_do_not_change_a_row(monkeypatch):
    torch.manual_seed(0)
    model, fields = Net(Attention()), {"batch": data(), "scope": "row", "sparsity": 0.5}
    whole, pieces = copy.deepcopy(model), copy.deepcopy(model)
    sc.prune_blocks_(whole, "wanda", reconstruct=True, **fields)
    monkeypatch.setattr("secateurs.llm.reconstruct.PIECE", 5 * WIDTH)
    monkeypatch.setattr("secateurs.llm.reconstruct.ROWS", 1)
    sc.prune_blocks_(pieces, "wanda", reconstruct=True, **fields)
    for one, other in zip(whole.parameters(), pieces.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-3)


def test_biases_norms_and_what_is_left_out_stay():
    torch.manual_seed(0)
    model = Net(Attention(), Attention())
    before = copy.deepcopy(model.state_dict())
    done = sc.prune_blocks_(
        model,
        "wanda",
        batch=data(),
        sparsity=0.5,
        scope="row",
        where=["o.weight"],
        reconstruct=True,
    )
    changed = [
        name for name, value in model.state_dict().items() if not torch.equal(value, before[name])
    ]
    assert changed == ["blocks.0.o.weight", "blocks.1.o.weight"] == list(done.masks)


def test_an_expert_is_solved_on_its_own_tokens_and_one_that_nobody_asks_is_masked_only():
    torch.manual_seed(0)
    model, batches = Net(Routed()), data(256)
    whole = copy.deepcopy(model)
    done = sc.prune_blocks_(
        model, "magnitude", batch=batches, scope="row", sparsity=0.5, reconstruct=True
    )
    assert sorted(done.reconstructed) == ["blocks.0.experts.0.weight", "blocks.0.experts.1.weight"]
    counted = [each.samples for each in done.reconstructed.values()]
    assert sum(counted) == 256 * 5 and min(counted) > 0
    (note,) = done.notes
    assert "experts.2.weight was masked and not reconstructed" in note and "0 inputs" in note
    asleep = "blocks.0.experts.2.weight"
    kept = whole.get_parameter(asleep) * done.masks[asleep]
    assert torch.equal(model.get_parameter(asleep), kept)


def test_a_layer_with_too_few_inputs_is_masked_only():
    torch.manual_seed(0)
    model = Net(Attention())
    done = sc.prune_blocks_(
        model,
        "magnitude",
        batch=torch.randn(1, 3, WIDTH),
        sparsity=0.5,
        scope="row",
        reconstruct=True,
    )
    assert not done.reconstructed and len(done.notes) == 4
    assert all("met 3 inputs, too few to solve for 6 weights a row" in note for note in done.notes)


def test_a_convolution_is_solved_on_its_patches():
    torch.manual_seed(0)
    model = Net(Convolving())
    done = sc.prune_blocks_(model, "magnitude", batch=data(), sparsity=0.5, reconstruct=True)
    assert set(done.reconstructed) == {"blocks.0.mix.weight", "blocks.0.out.weight"}
    assert not done.notes
    assert not model.blocks[0].mix.weight[~done.masks["blocks.0.mix.weight"]].any()


class Table(nn.Module):
    """A matrix that no layer owns."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Parameter(torch.randn(3, WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.out(x + self.table.sum(0))


def test_what_no_layer_multiplies_is_masked_only():
    torch.manual_seed(0)
    model = Net(Table())
    where = ["table", "out.weight"]
    done = sc.prune_blocks_(
        model, "magnitude", batch=data(), sparsity=0.5, where=where, reconstruct=True
    )
    assert list(done.reconstructed) == ["blocks.0.out.weight"]
    assert "blocks.0.table was masked" in done.notes[0] and "convolution" in done.notes[0]


def test_inputs_that_are_not_finite_are_refused_by_name():
    model = Net(Attention())
    bad = torch.randn(16, 5, WIDTH)
    bad[0, 0, 0] = float("nan")
    with pytest.raises(ScoreError, match="inputs of 'q.weight' hold NaN"):
        sc.prune_blocks_(model, "magnitude", batch=bad, sparsity=0.5, scope="row", reconstruct=True)


def test_half_precision_weights_are_solved_in_single_precision():
    torch.manual_seed(0)
    model, batches = Net(Attention(), Attention()), data()
    half = copy.deepcopy(model).bfloat16()
    done = sc.prune_blocks_(
        half, "wanda", batch=[x.bfloat16() for x in batches], pattern="2:4", reconstruct=True
    )
    assert next(half.parameters()).dtype == torch.bfloat16
    assert all(each.error < each.masked for each in done.reconstructed.values())


def test_more_damping_is_named(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr("secateurs.llm.least_squares.STEPS", 3)
    model = Net(Attention())
    done = sc.prune_blocks_(
        model, "wanda", batch=data(), sparsity=0.5, scope="row", reconstruct=True
    )
    assert any("damping was raised from 0.01 to" in note for note in done.notes)
    assert all(each.error <= each.masked for each in done.reconstructed.values())


def make_gpt2():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=97, n_positions=64)
    return transformers.GPT2LMHeadModel(config).eval()


def test_transposed_layers_of_gpt2_are_solved_along_their_rows():
    model = make_gpt2()
    tokens = torch.randint(0, 97, (16, 32), generator=torch.Generator().manual_seed(0))
    plain, solved = copy.deepcopy(model), copy.deepcopy(model)
    batch = [{"input_ids": part} for part in tokens.split(4)]
    fields = {"scope": "row", "sparsity": 0.6, "batch": batch}
    sc.prune_blocks_(plain, "wanda", **fields)
    done = sc.prune_blocks_(solved, "wanda", reconstruct=True, **fields)
    names = {name.split(".", 3)[3] for name in done.reconstructed}
    assert names == {
        "attn.c_attn.weight",
        "attn.c_proj.weight",
        "mlp.c_fc.weight",
        "mlp.c_proj.weight",
    }
    with torch.no_grad():
        whole, masked, better = (
            net.transformer(tokens).last_hidden_state for net in (model, plain, solved)
        )
    assert (better - whole).norm() < 0.75 * (masked - whole).norm()
    assert all(not solved.get_parameter(n)[~mask].any() for n, mask in done.masks.items())
