"""Models of another library, as they are: prune, train held, gradually, compiled."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from secateurs.optim import hold
from secateurs.prune import GradualPruning, Recipe, prune_

transformers = pytest.importorskip("transformers")


def resnet():
    config = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 2],
        layer_type="basic",
        num_labels=4,
    )
    return transformers.ResNetForImageClassification(config)


def vit():
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=32,
        patch_size=8,
        num_labels=4,
    )
    return transformers.ViTForImageClassification(config)


X, Y = (
    torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)),
    torch.arange(4),
)
DATA = {"batch": ({"pixel_values": X}, Y), "loss": F.cross_entropy}


def train(model, run, optimizer, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        run(pixel_values=X, labels=Y).loss.backward()
        optimizer.step()


# Where four divides the inputs.
ONE_OF_FOUR = {
    resnet: "*layers.0*convolution.weight",
    vit: "*attention*weight",
}


@pytest.mark.parametrize("make", [resnet, vit])
@pytest.mark.parametrize(
    ("recipe", "density"),
    [
        (Recipe(sparsity=0.9, scope="erk"), 0.1),
        (Recipe(score="synflow", compression=10, rounds=5), 0.1),
        (Recipe(score="snip", sparsity=0.9, how="sample"), 0.1),
        (Recipe(score="taylor", pattern="1:4"), 0.25),
    ],
    ids=["magnitude", "synflow", "snip", "1:4"],
)
def test_prunes_and_trains_unmodified(make, recipe, density):
    torch.manual_seed(0)
    model = make()
    if recipe.pattern == "1:4":
        recipe = replace(recipe, where=ONE_OF_FOUR[make])
    keys, modules = list(model.state_dict()), list(map(type, model.modules()))
    example = {"pixel_values": X[:1]}
    assert recipe.check(model, example=example, **DATA).ok
    pruned = prune_(
        model,
        recipe,
        example=example,
        generator=torch.Generator().manual_seed(1),
        **DATA,
    )
    assert (
        pruned.rounds[-1].kept
        == pruned.rounds[-1].asked
        == round(pruned.report.total.total * density)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    hold(model, pruned.masks, optimizer)
    train(model, model, optimizer)
    assert all(not model.get_parameter(name)[~mask].any() for name, mask in pruned.masks.items())
    assert list(model.state_dict()) == keys and list(map(type, model.modules())) == modules
    fresh = make()
    fresh.load_state_dict(copy.deepcopy(model).state_dict())
    assert all(
        torch.equal(a, b) for a, b in zip(fresh.parameters(), model.parameters(), strict=True)
    )


def test_gradually_while_compiled():
    torch.manual_seed(0)
    model = vit()
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    gradual = GradualPruning(model, Recipe(sparsity=0.8), optimizer, start=0, end=4, every=2)
    for _ in range(6):
        train(model, compiled, optimizer, steps=1)
        gradual.step()
    kept = sum(int(model.get_parameter(name).count_nonzero()) for name in gradual.masks)
    assert (
        kept
        == gradual.rounds[-1].kept
        == round(0.2 * sum(m.numel() for m in gradual.masks.values()))
    )
    assert isinstance(model, nn.Module) and "_orig_mod" not in "".join(model.state_dict())
