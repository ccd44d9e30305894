"""Rows and artefacts: what is written is read, what is damaged is refused."""

import fcntl
import os
import subprocess
import sys
from dataclasses import replace
from threading import Timer

import pytest
import torch

from lab.study.example import example_store, example_study
from secateurs.errors import StoreError
from secateurs_lab.study import Row, Store
from secateurs_lab.study.database import filesystem, refuse_network
from secateurs_lab.study.store import being_written, only_writer

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    with example_store(tmp_path_factory.mktemp("store") / "example.study", seeds=1) as store:
        yield store


def row(key="a", **changes):
    return Row(
        key=key,
        label="dense",
        kind="dense",
        data="digits",
        model="lenet-5",
        seed=0,
        **changes,
    )


def test_rows_come_back_as_they_were(example):
    rows = example.rows(hidden=True)
    assert len(rows) == len(example_study(seeds=1).runs())
    assert all(example.row(found.key) == found for found in rows)
    for found in rows:
        example.put(found)
    assert example.rows(hidden=True) == rows


def test_a_listing_leaves_details_out(example):
    listed, whole = example.rows(details=False), example.rows()
    assert [found.summary for found in listed] == [found.summary for found in whole]
    assert all(not found.history for found in listed)


def test_masks_are_what_is_not_zero(example):
    found = example.rows()[2]
    masks = example.masks(found)
    assert {layer.name: layer.kept for layer in found.layers} == {
        n: int(m.sum()) for n, m in masks.items()
    }
    assert all(mask.dtype == torch.bool for mask in masks.values())


def test_adding_again_keeps_results(tmp_path):
    with Store.create(tmp_path / "s") as store:
        store.add([row("a"), row("b")])
        store.put(replace(row("a"), state="done", accuracy=0.5))
        store.add([row("b"), replace(row("a"), label="new"), row("c")])
        assert [(r.key, r.state, r.label) for r in store.rows()] == [
            ("b", "waiting", "dense"),
            ("a", "done", "new"),
            ("c", "waiting", "dense"),
        ]
        assert store.unfinished() == ["b", "c"]


def test_a_damaged_artefact_is_refused_wherever_the_damage_is(tmp_path):
    """One flipped bit, and a cut, at each of a thousand places."""
    with Store.create(tmp_path / "s") as store:
        blob = bytes(torch.randint(0, 256, (4000,), dtype=torch.uint8).tolist())
        name = store.artefacts.put(blob)
        path = store.artefacts.path(name)
        for place in range(0, 4000, 4):
            path.write_bytes(blob[:place] + bytes([blob[place] ^ 1]) + blob[place + 1 :])
            assert not store.artefacts.fits(name)
            path.write_bytes(blob[:place])
            with pytest.raises(StoreError, match="damaged"):
                store.artefacts.get(name)
        assert store.artefacts.put(blob) == name
        assert store.artefacts.get(name) == blob


def test_sweeping_leaves_what_is_named(tmp_path):
    with Store.create(tmp_path / "s") as store:
        store.add([row("a"), row("b")])
        kept, lost = store.artefacts.put(b"kept"), store.artefacts.put(b"lost")
        store.hold("a", "checkpoint", kept)
        assert store.sweep() == 1
        assert store.artefacts.fits(kept)
        assert not store.artefacts.fits(lost)


def test_checkpoints_go_with_the_result(tmp_path):
    with Store.create(tmp_path / "s") as store:
        store.add([row("a")])
        store.hold("a", "checkpoint", "x")
        store.hold("a", "checkpoint", "y")
        assert store.held("a") == {"checkpoint": "y"}
        store.finish(replace(row("a"), state="done"))
        assert store.held("a") == {} and store.counts() == {"done": 1}


def test_a_dead_driver_leaves_nothing_running(tmp_path):
    """Nor does it in runs that the present study has left out."""
    with Store.create(tmp_path / "s") as store:
        store.add([row("a"), row("b")])
        for key in "ab":
            store.mark(key, state="running")
        store.begin([row("b")])
        assert [store.row(key).state for key in "ab"] == ["waiting"] * 2


def test_a_folder_without_a_study_says_so(tmp_path):
    with pytest.raises(StoreError, match="holds no study"):
        Store.open(tmp_path)
    with (
        Store.create(tmp_path / "s") as store,
        pytest.raises(StoreError, match="no run has the key 'zz'"),
    ):
        store.row("zz")


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "study.db").write_bytes(b"x" * 5000)
    with pytest.raises(StoreError, match="damaged"):
        Store.create(tmp_path)


def test_network_file_systems_are_refused_with_the_way_out(tmp_path):
    mounts = tmp_path / "mountinfo"
    base = "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
    mounts.write_text(base + f"2 1 0:5 / {tmp_path} rw shared:1 - nfs4 server:/x rw\n")
    assert filesystem(tmp_path / "deeper", mounts) == "nfs4"
    with pytest.raises(StoreError, match=r"network file system \(nfs4\).*--store.*ray"):
        refuse_network(tmp_path, mounts)
    mounts.write_text(base)
    refuse_network(tmp_path, mounts)
    refuse_network(tmp_path, tmp_path / "absent")


def test_another_process_reads_while_one_writes(tmp_path):
    with Store.create(tmp_path / "s") as store:
        store.add([row("a")])
        opened = f"Store.open({str(tmp_path / 's')!r})"
        code = f"from secateurs_lab.study import Store; print({opened}.rows()[0].state)"
        told = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=ENV,
        )
        assert told.stdout.strip() == "waiting"


def test_who_looks_whether_somebody_writes_keeps_nobody_from_writing(tmp_path):
    """A shared lock of a reader, held as long as it takes to see it."""
    with only_writer(tmp_path):
        assert being_written(tmp_path)
    with open(tmp_path / "writer.lock", encoding="utf-8") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        Timer(0.1, lambda: fcntl.flock(reader, fcntl.LOCK_UN)).start()
        with only_writer(tmp_path):
            refused = pytest.raises(StoreError, match="another process")
            with refused, only_writer(tmp_path):
                pass


@pytest.mark.parametrize("text", ["owner: me\n", "1 2", "x" * 500])
def test_the_lock_file_of_another_program_is_left_alone(text, tmp_path):
    (tmp_path / "writer.lock").write_text(text)
    with pytest.raises(StoreError, match="other text than the number"), only_writer(tmp_path):
        pass
    assert (tmp_path / "writer.lock").read_text() == text


WITHOUT_LOCKS = """
import sys
sys.modules["fcntl"] = None  # as on Windows
import pathlib, tempfile
from secateurs.errors import StoreError
from secateurs_lab.study.store import only_writer
try:
    with only_writer(pathlib.Path(tempfile.mkdtemp())):
        pass
except StoreError as error:
    print(error)
"""


def test_where_files_cannot_be_locked_a_study_is_refused_in_words():
    done = subprocess.run([sys.executable, "-c", WITHOUT_LOCKS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "run them on Linux or macOS" in done.stdout
