"""Experts kept as one tensor, pruned as the layers they are."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import secateurs as sc
from secateurs.errors import ScoreError
from secateurs.llm import experts
from secateurs.llm.experts import split_into_layers

WIDTH, INNER = 8, 12


class Fused(nn.Module):
    """A router and three experts, as transformers keeps them; nobody asks the third."""

    asked = 2

    def __init__(self):
        super().__init__()
        self.route = nn.Parameter(torch.randn(3, WIDTH))
        self.up = nn.Parameter(torch.randn(3, INNER, WIDTH))
        self.down = nn.Parameter(torch.randn(3, WIDTH, INNER))

    def forward(self, x):
        scores = F.linear(x, self.route)[..., : self.asked]
        out = x.clone()
        for number in range(self.asked):
            mine = scores.argmax(-1) == number
            inner = F.linear(x[mine], self.up[number]).relu()
            out[mine] = x[mine] + F.linear(inner, self.down[number])
        return out


class Single(nn.Module):
    """The same, of linear layers."""

    def __init__(self, fused):
        super().__init__()

        def layer(weight):
            found = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
            found.weight.data.copy_(weight.data)
            return found

        self.route, self.asked = layer(fused.route), fused.asked
        self.up, self.down = (nn.ModuleList(map(layer, each)) for each in (fused.up, fused.down))

    def forward(self, x):
        scores = self.route(x)[..., : self.asked]
        out = x.clone()
        for number in range(self.asked):
            mine = scores.argmax(-1) == number
            out[mine] = x[mine] + self.down[number](self.up[number](x[mine]).relu())
        return out


class Turned(Fused):
    """Experts that keep (inputs, outputs), run one by one (GPT-OSS) or all at once (Llama 4)."""

    def __init__(self, asked=2, at_once=False):
        super().__init__()
        self.asked, self.at_once = asked, at_once
        self.up = nn.Parameter(self.up.detach().mT.contiguous())
        self.down = nn.Parameter(self.down.detach().mT.contiguous())

    def forward(self, x):
        scores = F.linear(x, self.route)[..., : self.asked]
        mine = torch.stack([scores.argmax(-1) == number for number in range(self.asked)])
        if self.at_once:
            each = x * mine[..., None]
            return x + torch.bmm(torch.bmm(each, self.up).relu(), self.down).sum(0)
        out = x.clone()
        for number, own in enumerate(mine):
            out[own] = x[own] + (x[own] @ self.up[number]).relu() @ self.down[number]
        return out

    def as_kept(self):
        """The same, as it would be kept with the outputs first."""
        other = Fused()
        other.route.data.copy_(self.route)
        other.up.data.copy_(self.up.mT)
        other.down.data.copy_(self.down.mT)
        other.asked = self.asked
        return other


class Net(nn.Module):
    def __init__(self, *blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def data():
    g = torch.Generator().manual_seed(1)
    mix = torch.randn(WIDTH, WIDTH, generator=g)
    return [torch.randn(40, WIDTH, generator=g) @ mix for _ in range(3)]


@pytest.mark.parametrize("reconstruct", [False, True])
@pytest.mark.parametrize(
    "score, fields",
    [
        ("wanda", {"scope": "row", "sparsity": 0.5}),
        ("wanda", {"pattern": "2:4"}),
        ("magnitude", {"scope": "layer", "sparsity": 0.5}),
        ("sparsegpt", {"sparsity": 0.5}),
        ("sparsegpt", {"pattern": "1x4", "sparsity": 0.5}),
    ],
    ids=str,
)
def test_experts_are_pruned_as_single_layers(score, fields, reconstruct):
    torch.manual_seed(0)
    blocks = [Fused(), Fused()]
    fused, single = Net(*blocks), Net(*map(Single, blocks))
    names = list(fused.state_dict())
    options = {"batch": data(), "reconstruct": reconstruct, **fields}
    done = sc.prune_blocks_(fused, score, **options)
    other = sc.prune_blocks_(single, score, **options)
    assert list(fused.state_dict()) == names == [n for n, _ in fused.named_parameters()]
    assert list(done.masks) == names and done.report.sparsity == other.report.sparsity
    for name, parameter in fused.named_parameters():
        parts = [n for n, _ in single.named_parameters() if n.startswith(name + ".")]
        weights, masks = (
            torch.stack([get(n) for n in parts]).view(parameter.shape)
            for get in (single.get_parameter, other.masks.__getitem__)
        )
        assert torch.equal(done.masks[name], masks), name
        assert torch.allclose(parameter, weights, atol=1e-5), name
    for x in data():
        assert torch.allclose(fused(x), single(x), atol=1e-4)
    if score != "magnitude" or reconstruct:
        assert any("up.2.weight" in note and "0 inputs" in note for note in done.notes)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    "score, fields",
    [
        ("wanda", {"scope": "row", "sparsity": 0.5}),
        ("wanda", {"pattern": "2:4", "reconstruct": True}),
        ("wanda", {"scope": "global", "sparsity": 0.5}),
        ("wanda", {"scope": "erk", "sparsity": 0.5}),
        ("magnitude", {"pattern": "1x4", "scope": "global", "sparsity": 0.5}),
        ("sparsegpt", {"pattern": "2:4"}),
    ],
    ids=str,
)
def test_turned_experts_and_those_that_compete(score, fields, at_once, monkeypatch):
    monkeypatch.setattr("secateurs.llm.least_squares.RESIDUAL", 1e-4)
    torch.manual_seed(0)
    blocks = [Turned(asked=3, at_once=at_once) for _ in range(2)]
    turned, single = Net(*blocks), Net(*(Single(block.as_kept()) for block in blocks))
    done = sc.prune_blocks_(turned, score, batch=data(), **fields)
    other = sc.prune_blocks_(single, score, batch=data(), **fields)
    for name, parameter in turned.named_parameters():
        parts = [n for n, _ in single.named_parameters() if n.startswith(name + ".")]
        masks = torch.stack([other.masks[part] for part in parts])
        weights = torch.stack([single.get_parameter(part) for part in parts])
        if not name.endswith("route"):
            masks, weights = masks.mT, weights.mT
        assert torch.equal(done.masks[name], masks.reshape(parameter.shape)), name
        # Steps of conjugate gradients end where a residual is small: rounding can add one.
        assert torch.allclose(parameter, weights.reshape(parameter.shape), atol=1e-3), name
    assert not done.notes


def test_an_expert_without_inputs_cannot_compete_by_wanda():
    net = Net(Turned(asked=2))
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ScoreError, match=r"2.weight' .*received no input.*scope='row' or 'layer'"):
        sc.prune_blocks_(net, "wanda", batch=data(), scope="global", sparsity=0.5)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_matrix_used_both_ways_is_no_layer():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(WIDTH, WIDTH))

        def forward(self, x):
            return x @ self.table + F.linear(x, self.table)

    block = Both()
    with split_into_layers(block, lambda: block(torch.ones(2, WIDTH))) as parts:
        assert not parts
    block.forward = lambda x: (x @ block.table.T) + F.linear(x, block.table)
    with split_into_layers(block, lambda: block(torch.ones(2, WIDTH))) as parts:
        assert parts == {"table": ("table.0.weight",)}


@pytest.mark.parametrize("kind", ["GptOss", "Llama4"])
def test_turned_experts_of_transformers(kind):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 2}
    name = {"GptOss": "GptOss", "Llama4": "Llama4Text"}[kind]
    config = getattr(transformers, f"{name}Config")(
        **sizes, **heads, vocab_size=61, pad_token_id=0, num_experts_per_tok=1
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 3:
                parameter.normal_(std=0.1)
    batch = [{"input_ids": torch.randint(0, 61, (16, 32))}]
    done = sc.prune_blocks_(
        model, "wanda", scope="row", sparsity=0.5, batch=batch, reconstruct=True,
        where=["*experts*proj"],
    )  # fmt: skip
    assert not done.notes and len(done.reconstructed) == 4
    assert all(each.error < each.masked for each in done.reconstructed.values())
    (mask,) = (m for n, m in done.masks.items() if n.endswith("down_proj"))
    # Inputs compete within an output: half of each column stays.
    assert bool((mask.sum(1) == 12).all())


def test_the_block_is_as_before_even_after_an_error():
    block = Fused()
    before, order = dict(block._parameters), list(block._parameters)
    x = data()[0]
    whole = block(x)
    run = lambda: block(x)  # noqa: E731
    with pytest.raises(ValueError, match="inside"), split_into_layers(block, run) as parts:
        assert parts["up"] == ("up.0.weight", "up.1.weight", "up.2.weight")
        assert torch.equal(block(x), whole)
        block.up.data.mul_(2)
        raise ValueError("inside")
    assert list(block._parameters) == order and not block._modules
    assert all(block._parameters[name] is before[name] for name in order)
    assert not torch.equal(block(x), whole)


@pytest.mark.parametrize("amounts", ["owl", "sensitivity"])
def test_amounts(amounts):
    torch.manual_seed(0)
    fields = {"scope": "row", "sparsity": 0.5, "amounts": amounts, "where": ["up", "down"]}
    done = sc.prune_blocks_(Net(Fused(), Fused()), "wanda", batch=data(), **fields)
    assert done.report.sparsity == pytest.approx(0.5, abs=0.07)
    assert set(done.masks) == {f"blocks.{n}.{key}" for n in range(2) for key in ("up", "down")}


def test_mixtral():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 61}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 4}
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **heads)).eval()
    way, before = model.config._experts_implementation, copy.deepcopy(model)
    tokens = torch.randint(0, 61, (16, 32))
    batch = [{"input_ids": part} for part in tokens.split(4)]
    errors = {}
    for reconstruct in (False, True):
        own = copy.deepcopy(before)
        fields = {"scope": "row", "sparsity": 0.5, "where": ["self_attn.*", "mlp.experts.*"]}
        done = sc.prune_blocks_(own, "wanda", batch=batch, reconstruct=reconstruct, **fields)
        assert own.config._experts_implementation == way and not done.notes
        assert done.masks["model.layers.0.mlp.experts.down_proj"].shape == (4, 16, 24)
        with torch.no_grad():
            errors[reconstruct] = (own(tokens).logits - before(tokens).logits).norm()
    assert done.reconstructed["model.layers.1.mlp.experts.down_proj.3.weight"].samples > 0
    assert errors[True] < errors[False]


class Gate(nn.Module):
    """One row, used as torch's own linear layer uses its weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 16))

    def forward(self, x):
        return x @ self.weight.t()


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.linear = Gate(), nn.Linear(16, 16)

    def forward(self, x):
        return x + self.linear(x) * torch.sigmoid(self.gate(x))


