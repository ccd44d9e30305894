"""Models nobody here wrote (random weights, nothing is downloaded) are scored by every score,
unmodified.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import secateurs as sc
from scores.cases import changed, picture, seeded
from secateurs.errors import UnsupportedOperation
from secateurs.scores import SCORES

transformers = pytest.importorskip("transformers")


def resnet() -> tuple[nn.Module, torch.Tensor]:
    config = transformers.ResNetConfig(
        num_channels=3,
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        num_labels=4,
    )
    return transformers.ResNetForImageClassification(config), torch.randn(2, 3, 16, 16)


def vit() -> tuple[nn.Module, torch.Tensor]:
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=8,
        num_labels=4,
    )
    return transformers.ViTForImageClassification(config), torch.randn(2, 3, 16, 16)


@pytest.mark.parametrize("make", [resnet, vit])
@pytest.mark.parametrize("name", SCORES.names())
def test_every_score_takes_hugging_face_models(name, make):
    torch.manual_seed(0)
    model, images = make()
    before = picture(model)
    batch = ({"pixel_values": images}, torch.tensor([1, 3]))
    on_paths = name in ("path", "path-draw")
    example = images[:1] if on_paths else {"pixel_values": images[:1]}
    if on_paths and make is vit:  # attention has no paths
        with pytest.raises(UnsupportedOperation):
            sc.score(model, name, example=example)
        return
    scores = sc.score(
        model,
        name,
        batch=batch,
        loss=F.cross_entropy,
        example=example,
        generator=seeded(),
    )
    assert not changed(before, picture(model))
    assert len(scores) > 5
    assert all(bool(tensor.isfinite().all()) for tensor in scores.values())
    alive = [n for n, tensor in scores.items() if float(tensor.abs().sum()) > 0]
    assert alive == list(scores)


def test_labels_in_a_dict_are_the_targets():
    torch.manual_seed(0)
    model, images = vit()
    labels = torch.tensor([1, 3])
    inside = sc.score(
        model,
        "snip",
        batch=[{"pixel_values": images, "labels": labels}],
        loss=F.cross_entropy,
    )
    outside = sc.score(
        model, "snip", batch=({"pixel_values": images}, labels), loss=F.cross_entropy
    )
    assert all(torch.equal(inside[n], outside[n]) for n in inside)


def test_a_torch_transformer_is_scored_by_all_but_wanda():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    x = torch.randn(2, 5, 8)
    for name in set(SCORES.names()) - {"wanda", "path", "path-draw"}:
        scores = sc.score(model, name, batch=(x, x), loss=F.mse_loss, example=x, generator=seeded())
        assert len(scores) == 4, name
    with pytest.raises(sc.errors.ParameterError, match="no input for 'self_attn.in_proj_weight'"):
        sc.score(model, "wanda", batch=x)
    assert len(sc.score(model, "wanda", batch=x, where="linear*.weight")) == 2


def test_recurrent_networks_are_scored():
    torch.manual_seed(0)

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.lstm(x)[0][:, -1])

    model, x, y = Last(), torch.randn(3, 5, 4), torch.tensor([0, 1, 2])
    for name in ("snip", "grasp", "taylor", "jacobian", "synflow"):
        scores = sc.score(model, name, batch=(x, y), loss=F.cross_entropy)
        assert all(float(tensor.abs().sum()) > 0 for tensor in scores.values()), name
