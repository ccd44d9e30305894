"""Text of foreign files: seen, not obeyed, by every sink; and no sink beside those."""

import ast
import csv
import io
import json
import re
import unicodedata
from pathlib import Path

import pytest
import torch
from rich.table import Table
from rich.text import Text
from safetensors.torch import save_file

import secateurs
from lab.study.example import example_store
from secateurs.base.cells import cell, markdown_cell, write_csv
from secateurs.base.foreign import one_line, visible
from secateurs.base.printing import Screen
from secateurs.cli import main
from secateurs.files import save_sparse
from secateurs.masks import save_masks
from secateurs_lab.report.tables import Table as PageTable
from secateurs_lab.study import Row, Store

SOURCE = Path(secateurs.__file__).parent
EVIL = (
    "=HYPERLINK(1)\x1b[2J\x1b]0;owned\x07\x9b31m\r<script>alert(1)</script>"
    "|[x](javascript:1)[link=http://e]y[/link][/nothing]\u202e\ud800\nerror: all is well"
)


def unseen(text):
    """Characters that a terminal obeys and nobody sees, but for line feeds."""
    kinds = ("Cc", "Cf", "Zl", "Zp", "Cs")
    return [sign for sign in text if unicodedata.category(sign) in kinds and sign != "\n"]


def test_every_character_of_unicode_is_seen_or_replaced():
    for code in (*range(0x10000), 0x1F600, 0xE0001):
        shown = visible(chr(code))
        assert len(shown) == 1
        if code >= 0x20 and chr(code).isprintable():
            assert shown == chr(code)
    assert visible("a\n\tb") == "a\n\tb" and one_line("a\n\tb") == "a␊␉b"
    assert not unseen(visible(EVIL))


@pytest.mark.parametrize(
    "text",
    [
        "=1",
        "=1+1",
        "+1+1",
        "-2+3+cmd|' /C calc'!A0",
        "@SUM(1)",
        "\t=1",
        "\r=1",
        " =1",
        "\n@x",
        "＝1",
    ],
)
def test_formulas_are_text(text):
    assert cell(text) == "'" + text


@pytest.mark.parametrize(
    "value",
    [
        "-1.5",
        "+0.5",
        "-1e-3",
        "-inf",
        "+inf",
        "-1,234.5",
        "-0.5 %",
        "+3×",
        "-",
        "a=1",
        "",
        -1.5,
        None,
        7,
        "-.5",
    ],
)
def test_numbers_and_ordinary_text_stay(value):
    assert cell(value) == value


def test_csv_is_read_back_cell_by_cell():
    lines = [["name", "x"], [EVIL.replace("\ud800", ""), -1.5], ["a,b", '"']]
    text = io.StringIO(newline="")
    write_csv(text, lines)
    back = list(csv.reader(io.StringIO(text.getvalue(), newline="")))
    assert back == [["name", "x"], ["'" + lines[1][0], "-1.5"], ["a,b", '"']]


def test_markdown_begins_no_html_no_link_and_no_column():
    assert "<" not in markdown_cell(EVIL) and "](" not in markdown_cell(EVIL).replace("\\](", "")
    text = PageTable(columns=("a", EVIL), cells=((EVIL, "1"),)).markdown()
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in text.split("\n")] == [
        3,
        3,
        3,
    ]


def test_what_is_no_markup_is_shown_as_it_is():
    screen = Screen(file=io.StringIO(), width=80)
    screen.print(Table("a wide heading", title="runs[/x].study"))
    assert "runs[/x].study" in screen.file.getvalue()


@pytest.mark.parametrize("wrap", [str, Text, lambda text: text], ids=["str", "Text", "raw"])
def test_a_screen_shows_texts_and_keeps_its_own_colours(wrap):
    name = EVIL.replace("[/nothing]", "")
    table = Table("[bold]name")
    table.add_row(wrap(name))
    for colour in (None, "truecolor"):
        screen = Screen(file=io.StringIO(), width=400, color_system=colour, force_terminal=True)
        screen.print(table)
        screen.print(wrap(name), markup=False)
        shown = screen.file.getvalue()
        own = re.compile(r"\x1b\[[0-9;]*m") if colour else re.compile("(?!)")
        assert not unseen(own.sub("", shown)), shown
        # Not one column is lost to a sign that was not there when the width was measured.
        assert "error: all is well" in shown and "␛[2J" in shown


# ------------------------------------------------------------- every command


