"""Covertype: a table read from text, its measurements normalised by the training rows, anything
else refused.
"""

import gzip
import hashlib
import subprocess
import sys

import numpy as np
import pytest
import torch

from secateurs.errors import DataError
from secateurs_lab.data import load, small


def rows(count=50):
    """Ten measurements of unlike scales, 44 of 0 or 1, and a class."""
    draws = np.random.default_rng(0)
    numbers = (draws.normal(size=(count, 10)) * 10.0 ** np.arange(-2, 8)).round(3)
    return np.hstack(
        [
            numbers,
            draws.integers(0, 2, (count, 44)),
            np.arange(count)[:, None] % 7 + 1,
        ]
    )


def text(table):
    return "".join(",".join(f"{value:.10g}" for value in row) + "\n" for row in table).encode()


@pytest.mark.parametrize("below", ["", "covertype", "covtype"])
@pytest.mark.parametrize("name", small.FILES)
def test_the_table_is_read_split_and_normalised(tmp_path, below, name):
    table, folder = rows(), tmp_path / below
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(gzip.compress(text(table)) if name.endswith(".gz") else text(table))
    data = load("covertype", root=tmp_path)
    assert (
        data.train_x.shape == (40, 54, 1, 1)
        and data.test_x.shape == (10, 54, 1, 1)
        and data.classes == 7
    )
    x, numbers = data.train_x.flatten(1), torch.arange(54)
    torch.testing.assert_close(x.mean(0)[:10], torch.zeros(10), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0)[:10], torch.ones(10))
    torch.testing.assert_close(torch.tensor(data.mean), x.mean(0), atol=1e-5, rtol=0)
    assert bool(torch.isin(x[:, numbers >= 10], torch.tensor([0.0, 1.0])).all())
    whole = torch.cat([x, data.test_x.flatten(1)]) * torch.tensor(data.scale) + torch.tensor(
        data.offset
    )
    back = (
        torch.cat([whole, torch.cat([data.train_y, data.test_y])[:, None] + 1], 1).double().numpy()
    )
    order = np.random.RandomState(0).permutation(50)
    assert bool((np.abs(back - table[order]) <= 1e-5 * np.abs(table).max(0)).all())


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda t: t[:, :-1],
            "has 50 rows of 54 numbers instead of 10 to 581012 of 55",
        ),
        (lambda t: t[:9], "has 9 rows"),
        (
            lambda t: np.where(np.arange(55) == 54, 0, t),
            r"50 rows that are not Covertype's \(first: 1\)",
        ),
        (
            lambda t: np.where((np.arange(50)[:, None] == 3) & (np.arange(55) == 20), 2, t),
            r"1 rows .* \(first: 4\)",
        ),
        (
            lambda t: np.where((np.arange(50)[:, None] == 7) & (np.arange(55) == 0), np.nan, t),
            r"\(first: 8\)",
        ),
    ],
)
def test_other_tables_are_refused(tmp_path, spoil, message):
    (tmp_path / "covtype.data").write_bytes(text(spoil(rows())))
    with pytest.raises(DataError, match=message):
        load("covertype", root=tmp_path)


@pytest.mark.parametrize(
    "body",
    [b"<html>", b"1,2\n3\n", gzip.compress(text(rows()), mtime=0)[:-30], b"\x1f\x8b"],
)
@pytest.mark.parametrize("name", small.FILES)
def test_damaged_files_are_refused(tmp_path, name, body):
    (tmp_path / name).write_bytes(body)
    with pytest.raises(DataError, match=f"{name} cannot be read as a table"):
        load("covertype", root=tmp_path)


def test_it_is_fetched_only_when_asked_and_checked(tmp_path, web, monkeypatch):
    body = gzip.compress(text(rows()))
    web.pages["/covtype"] = body
    monkeypatch.setattr(small, "ADDRESS", f"{web.address}covtype")
    with pytest.raises(DataError, match="not found"):
        load("covertype", root=tmp_path)
    assert web.asked == []
    with pytest.raises(DataError, match="arrived with SHA-256 .* instead of the published 6143"):
        load("covertype", root=tmp_path, download=True)
    assert not any((tmp_path / "covertype").iterdir())
    monkeypatch.setattr(small, "SHA256", hashlib.sha256(body).hexdigest())
    assert len(load("covertype", root=tmp_path, download=True).train_y) == 40
    assert len(load("covertype", root=tmp_path).train_y) == 40 and web.asked == ["/covtype"] * 2


def test_the_digits_are_those_of_scikit_learn_which_is_not_imported_for_them(monkeypatch):
    datasets = pytest.importorskip("sklearn.datasets")
    found = load("digits")
    images, labels = datasets.load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(labels))
    x = torch.cat([found.train_x, found.test_x]).view(-1, 64)
    assert torch.equal(x * 16, torch.from_numpy(images[order]).float())
    y = torch.cat([found.train_y, found.test_y])
    assert torch.equal(y, torch.from_numpy(labels[order]).long())
    # A scikit-learn that keeps the table elsewhere is asked for it.
    monkeypatch.setattr("secateurs_lab.data.small.find_spec", lambda name: Moved())
    assert torch.equal(load("digits").train_x, found.train_x)


class Moved:
    origin = "/nowhere/sklearn/__init__.py"


def test_loading_the_digits_imports_no_scikit_learn():
    pytest.importorskip("sklearn")
    code = (
        "import sys, secateurs_lab as lab; lab.data.load('digits');"
        " sys.exit('sklearn' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
