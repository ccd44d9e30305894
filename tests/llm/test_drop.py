"""Blocks dropped by influence: against a plain loop, and generation with and without a cache."""

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import ArgumentError, ScoreError

transformers = pytest.importorskip("transformers")
WORDS = 61
SIZES = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": WORDS}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 5}


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **HEADS)).eval()


def gpt2():
    sizes = {"n_embd": 32, "n_layer": 5, "n_head": 4, "vocab_size": WORDS}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config).eval()


def gemma():
    """Every other block has a sliding window, listed in the configuration."""
    more = {"head_dim": 8, "sliding_window": 4}
    return transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(**SIZES, **HEADS, **more)
    ).eval()


MODELS = {"llama": llama, "gpt2": gpt2, "gemma2": gemma}
LISTS = {"llama": "model.layers", "gpt2": "transformer.h", "gemma2": "model.layers"}


def data():
    drawn = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, WORDS, (6, 12), generator=drawn)
    attention = torch.ones_like(tokens)
    attention[1, :5] = 0
    attention[4, :2] = 0
    rows = zip(tokens.split(2), attention.split(2), strict=True)
    return [{"input_ids": ids, "attention_mask": mask, "labels": ids} for ids, mask in rows]


@torch.no_grad()
def plain_influence(model, name):
    """Eq. (1) of ShortGPT, token by token."""
    met = []
    for batch in data():
        inputs, outputs = [], []
        handles = []
        for block in model.get_submodule(name):
            handles += [
                block.register_forward_pre_hook(lambda m, a, i=inputs: i.append(a[0])),
                block.register_forward_hook(
                    lambda m, a, y, o=outputs: o.append(y if torch.is_tensor(y) else y[0])
                ),
            ]
        model(batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False)
        for handle in handles:
            handle.remove()
        for row, column in batch["attention_mask"].nonzero().tolist():
            pairs = [
                (x[row, column].double(), y[row, column].double())
                for x, y in zip(inputs, outputs, strict=True)
            ]
            met.append([float(1 - x @ y / (x.norm() * y.norm())) for x, y in pairs])
    return torch.tensor(met, dtype=torch.float64).mean(0).tolist(), len(met)


@pytest.mark.parametrize("name", MODELS)
def test_influence_equals_the_plain_loop_and_the_least_go(name):
    model = MODELS[name]()
    blocks = list(model.get_submodule(LISTS[name]))
    expected, tokens = plain_influence(model, LISTS[name])
    done = sc.drop_blocks_(model, 2, batch=data())
    assert done.tokens == tokens == 6 * 12 - 7
    assert list(done.influence) == [f"{LISTS[name]}.{i}" for i in range(5)]
    assert list(done.influence.values()) == pytest.approx(expected, rel=1e-9)
    gone = sorted(sorted(range(5), key=expected.__getitem__)[:2])
    assert done.dropped == tuple(f"{LISTS[name]}.{i}" for i in gone)
    left = [i for i in range(5) if i not in gone]
    assert list(done.left) == [f"{LISTS[name]}.{i}" for i in left]
    now = list(model.get_submodule(LISTS[name]))
    assert all(a is blocks[i] for a, i in zip(now, left, strict=True))
    assert "dropped" in str(done) and done.as_dict()["tokens"] == tokens
    assert not any(m._forward_hooks for m in model.modules())


@pytest.mark.parametrize("name", MODELS)
def test_generation_with_a_cache_equals_that_without(name):
    model = MODELS[name]()
    config = model.config
    sc.drop_blocks_(model, 2, batch=data())
    # A second time: places are counted anew.
    sc.drop_blocks_(model, 1, batch=data())
    assert model.config.num_hidden_layers == 2 and config.num_hidden_layers == 5
    indices = [m.layer_idx for m in model.modules() if hasattr(m, "layer_idx")]
    assert sorted(set(indices)) == [0, 1]
    if name == "gemma2":
        assert len(model.config.layer_types) == 2
    ids = data()[0]["input_ids"]
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    fast = model.generate(ids, use_cache=True, **options)
    slow = model.generate(ids, use_cache=False, **options)
    assert fast.shape[1] == 24 and torch.equal(fast, slow)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_smaller_model_computes_what_the_blocks_left_compute(name):
    """Beside a model of three blocks, made as such, with the tensors of those that are left."""
    model = MODELS[name]()
    done = sc.drop_blocks_(model, 2, batch=data())
    fresh = type(model)(copy.deepcopy(model.config)).eval()
    fresh.load_state_dict(model.state_dict())
    ids = data()[0]["input_ids"]
    assert len(done.left) == len(fresh.get_submodule(LISTS[name])) == 3
    assert torch.equal(fresh(ids).logits, model(ids).logits)


