"""Zeros of the base stay under adapters of peft: names, training, and the merge."""

import copy

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.errors import ArgumentError, MaskError
from secateurs.llm import hold_lora, merge_lora, peft_masks

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

TOKENS = torch.randint(3, 90, (4, 9), generator=torch.Generator().manual_seed(0))
X = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def llama():
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97}
    config = transformers.LlamaConfig(**sizes, **heads, pad_token_id=0, num_labels=2)
    return transformers.LlamaForSequenceClassification(config), {"input_ids": TOKENS}, "*proj*"


def gpt2():
    ends = {"bos_token_id": 1, "eos_token_id": 2, "vocab_size": 97}
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=4, n_positions=32, **ends)
    return transformers.GPT2LMHeadModel(config), {"input_ids": TOKENS}, "*c_*.weight"


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.Linear(8, 2)

    def forward(self, x):
        return self.out(torch.relu(self.conv(x)).mean((2, 3)))


def images():
    return Images(), {"x": X}, "*.weight"


KINDS = {
    "llama": (llama, ["q_proj", "down_proj"], ["score"]),
    "gpt2": (gpt2, ["c_attn", "c_fc"], None),
    "images": (images, ["conv", "out"], None),
}


def wrapped(kind, **options):
    """The pruned base, its masks, and the base wrapped with adapters that are not zero."""
    make, targets, whole = KINDS[kind]
    torch.manual_seed(0)
    model, given, where = make()
    pruned = sc.prune_(model.eval(), "magnitude", sparsity=0.6, where=[where])
    base = copy.deepcopy(model)
    config = peft.LoraConfig(r=4, target_modules=targets, modules_to_save=whole, **options)
    lora = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in lora.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.3)
    return base, pruned.masks, lora.eval(), given


def answer(model, given):
    out = model(**given)
    return getattr(out, "logits", out)


@pytest.mark.parametrize("kind", KINDS)
def test_masks_of_the_base_fit_the_wrapped_model(kind):
    _, masks, lora, _ = wrapped(kind)
    own, found = dict(lora.named_parameters()), peft_masks(lora, masks)
    assert len(found) == len(masks)
    assert all(not bool(own[name][~mask].any()) for name, mask in found.items())
    assert peft_masks(lora, found).keys() == found.keys(), "names of the wrapped model stay"
    guessed = peft_masks(lora)
    assert guessed.keys() >= {name for name, mask in found.items() if not bool(mask.all())}
    assert all(torch.equal(guessed[name], mask) for name, mask in found.items())


@pytest.mark.parametrize("given_masks", [True, False], ids=["masks", "zeros"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_merge_keeps_the_zeros_which_peft_fills(kind, given_masks):
    base, masks, lora, _ = wrapped(kind)
    filled = dict(copy.deepcopy(lora).merge_and_unload().named_parameters())
    came_back = sum(int(filled[name][~mask].count_nonzero()) for name, mask in masks.items())
    assert came_back > 100
    merged = merge_lora(lora, masks if given_masks else None)
    assert type(merged) is type(base)
    for name, weight in merged.named_parameters():
        mask = masks.get(name, torch.ones_like(weight, dtype=torch.bool))
        assert not bool(weight[~mask].any())
        assert torch.equal(weight[mask], filled[name][mask]), "elsewhere the merge is peft's"


@pytest.mark.parametrize("kind", KINDS)
def test_held_adapters_are_trained_as_they_will_be_merged(kind):
    base, masks, lora, given = wrapped(kind, lora_dropout=0.1)
    free = answer(lora, given).detach()
    held = hold_lora(lora, masks)
    assert not torch.allclose(answer(lora, given), free)
    own = [p for p in lora.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(own, lr=1e-2)
    keeper = sc.hold(lora, peft_masks(lora, masks), optimizer)
    lora.train()
    for _ in range(3):
        optimizer.zero_grad()
        answer(lora, given).square().mean().backward()
        optimizer.step()
    keeper.release()
    lora.eval()
    wanted = answer(lora, given).detach()
    merged = merge_lora(lora, masks)
    torch.testing.assert_close(answer(merged, given), wanted, rtol=1e-4, atol=1e-5)
    trained = dict(merged.named_parameters())
    assert all(not bool(trained[name][~mask].any()) for name, mask in masks.items())
    assert not torch.allclose(wanted, answer(base, given))
    held.release()


def test_a_hold_ends_with_its_block():
    _, masks, lora, given = wrapped("llama")
    free = answer(lora, given)
    with hold_lora(lora, masks):
        assert not torch.equal(answer(lora, given), free)
    assert torch.equal(answer(lora, given), free)


def test_what_cannot_be_held_is_refused_by_name():
    _, masks, lora, given = wrapped("llama", use_dora=True)
    before = answer(lora, given)
    with pytest.raises(ArgumentError, match=r"q_proj.*DoRA.*merge_lora"):
        hold_lora(lora, masks)
    assert torch.equal(answer(lora, given), before)
    merged = dict(merge_lora(lora, masks).named_parameters())
    assert all(not bool(merged[name][~mask].any()) for name, mask in masks.items())


def test_wrong_models_and_masks_are_refused():
    base, masks, lora, _ = wrapped("images")
    with pytest.raises(ArgumentError, match="get_peft_model"):
        merge_lora(base, masks)
    with pytest.raises(MaskError, match=r"conv\.wieght.*conv\.weight"):
        peft_masks(lora, {"conv.wieght": masks["conv.weight"]})
    with pytest.raises(MaskError, match=r"shape \[2\]"):
        merge_lora(lora, {"conv.weight": torch.ones(2, dtype=torch.bool)})
    assert isinstance(lora.base_model.model.conv, peft.tuners.lora.layer.LoraLayer), "not used up"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_parameters": ["0.weight"], "target_modules": ["2"]}, "0' adapts a parameter"),
        ({"target_modules": ["0"], "init_lora_weights": "pissa"}, "begins as 'pissa'"),
        ({"target_modules": ["0"], "init_lora_weights": "olora"}, "begins as 'olora'"),
    ],
)
@pytest.mark.parametrize("given", [True, False])
def test_adapters_that_cannot_be_held_are_refused(options, message, given):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
    masks = sc.prune_(model, "magnitude", sparsity=0.5).masks
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, **options))
    with pytest.raises(ArgumentError, match=f"{message}.*init_lora_weights=True"):
        hold_lora(model, masks if given else None)


def test_a_base_whose_zeros_are_gone_is_refused():
    model = nn.Sequential(nn.Linear(8, 8))
    masks = sc.prune_(model, "magnitude", sparsity=0.5).masks
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["0"]))
    hold_lora(model, masks).release()
    with torch.no_grad():
        model.base_model.model[0].base_layer.weight.add_(1e-3)
    with pytest.raises(ArgumentError, match="has a base whose zeros are gone"):
        hold_lora(model, masks)
