"""Compiled files: found again, never built into a folder that others can write to, refused when
they are wrong.
"""

import ctypes
import logging
import os

import pytest

from secateurs import native

LOG = logging.getLogger("secateurs.native")
WORDS = {
    "switch": "SECATEURS_TEST",
    "what": "answer",
    "fallback": "it is guessed",
    "log": LOG,
}


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("SECATEURS_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "answer.cpp"
    path.write_text('extern "C" int answer() { return 42; }')
    try:
        native.build(path)
    except RuntimeError:
        pytest.skip("no C++ compiler on this machine")
    return path


def answer(library: ctypes.CDLL) -> int:
    return library.answer()


def test_it_compiles_and_loads(source):
    assert native.kernel(source, answer, **WORDS) == 42


def test_the_file_is_found_again(source, monkeypatch):
    def forbidden(*_):
        raise AssertionError("compiled twice")

    monkeypatch.setattr(native, "_compile", forbidden)
    assert native.build(source).exists()


def test_another_source_is_another_file(source):
    before = native.build(source)
    source.write_text('extern "C" int answer() { return 43; }')
    assert native.build(source) != before
    assert native.kernel(source, answer, **WORDS) == 43


@pytest.mark.parametrize(
    "problem",
    [
        RuntimeError("it is 41"),
        AttributeError("no symbol answer"),
        OSError("no file"),
    ],
)
def test_a_refused_library_is_one_log_line(source, caplog, problem):
    def refuse(library):
        raise problem

    with caplog.at_level(logging.WARNING, logger=LOG.name):
        assert native.kernel(source, refuse, **WORDS) is None
    assert [r.getMessage() for r in caplog.records] == [
        f"no answer, it is guessed: {problem}"
    ]


def test_a_source_that_does_not_compile_leaves_nothing_behind(
    source, caplog, tmp_path
):
    files = set((tmp_path / "cache").iterdir())
    source.write_text("this is not C++")
    assert native.kernel(source, answer, **WORDS) is None
    assert "failed" in caplog.text
    assert set((tmp_path / "cache").iterdir()) == files


def test_it_can_be_switched_off(source, monkeypatch):
    monkeypatch.setenv("SECATEURS_TEST", "0")
    assert native.kernel(source, answer, **WORDS) is None


def test_a_folder_others_can_write_to_is_not_trusted(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chmod(shared, 0o777)
    assert native._trusted(shared) != shared
    private = tmp_path / "private"
    assert native._trusted(private) == private
