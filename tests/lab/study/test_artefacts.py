"""Files named by their content: ours have 64 hexadecimal digits; nothing else is touched."""

import pytest

from secateurs.errors import StoreError
from secateurs_lab.study.artefacts import Artefacts


@pytest.fixture
def files(tmp_path):
    return Artefacts(tmp_path / "artefacts")


def test_sweeping_deletes_ours_alone(files):
    name = files.put(b"ours")
    half = files.path(name).with_name(f"{name}.abcdefgh.part")
    half.write_bytes(b"half written")
    theirs = [
        files.folder / place
        for place in (
            "models/mine.bin",
            "top.bin",
            f"{name[:2]}/notes.txt",
            f"{name[:2]}/{'f' * 63}.safetensors",
            # A name like ours in a folder where we would not look for it.
            f"zz/{name}.safetensors",
        )
    ]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"theirs")
    assert files.sweep([]) == 2
    assert not files.path(name).exists() and not half.exists()
    assert all(path.read_bytes() == b"theirs" for path in theirs)


@pytest.mark.parametrize("name", ["../../victim/model", "", "a" * 63, "A" * 64, "a" * 64 + "\n"])
def test_a_name_that_leads_elsewhere_is_refused(name, files, tmp_path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "model.safetensors").write_bytes(b"theirs")
    for use in (files.path, files.get, files.delete, lambda name: files.sweep([name])):
        with pytest.raises(StoreError, match="a name is 64 hexadecimal digits"):
            use(name)
    assert (tmp_path / "victim" / "model.safetensors").exists()


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_no_link_is_followed(depth, files, tmp_path):
    name = files.put(b"ours")
    path = files.path(name)
    place = [files.folder, path.parent, path][depth]
    away = tmp_path / "away"
    place.rename(away)
    place.symlink_to(away)
    for use in (files.get, files.delete, lambda name: files.put(b"ours")):
        with pytest.raises(StoreError, match="is a link"):
            use(name)
    assert files.sweep([]) == 0
    found = away if away.is_file() else next(away.rglob("*.safetensors"))
    assert found.read_bytes() == b"ours"
