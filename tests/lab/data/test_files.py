"""The formats: small files made here, found in every usual place, and refused when anything is
wrong with them.
"""

import gzip
import hashlib
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.data import files as make
from secateurs.errors import DataError, MissingExtra
from secateurs_lab.data import load
from secateurs_lab.data.files import fetch, read_idx
from secateurs_lab.data.images import (
    CIFAR10,
    CIFAR100,
    FASHION,
    MNIST,
    PARTS,
    read_cifar,
    read_family,
)


@pytest.mark.parametrize("below", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("compressed", [False, True])
def test_idx_files_are_read_from_every_usual_place(tmp_path, below, compressed):
    make.write_family(tmp_path / below, compressed=compressed)
    data = load("mnist", root=tmp_path)
    assert data.train_x.shape == (6, 1, 28, 28) and data.test_x.shape == (
        4,
        1,
        28,
        28,
    )
    assert data.train_y.tolist() == [0, 1, 2, 3, 4, 5] and data.train_y.dtype == torch.int64
    assert torch.allclose(data.train_x[5], torch.full((1, 28, 28), 5 / 255))


def test_the_default_home_and_the_system_folder_are_searched_when_no_root_is_given(tmp_path, home):
    make.write_family(home / "kmnist")
    assert load("kmnist").name == load("kuzushiji-mnist").name == "kuzushiji-mnist"
    make.write_family(tmp_path / "system", compressed=True, train=3)
    family = replace(FASHION, installed=(str(tmp_path / "system"),))
    assert len(read_family(family, None, False).train_y) == 3
    with pytest.raises(DataError, match="apt install dataset-fashion-mnist"):
        read_family(family, tmp_path / "given", False)


def test_the_other_spelling_of_the_names_is_known(tmp_path):
    for name, body in make.family().items():
        (tmp_path / name.replace("-idx", ".idx")).write_bytes(body)
    assert len(load("mnist", root=tmp_path).train_y) == 6


def test_three_of_four_files_are_not_a_set(tmp_path):
    make.write_family(tmp_path)
    (tmp_path / PARTS[3]).unlink()
    with pytest.raises(DataError, match="mnist was not found"):
        load("mnist", root=tmp_path)


@pytest.mark.parametrize("compressed", [False, True])
def test_truncated_lengthened_and_mutated_files_are_refused_or_read_whole_never_crash(
    tmp_path, compressed
):
    images = np.random.default_rng(0).integers(0, 256, (3, 4, 4), dtype=np.uint8)
    raw = make.idx(images)
    stored = gzip.compress(raw, mtime=0) if compressed else raw
    path = tmp_path / ("f.gz" if compressed else "f")
    path.write_bytes(stored)
    assert np.array_equal(read_idx(path, ndim=3).numpy(), images)
    for cut in range(len(stored)):
        path.write_bytes(stored[:cut])
        with pytest.raises(DataError, match=str(path)):
            read_idx(path, ndim=3)
    chance = random.Random(0)
    for _ in range(200):
        changed = bytearray(stored)
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        path.write_bytes(bytes(changed))
        try:
            # Only a pixel changed: the format has no checksum.
            assert read_idx(path, ndim=3).shape == (
                3,
                4,
                4,
            )
        except DataError as error:
            assert str(path) in str(error)
    path.write_bytes(gzip.compress(raw + b"\0") if compressed else raw + b"\0")
    with pytest.raises(DataError, match="claims 48 bytes and holds more bytes"):
        read_idx(path, ndim=3)


def test_a_header_that_claims_terabytes_reserves_nothing(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(bytes((0, 0, 8, 3)) + b"\xff" * 12)
    with pytest.raises(DataError, match=r"claims the shape \(4294967295, 4294967295, 4294967295\)"):
        read_idx(path, ndim=3)


@pytest.mark.parametrize(
    ("part", "body", "message"),
    [
        (
            PARTS[0],
            make.idx(np.zeros((6, 27, 28), np.uint8)),
            "images of 27×28 pixels instead of 28×28",
        ),
        (
            PARTS[1],
            make.idx(np.zeros(5, np.uint8)),
            "holds 6 images but .* holds 5 labels",
        ),
        (
            PARTS[1],
            make.idx(np.full(6, 10, np.uint8)),
            "train_y holds classes from 10 to 10, outside 0 to 9",
        ),
        (PARTS[2], b"<html>", "it starts with 3c68746d instead of 00000803"),
        (PARTS[3], b"", "it starts with nothing instead of 00000801"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(tmp_path, part, body, message):
    make.write_family(tmp_path)
    (tmp_path / part).write_bytes(body)
    with pytest.raises(DataError, match=message):
        load("mnist", root=tmp_path)


@pytest.mark.parametrize("layout", [CIFAR10, CIFAR100], ids=lambda layout: layout.name)
@pytest.mark.parametrize("packed", [False, True])
def test_cifar_is_read_from_its_folder_and_from_its_archive(tmp_path, layout, packed):
    if packed:
        (tmp_path / layout.archive).write_bytes(make.archive(layout.folder, make.cifar(layout)))
    else:
        (tmp_path / layout.folder).mkdir()
        for name, body in make.cifar(layout).items():
            (tmp_path / layout.folder / name).write_bytes(body)
    data = load(layout.name, root=tmp_path)
    assert (
        data.train_x.shape == (3 * len(layout.train), 3, 32, 32) and data.classes == layout.classes
    )
    assert data.test_y.tolist() == [0, 1, 2]
    scale, offset = (torch.tensor(v).view(-1, 1, 1) for v in (data.scale, data.offset))
    red, green, blue = ((data.test_x[2] * scale + offset) * 255).flatten(1).mean(1).tolist()
    assert (red, green, blue) == pytest.approx((52, 102, 253), abs=1e-2)


@pytest.mark.parametrize("layout", [CIFAR10, CIFAR100], ids=lambda layout: layout.name)
def test_damaged_cifar_files_are_refused(tmp_path, layout):
    folder = tmp_path / layout.folder
    folder.mkdir()
    good = make.cifar(layout)
    for name, body in good.items():
        (folder / name).write_bytes(body)
    for wrong in (good[layout.test][:-1], b"", good[layout.test] + b"\0"):
        (folder / layout.test).write_bytes(wrong)
        with pytest.raises(
            DataError,
            match=rf"{layout.test} has {len(wrong)} bytes.*records of {3072 + layout.label_bytes}",
        ):
            load(layout.name, root=tmp_path)
    (folder / layout.test).write_bytes(b"\xff" * (3072 + layout.label_bytes))
    with pytest.raises(DataError, match="test_y holds classes from 255 to 255"):
        load(layout.name, root=tmp_path)


def test_damaged_archives_are_refused(tmp_path):
    path = tmp_path / CIFAR10.archive
    whole = make.archive(CIFAR10.folder, make.cifar(CIFAR10))
    foreign = make.archive("elsewhere", make.cifar(CIFAR10))
    for body in (
        b"",
        b"PK\x03\x04",
        foreign,
        # The last bytes are tar's empty blocks and a checksum: nothing of the data.
        *(whole[:cut] for cut in range(0, len(whole) - 24, 37)),
    ):
        path.write_bytes(body)
        with pytest.raises(DataError, match="cannot be read"):
            load("cifar-10", root=tmp_path)


def test_a_download_arrives_checked_under_its_name_and_is_not_repeated(tmp_path, web):
    bodies = {part: gzip.compress(body, mtime=0) for part, body in make.family().items()}
    web.pages = {f"/{part}.gz": body for part, body in bodies.items()}
    family = replace(
        MNIST,
        address=web.address,
        md5=tuple(hashlib.md5(bodies[part]).hexdigest() for part in PARTS),
    )
    with pytest.raises(DataError, match="not found"):
        read_family(family, tmp_path, False)
    assert not web.asked  # nothing is fetched unasked
    assert len(read_family(family, tmp_path, True).train_y) == 6
    assert sorted(web.asked) == sorted(web.pages)
    assert sorted(p.name for p in (tmp_path / "mnist").iterdir()) == sorted(
        f"{part}.gz" for part in PARTS
    )
    read_family(family, tmp_path, True)
    assert len(web.asked) == 4


def test_cifar_downloads_its_archive(tmp_path, web):
    body = make.archive(CIFAR10.folder, make.cifar(CIFAR10))
    web.pages = {f"/{CIFAR10.archive}": body}
    layout = replace(CIFAR10, address=web.address, md5=hashlib.md5(body).hexdigest())
    assert len(read_cifar(layout, tmp_path, True).train_y) == 15


@pytest.mark.parametrize("fault", ["wrong", "cut", "absent", "refused"])
def test_a_bad_download_leaves_nothing_behind(tmp_path, web, fault):
    body = b"x" * 100_000
    web.pages = {} if fault == "absent" else {"/f": body}
    web.cut = {"/f"} if fault == "cut" else set()
    md5 = hashlib.md5(body if fault != "wrong" else b"other").hexdigest()
    address = "http://127.0.0.1:1/f" if fault == "refused" else f"{web.address}f"
    target = tmp_path / "f"
    with pytest.raises(
        DataError,
        match=r"instead of the published|cannot download .*(404|refused|IncompleteRead)",
    ):
        fetch(address, target, md5=md5)
    assert list(tmp_path.iterdir()) == []


def test_a_bad_download_does_not_replace_a_good_file(tmp_path, web):
    target = tmp_path / "f"
    target.write_bytes(b"good")
    web.pages = {"/f": b"bad"}
    with pytest.raises(DataError):
        fetch(f"{web.address}f", target, md5=hashlib.md5(b"good").hexdigest())
    assert target.read_bytes() == b"good" and list(tmp_path.iterdir()) == [target]


def test_an_endless_download_is_cut_off(tmp_path, web, monkeypatch):
    monkeypatch.setattr("secateurs_lab.data.files.LIMIT", 1000)
    web.pages = {"/f": b"x" * 5000}
    with pytest.raises(DataError, match="sends more than 1000 bytes"):
        fetch(f"{web.address}f", tmp_path / "f", md5="")
    assert list(tmp_path.iterdir()) == []


def test_only_web_addresses_are_fetched(tmp_path):
    with pytest.raises(DataError, match="is not a web address"):
        fetch(Path("/etc/hostname").as_uri(), tmp_path / "f", md5="")


def test_digits_are_split_once_and_for_all():
    pytest.importorskip("sklearn")
    data = load("digits")
    assert data.train_x.shape == (1437, 1, 8, 8) and data.test_x.shape == (
        360,
        1,
        8,
        8,
    )
    assert data.train_x.min() >= 0 and data.train_x.max() == 1
    assert data.train_y[:10].tolist() == [2, 8, 2, 6, 6, 7, 1, 9, 8, 5]
    assert data.test_y.bincount().min() > 20  # every class is tested


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn", None)
    with pytest.raises(MissingExtra, match="pip install scikit-learn"):
        load("digits")