class TwoGated(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Gated(), Gated()])

    def forward(self, x):
        return self.blocks[1](self.blocks[0](x))


@pytest.mark.parametrize("score", ["wanda", "sparsegpt"])
def test_a_gate_of_one_row_is_a_layer(score):
    """Such a matrix and its transpose are both contiguous."""
    torch.manual_seed(0)
    model, x = TwoGated(), torch.randn(64, 16)
    twin = copy.deepcopy(model)
    for block in twin.blocks:
        weight = block.gate.weight
        block.gate = nn.Linear(16, 1, bias=False)
        block.gate.weight = weight
    done, wanted = (
        sc.prune_blocks_(m, score, sparsity=0.5, batch=x, where="*.weight") for m in (model, twin)
    )
    assert done.report.sparsity == wanted.report.sparsity == pytest.approx(0.5, abs=0.01)
    for name, mask in wanted.masks.items():
        assert torch.equal(done.masks[name], mask)
        assert torch.equal(model.get_parameter(name), twin.get_parameter(name))


def test_a_product_with_its_matrix_by_keyword_is_left_to_torch():
    x, matrix = torch.randn(3, 4), torch.randn(2, 4)
    with experts._Products(set(), {}):
        assert torch.equal(F.linear(x, weight=matrix), x @ matrix.T)
