"""Models with a loss of their own (`labels` in the batch): every score that needs one takes it."""

import pytest
import torch
from torch.nn import functional as F

import secateurs as sc
from scores.cases import changed, picture, seeded
from secateurs.scores import SCORES

transformers = pytest.importorskip("transformers")
LOSSES = [name for name in SCORES.names() if "loss" in SCORES[name].needs]
SIZES = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 61}


def llama():
    heads = {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **heads))
    tokens = torch.randint(1, 61, (4, 10))

    def loss(logits, labels):
        """What the model computes itself: each token predicts the next."""
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    return model, {"input_ids": tokens, "labels": tokens}, loss


def bert():
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.BertConfig(**SIZES, **heads)
    model = transformers.BertForSequenceClassification(config)
    tokens, labels = torch.randint(1, 61, (4, 10)), torch.tensor([0, 1, 1, 0])
    return model, {"input_ids": tokens, "labels": labels}, F.cross_entropy


def t5():
    """Its decoder reads the labels: they are inputs as well as targets."""
    sizes = {"d_model": 32, "d_ff": 48, "vocab_size": 61, "num_layers": 2}
    config = transformers.T5Config(**sizes, num_heads=4, d_kv=8, decoder_start_token_id=0)
    model = transformers.T5ForConditionalGeneration(config)
    tokens = torch.randint(1, 61, (4, 10))
    return model, {"input_ids": tokens, "labels": tokens}, None


def test_the_scores_with_a_loss_are_known():
    assert {"snip", "grasp", "taylor"} <= set(LOSSES)


@pytest.mark.parametrize("make", [llama, bert, t5])
@pytest.mark.parametrize("name", LOSSES)
def test_the_models_own_loss_is_taken(name, make):
    torch.manual_seed(0)
    model, batch, loss = make()
    model.eval()
    before = picture(model)
    own = sc.score(model, name, batch=batch, generator=seeded())
    assert not changed(before, picture(model))
    assert sum(float(score.abs().sum()) for score in own.values()) > 0
    if loss is None:
        return
    said = sc.score(model, name, batch=batch, loss=loss, generator=seeded())
    for key, score in own.items():
        assert torch.allclose(score, said[key], rtol=1e-3, atol=1e-7), key
