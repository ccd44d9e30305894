"""Compiled files: found again, never built into a folder that others can write to, refused when
they are wrong.
"""

import ctypes
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import secateurs
from secateurs.base import native

LOG = logging.getLogger("secateurs.base.native")
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
    path.write_text('extern "C" int answer() { return 42; }', encoding="utf-8")
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
    source.write_text('extern "C" int answer() { return 43; }', encoding="utf-8")
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
    assert [r.getMessage() for r in caplog.records] == [f"no answer, it is guessed: {problem}"]


def test_a_source_that_does_not_compile_leaves_nothing_behind(source, caplog, tmp_path):
    files = set((tmp_path / "cache").iterdir())
    source.write_text("this is not C++", encoding="utf-8")
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
    assert native._trusted_folder(shared) != shared
    # One for all libraries of this process.
    assert native._trusted_folder(shared) == native._trusted_folder(shared)
    private = tmp_path / "private"
    assert native._trusted_folder(private) == private


def cut_off(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 3])


def change_a_byte(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def let_everybody_write(path):
    os.chmod(path, 0o666)


def give_away(path):
    try:
        os.chown(path, os.getuid() + 1, -1)
    except PermissionError:
        pytest.skip("only root can give files away")


def link_elsewhere(path):
    elsewhere = path.with_name("elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


HARMS = {
    "cut off": cut_off,
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(b"garbage" * 1000),
    "one byte changed": change_a_byte,
    "writable by all": let_everybody_write,
    "of another owner": give_away,
    "a link": link_elsewhere,
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
@pytest.mark.parametrize("which", ["", ".sha256"], ids=["file", "seal"])
def test_a_file_that_is_not_what_was_compiled_is_compiled_again(source, monkeypatch, harm, which):
    target = native.build(source)
    compiled, again = target.read_bytes(), []
    harm(target.with_name(target.name + which))
    compile_ = native._compile
    monkeypatch.setattr(native, "_compile", lambda *given: (again.append(given), compile_(*given)))
    assert native.build(source) == target
    assert again, "the damaged file was taken"
    assert target.read_bytes() == compiled
    assert native.build(source) == target
    assert len(again) == 1, "compiled again although it was whole"
    assert not target.is_symlink()
    assert native.kernel(source, answer, **WORDS) == 42


FIRST_STEP = """
import torch
from secateurs.optim import FactorizedSGD
from secateurs.optim.factorized.compiled import kernel
layer = torch.nn.Linear(4, 4)
optimizer = FactorizedSGD(layer.parameters(), lr=.1, strength=.1)
layer(torch.ones(1, 4)).sum().backward()
optimizer.step()
assert kernel() is not None
"""
FAST = """
import torch, secateurs as sc
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
fast = sc.accelerate(model, torch.ones(1, 4), keep="always", tune="guess")
assert type(fast).__name__ == "FastModule"
with torch.inference_mode():
    assert torch.allclose(fast(torch.ones(2, 4)), model(torch.ones(2, 4)), atol=1e-6)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "name"),
    [
        (FIRST_STEP, "optim/factorized/compiled.cpp"),
        (FAST, "ship/fast/kernels.cpp"),
    ],
    ids=["first step", "accelerate"],
)
def test_a_cut_off_file_in_the_cache_kills_no_process(source, code, name):
    compiled = native.build(source)
    kernels = Path(secateurs.__file__).parent / name
    fingerprint = native._fingerprint(kernels, native._compiler())
    target = compiled.with_name(f"{kernels.stem}-{fingerprint}.so")
    compiled.rename(target)
    cut_off(target)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
    assert native._is_intact(target)