def test_a_sparse_file_loads_into_the_original_class(tmp_path):
    model = llama()
    whole = copy.deepcopy(model.config)
    sc.drop_blocks_(model, 2, batch=data())
    sc.save_sparse(model, tmp_path / "small.safetensors")
    loaded = transformers.LlamaForCausalLM(whole).eval()
    sc.load_sparse(tmp_path / "small.safetensors", into=loaded)
    ids = data()[0]["input_ids"]
    assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_a_list_with_names_of_its_own_keeps_them(tmp_path):
    def stages():
        names = ("first", "middle", "last")
        return nn.Sequential(OrderedDict((name, nn.Linear(4, 4)) for name in names))

    model, x = nn.ModuleDict({"blocks": stages()}), torch.randn(5, 4)
    model.forward = lambda x: model["blocks"](x)
    nn.init.eye_(model["blocks"].middle.weight)
    nn.init.zeros_(model["blocks"].middle.bias)
    done = sc.drop_blocks_(model, 1, batch=x, blocks="blocks")
    assert done.dropped == ("blocks.middle",)
    assert done.left == {"blocks.first": "blocks.first", "blocks.last": "blocks.last"}
    assert {key.split(".")[1] for key in model.state_dict()} == {"first", "last"}
    sc.save_sparse(model, tmp_path / "small.safetensors")
    loaded = nn.ModuleDict({"blocks": stages()})
    sc.load_sparse(tmp_path / "small.safetensors", into=loaded)
    assert torch.equal(loaded["blocks"](x), model["blocks"](x))
    # And into one that has lost the block already.
    smaller = copy.deepcopy(model)
    sc.load_sparse(tmp_path / "small.safetensors", into=smaller)
    assert torch.equal(smaller["blocks"](x), model["blocks"](x))


def test_of_equal_blocks_the_later_goes():
    net = Net(4)
    for block in net.blocks:
        nn.init.eye_(block.weight)
        nn.init.zeros_(block.bias)
    assert sc.drop_blocks_(net, 2, batch=torch.randn(5, 4)).dropped == ("blocks.2", "blocks.3")


def test_the_block_that_holds_what_others_use_stays():
    """T5's first blocks hold the position bias of all the others."""
    config = transformers.T5Config(
        vocab_size=WORDS,
        d_model=16,
        d_kv=4,
        d_ff=32,
        num_layers=3,
        num_heads=4,
        decoder_start_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    done = sc.drop_blocks_(model, 2, batch=data())
    assert list(done.left) == ["decoder.block.0"]
    assert len(done.notes) == 1 and "relative_attention_bias" in done.notes[0]
    assert (model.config.num_layers, model.config.num_decoder_layers) == (3, 1)
    sc.drop_blocks_(model, 1, batch=data(), blocks="encoder.block")
    options = {"max_new_tokens": 6, "do_sample": False}
    ids = data()[0]["input_ids"]
    fast, slow = (model.generate(ids, use_cache=cache, **options) for cache in (True, False))
    assert torch.equal(fast, slow)
    with pytest.raises(ArgumentError, match="none of them can be dropped"):
        sc.drop_blocks_(model, 1, batch=data(), blocks="decoder.block")


@pytest.mark.parametrize(("blocks", "tokens"), [("encoder.block", 65), ("decoder.block", 60)])
def test_the_padding_that_counts_is_that_of_the_sequence_of_the_blocks(blocks, tokens):
    """Both sequences have 72 places here, 7 and 12 of them padding."""
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4
    )
    config.decoder_start_token_id = 0
    model = transformers.T5ForConditionalGeneration(config).eval()
    spoken = torch.ones(2, 12, dtype=torch.long)
    spoken[:, 10:] = 0
    batch = [{**item, "decoder_attention_mask": spoken} for item in data()]
    assert sc.drop_blocks_(model, 1, batch=batch, blocks=blocks).tokens == tokens


class Net(nn.Module):
    def __init__(self, count, twice=False, wide=False):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))
        self.head = nn.Linear(4, 4)
        self.others = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 7 if wide else 4))
        self.twice = twice

    def forward(self, x):
        for block in [*self.blocks, *self.blocks] if self.twice else self.blocks:
            x = block(x)
        return self.others(self.head(x))


