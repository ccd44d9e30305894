"""MNIST, Fashion-MNIST and Kuzushiji-MNIST: 28×28 grey images of ten classes in IDX files, pixels
in [0, 1].
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from secateurs.data.base import DATA, Source
from secateurs.data.dataset import Dataset
from secateurs.data.files import fetch, home, missing, places
from secateurs.data.idx import read_idx
from secateurs.data.making import from_pixels
from secateurs.errors import DataError

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
        raise missing(
            family.name, looked, _ways(family, (root or home()) / family.name)
        )
    train, test = _split(found[0], found[1]), _split(found[2], found[3])
    return from_pixels(family.name, train, test, classes=10, normalise=False)


def _four(folder: Path) -> list[Path] | None:
    """The four files of a folder, compressed or not, under either usual spelling; None unless all
    are there.
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
        raise DataError(
            f"{images} holds {len(x)} images but {labels} holds {len(y)} labels."
        )
    return x.unsqueeze(1), y


def _ways(family: Family, folder: Path) -> list[str]:
    files = ", ".join(f"{part}.gz" for part in PARTS)
    return [
        f"load({family.name!r}, download=True)",
        *([f"apt install {family.package}"] if family.package else []),
        f"put {files} from {family.address} into {folder}",
    ]


def _register(family: Family, summary: str, *aliases: str) -> None:
    DATA.register(family.name, *aliases)(
        Source(read=partial(read_family, family), summary=summary)
    )


_register(MNIST, "60,000 + 10,000 grey 28×28 images of handwritten digits")
_register(
    FASHION,
    "60,000 + 10,000 grey 28×28 images of clothes (Debian: dataset-fashion-mnist)",
)
_register(
    KUZUSHIJI,
    "60,000 + 10,000 grey 28×28 images of cursive Japanese characters",
    "kmnist",
)
