"""Folders of real JPEG files, made here: Tiny ImageNet, a copy of CIFAR-10."""

import pytest
import torch

from secateurs.errors import DataError, MissingExtra
from secateurs_lab.data import load
from secateurs_lab.data.images import JPEG_CLASSES

# Listed out of order: numbers follow the sorted names.
CLASSES = {
    "n02": (200, 0, 0),
    "n01": (0, 0, 200),
}


def write(root, *, side=64):
    image = pytest.importorskip("PIL.Image")
    top = root / "tiny-imagenet-200"
    (top / "val" / "images").mkdir(parents=True)
    (top / "wnids.txt").write_text("\n".join(CLASSES) + "\n")
    for name, colour in CLASSES.items():
        (top / "train" / name / "images").mkdir(parents=True)
        for number in range(2):
            image.new("RGB", (side, side), colour).save(
                top / "train" / name / "images" / f"{name}_{number}.JPEG"
            )
        # Some are grey.
        image.new("L", (side, side), 128).save(top / "val" / "images" / f"val_{name}.JPEG")
    rows = [f"val_{name}.JPEG\t{name}\t0\t0\t62\t57\n" for name in CLASSES]
    (top / "val" / "val_annotations.txt").write_text("".join(rows))
    return top


def pixels(data, x):
    return (
        x * torch.tensor(data.scale).view(-1, 1, 1) + torch.tensor(data.offset).view(-1, 1, 1)
    ) * 255


def test_images_and_classes_are_read(tmp_path):
    write(tmp_path)
    data = load("tiny-imagenet", root=tmp_path)
    assert (
        data.train_x.shape == (4, 3, 64, 64)
        and sorted(data.train_y.tolist()) == [0, 0, 1, 1]
        and data.classes == 2
    )
    assert data.test_y.tolist() == [1, 0]
    second = data.train_y.tolist().index(1)
    red, green, blue = pixels(data, data.train_x)[second].flatten(1).mean(1).tolist()
    assert (
        red == pytest.approx(200, abs=3)
        and green == pytest.approx(0, abs=3)
        and blue == pytest.approx(0, abs=3)
    )
    assert pixels(data, data.test_x)[0].mean().item() == pytest.approx(128, abs=3)


@pytest.mark.parametrize(
    ("file", "body", "message"),
    [
        (
            "val/images/val_n01.JPEG",
            b"\xff\xd8 not really",
            "cannot be read as a JPEG image",
        ),
        ("val/images/val_n01.JPEG", b"GIF89a", "cannot be read as a JPEG image"),
        (
            "val/val_annotations.txt",
            b"val_n01.JPEG\tn99\t0",
            "no known file and class: .*n99",
        ),
        (
            "val/val_annotations.txt",
            b"../../secret\tn01\t0",
            "no known file and class: .*secret",
        ),
        (
            "val/val_annotations.txt",
            b"\xff\xfe",
            "val_annotations.txt cannot be read",
        ),
        ("val/val_annotations.txt", b"", "no images in one of its splits"),
    ],
)
def test_damaged_folders_are_refused(tmp_path, file, body, message):
    (write(tmp_path) / file).write_bytes(body)
    with pytest.raises(DataError, match=message):
        load("tiny-imagenet", root=tmp_path)


def test_a_truncated_image_is_refused_wherever_it_ends(tmp_path):
    top = write(tmp_path)
    path = top / "val" / "images" / "val_n01.JPEG"
    whole = path.read_bytes()
    for cut in range(0, len(whole) - 20, max(1, len(whole) // 12)):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match="cannot be read as a JPEG image"):
            load("tiny-imagenet", root=tmp_path)


def test_an_image_of_another_size_is_refused_before_it_is_unpacked(tmp_path):
    write(tmp_path, side=65)
    with pytest.raises(DataError, match="image of 65×65 pixels instead of 64×64"):
        load("tiny-imagenet", root=tmp_path)


def test_a_missing_decoder_names_its_extra(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"pillow is not installed.*secateurs-lab\[images\]"):
        load("tiny-imagenet", root=tmp_path)


def write_cifar(root, *, side=32):
    image = pytest.importorskip("PIL.Image")
    for part, count in (("train", 2), ("test", 1)):
        for number, name in enumerate(JPEG_CLASSES):
            folder = root / "CIFAR-10-images" / part / name
            folder.mkdir(parents=True)
            for k in range(count):
                image.new("RGB", (side, side), (20 * number, 0, 90)).save(folder / f"{k:04}.jpg")


def test_cifar_10_as_jpeg_has_a_name_of_its_own(tmp_path):
    write_cifar(tmp_path)
    data = load("cifar-10-jpeg", root=tmp_path)
    assert data.name == "cifar-10-jpeg" and data.classes == 10
    assert data.train_x.shape == (20, 3, 32, 32) and data.test_x.shape == (10, 3, 32, 32)
    # Some of each class among the first, in the same order whenever they are read.
    assert sorted(data.train_y.tolist()) == [k for k in range(10) for _ in range(2)]
    assert len(set(data.train_y[:10].tolist())) > 5
    assert torch.equal(load("cifar-10-jpeg", root=tmp_path).train_y, data.train_y)
    red, _, blue = pixels(data, data.test_x).flatten(2).mean(2).unbind(1)
    assert red.tolist() == pytest.approx([20 * k for k in data.test_y.tolist()], abs=4)
    assert blue.tolist() == pytest.approx([90] * 10, abs=4)
    # The lossless set is never taken from it.
    with pytest.raises(DataError, match="cifar-10-binary"):
        load("cifar-10", root=tmp_path)


def test_a_folder_of_other_images_is_refused(tmp_path):
    with pytest.raises(DataError, match="CIFAR-10-images"):
        load("cifar-10-jpeg", root=tmp_path)
    write_cifar(tmp_path, side=40)
    with pytest.raises(DataError, match="40×40 pixels instead of 32×32"):
        load("cifar-10-jpeg", root=tmp_path)
