"""Heads and feed-forward neurons: what is dead goes, also from other people's classes; what cannot
is named."""

import copy

import pytest
import torch
from torch import nn

import secateurs as sc

transformers = pytest.importorskip("transformers")
# The GPT-2 of old versions does not run in float64; their Llama keeps its sizes to itself.
recent = pytest.mark.skipif(
    int(transformers.__version__.split(".")[0]) < 5, reason="old transformers"
)
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TOKENS = {"vocab_size": 50, "intermediate_size": 64}
IDS = torch.randint(50, (2, 7), generator=torch.Generator().manual_seed(0))


def bert(**options):
    config = transformers.BertConfig(**SIZES, **TOKENS, **options)
    return transformers.BertForSequenceClassification(config), {"input_ids": IDS}


def gpt2():
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, n_inner=64, vocab_size=50, n_positions=20,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config), {"input_ids": IDS}


def llama():
    config = transformers.LlamaConfig(**SIZES, **TOKENS, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config), {"input_ids": IDS}


def vit():
    config = transformers.ViTConfig(**SIZES, intermediate_size=64, image_size=16, patch_size=8)
    return transformers.ViTForImageClassification(config), torch.randn(2, 3, 16, 16)


def t5():
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=50,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    return model, {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]}


def encoder():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 2), torch.randn(2, 7, 32)


def prepared(make, **options):
    """A model in float64 whose biases are not zero, and its example."""
    torch.manual_seed(0)
    model, example = make(**options)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, 0.5, 0.2)
    if isinstance(example, torch.Tensor):
        example = example.double()
    return model.double().eval(), example


@torch.no_grad()
def kill_rows(model, ending, rows):
    """Zero rows of weight and bias, as neurons and heads are pruned."""
    for name, module in model.named_modules():
        if name.split(".")[-1] in ending and getattr(module, "weight", None) is not None:
            packed = type(module).__name__ == "Conv1D"  # GPT-2 keeps (in, out)
            (module.weight.T if packed else module.weight)[rows] = 0
            if getattr(module, "bias", None) is not None:
                module.bias[rows] = 0


@torch.no_grad()
def outputs(model, example):
    found = model(**example) if isinstance(example, dict) else model(example)
    return found.logits if hasattr(found, "logits") else found


def longer(example):
    """An input of another length, where there is a length."""
    if isinstance(example, torch.Tensor):
        return torch.randn(
            3, *example.shape[1:], generator=torch.Generator().manual_seed(1)
        ).double()
    return {name: torch.cat([ids, ids], dim=1) for name, ids in example.items()}


def check(model, example):
    """The smaller model answers as the model does; the model is left alone."""
    before = copy.deepcopy(model.state_dict())
    small = sc.compact(model, example)
    for given in (example, longer(example)):
        want, have = outputs(model, given), outputs(small, given)
        assert float((want - have).abs().max() / want.abs().max()) < 1e-9
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    return small


def sizes(small):
    return {t.name: t.after for t in small.compaction.narrowed}


def test_bert_loses_heads_and_neurons():
    model, example = prepared(bert)
    kill_rows(model, {"query", "key", "value"}, slice(0, 16))
    kill_rows(model.bert.encoder.layer[0].intermediate, {"dense"}, slice(0, 20))
    small = check(model, example)
    layer = "bert.encoder.layer.0."
    assert sizes(small)[layer + "attention.self.value.weight"] == (16, 32)
    assert sizes(small)[layer + "attention.output.dense.weight"] == (32, 16)
    assert sizes(small)[layer + "intermediate.dense.weight"] == (44, 32)
    assert sizes(small)[layer + "output.dense.weight"] == (32, 44)
    attention = small.bert.encoder.layer[0].attention.self
    assert attention.num_attention_heads == 2 and attention.all_head_size == 16
    assert attention.attention_head_size == 8


