"""Files of studies: good ones are read, bad ones refused with place and suggestion, nothing is
executed.
"""

import itertools
import re
import time
from dataclasses import fields
from pathlib import Path

import pytest

from secateurs.cli import main
from secateurs.errors import ArgumentError
from secateurs_lab.study import METHODS, Dwf, Gradual, Imp, Prune, Study, Training
from secateurs_lab.study.file import Lines, StudyFileError, parse

GOOD = """\
name = "good"
data = { name = "digits", train = 500 }
model = "lenet-300-100"
compressions = [5, 20, 50]
seeds = [0, 1]
train = { length = "3ep", batch = 64 }

[[methods]]
score = "synflow"
rounds = 10
after = "init"

[[methods]]
kind = "dwf"
strength = [1e-4, 1e-3]
train = { lr = 0.3 }

[[methods]]
kind = "prune"
label = "l1, then cut"
[methods.after]
kind = "l1"
strength = 0.01
"""


def test_a_file_is_the_value_it_says():
    found = parse(GOOD)
    assert isinstance(found, Study)
    assert (found.name, found.seeds, found.compressions) == (
        "good",
        (0, 1),
        (5, 20, 50),
    )
    assert found.methods[0] == Prune(score="synflow", rounds=10, after="init")
    assert found.methods[1] == Dwf(strength=(1e-4, 1e-3), train={"lr": 0.3})
    assert found.methods[2].after.strength == 0.01
    assert found.train == Training(length="3ep", batch=64)
    assert parse('[[methods]]\nkind = "imp"').methods == (Imp(),)
    assert parse("").name == "study"


def test_ten_lines_are_enough():
    text = (
        Path(__file__)
        .parents[3]
        .joinpath("docs/studies.md")
        .read_text()
        .split("```toml\n")[1]
        .split("```")[0]
    )
    assert len(text.strip().splitlines()) == 10
    assert len(parse(text).methods) == 2


WRONG = """
score = "synflow" -> score = "sinflow" -> :9: methods[1].score: there is no score 'sinflow'. Did you mean 'synflow'
rounds = 10 -> round = 10 -> :10: methods[1].round: there is no field of prune 'round'. Did you mean 'rounds'
"dwf" -> "dfw" -> :14: methods[2].kind: there is no method 'dfw'. Did you mean 'dwf'
seeds = [0, 1] -> seeds = [0, 0] -> :5: seeds: 0 is given twice
batch = 64 -> batch = 0 -> :6: train.batch: 0 is not at least 1
lr = 0.3 -> lrr = 0.3 -> :16: methods[2].train.lrr: there is no field of a training 'lrr'. Did you mean 'lr'
strength = 0.01 -> strength = -1 -> :23: methods[3].after.strength: -1 is not above 0
compressions -> compresions -> :4: compresions: there is no field of the study 'compresions'. Did you mean
rounds = 10 -> rounds = 99999999 -> :10: methods[1].rounds: 99999999 is not between 1 and 10000
strength = 0.01 -> strength = [0.01, 0.1] -> :21: methods[3].after: l1 has a list of strengths here: give one
strength = [1e-4, 1e-3] -> init = "dfw" -> :15: methods[2].init: there is no initialisation 'dfw'. Did you mean 'dwf'
lr = 0.3 -> optimizer = "adam" -> :16: methods[2].train.optimizer: dwf has an optimizer of its own
lr = 0.3 -> weight_decay = 1e-4 -> :16: methods[2].train.weight_decay: the penalty of dwf is a decay already
"digits" -> "digitz" -> :2: data.name: there is no data set 'digitz'. Did you mean 'digits'
"lenet-300-100" -> "lenet300" -> :3: model: there is no model 'lenet300'. Did you mean 'lenet-300-100'
name = "good" -> name = good -> Invalid value (at line 1, column 8). Texts stand in quotes: name = "text"
name = "good" -> name: "good" -> (at line 1, column 5). Write key = value, with an equals sign.
"""  # noqa: E501


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [case.split(" -> ") for case in WRONG.strip().splitlines()],
)
def test_problems_are_told_with_line_and_suggestion(old, new, told):
    with pytest.raises(StudyFileError) as error:
        parse(GOOD.replace(old, new))
    assert told in str(error.value)


def test_all_problems_are_told_at_once():
    text = GOOD.replace("3ep", "3").replace("rounds = 10", "rounds = 0").replace("[0, 1]", "[]")
    with pytest.raises(StudyFileError) as error:
        parse(text.replace('length = "3"', "length = 3.5"))
    assert [line.split(":")[1] for line in str(error.value).splitlines()] == [
        "5",
        "6",
        "10",
    ]


@pytest.mark.parametrize("share", ["1e-9", "1e-300"])
def test_a_share_that_takes_for_ever_is_refused_before_its_runs_are_counted(share):
    text = f'compressions = [5]\n[[methods]]\nkind = "imp"\nper_round = {share}\n'
    with pytest.raises(StudyFileError, match=r":4: methods\[1\].per_round: .* rounds"):
        parse(text)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"begin": "3ep"}, "'3ep' is past the end of the training (3ep)"),
        ({"end": "4ep"}, "'4ep' is past the end of the training (3ep)"),
        ({"begin": "9it", "end": "5it"}, "'5it' is before begin, '9it'"),
        ({"every": "0it"}, "'0it' has no step; give at least one"),
    ],
)
def test_cuts_that_would_never_come_are_refused(settings, told):
    with pytest.raises(ArgumentError, match=re.escape(told)):
        Study(methods=[Gradual(**settings)], train=Training(length="3ep"))


