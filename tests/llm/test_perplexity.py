"""Perplexity over whole windows, against the loop of the published scripts."""

import math

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import ArgumentError, ScoreError

transformers = pytest.importorskip("transformers")
WORDS = 61


def gpt2():
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": WORDS, "n_positions": 64}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        model.transformer.wte.weight.mul_(10)  # far from one probability for all
    return model


def llama():
    sizes = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": WORDS}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    return model


def text(length=1000):
    return torch.randint(0, WORDS, (1, length), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def published(model, tokens, length):
    """The loop of the scripts of GPTQ, SparseGPT and Wanda: means over windows, times lengths."""
    model.eval()
    losses = []
    for i in range(tokens.numel() // length):
        batch = tokens[:, i * length : (i + 1) * length]
        found = model(batch).logits[:, :-1].double()
        loss = nn.CrossEntropyLoss()(found.reshape(-1, found.shape[-1]), batch[:, 1:].reshape(-1))
        losses.append(loss * length)
    return float(torch.exp(torch.stack(losses).sum() / (len(losses) * length)))


@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize("context", [2, 37, 64])
def test_it_is_the_published_figure(make, context):
    model, tokens = make(), text()
    found = sc.perplexity(model, tokens, context=context)
    assert found.value == pytest.approx(published(model, tokens, context), rel=1e-6)
    assert float(found) == found.value
    assert found.windows == 1000 // context
    assert found.scored == found.windows * (context - 1)
    assert found.left_over == 1000 % context
    line = str(found)
    assert f"context {context}" in line and f"{found.scored:,} tokens scored" in line
    assert f"{found.left_over:,} left over" in line


def test_long_windows_are_summed_in_pieces():
    model, tokens = llama(), text(1300)
    found = sc.perplexity(model, tokens, context=600)
    assert found.value == pytest.approx(published(model, tokens, 600), rel=1e-6)


def test_forms_of_one_text():
    model, tokens = gpt2(), text(130)
    wanted = sc.perplexity(model, tokens, context=64)
    for form in (tokens[0], tokens[0].tolist(), {"input_ids": tokens}, tokens.int()):
        assert sc.perplexity(model, form, context=64) == wanted


def test_the_model_is_as_before():
    model = gpt2().train()
    model.transformer.ln_f.eval()
    sc.perplexity(model, text(200), context=64)
    assert model.training and not model.transformer.ln_f.training and model.config.use_cache
    assert all(p.grad is None for p in model.parameters())


def test_a_model_that_is_sure_of_wrong_words():
    guess = nn.Sequential(nn.Embedding(2, 2), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        guess[0].weight.copy_(torch.eye(2))
        guess[1].weight.copy_(torch.eye(2) * 1e4)  # expects the same word again
    assert sc.perplexity(guess, [0, 1] * 8, context=4).value == math.inf
    assert sc.perplexity(guess, [0] * 16, context=4).value == 1


@pytest.mark.parametrize(
    ("tokens", "options", "said"),
    [
        (text(), {}, "was made for 64 positions .* give context=64 or less"),
        (text(), {"context": 1}, "context=1: give a whole number"),
        (text(), {"context": 8.0}, "context=8.0"),
        (text(40), {"context": 64}, "tokens holds 40, which is less than one window"),
        (text(64).view(2, 32), {"context": 8}, r"shape \(2, 32\).*tokens.reshape\(-1\)"),
        (text().float(), {"context": 8}, "dtype torch.float32"),
        ([1, 2, WORDS] * 9, {"context": 8}, r"tokens\[2\] is 61 and the model knows 0 to 60"),
        ([1, 2, 3, -100] * 9, {"context": 8}, r"tokens\[3\] is -100"),
        ("a text", {"context": 8}, "tokens is a str"),
        ({"ids": text()}, {"context": 8}, "'input_ids' is missing"),
        ([], {"context": 8}, "dtype|tokens holds 0"),
    ],
)
def test_errors(tokens, options, said):
    with pytest.raises(ArgumentError, match=said):
        sc.perplexity(gpt2(), tokens, **options)


def test_models_that_see_what_they_predict():
    sizes = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": WORDS}
    config = transformers.BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=4)
    with pytest.raises(ArgumentError, match="BertForMaskedLM is not causal"):
        sc.perplexity(transformers.BertForMaskedLM(config), text(), context=16)
    config.is_decoder = True
    sc.perplexity(transformers.BertLMHeadModel(config), text(), context=16)
    both = transformers.T5Config(vocab_size=WORDS, d_model=16, d_kv=4, d_ff=32, num_layers=1)
    with pytest.raises(ArgumentError, match="is an encoder-decoder"):
        sc.perplexity(transformers.T5ForConditionalGeneration(both), text(), context=16)
    with pytest.raises(ArgumentError, match=r"\(1, 8\) are expected|shape \(1, length, words\)"):
        sc.perplexity(nn.Sequential(nn.Embedding(WORDS, 1), nn.Flatten()), text(), context=8)


def test_weights_that_are_not_finite():
    model = gpt2()
    with torch.no_grad():
        model.transformer.wpe.weight[12] = torch.nan
    with pytest.raises(ScoreError, match=r"window 0 \(tokens 0 to 15\)"):
        sc.perplexity(model, text(), context=16)