def test_attention_written_out_is_read_too():
    """Matrix products and a softmax instead of one operator."""
    model, example = prepared(bert, attn_implementation="eager")
    kill_rows(model, {"value"}, slice(8, 16))
    small = check(model, example)
    assert sizes(small)["bert.encoder.layer.1.attention.self.query.weight"] == (
        24,
        32,
    )


def test_columns_that_nobody_reads_kill_a_head_and_a_neuron():
    model, example = prepared(bert)
    layer = model.bert.encoder.layer[0]
    layer.attention.output.dense.weight.data[:, 8:16] = 0
    layer.output.dense.weight.data[:, :4] = 0
    small = check(model, example)
    assert small.bert.encoder.layer[0].attention.self.key.weight.shape == (24, 32)
    assert small.bert.encoder.layer[0].intermediate.dense.weight.shape == (60, 32)


def test_half_a_head_stays():
    """The values of a head go together: one live entry keeps all."""
    model, example = prepared(bert)
    kill_rows(model, {"value"}, slice(0, 7))
    assert check(model, example).compaction.narrowed == ()


def test_a_bias_keeps_a_head_alive():
    """Zero rows with a bias: the head adds a constant, which no other tensor can take."""
    model, example = prepared(bert)
    model.bert.encoder.layer[0].attention.self.value.weight.data[:8] = 0
    check(model, example)


@recent
def test_gpt2_gets_its_attributes_set():
    model, example = prepared(gpt2)
    with torch.no_grad():
        for block in model.transformer.h:
            for start in (0, 32, 64):  # queries, keys and values lie in one tensor
                block.attn.c_attn.weight[:, start + 8 : start + 16] = 0
                block.attn.c_attn.bias[start + 8 : start + 16] = 0
    kill_rows(model, {"c_fc"}, slice(0, 10))
    small = check(model, example)
    attention = small.transformer.h[0].attn
    assert attention.split_size == 24 and attention.num_heads == 3
    assert attention.c_attn.nf == 72 and attention.c_proj.nf == 32
    assert small.transformer.h[1].mlp.c_fc.weight.shape == (32, 54)
    resized = small.compaction.resized
    assert resized["transformer.h.0.attn.split_size"] == (32, 24)
    assert model.transformer.h[0].attn.split_size == 32
    assert "split_size 32 → 24" in str(small.compaction)


@recent
def test_as_many_tokens_as_heads_do_not_confuse_the_attributes():
    model, example = prepared(gpt2)
    with torch.no_grad():
        for start in (0, 32, 64):
            model.transformer.h[0].attn.c_attn.weight[:, start : start + 8] = 0
            model.transformer.h[0].attn.c_attn.bias[start : start + 8] = 0
    small = check(model, {"input_ids": example["input_ids"][:, :4]})
    assert small.transformer.h[0].attn.num_heads == 3


@recent
def test_llama_loses_groups_of_heads_and_gated_neurons():
    """Two heads of queries share one of keys and values; a gate or its partner is enough."""
    model, example = prepared(llama)
    kill_rows(model, {"v_proj"}, slice(0, 8))
    kill_rows(model, {"gate_proj"}, slice(0, 10))
    kill_rows(model, {"up_proj"}, slice(10, 16))
    small = check(model, example)
    layer = "model.layers.1."
    assert sizes(small)[layer + "self_attn.q_proj.weight"] == (16, 32)
    assert sizes(small)[layer + "self_attn.k_proj.weight"] == (8, 32)
    assert sizes(small)[layer + "self_attn.o_proj.weight"] == (32, 16)
    assert sizes(small)[layer + "mlp.down_proj.weight"] == (32, 48)


def test_one_of_two_heads_that_share_their_keys_stays():
    model, example = prepared(llama)
    model.model.layers[0].self_attn.o_proj.weight.data[:, :8] = 0
    assert check(model, example).compaction.narrowed == ()