def call(arguments, capsys):
    """What a command writes; it may refuse, but not fail."""
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as left:
        assert left.code in (None, 0, 1, 2)
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    return told.out + told.err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of every kind in which every text is hostile."""
    path = tmp_path_factory.mktemp("hostile")
    evil = EVIL.replace("\ud800", "")
    torch.manual_seed(0)
    weights = {f"{evil}.{i}": torch.randn(4, 4) * (torch.rand(4, 4) > 0.5) for i in range(2)}
    save_file(weights, path / "plain.safetensors", metadata={evil: evil, "note": evil})
    notes = {"arch": evil, "in_channels": evil, "classes": evil, "size": evil}
    save_file(weights, path / "arch.safetensors", metadata=notes)
    save_masks({name: w != 0 for name, w in weights.items()}, path / "masks.safetensors")
    plain = dict(enumerate(weights.values()))
    plain = {f"{number}.weight": weight for number, weight in plain.items()}
    save_sparse(
        plain,
        path / "sparse.sparse",
        certificate={"verdict": evil, evil: evil},
        notes=notes | {"note": evil, evil: evil},
    )
    (path / "certificate.json").write_text(json.dumps({"format": EVIL, EVIL: EVIL}))
    (path / "published.csv").write_text(
        f'method,compression,accuracy,{evil!r}\n"{evil}",4,90,1\n"{evil}",x,90,1\n'
    )
    quoted = json.dumps(evil)
    (path / "study.toml").write_text(
        f'name = {quoted}\ndata = {{ name = "digits", train = 64, test = 32 }}\n'
        f'model = "lenet-300-100"\ncompressions = [4]\ntrain = {{ length = "1ep", batch = 64 }}\n'
        f'[[methods]]\nscore = "magnitude"\nlabel = {quoted}\n'
    )
    (path / "wrong.toml").write_text(
        f"name = {quoted}\n{quoted} = 1\n[[methods]]\n{quoted} = {quoted}\n"
    )
    with example_store(path / "done.study", seeds=1) as store:
        for row in store.rows(hidden=True):
            store.put(hostile(row, evil))
        store.remember("published", {evil: [[4, 90], [16, 80]]})
        store.remember("study", {"name": evil, "text": evil})
    with Store.create(path / "going.study") as store:
        store.add([hostile(row, evil) for row in failed(evil)])
    return path


def failed(evil):
    for state in ("waiting", "running", "failed", "cancelled"):
        yield Row(
            key=f"{evil}{state}", label=evil, kind=evil, data=evil, model=evil,
            seed=0, state=state, reason=evil,
        )  # fmt: skip


def hostile(row, evil):
    from dataclasses import replace

    return replace(
        row,
        label=evil + row.label,
        reason=evil,
        kind=row.kind,
        data=evil,
        model=evil,
        metrics={**row.metrics, evil: 1.0},
        settings={**row.settings, evil: evil},
        provenance={**row.provenance, evil: evil, "device": evil},
        layers=tuple(replace(layer, name=evil + layer.name, verdict=evil) for layer in row.layers),
        certificates=tuple(
            replace(c, domain=evil, method=evil, text=evil) for c in row.certificates
        ),
    )


COMMANDS = [
    "inspect plain.safetensors",
    "inspect plain.safetensors --all",
    "inspect plain.safetensors --json",
    "inspect arch.safetensors",
    "inspect masks.safetensors",
    "inspect sparse.sparse",
    "inspect sparse.sparse --json",
    "pack plain.safetensors -o OUT.sparse",
    "pack arch.safetensors -o OUT.sparse",
    "unpack sparse.sparse -o OUT.safetensors",
    "prune plain.safetensors -o OUT.safetensors --sparsity 0.5",
    "prune plain.safetensors -o OUT.safetensors --sparsity 0.5 --where nothing",
    "prune arch.safetensors -o OUT.safetensors --sparsity 0.5",
    "recheck certificate.json f.onnx g.onnx",
    "prune sparse.sparse -o OUT.safetensors --sparsity 0.5",
    "study check study.toml --quick",
    "study check wrong.toml",
    "study run wrong.toml",
    "study run study.toml --engine in-process --store run.study",
    "study status run.study",
    "study report run.study --figures OUT",
    *(
        f"study {command}"
        for store in ("done.study", "going.study")
        for command in (
            f"status {store}",
            f"status {store} --runs",
            f"status {store} --json",
            f"report {store} --figures OUT",
            f"report {store} --published published.csv",
            f"export {store} -o OUT.csv",
            f"export {store} -o OUT.csv --table history",
            f"export {store} -o OUT.csv --table layers",
            f"resume {store}",
            f"rerun {store} x",
            f"cancel {store} =",
        )
    ),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_writes_what_a_terminal_obeys(command, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    words = [word.replace("OUT", str(tmp_path / "out")) for word in command.split()]
    said = call(words, capsys)
    assert said and not unseen(said), said
    assert "Usage: " not in said
    # Nothing that a file says begins a line of its own that looks like ours.
    if "--json" not in words and "inspect" not in words:
        assert said.count("\nerror: all is well") == 0 or said.startswith("error: ")
    for path in tmp_path.rglob("*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            for line in csv.reader(file):
                assert all(cell(value) == value for value in line), path
    for path in tmp_path.rglob("*.md"):
        assert "<script>" not in path.read_text(encoding="utf-8"), path


# ------------------------------------------------------------- no other sink

SINKS = {
    ("typer", "echo"): "cli/commands.py",
    ("", "print"): "",
    ("", "Console"): "",
    ("csv", "writer"): "base/cells.py",
    ("csv", "DictWriter"): "",
}
"""Calls that write text, and the only file that makes each."""


def calls(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
                yield function.value.id, function.attr
            elif isinstance(function, ast.Name):
                yield "", function.id


def test_all_text_goes_through_the_sinks():
    for path in SOURCE.rglob("*.py"):
        # Reading them all as Python takes seconds.
        if not re.search(r"\b(echo|print|Console|csv)\b", path.read_text("utf-8")):
            continue
        name = path.relative_to(SOURCE).as_posix()
        for call in calls(path):
            assert SINKS.get(call, name) == name, f"{name} writes by {call}: see foreign.py"
