"""`python -m experiments`: lists, runs, refuses in one line."""

import csv
import sys

import pytest

from experiments.__main__ import main
from experiments.catalogue import EXPERIMENTS

EVIL = "\x1b]0;owned\x07\u202e\nerror: all is well"


@pytest.fixture
def run(monkeypatch, capsys):
    def called(*words):
        monkeypatch.setattr(sys, "argv", ["experiments", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        return stopped.value.code, *capsys.readouterr()

    return called


def test_without_a_name_they_are_listed(run):
    code, out, _ = run()
    assert not code and all(name in out for name in EXPERIMENTS.names())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("probabilistic-moments", "--device", "gpu"), "no device 'gpu'"),
        (("probabilistic-moments", "--scale", "huge"), "no scale 'huge'"),
        (("probabilistic-moments", "--redraw"), "--redraw shows the rows of --out"),
        (("probabilistik-moments",), "Did you mean 'probabilistic-moments'"),
    ],
)
def test_errors_are_one_clean_message(run, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*words)
    assert code == 2 and out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert message in err and not list(tmp_path.iterdir())


def test_rows_of_others_cannot_control_the_terminal(run, tmp_path):
    name = "weight-factorization-rate"
    jobs = EXPERIMENTS[name].jobs("smoke")
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["job", "strength"], [jobs[0].name, EVIL]])
    _, out, err = run(name, "--out", tmp_path / "rows.csv", "--redraw")
    said = out + err
    assert said and "\x1b" not in said and "\u202e" not in said and "\nerror: all" not in said