@pytest.mark.slow
def test_vit():
    model, example = prepared(vit)
    kill_rows(model, {"v_proj", "value"}, slice(0, 8))
    small = check(model, example)
    assert small.compaction.parameters[1] < small.compaction.parameters[0]


@pytest.mark.slow
def test_t5_says_why_its_heads_stay():
    """All layers share one table of biases, with a column for each head."""
    model, example = prepared(t5)
    kill_rows(model, {"q", "k", "v"}, slice(0, 8))
    kill_rows(model, {"wi"}, slice(0, 10))
    small = check(model, example)
    assert sizes(small)["encoder.block.0.layer.1.DenseReluDense.wi.weight"] == (
        54,
        32,
    )
    assert "relative_attention_bias" in str(small.compaction)


def test_packed_attention_is_named_with_a_way_out():
    model, example = prepared(encoder)
    with torch.no_grad():
        for start in (0, 32, 64):
            model.layers[0].self_attn.in_proj_weight[start : start + 8] = 0
            model.layers[0].self_attn.in_proj_bias[start : start + 8] = 0
    kill_rows(model, {"linear1"}, slice(0, 16))
    small = check(model, example)
    assert small.layers[0].linear1.weight.shape == (48, 32)
    (kept,) = {kept.why for kept in small.compaction.kept}
    assert "layers.0.self_attn is torch's MultiheadAttention" in kept


class Sized(nn.Module):
    """Attention whose code computes a size from a number that is not an attribute."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 3)
        self.config = {"heads": 2}

    def forward(self, x):
        b, s, _ = x.shape
        heads = self.qkv(x).view(b, s, 3, self.config["heads"], 4)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, s, -1))


def test_sizes_out_of_reach_are_named():
    torch.manual_seed(0)
    model = Sized().double().eval()
    model.out.weight.data[:, :4] = 0
    small = sc.compact(model, torch.randn(1, 5, 8))
    assert small.compaction.narrowed == ()
    assert any("counts on every channel" in kept.why for kept in small.compaction.kept)


class Widened(nn.Module):
    """A stream padded on both sides by zeros, whose number stands in the code."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(3, 4), nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.out((nn.functional.pad(self.a(x), (2, 2)) + self.b(x)).relu())


def test_dead_zeros_of_a_padding_hold_no_other_channel_back():
    torch.manual_seed(0)
    model = Widened().double().eval()
    model.out.weight.data[:, [0, 3]] = 0  # a zero of the padding, and what it pads
    small = check(model, torch.randn(5, 3).double())
    assert small.a.out_features == 3 and small.b.out_features == 7
    (kept,) = small.compaction.kept
    assert "counts on every channel" in kept.why and kept.channels == 1


@pytest.mark.parametrize("make", [bert, pytest.param(gpt2, marks=recent), llama])
def test_whole_neurons_pruned_are_cut_out(make):
    model, example = prepared(make)
    sc.prune_channels_(model, example, channels=0.5)
    before, after = check(model, example).compaction.parameters
    assert after < 0.8 * before


@recent
def test_mixtral_is_cut_around_its_experts():
    """Its usual kernel for experts takes no float64, in which compaction decides and compares."""
    sizes = {"num_local_experts": 2, "num_key_value_heads": 2, "num_hidden_layers": 1}
    config = transformers.MixtralConfig(**{**SIZES, **TOKENS, **sizes})
    torch.manual_seed(0)
    model = transformers.MixtralForCausalLM(config).eval()
    usual = config._experts_implementation
    pruned = sc.prune_channels_(model, {"input_ids": IDS}, channels=0.5)
    small = sc.compact(model, {"input_ids": IDS})
    assert pruned.channels == (1, 2) and small.config._experts_implementation == usual
    assert small.model.layers[0].self_attn.q_proj.weight.shape == (16, 32)
    with torch.no_grad():
        want, have = (form(IDS).logits for form in (model, small))
    assert torch.allclose(want, have, atol=1e-6)
