"""`secateurs study`, from a file to a table, for a stranger."""

import json
import os
import subprocess
import sys

import pytest

from lab.study.example import example_store
from secateurs.cli import main
from secateurs_lab.study import Store

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
FILE = """\
data = { name = "digits", train = 256, test = 50 }
compressions = [4]
train = { length = "2ep", batch = 64 }
[[methods]]
score = "magnitude"
"""


def run(*arguments):
    """The exit code."""
    try:
        main(["study", *map(str, arguments)])
    except SystemExit as left:
        return left.code or 0
    return 0


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(FILE)
    return path


def test_from_file_to_table(file, tmp_path, capsys):
    assert run("check", file) == 0
    assert "2 runs, about" in capsys.readouterr().out
    assert run("run", file) == 0
    told = capsys.readouterr()
    assert told.out.strip().endswith("small.study: 2 done")
    assert "magnitude at 4×, seed 0: done" in told.err and "2 of 2 runs" in told.err
    assert run("run", file) == 0
    assert "begun" not in capsys.readouterr().err  # nothing is left to do
    assert run("status", file) == 0
    assert "magnitude" in capsys.readouterr().out
    assert run("status", file, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["state"] for row in rows] == ["done", "done"]
    assert run("rerun", file, rows[1]["key"]) == 0
    assert "the same weights" in capsys.readouterr().out
    assert run("export", file, "-o", tmp_path / "t.csv") == 0
    assert (tmp_path / "t.csv").read_text().startswith("key,label")
    assert run("resume", tmp_path / "small.study") == 0  # the store remembers its study


def test_mistakes_are_told(file, tmp_path, capsys):
    assert run("status", file) == 2
    assert "holds no study" in capsys.readouterr().err
    assert run("resume", file) == 2
    assert run("run", tmp_path / "absent.toml") == 2
    assert "absent.toml cannot be read: No such file" in capsys.readouterr().err
    assert run("run", file, "--engine", "cloud") == 2
    assert "engine: 'cloud' is none of in-process, local, ray" in capsys.readouterr().err
    with example_store(tmp_path / "e.study", seeds=1) as store:
        key = store.rows()[0].key
    assert run("rerun", tmp_path / "e.study", "zz") == 2
    assert run("cancel", tmp_path / "e.study", key) == 2
    assert "has ended already" in capsys.readouterr().err
    assert (
        run(
            "export",
            tmp_path / "e.study",
            "-o",
            tmp_path / "x.csv",
            "--table",
            "stars",
        )
        == 2
    )
    assert "there is no table 'stars'" in capsys.readouterr().err


def test_cancelled_runs_are_left_out(file, tmp_path, capsys):
    from secateurs_lab.study.config import waiting_row
    from secateurs_lab.study.file import read

    with Store.create(file.with_suffix(".study")) as store:
        store.add(waiting_row(each) for each in read(file).runs())
        key = store.rows()[1].key
    assert run("cancel", file, key) == 0
    assert run("run", file, "--engine", "in-process") == 0
    assert capsys.readouterr().out.strip().endswith("1 cancelled, 1 done")
    assert run("resume", file, "--again", "--engine", "in-process") == 0
    assert capsys.readouterr().out.strip().endswith("2 done")


def test_status_does_not_wait_for_torch(tmp_path):
    example_store(tmp_path / "e.study", seeds=1).close()
    code = (
        "import sys; from secateurs.cli import main\n"
        f"try: main(['study', 'status', {str(tmp_path / 'e.study')!r}])\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=ENV,
        check=True,
    )
    assert told.stdout.strip().endswith("False")
    assert "synflow" in told.stdout


@pytest.mark.parametrize(("load", "told"), [(0.5, ""), (40.0, "load 40.0 on 2 processors")])
def test_an_estimate_on_a_busy_machine_says_so(load, told, file, monkeypatch, capsys):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert run("check", file) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert told in out and ("20.0 times as long" in out) == bool(told)


def test_runs_of_a_killed_study_wait(tmp_path, capsys):
    """Its store says "running"; that nobody writes to it says otherwise."""
    from secateurs_lab.study.store import only_writer

    # In a deep folder, whose name is wider than the table.
    deep = tmp_path / "-".join(["deep"] * 20)
    deep.mkdir()
    folder = deep / "e.study"
    with example_store(folder, seeds=1) as store:
        key = store.rows()[0].key
        store.mark(key, state="running", progress=0.4)
    with only_writer(folder):
        assert run("status", folder) == 0
        assert run("status", folder, "--runs") == 0
    told = capsys.readouterr().out
    assert "1 running" in told and ": running, 40 %" in told and "does not run now" not in told
    assert run("status", folder) == 0
    assert run("status", folder, "--runs") == 0
    told = capsys.readouterr().out
    assert "0 running" in told and ": waiting, 40 %" in told and told.count("does not run now") == 2
    # One line, however long the name: a search in a log finds it.
    assert told.startswith(f"{folder}: 20 of 21 runs, 0 running, ")
    assert run("status", folder, "--json") == 0
    assert '"running"' not in capsys.readouterr().out


def test_a_preset_is_run_by_its_name(tmp_path, monkeypatch, capsys):
    from secateurs_lab.study import Prune, Study, Training, presets

    tiny = Study(
        name="tiny",
        methods=[Prune(after="init")],
        train=Training(length="2it"),
        data={"name": "digits", "train": 64, "test": 64},
    )
    monkeypatch.setattr(presets, "PRESETS", {"tiny": tiny})
    monkeypatch.chdir(tmp_path)
    assert run("check", "tiny", "--quick") == 0
    assert run("run", "tiny", "--engine", "in-process") == 0
    assert run("resume", "tiny", "--engine", "in-process") == 0
    assert run("report", "tiny", "-o", "page.md") == 0
    told = capsys.readouterr().out
    assert "tiny: 2 runs" in told and told.count("2 done") == 2
    assert "| magnitude, at init |" in (tmp_path / "page.md").read_text(encoding="utf-8")
    # A file of that name comes first.
    (tmp_path / "tiny").write_text("seeds = [0, 1]", encoding="utf-8")
    assert run("check", "tiny", "--quick") == 0
    assert "tiny: 2 runs" in capsys.readouterr().out


def test_a_page_that_is_not_ours_is_not_replaced_unasked(tmp_path, capsys):
    folder = tmp_path / "e.study"
    example_store(folder, seeds=1).close()
    page = folder / "report.html"
    page.write_text("<html>mine</html>")
    assert run("report", folder) == 2
    assert "give another name with --out" in capsys.readouterr().err
    assert page.read_text() == "<html>mine</html>"
    page.unlink()
    # Ours is written again whenever it is asked for.
    assert run("report", folder) == run("report", folder) == 0
