"""Pruning column by column, where what follows makes up for each loss."""

import copy
from fractions import Fraction

import pytest
import torch
from torch import nn

import secateurs as sc
from llm.test_reconstruct import WIDTH, Attention, Convolving, Net, Routed, data, make_gpt2
from secateurs.errors import ArgumentError, PatternError, ScoreError
from secateurs.llm.least_squares import energies
from secateurs.llm.sparsegpt import _Chooser, factorize_, sweep
from secateurs.masks.budget import entries
from secateurs.masks.patterns import NM


def layer(rows=24, columns=300, seed=0, dtype=torch.float64):
    """Weights and H of inputs that depend on one another, damping of 1 % of the mean."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(3 * columns, columns, generator=g) @ torch.randn(columns, columns, generator=g)
    weights = torch.randn(rows, columns, generator=g, dtype=torch.float64).to(dtype)
    gram = (x.double().T @ x.double()).to(dtype)
    return weights, gram, 0.01 * float(gram.diagonal().mean())


def sweep_plainly(weights, gram, damping, choose, every=128):
    """The weights and the mask of SparseGPT: one column after the other, an inverse for each.

    This is the definition, exact and slow. `choose` is given w² / [H⁻¹]_cc of the next `every`
    columns (algorithm 1 of Frantar & Alistarh 2023), where the inverse of column c is that of H
    without the rows and columns before c.
    """
    rest, mask = weights.clone(), torch.ones_like(weights, dtype=torch.bool)
    whole = gram + damping * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    rows = [torch.linalg.inv(whole[j:, j:])[0] for j in range(len(whole))]
    sizes = torch.stack([row[0] for row in rows])
    for j, row in enumerate(rows):
        if j % every == 0:
            mask[:, j : j + every] = choose(rest[:, j : j + every] ** 2 / sizes[j : j + every])
        error = torch.where(mask[:, j], 0.0, rest[:, j]) / row[0]
        rest[:, j:] -= error[:, None] * row
        rest[:, j] = torch.where(mask[:, j], rest[:, j], 0.0)
    return rest, mask


def keep_half(costs):
    """Of all costs that are given together, the larger half."""
    order = costs.flatten().argsort(stable=True)
    mask = torch.ones(costs.numel(), dtype=torch.bool)
    mask[order[: costs.numel() // 2]] = False
    return mask.view(costs.shape)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "choose, every, columns",
    [(keep_half, 128, 128), (NM(2, 4).eligible, 4, 128), (keep_half, 20, 60), (keep_half, 1, 7)],
    ids=["128", "2:4", "20", "1"],
)
def test_the_sweep_is_the_plain_column_loop(choose, every, columns, dtype):
    weights, gram, damping = layer()
    wanted, kept = sweep_plainly(weights, gram, damping, choose, every)
    swept, factor = weights.to(dtype, copy=True), gram.to(dtype, copy=True)
    assert factorize_(factor, damping)
    mask, lost = sweep(swept, factor, choose, every=every, columns=columns)
    assert torch.equal(mask, kept)
    assert torch.allclose(swept.double(), wanted, rtol=1e-5, atol=1e-5)
    assert not swept[~mask].any() and not torch.signbit(swept[~mask]).any()
    moved = wanted - weights
    exact = energies(moved, gram).sum() + damping * moved.square().sum()
    assert lost == pytest.approx(float(exact), rel=1e-4)


@pytest.mark.parametrize("size", [1, 5, 256, 600])
def test_the_factor_is_that_of_the_inverse(size):
    x = torch.randn(2 * size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gram, damping = x.T @ x, 0.5
    factor = gram.clone()
    assert factorize_(factor, damping)
    wanted = torch.linalg.inv(gram + damping * torch.eye(size, dtype=torch.float64))
    assert torch.allclose(factor.T @ factor, wanted)
    assert torch.equal(factor, factor.triu())


def test_what_cannot_be_factorized_stays_as_it_was():
    gram = torch.eye(600, dtype=torch.float64)
    gram += 1e-3 * torch.ones(600, 600, dtype=torch.float64)
    gram[10, 10] = -1.0
    before = gram.clone()
    assert not factorize_(gram, 0.01)
    assert torch.equal(gram, before)
    assert factorize_(gram, 2.0)


def by_hand(model, batches, fields):
    """Every layer in its order, by the plain loop in float64; WIDTH columns are one block."""
    model = copy.deepcopy(model).double()
    names = [f"blocks.{n}.{layer}.weight" for n in range(len(model.blocks)) for layer in "qkvo"]
    masks = {}
    for name in names:
        inside, met = model.get_submodule(name.removesuffix(".weight")), []
        handle = inside.register_forward_pre_hook(
            lambda _, args, met=met: met.append(args[0].reshape(-1, WIDTH))
        )
        with torch.no_grad():
            for x in batches:
                model(x.double())
            handle.remove()
            gram = torch.cat(met).T @ torch.cat(met)
            choose, every = (
                (NM(2, 4).eligible, 4) if "pattern" in fields else (keep_half, len(gram))
            )
            damping = 0.01 * float(gram.diagonal().mean())
            solved, masks[name] = sweep_plainly(inside.weight, gram, damping, choose, every)
            inside.weight.copy_(solved)
    return model, masks


@pytest.mark.parametrize("fields", [{"sparsity": 0.5}, {"pattern": "2:4"}], ids=["50 %", "2:4"])
def test_each_layer_is_swept_on_what_the_pruned_ones_give(fields):
    torch.manual_seed(0)
    model, batches = Net(Attention(), Attention()), data()
    own = copy.deepcopy(model)
    done = sc.prune_blocks_(own, "sparsegpt", batch=batches, **fields)
    wanted, masks = by_hand(model, batches, fields)
    assert set(done.masks) == set(masks) and done.report.sparsity == 0.5
    for name, mask in masks.items():
        assert torch.equal(done.masks[name], mask)
        weight = own.get_parameter(name).double()
        assert torch.allclose(weight, wanted.get_parameter(name), rtol=1e-4, atol=1e-5)
    assert set(done.reconstructed) == set(masks) and not done.notes
    assert all(0 < each.error < each.masked for each in done.reconstructed.values())
    assert [tensor.name for tensor in done.report.tensors] == list(masks)


@pytest.mark.parametrize("solve", [False, True])
def test_errors_are_those_of_the_outputs(solve):
    torch.manual_seed(0)
    model, batches = Net(nn.Linear(WIDTH, WIDTH, bias=False)), data()
    before = copy.deepcopy(model)
    done = sc.prune_blocks_(model, "sparsegpt", batch=batches, sparsity=0.5, reconstruct=solve)
    (name,), x = done.masks, torch.cat(batches)
    masked = copy.deepcopy(before)
    sc.masks.apply_(masked, done.masks)
    with torch.no_grad():
        whole = before(x)
        off, off_masked = ((net(x) - whole).norm() / whole.norm() for net in (model, masked))
    found = done.reconstructed[name]
    assert found.error == pytest.approx(float(off), rel=1e-3)
    assert found.masked == pytest.approx(float(off_masked), rel=1e-3)


@pytest.mark.parametrize(
    "fields",
    [
        {"sparsity": 0.6, "scope": "row"},
        {"sparsity": 0.6, "scope": "erk"},
        {"scope": {"*": 0.5, "o.weight": 0.25}},
        {"sparsity": 0.5, "pattern": "1x4"},
        {"sparsity": 0.5, "pattern": "4x2"},
        {"sparsity": 0.5, "pattern": "2:4"},
        {"pattern": "1:4"},
    ],
    ids=str,
)
@pytest.mark.parametrize("solve", [False, True])
def test_every_amount_is_held(fields, solve):
    torch.manual_seed(0)
    model, batches = Net(Attention(), Attention(fused=True)), data()
    done = sc.prune_blocks_(model, "sparsegpt", batch=batches, reconstruct=solve, **fields)
    for name, mask in done.masks.items():
        weight = model.get_parameter(name)
        assert not weight[~mask].any() and weight[mask].all()
        if fields.get("scope") == "row":
            assert set(mask.sum(1).tolist()) == {round(0.4 * WIDTH)}
        if "x4" in str(fields.get("pattern")):
            assert set(mask.view(-1, 4).sum(1).tolist()) == {0, 4}
    # A mapping, a block's amount and N:M say what is kept of each layer; "erk" of all together.
    share = {"1:4": 0.25}.get(str(fields.get("pattern")), 1 - fields.get("sparsity", 0.5))
    if "scope" not in fields:
        assert done.report.density == pytest.approx(share, abs=1e-6)


def test_columns_are_rounded_together():
    torch.manual_seed(0)
    model = Net(nn.Linear(301, 301, bias=False))
    done = sc.prune_blocks_(model, "sparsegpt", batch=torch.randn(400, 301), sparsity=0.7)
    assert done.report.total.kept == round(0.3 * 301 * 301)


def test_solving_on_its_masks_is_better_still():
    torch.manual_seed(0)
    model, x = Net(nn.Linear(60, 60)), torch.randn(400, 60) @ (torch.eye(60) + torch.randn(60, 60))
    fields = {"batch": x, "sparsity": 0.6}
    own, solved = (
        sc.prune_blocks_(copy.deepcopy(model), "sparsegpt", reconstruct=solve, **fields)
        for solve in (False, True)
    )
    name = "blocks.0.weight"
    assert torch.equal(own.masks[name], solved.masks[name])
    assert solved.reconstructed[name].error < 0.95 * own.reconstructed[name].error


def test_transposed_layers_of_gpt2_are_swept_along_their_rows():
    model = make_gpt2()
    tokens = torch.randint(0, 97, (16, 32), generator=torch.Generator().manual_seed(0))
    whole, wanda = copy.deepcopy(model), copy.deepcopy(model)
    batch = [{"input_ids": part} for part in tokens.split(4)]
    done = sc.prune_blocks_(model, "sparsegpt", batch=batch, pattern="2:4")
    sc.prune_blocks_(wanda, "wanda", batch=batch, pattern="2:4")
    mask = done.masks["transformer.h.0.attn.c_attn.weight"]
    assert set(mask.T.reshape(-1, 4).sum(1).tolist()) == {2}
    with torch.no_grad():
        first, ours, theirs = (
            net.transformer(tokens).last_hidden_state for net in (whole, model, wanda)
        )
    assert (ours - first).norm() < 0.8 * (theirs - first).norm()


def test_what_cannot_be_swept_is_pruned_by_magnitude_and_named():
    torch.manual_seed(0)
    model = Net(Routed())
    done = sc.prune_blocks_(model, "sparsegpt", batch=data(256), sparsity=0.5)
    (note,) = done.notes
    assert "experts.2.weight was pruned by magnitude: it met 0 inputs" in note
    assert done.report.sparsity == 0.5
    model = Net(Convolving())
    done = sc.prune_blocks_(model, "sparsegpt", batch=data(), sparsity=0.5)
    assert "mix.weight was pruned by magnitude: it is not the weight of a linear" in done.notes[0]
    weight = model.blocks[0].mix.weight
    assert weight.count_nonzero() == 5 * 5 * 3 // 2 + 1  # 37.5 rounded to the even number


def test_an_input_that_never_comes_costs_nothing():
    torch.manual_seed(0)
    model, x = Net(nn.Linear(WIDTH, WIDTH, bias=False)), torch.randn(64, WIDTH)
    x[:, 3] = 0
    done = sc.prune_blocks_(model, "sparsegpt", batch=x, scope="row", sparsity=0.5)
    assert not done.masks["blocks.0.weight"][:, 3].any()


def test_damping_is_raised_and_named(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr("secateurs.llm.sparsegpt.DAMPING", 1e-9)
    model, x = Net(nn.Linear(WIDTH, WIDTH)), torch.randn(64, WIDTH)
    x[:, 6:] = x[:, :6]  # H is singular
    done = sc.prune_blocks_(model, "sparsegpt", batch=x, sparsity=0.5)
    (found,) = done.reconstructed.values()
    assert 1e-9 < found.damping <= 1 and torch.isfinite(next(model.parameters())).all()


@pytest.mark.parametrize("amounts", ["owl", "progression", "sensitivity", {0: 0.3}], ids=str)
def test_amounts_of_blocks(amounts):
    torch.manual_seed(0)
    model = Net(Attention(), Attention())
    done = sc.prune_blocks_(model, "sparsegpt", batch=data(), sparsity=0.5, amounts=amounts)
    for name, share in done.amounts.items():
        own = [mask for key, mask in done.masks.items() if key.startswith(name)]
        for mask in own:
            assert mask.float().mean() == pytest.approx(share, abs=0.5 / mask.numel() + 1e-7)


def test_half_precision_is_swept_in_single_precision():
    torch.manual_seed(0)
    model = Net(Attention()).bfloat16()
    batches = [x.bfloat16() for x in data()]
    done = sc.prune_blocks_(model, "sparsegpt", batch=batches, sparsity=0.5)
    assert next(model.parameters()).dtype == torch.bfloat16
    assert all(each.error < each.masked for each in done.reconstructed.values())


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"sparsity": 0.5, "rounds": 3}, "rounds=3"),
        ({"sparsity": 0.5, "how": "sample"}, "how='sample'"),
        ({"sparsity": 0.5, "pattern": "filter"}, "pattern='filter'"),
        ({"sparsity": 0.7, "pattern": "2:4"}, "leave the amount out"),
        ({"sparsity": 0.5, "options": {"a": 1}}, "options="),
    ],
    ids=str,
)
def test_what_a_sweep_cannot_do_is_refused_before_anything_runs(fields, words):
    model = Net(Attention())
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ArgumentError, match=words):
        sc.prune_blocks_(model, "sparsegpt", batch=data(), **fields)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_other_refusals():
    with pytest.raises(ArgumentError, match=r"use prune_blocks_\(model, 'sparsegpt'"):
        sc.prune_(Net(Attention()), "sparsegpt", sparsity=0.5)
    with pytest.raises(PatternError, match="5 does not divide"):
        sc.prune_blocks_(Net(Attention()), "sparsegpt", batch=data(), pattern="2:5")
    bad = torch.randn(16, 5, WIDTH)
    bad[0, 0, 0] = float("nan")
    with pytest.raises(ScoreError, match=r"inputs of 'q.weight' hold NaN"):
        sc.prune_blocks_(Net(Attention()), "sparsegpt", batch=bad, sparsity=0.5)


@pytest.mark.parametrize("density", [Fraction(1, 1000), Fraction(1, 300), Fraction(1, 7)])
def test_each_piece_of_columns_keeps_its_part_and_no_floor(density):
    """Where the part rounds to nothing, nothing is kept: the layer as a whole keeps what is
    asked."""
    recipe = sc.Recipe(score="sparsegpt", density=0.5)
    choose, seen, kept = _Chooser(recipe, density, (3, 700)), 0, 0
    for columns in (7, 128, 128, 128, 128, 128, 53):
        kept += int(choose(torch.rand(3, columns) + 1).sum())
        seen += columns
        assert kept == entries(density, 3 * seen)
    assert kept == entries(density, 2100)


@pytest.mark.parametrize("scope", ["global", "layer", "row"])
@pytest.mark.parametrize("pattern", ["unstructured", "1x4"])
def test_every_layer_keeps_its_floor(scope, pattern):
    if scope == "row" and pattern != "unstructured":
        pytest.skip("rows are cut entry by entry")
    attention = Net(Attention())
    options = {"sparsity": 0.999, "scope": scope, "pattern": pattern, "floor": 9}
    masks = sc.prune_blocks_(attention, "sparsegpt", batch=data(), **options).masks
    for mask in masks.values():
        least = len(mask) if scope == "row" else 9 if pattern == "unstructured" else 12
        assert int(mask.sum()) == least


def test_whole_blocks_come_where_they_are_due_and_no_sooner():
    """Half a block is due after the first piece of columns: it waits for the second, which makes it
    whole."""
    recipe = sc.Recipe(score="sparsegpt", density=1 / 64, pattern="1x4")
    choose = _Chooser(recipe, Fraction(1, 64), (1, 256))
    costs = torch.rand(1, 128) + 1
    assert [int(choose(costs).sum()) for _ in range(2)] == [0, 4]