def test_the_mode_and_the_settings_are_as_before():
    model = llama().train()
    model.model.norm.eval()
    modes = [m.training for m in model.model.norm.modules()]
    sc.drop_blocks_(model, 1, batch=data())
    assert model.training and [m.training for m in model.model.norm.modules()] == modes
    assert model.config.use_cache


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    done = sc.drop_blocks_(llama().to(dtype), 1, batch=data())
    assert all(0 < value < 1 for value in done.influence.values())


@pytest.mark.parametrize(
    ("net", "options", "text"),
    [
        (Net(3), {"n": 3}, r"n=3: 'blocks' has 3 blocks and one must stay: .* from 1 to 2"),
        (Net(3), {"n": 0}, "n=0"),
        (Net(3), {"n": True}, "n=True"),
        (Net(3), {"n": 1.0}, "n=1.0"),
        (Net(1), {"n": 1}, "none of them can be dropped"),
        (Net(3), {"blocks": ["blocks.0"]}, "give its name"),
        (Net(3), {"blocks": "block"}, "Did you mean 'blocks'"),
        (Net(3), {"blocks": "head"}, "without children"),
        (Net(3), {"batch": []}, "batch has no tokens"),
        (Net(3, twice=True), {}, "'blocks.0' runs more than once"),
        (Net(3, wide=True), {"blocks": "others"}, r"'others.1' maps \(5, 4\) to \(5, 7\)"),
        (Net(3), {"batch": torch.randn(5, 3)}, "does not run on"),
    ],
)
def test_errors_leave_the_model_alone(net, options, text):
    blocks, state = list(net.blocks), copy.deepcopy(net.state_dict())
    options = {"n": 1, "batch": torch.randn(5, 4), **options}
    with pytest.raises(ArgumentError, match=text):
        sc.drop_blocks_(net, options.pop("n"), **options)
    assert list(net.blocks) == blocks and not any(m._forward_hooks for m in net.modules())
    assert all(torch.equal(state[n], t) for n, t in net.state_dict().items())


def test_blocks_that_do_not_run_and_values_that_are_not_finite():
    net = Net(3)
    net.spare = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    with pytest.raises(ArgumentError, match=r"3 of 3 blocks did not run .* 'spare.0'"):
        sc.drop_blocks_(net, 1, batch=torch.randn(5, 4), blocks="spare")
    with torch.no_grad():
        net.blocks[1].bias.fill_(torch.inf)
    with pytest.raises(ScoreError, match="'blocks.1' is not a number"):
        sc.drop_blocks_(net, 1, batch=torch.randn(5, 4))
    assert len(net.blocks) == 3


def diff_llama():
    """A share of the attention is taken off, by a number that grows from block to block."""
    sizes = {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 5}
    config = transformers.DiffLlamaConfig(**sizes, initializer_range=0.3)
    return transformers.DiffLlamaForCausalLM(config).eval()


def qwen2_moe():
    """Experts in every other block."""
    sizes = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 2}
    config = transformers.Qwen2MoeConfig(**SIZES, **HEADS, **sizes, **experts)
    return transformers.Qwen2MoeForCausalLM(config).eval()


def scaled_gpt2():
    """Attention is divided by the number of the block."""
    model = gpt2()
    config = copy.deepcopy(model.config)
    config.update({"scale_attn_by_inverse_layer_idx": True, "initializer_range": 0.4})
    return type(model)(config).eval()


PLACED = {"diff_llama": diff_llama, "qwen2_moe": qwen2_moe, "scaled_gpt2": scaled_gpt2}


@pytest.mark.parametrize("name", [*MODELS, *PLACED])
def test_the_notes_say_where_transformers_would_load_other_blocks(name, tmp_path):
    torch.manual_seed(0)
    model = {**MODELS, **PLACED}[name]()
    # The second block adds nothing, so it goes, and those behind it move up.
    second = model.get_submodule("transformer.h" if "gpt2" in name else "model.layers")[1]
    with torch.no_grad():
        for p in second.parameters():
            p.mul_(p.ndim == 1)
    notes = sc.drop_blocks_(model, 1, batch=data()).notes
    ids = data()[0]["input_ids"]
    model.save_pretrained(tmp_path)
    try:
        loaded = type(model).from_pretrained(tmp_path).eval()
        same = torch.allclose(loaded(ids).logits, model(ids).logits, atol=1e-5)
    except RuntimeError:  # experts where there were none
        same = False
    assert same == (name in MODELS)
    assert len(notes) == (not same)
    assert same or "write it with secateurs.llm.save_pretrained" in notes[0]
    if name == "diff_llama":
        assert "model.layers.1.self_attn.lambda_init: 0.4" in notes[0]
