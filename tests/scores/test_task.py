"""Encoder-decoders of transformers: their decoders get what the models themselves would make."""

import pytest
import torch

import secateurs as sc
from secateurs.errors import ArgumentError
from secateurs.scores import Batch
from secateurs.scores.task import with_decoder_inputs

transformers = pytest.importorskip("transformers")
X = torch.zeros(4, 8)
SMALL = {
    "vocab_size": 50,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
}
TOKENS = {"input_ids": torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16]])}
LABELS = torch.tensor([[20, 21, 22, 23], [24, 25, -100, -100]])


def t5():
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2
    )
    config.decoder_start_token_id = 0
    return transformers.T5ForConditionalGeneration(config), TOKENS


def bart():
    config = transformers.BartConfig(max_position_embeddings=32, **SMALL)
    return transformers.BartForConditionalGeneration(config), TOKENS


def whisper():
    sizes = {
        "max_source_positions": 10,
        "max_target_positions": 10,
        "num_mel_bins": 4,
    }
    marks = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.WhisperConfig(decoder_start_token_id=1, **SMALL, **sizes, **marks)
    features = torch.randn(2, 4, 20, generator=torch.Generator().manual_seed(0))
    model = transformers.WhisperForConditionalGeneration(config)
    return model, {"input_features": features}


KINDS = {"T5": t5, "BART": bart, "Whisper": whisper}


def made(kind):
    torch.manual_seed(0)
    model, inputs = KINDS[kind]()
    return model.eval(), inputs


@pytest.mark.parametrize("kind", KINDS)
def test_decoder_inputs_are_those_of_the_model(kind):
    """The oracle: with labels, the model's own loss is that of the inputs made here."""
    model, inputs = made(kind)
    batch = with_decoder_inputs(model, Batch(inputs=inputs, targets=LABELS))
    with torch.no_grad():
        own = model(**inputs, labels=LABELS).logits
        assert torch.equal(model(**batch.inputs).logits, own)


@pytest.mark.parametrize("rule", ["wanda", "jacobian", "synflow"])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_without_a_loss(kind, rule):
    model, inputs = made(kind)
    options = {"where": "*decoder*fc1.weight" if kind != "T5" else "*decoder*wi.weight"}
    options |= {"draws": 1, "generator": torch.Generator()} if rule == "jacobian" else {}
    whole = with_decoder_inputs(model, Batch(inputs=inputs, targets=LABELS)).inputs
    found = sc.score(model, rule, batch={**inputs, "labels": LABELS}, **options)
    if rule == "jacobian":
        options["generator"] = torch.Generator()
    asked = sc.score(model, rule, batch=whole, **options)
    assert all(torch.equal(found[name], asked[name]) for name in asked)
    assert any(bool(score.any()) for score in found.values())


@pytest.mark.parametrize("kind", ["T5", "Whisper"])
@pytest.mark.parametrize("how", ["batch", "example"])
def test_nothing_for_the_decoder(kind, how):
    model, inputs = made(kind)
    with pytest.raises(ArgumentError, match=r"nothing for.*'decoder_input_ids', or 'labels'"):
        sc.score(model, "synflow", **{how: inputs})


def test_what_is_given_or_not_needed_stays():
    model, inputs = made("BART")
    given = {**inputs, "decoder_input_ids": LABELS.clamp(min=0)}
    for batch in (
        Batch(inputs=given, targets=LABELS),
        Batch(inputs=inputs),
        Batch(inputs=inputs, targets=torch.zeros(2)),
    ):
        assert with_decoder_inputs(model, batch) is batch
    plain = torch.nn.Linear(2, 2)
    batch = Batch(inputs={"x": torch.zeros(2, 2)}, targets=LABELS)
    assert with_decoder_inputs(plain, batch) is batch


def test_blocks_of_a_decoder():
    model, inputs = made("T5")
    done = sc.prune_blocks_(
        model,
        "wanda",
        scope="row",
        sparsity=0.5,
        batch={**inputs, "labels": LABELS},
        blocks="decoder.block",
    )
    assert done.report.sparsity == 0.5


def net():
    return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"batch": torch.zeros(4, 9)},
            r"Sequential does not run on inputs of torch.float32 \(4, 9\)",
        ),
        (
            {"batch": torch.zeros(4, 8).double()},
            r"inputs of torch.float64 \(4, 8\).*in its dtype",
        ),
        (
            {"batch": {"image": torch.zeros(4, 8)}},
            "unexpected keyword argument 'image'",
        ),
    ],
    ids=["width", "precision", "keyword"],
)
def test_data_that_do_not_fit_the_model(given, text):
    with pytest.raises(ArgumentError, match=text) as caught:
        sc.score(net(), "wanda", **given)
    assert caught.value.__cause__ is not None


def test_full_memory_stays_what_it_is():
    class Full(torch.nn.Linear):
        def forward(self, x):
            raise torch.OutOfMemoryError("no memory")

    with pytest.raises(torch.OutOfMemoryError):
        sc.score(Full(8, 4), "wanda", batch=X)


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        ("cross_entropy", "loss='cross_entropy' is a str: give a function"),
        (torch.nn.CrossEntropyLoss, r"call it, CrossEntropyLoss\(\)"),
    ],
)
def test_a_loss_that_is_none(loss, text):
    with pytest.raises(ArgumentError, match=text):
        sc.score(net(), "snip", batch=(X, torch.zeros(4).long()), loss=loss)