def test_cuts_up_to_the_last_step_or_in_another_unit_are_taken():
    for settings in ({"end": "3ep"}, {"begin": "2ep"}, {"end": "999it"}):
        Study(methods=[Gradual(**settings)], train=Training(length="3ep"))
    # What goes on from a trained network trains as `tune` says.
    Study(
        methods=[Gradual(after="dense", end="8ep")],
        train=Training(length="3ep"),
        tune=Training(length="9ep"),
    )


def test_a_training_of_no_step_is_refused():
    nothing = Training(length="0ep")
    with pytest.raises(ArgumentError, match=r"train.length: '0ep' has no step; give at least one"):
        Study(methods=[Prune()], compressions=[4], train=nothing)
    Study(methods=[Prune()], compressions=[4], tune=nothing)


def test_nothing_in_a_file_is_executed(tmp_path):
    """A module's path is a name like any other, and functions cannot be written."""
    (tmp_path / "trap.py").write_text("raise SystemExit('executed')")
    data = 'data = { name = "trap", make = "trap:f" }'
    method = '[[methods]]\nscore = "trap.score"'
    for text in ('model = "trap:build"', 'metrics = { f = "trap:f" }', data, method):
        with pytest.raises(StudyFileError):
            parse(text)


def names_of(cls):
    return [entry.name for entry in fields(cls)]


def malformed():
    """Several hundred files, each wrong in one way or in two."""
    junk = [
        "-1",
        "0",
        '"x"',
        "[]",
        "{}",
        "nan",
        "1e999",
        "true",
        "[[1]]",
        "1979-05-27",
        '""',
        "[1, 1]",
        '["a", 3]',
    ]
    for field, value in itertools.product(names_of(Study), junk):
        yield f"{field} = {value}\n"
    for field, value in itertools.product(names_of(Training), junk):
        yield f"train = {{ {field} = {value} }}\n"
    for kind in METHODS.names():
        for field, value in itertools.product(names_of(METHODS[kind]), junk):
            yield f'[[methods]]\nkind = "{kind}"\n{field} = {value}\n'
        yield f'[[methods]]\nkind = "{kind}"\nunheard_of = 1\n'
        yield f'[[methods]]\nkind = "{kind}"\ntrain = {{ unheard_of = 1 }}\n'
    for place in range(0, len(GOOD), 7):
        yield GOOD[:place] + "\x00=" + GOOD[place:]
        yield GOOD[:place] + "]]" + GOOD[place + 3 :]


def test_malformed_files_are_refused_in_plain_words(capsys):
    refused, accepted, slowest = 0, 0, 0.0
    for text in malformed():
        begun = time.perf_counter()
        try:
            parse(text)
            accepted += 1
        except StudyFileError as error:
            refused += 1
            assert "study.toml:" in str(error)
            assert len(str(error)) < 3000
        slowest = max(slowest, time.perf_counter() - begun)
    assert refused >= 300
    with capsys.disabled():
        print(
            f"\n{refused} malformed files refused (slowest {slowest:.3f} s), {accepted} were none"
        )


@pytest.mark.parametrize("kind", ["prune", "imp", "gradual"])
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("options = { nonsense = 3 }", "no option of score 'snip' 'nonsense'"),
        ('pattern = ["2:4"]', "neither a pattern nor the name of one"),
        ("pattern = 3", "neither a pattern nor the name of one"),
    ],
)
def test_what_would_fail_in_every_run_is_refused_by_line(kind, line, words):
    text = f'compressions = [5]\n[[methods]]\nkind = "{kind}"\nscore = "snip"\n{line}\n'
    with pytest.raises(StudyFileError, match=rf":5: methods\[1\].\w+: .*{words}"):
        parse(text)


@pytest.mark.parametrize(
    "text", ['seeds = "x"', "[[methods]", "\x00", "model = 3\nfoo = 1", "é = 1"]
)
def test_the_command_refuses_with_code_2(tmp_path, capsys, text):
    file = tmp_path / "bad.toml"
    file.write_bytes(text.encode("latin-1"))
    for command in ("check", "run"):
        with pytest.raises(SystemExit) as left:
            main(["study", command, str(file)])
        told = capsys.readouterr().err
        assert left.value.code == 2
        assert told.startswith("error: ") and "bad.toml" in told and "Traceback" not in told
    assert not list(tmp_path.glob("*.study"))


def test_lines_of_nested_tables_and_long_texts():
    text = 'a = """\nseeds = 1\n"""\nseeds = [0]\n[train]\nbatch = 2\n'
    text += '[[methods]]\n[methods.after]\nkind = "l1"\n'
    lines = Lines(text)
    assert lines.of(("seeds",)) == 4
    assert lines.of(("train", "batch")) == 6
    assert lines.of(("methods", 0, "after", "kind")) == 9
    assert lines.of(("nowhere",)) == 1
