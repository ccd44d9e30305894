"""Data sets as values: batches, cuts, statistics, and what is refused."""

import itertools

import numpy as np
import pytest
import torch

from secateurs.errors import ArgumentError, DataError, UnknownNameError
from secateurs_lab.data import DATA, from_pixels, from_tensors, load


@pytest.fixture
def data():
    x = torch.arange(10.0).view(10, 1, 1, 1).expand(10, 2, 3, 3).clone()
    return from_tensors(
        "ten",
        train_x=x,
        train_y=torch.arange(10),
        test_x=x[:4],
        test_y=torch.arange(4),
    )


def drawn(data, seed, **options):
    return [
        y.tolist()
        for _, y in data.batches(4, generator=torch.Generator().manual_seed(seed), **options)
    ]


def test_batches_visit_every_example_once_and_keep_labels_with_images(data):
    pairs = list(data.batches(4, generator=torch.Generator().manual_seed(0)))
    assert [len(y) for _, y in pairs] == [4, 4, 2]
    assert sorted(torch.cat([y for _, y in pairs]).tolist()) == list(range(10))
    assert all(torch.equal(x[:, 0, 0, 0], y.float()) for x, y in pairs)


def test_the_generator_decides_the_order(data):
    assert drawn(data, 0) == drawn(data, 0) != drawn(data, 1)
    assert drawn(data, 0, shuffle=False) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [len(y) for y in drawn(data, 0, drop_last=True)] == [4, 4]
    assert drawn(data, 0, split="test", shuffle=False) == [[0, 1, 2, 3]]


def test_one_generator_shuffles_every_pass_anew(data):
    generator = torch.Generator().manual_seed(0)
    first, second = (
        [y.tolist() for _, y in data.batches(10, generator=generator)] for _ in range(2)
    )
    assert first != second


def test_a_batch_larger_than_the_set_is_the_set(data):
    assert [len(y) for _, y in data.batches(100)] == [10]
    assert list(data.batches(100, drop_last=True)) == []


def test_statistics_and_shape(data):
    assert data.mean == pytest.approx((4.5, 4.5)) and data.std == pytest.approx((8.25**0.5,) * 2)
    assert (data.in_channels, data.size, data.classes) == (2, 3, 10)
    assert (
        data.first(3).mean == data.mean
        and len(data.first(3, 2).test_y) == 2
        and len(data.first(3).train_y) == 3
    )
    assert data.to("cpu").train_x.device.type == "cpu"


def test_normalised_pixels_have_mean_zero_and_deviation_one_and_can_be_undone():
    pixels = torch.randint(
        0,
        256,
        (50, 3, 4, 4),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(0),
    )
    labels = torch.zeros(50, dtype=torch.uint8)
    data = from_pixels(
        "noise", (pixels, labels), (pixels[:5], labels[:5]), classes=1, normalise=True
    )
    std, mean = torch.std_mean(data.train_x, dim=(0, 2, 3), correction=0)
    assert torch.allclose(mean, torch.zeros(3), atol=1e-6) and torch.allclose(
        std, torch.ones(3), atol=1e-6
    )
    assert data.mean == (0.0,) * 3 and data.std == (1.0,) * 3
    back = data.test_x * torch.tensor(data.scale).view(-1, 1, 1) + torch.tensor(data.offset).view(
        -1, 1, 1
    )
    assert torch.allclose(back * 255, pixels[:5].float(), atol=1e-3)


def test_constant_pixels_are_normalised_without_dividing_by_zero():
    x, y = (
        torch.full((4, 1, 2, 2), 7, dtype=torch.uint8),
        torch.zeros(4, dtype=torch.uint8),
    )
    assert from_pixels("flat", (x, y), (x, y), classes=1, normalise=True).train_x.abs().max() < 0.1


@pytest.mark.parametrize("name", DATA.names())
def test_every_source_says_in_one_line_what_it_is(name):
    assert "\n" not in DATA[name].summary and 20 < len(DATA[name].summary) < 100


@pytest.mark.parametrize("name", [name for name in DATA.names() if name != "digits"])
def test_a_missing_set_says_where_we_looked_and_how_to_get_it(name, tmp_path):
    with pytest.raises(
        DataError,
        match=r"not found in .*elsewhere.*To get it: .*(download=True|unpack http)",
    ):
        load(name, root=tmp_path / "elsewhere")


def test_everything_wrong_with_a_data_set_is_told_at_once(data):
    with pytest.raises(DataError) as caught:
        from_tensors(
            "mine",
            train_x=data.train_x,
            train_y=torch.arange(1, 11),
            test_x=data.test_x,
            test_y=torch.arange(4.0),
            classes=10,
        )
    assert str(caught.value) == (
        "mine is not a usable data set: train_y holds classes from 1 to 10, outside 0 to 9; "
        "test_y must hold 4 class numbers (int64), not torch.float32 of shape (4,)."
    )
    with pytest.raises(
        DataError,
        match=r"train_x must hold floating-point images .* not torch.int64 of shape \(10,\)",
    ):
        from_tensors(
            "x",
            train_x=torch.arange(10),
            train_y=data.train_y,
            test_x=data.test_x,
            test_y=data.test_y,
        )


def test_tensors_in_any_other_order_are_refused_by_name(data):
    parts = {name: getattr(data, name) for name in ("train_x", "train_y", "test_x", "test_y")}
    for order in itertools.permutations(parts):
        given = dict(zip(parts, (parts[name] for name in order), strict=True))
        # Training and test set may change places, each with its labels.
        if order in (tuple(parts), ("test_x", "test_y", "train_x", "train_y")):
            from_tensors("right", classes=10, **given)
            continue
        with pytest.raises(DataError, match="_[xy] must hold"):
            from_tensors("wrong", **given)


@pytest.mark.parametrize("name", ["train_x", "train_y", "test_x", "test_y"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, "a NoneType"),
        ([0, 1], "a list"),
        (np.zeros((10, 2, 3, 3)), "a ndarray"),
        (torch.zeros(0, dtype=torch.int64), r"torch.int64 of shape \(0,\)"),
        (torch.full((10,), torch.nan), r"torch.float32 of shape \(10,\)"),
    ],
)
def test_what_is_no_tensor_of_images_or_classes_is_named(data, name, given, told):
    parts = {name: getattr(data, name) for name in ("train_x", "train_y", "test_x", "test_y")}
    with pytest.raises(DataError, match=f"{name} must hold .* not {told}"):
        from_tensors("mine", **parts | {name: given})


def test_images_of_other_channels_for_the_test_are_refused(data):
    with pytest.raises(DataError, match="train_x has 2 channels and test_x 3"):
        from_tensors(
            "mine",
            train_x=data.train_x,
            train_y=data.train_y,
            test_x=torch.zeros(4, 3, 3, 3),
            test_y=data.test_y,
        )


def test_wrong_options_are_refused(data):
    with pytest.raises(ArgumentError, match="at least one example, not 0"):
        next(data.batches(0))
    with pytest.raises(ArgumentError, match="'train' or 'test', not 'val'"):
        data.split("val")
    with pytest.raises(
        UnknownNameError, match="there is no data set 'mnits'. Did you mean 'mnist'"
    ):
        load("mnits")
