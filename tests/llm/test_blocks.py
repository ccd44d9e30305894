"""Pruning block by block, against the whole model run again after every block."""

import copy

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import ArgumentError, EmptySelectionError
from secateurs.llm import prune_blocks_
from secateurs.llm.blocks import blocks_of

transformers = pytest.importorskip("transformers")
WORDS = 61


def llama(**options):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": WORDS}
    heads = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
    }
    config = transformers.LlamaConfig(**sizes, **heads, **options)
    return transformers.LlamaForCausalLM(config)


def gpt2():
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": WORDS}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def opt():
    sizes = {"hidden_size": 32, "ffn_dim": 48, "vocab_size": WORDS}
    more = {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "word_embed_proj_dim": 32,
    }
    return transformers.OPTForCausalLM(transformers.OPTConfig(**sizes, **more))


def gemma():
    """Every other block has a sliding window: the blocks are called differently."""
    config = transformers.Gemma2Config(
        hidden_size=32,
        intermediate_size=48,
        vocab_size=WORDS,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=4,
    )
    return transformers.Gemma2ForCausalLM(config)


MODELS = {"llama": llama, "gpt2": gpt2, "opt": opt, "gemma2": gemma}


def data(count=3, length=10):
    drawn = torch.Generator().manual_seed(0)
    batches = []
    for number in range(count):
        tokens = torch.randint(1, WORDS, (2, length), generator=drawn)
        attention = torch.ones_like(tokens)
        attention[0, : 3 * (number == 1)] = 0  # one batch is padded
        batches.append({"input_ids": tokens, "attention_mask": attention, "labels": tokens})
    return batches


def linears(block):
    kinds = (nn.Linear, transformers.pytorch_utils.Conv1D)
    return {n: m for n, m in block.named_modules() if isinstance(m, kinds)}


@torch.no_grad()
def one_after_another(model, batches, sparsity):
    """Wanda as it is defined: the whole model runs, one block is pruned, it runs again, …"""
    model.eval()
    masks = {}
    for name, block in blocks_of(model, None).items():
        met, handles = {}, []
        for inner, module in linears(block).items():

            def look(module, args, inner=inner, met=met):
                x = args[0].double().flatten(0, -2).square().sum(0)
                met[inner] = met.get(inner, 0) + x

            handles.append(module.register_forward_pre_hook(look))
        for batch in batches:
            model(**{k: v for k, v in batch.items() if k != "labels"}, use_cache=False)
        for handle in handles:
            handle.remove()
        for inner, module in linears(block).items():
            turned = not isinstance(module, nn.Linear)
            weight = module.weight.T if turned else module.weight
            score = weight.double().abs() * met[inner].sqrt()
            cut = score.shape[1] - round((1 - sparsity) * score.shape[1])
            order = score.argsort(dim=1, stable=True)[:, :cut]
            kept = torch.ones_like(score, dtype=torch.bool).scatter_(1, order, False)
            kept = kept.T if turned else kept
            module.weight.mul_(kept)
            masks[f"{name}.{inner}.weight"] = kept
    return masks


@pytest.mark.parametrize("name", MODELS)
def test_wanda_equals_the_whole_model_run_after_every_block(name):
    model, batches = MODELS[name](), data()
    slow = copy.deepcopy(model)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    done = prune_blocks_(model, "wanda", scope="row", sparsity=0.5, batch=batches)
    masks = one_after_another(slow, batches, 0.5)
    assert done.masks.keys() == masks.keys()
    for inner, mask in masks.items():
        assert torch.equal(done.masks[inner], mask), inner
    for inner, parameter in model.named_parameters():
        wanted = before[inner] * masks.get(inner, 1)
        assert torch.equal(parameter, wanted), inner
    assert abs(done.report.sparsity - 0.5) < 1e-9 and not done.notes


