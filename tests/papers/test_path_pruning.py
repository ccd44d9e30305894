"""The protocol of the paths paper in miniature: Φ-masks identical after rescaling, magnitude's are
not.
"""

from dataclasses import replace

import pytest
import torch

from experiments import path_pruning
from experiments.path_pruning import METHODS, Curve, PathSettings
from secateurs_lab.data import from_tensors

TINY = PathSettings(
    data="digits",
    examples=400,
    stages=((4, 1), (8, 1)),
    epochs=3,
    drops=(2,),
    percents=(60,),
    batch=50,
)


@pytest.fixture(scope="module")
def trained():
    return path_pruning.train(TINY)


def test_all_methods_prune_equally_many_weights(trained):
    example = trained.split.train.train_x[:1]
    masks = {name: path_pruning.masks_of(trained.model, example, name, 60) for name in METHODS}
    zeros = {
        name: sum(int((~mask).sum()) for mask in found.values()) for name, found in masks.items()
    }
    assert len(set(zeros.values())) == 1
    layers = masks["magnitude-layerwise"]
    assert int((~layers["fc.weight"]).sum()) == int(0.3 * layers["fc.weight"].numel())
    assert int((~layers["conv.weight"]).sum()) == int(0.6 * layers["conv.weight"].numel())


def test_rescaling_keeps_the_function_and_the_path_masks(trained):
    moved, example = (
        path_pruning.rescaled_copy(trained, TINY),
        trained.split.train.train_x[:5],
    )
    before, after = (model.eval()(example) for model in (trained.model, moved))
    assert torch.equal(before, after)
    assert not torch.equal(trained.model.blocks[0].conv1.weight, moved.blocks[0].conv1.weight)
    for name in METHODS:
        pairs = [
            path_pruning.masks_of(model, example[:1], name, 60) for model in (trained.model, moved)
        ]
        same = all(torch.equal(pairs[0][n], pairs[1][n]) for n in pairs[0])
        assert same == (name != "magnitude-layerwise")


def test_the_best_validation_epoch_counts(trained):
    curves = [
        Curve(epoch=1, test=1, validation=5),
        Curve(epoch=2, test=9, validation=4),
        Curve(epoch=3, test=2, validation=5),
    ]
    assert path_pruning.best(curves).epoch == 1
    found = path_pruning.evaluate(trained.model, trained.split.validation).accuracy
    assert 100 * found == max(curve.validation for curve in trained.curves)


def test_validation_images_are_not_trained_on(trained):
    learned, held_out = trained.split.train, trained.split.validation
    assert len(learned.train_y) == 360 and len(held_out.test_y) == 40
    assert not any((x == learned.train_x).flatten(1).all(1).any() for x in held_out.test_x)


def test_rows_stand_beside_print(trained, monkeypatch):
    monkeypatch.setattr(path_pruning, "_train_dense", lambda settings: trained)
    rows = [
        {k: str(v) for k, v in row.items()}
        for row in path_pruning.lines_of(TINY, path_pruning.overlaps)
    ]
    rows += [
        {k: str(v) for k, v in row.items()}
        for row in path_pruning.lines_of(
            TINY, path_pruning.prune_and_retrain, method="magnitude-layerwise", percent=60
        )
    ]
    figures = {figure.what.partition(": ")[2]: figure for figure in path_pruning.compare(rows)}
    assert figures["overlap, path-global 60 %"].printed == 80
    assert figures["accuracy, magnitude-layerwise 60 %, rescaled"].printed == 57.5
    assert figures["same mask, magnitude-layerwise 60 %, rescaled"].ours == (0.0,)
    assert sum(row["kind"] == "scatter" for row in rows) == 2 * path_pruning.POINTS
    assert sum(row["kind"] == "curve" for row in rows) == 2 * (TINY.epochs - TINY.rewind)


def test_a_protocol_is_repeatable(trained):
    again = path_pruning.train(TINY)
    assert all(
        torch.equal(a, b)
        for a, b in zip(trained.model.parameters(), again.model.parameters(), strict=True)
    )
    other = path_pruning.train(replace(TINY, seed=1))
    assert not torch.equal(again.model.fc.weight, other.model.fc.weight)


@pytest.mark.slow
def test_the_first_steps_of_the_published_recipe(monkeypatch):
    """ResNet-18 with 200 classes on augmented images of 64 pixels, a step before rewinding and one
    after."""
    draw = torch.Generator().manual_seed(0)
    x, y = (
        torch.rand(5, 3, 64, 64, generator=draw),
        torch.randint(200, (5,), generator=draw),
    )
    made = from_tensors("random", train_x=x, train_y=y, test_x=x, test_y=y, classes=200)
    monkeypatch.setattr(path_pruning.sets, "load", lambda name: made)
    short = replace(path_pruning.FULL, batch=4, epochs=2, rewind=1, drops=(1,))
    found = path_pruning.train(short)
    assert short.augment and len(found.curves) == 1
    assert sum(p.numel() for p in found.model.parameters()) > 11e6