def test_the_first_block_equals_wanda_of_the_whole_model():
    model, batches = llama(), data()
    whole = sc.prune_(
        copy.deepcopy(model),
        "wanda",
        scope="row",
        sparsity=0.5,
        batch=batches,
        where="model.layers.0.*proj*",
    )
    done = prune_blocks_(model, "wanda", scope="row", sparsity=0.5, batch=batches)
    for name, mask in whole.masks.items():
        assert torch.equal(done.masks[name], mask), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(dtype):
    model = llama().to(dtype)
    with torch.no_grad():
        # Squares of what runs through this model are beyond half precision.
        model.model.embed_tokens.weight.mul_(1e4)
    done = prune_blocks_(model, "wanda", scope="row", sparsity=0.5, batch=data())
    assert abs(done.report.sparsity - 0.5) < 1e-9
    assert all(p.dtype == dtype for p in model.parameters())
    assert torch.isfinite(model(**data()[0]).loss)


@pytest.mark.parametrize(
    ("score", "options"),
    [
        ("magnitude", {"scope": "global", "sparsity": 0.7}),
        ("magnitude", {"scope": "layer", "sparsity": 0.5, "pattern": "4x4"}),
        ("wanda", {"pattern": "2:4"}),
        ("random", {"sparsity": 0.5}),
    ],
)
def test_other_recipes(score, options):
    model = llama()
    drawn = torch.Generator().manual_seed(0)
    recipe = sc.Recipe(score=score, where=["*.q_proj.*", "mlp.*"], **options)
    done = prune_blocks_(model, recipe, batch=data(), generator=drawn)
    assert len(done.masks) == 3 * 4 == len(done.report.tensors)
    assert abs(done.report.sparsity - options.get("sparsity", 0.5)) < 0.01
    sparse = sc.sparsity_report(model, masks=done.masks)
    assert sparse.total.kept == done.report.total.kept


class Plain(nn.Module):
    """A list of networks that paths are known in."""

    def __init__(self):
        super().__init__()
        make = lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 6))  # noqa: E731
        self.parts = nn.ModuleList(make() for _ in range(2))
        self.last = nn.Linear(6, 2)

    def forward(self, x):
        for part in self.parts:
            x = x + part(x)
        return self.last(x)


def test_path_where_it_applies():
    model, x = Plain(), torch.randn(5, 6)
    alone = [sc.prune_(copy.deepcopy(p), "path", sparsity=0.6, example=x) for p in model.parts]
    done = prune_blocks_(model, "path", sparsity=0.6, batch=x)
    assert all(torch.equal(done.masks["parts.0." + n], m) for n, m in alone[0].masks.items())


def test_the_model_is_as_before_but_for_the_zeros():
    model = llama()
    model.train()
    model.model.layers[1].mlp.eval()
    modes = [m.training for m in model.modules()]
    done = prune_blocks_(model, "wanda", scope="row", sparsity=0.5, batch=data())
    assert [m.training for m in model.modules()] == modes
    assert model.config.use_cache and not any("forward" in vars(m) for m in model.modules())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with sc.hold(model, done.masks, optimizer):
        model(**data()[0]).loss.backward()
        optimizer.step()
    for name, mask in done.masks.items():
        assert not model.get_parameter(name)[~mask].any()
    assert done.masks.nbytes * 8 == done.report.total.total
    assert "pruned blocks" in str(done)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"blocks": "model.layer"}, ArgumentError, "Did you mean 'model.layers'"),
        ({"blocks": []}, ArgumentError, "names no block"),
        ({"blocks": "lm_head"}, ArgumentError, "without children"),
        (
            {"blocks": ["model.layers.1", "model.layers.0"]},
            ArgumentError,
            "in the order in which they run",
        ),
        ({"blocks": ["model.norm", "model.layers.0"]}, ArgumentError, "in the"),
        ({"score": "snip"}, ArgumentError, "needs the loss of the whole model"),
        ({"batch": []}, ArgumentError, "batch is empty"),
        ({"where": "mpl.*"}, Exception, "mpl"),
        ({"where": lambda n, p: False}, EmptySelectionError, "no parameter"),
    ],
)
def test_errors_leave_the_model_alone(options, error, text):
    model = llama()
    before = copy.deepcopy(model.state_dict())
    options = {"score": "wanda", "sparsity": 0.5, "batch": data(), **options}
    with pytest.raises(error, match=text):
        prune_blocks_(model, options.pop("score"), **options)
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert not any("forward" in vars(m) for m in model.modules())


def test_no_list_of_blocks():
    with pytest.raises(ArgumentError, match="name them with blocks="):
        prune_blocks_(nn.Linear(2, 2), "magnitude", sparsity=0.5, batch=torch.ones(1, 2))
