"""The command line, from the outside: what it prints, writes and refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import load_file, save_file

import secateurs
from secateurs.cli import _app_of, _outline, main
from secateurs.cli.commands import all_commands
from secateurs.scores import SCORES
from secateurs_lab.data import DATA
from secateurs_lab.models import MODELS

SOURCE = Path(secateurs.__file__).parents[1]
COMMANDS = all_commands()


@pytest.fixture
def weights(tmp_path):
    """A checkpoint as any other tool would write it."""
    state = {"conv.weight": torch.randn(20, 5, 5, 5), "fc.weight": torch.randn(100, 40)}
    save_file({**state, "fc.bias": torch.randn(100)}, tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


HELP = """
import contextlib, io, sys
from secateurs.cli import main
for arguments in {}:
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            main(arguments)
    except SystemExit as stop:
        code = stop.code
    heavy = {{"torch", "numpy", "scipy", "sklearn"}} & set(sys.modules)
    if heavy or code or not out.getvalue():
        sys.exit(f"{{arguments}}: {{heavy}}, {{code}}, {{out.getvalue()}}")
"""


def test_help_does_not_import_torch():
    calls = [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
    done = subprocess.run(
        [sys.executable, "-c", HELP.format(calls)], cwd=SOURCE, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_module_runs_and_the_help_lists_every_command():
    done = subprocess.run(
        [sys.executable, "-m", "secateurs", "--help"],
        cwd=SOURCE,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and all(name in done.stdout for name in COMMANDS)


def test_every_command_says_what_it_does():
    assert all((c.function.__doc__ or "").strip() for c in COMMANDS.values())


def test_the_help_names_what_the_command_line_has():
    """The help is made without signatures; the command line proper has the same names and words."""
    outline, whole = (typer.main.get_command(app) for app in (_outline(), _app_of(None)))
    shown = {n: c for n, c in whole.commands.items() if not c.hidden}
    assert list(outline.commands) == list(shown)
    for name, command in shown.items():
        first = str(command.help).split("\n\n")[0]
        assert str(outline.commands[name].help).split() == first.split()


def test_version(run):
    assert run("--version") == (0, f"secateurs {secateurs.__version__}\n", "")


@pytest.mark.parametrize(
    ("command", "registry"), [("scores", SCORES), ("models", MODELS), ("data", DATA)]
)
def test_the_lists_name_everything_in_one_line_each(run, command, registry):
    code, out, _ = run(command)
    lines = out.splitlines()
    assert code == 0 and all(
        any(name in line.split("  ")[0].split() for line in lines) for name in registry.names()
    )
    assert len(lines) <= len(registry.names()) and all(
        len(line.split("  ", 1)[1]) > 10 for line in lines
    )


def test_prune_writes_a_plain_checkpoint_masks_and_a_report(run, weights, tmp_path):
    out, masks = tmp_path / "out.safetensors", tmp_path / "masks.safetensors"
    before = weights.read_bytes()
    asked = ("--score", "magnitude", "--sparsity", 0.9, "-o", out, "--masks-out", masks)
    code, text, err = run("prune", weights, *asked)
    assert (code, err) == (0, "") and "conv.weight" in text and "90.00%" in text
    assert weights.read_bytes() == before
    dense, sparse, kept = load_file(weights), load_file(out), secateurs.load_masks(masks)
    assert sparse.keys() == dense.keys() and kept.keys() == {"conv.weight", "fc.weight"}
    assert sum(int(mask.sum()) for mask in kept.values()) == 650
    assert all(torch.equal(sparse[name], dense[name] * mask) for name, mask in kept.items())
    assert torch.equal(sparse["fc.bias"], dense["fc.bias"])
    code, text, _ = run("inspect", masks)
    assert code == 0 and "90.00%" in text


def test_globs_are_passed_on(run, weights, tmp_path):
    asked = ("--sparsity", 0.5, "--where", "*.weight", "--where", "!fc*")
    code, text, _ = run("prune", weights, *asked, "-o", tmp_path / "o", "--json")
    assert code == 0 and list(json.loads(text)["tensors"]) == ["conv.weight"]


def test_inspect_needs_no_network(run, tmp_path):
    path = tmp_path / "m.safetensors"
    save_file(
        {
            "a.weight": torch.tensor([[1.0, 0.0], [0.0, 0.0]]),
            "a.bias": torch.ones(2),
            "n": torch.tensor(3),
        },
        path,
    )
    code, text, _ = run("inspect", path, "--json")
    assert code == 0 and json.loads(text)["total"]["sparsity"] == 0.75
    assert json.loads(run("inspect", path, "--all", "--json")[1])["total"]["total"] == 6
    save_file({"n": torch.tensor(3)}, path)
    assert run("inspect", path) == (
        2,
        "",
        f"error: {path} holds 1 tensors, but no floating-point weight of two or "
        "more dimensions (try --all).\n",
    )


def test_a_file_alone_is_pruned_in_groups_and_writes_its_masks(run, tmp_path):
    path, out, bits = (tmp_path / f"{name}.safetensors" for name in "abc")
    weight = torch.arange(1.0, 65.0).view(8, 8)
    save_file({"fc.weight": weight}, path)
    asked = ("--pattern", "4x4", "--sparsity", 0.75, "-o", out, "--masks-out", bits)
    code, _, err = run("prune", path, *asked)
    assert (code, err) == (0, "")
    mask = secateurs.load_masks(bits)["fc.weight"]
    assert mask[4:, 4:].all() and mask.sum() == 16
    assert torch.equal(load_file(out)["fc.weight"], weight * mask)


CUT = ("prune", "M", "--sparsity", "0.9")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*CUT, "-o", "M"], "is an input and would be overwritten"),
        ([*CUT, "-o", "OUT", "--masks-out", "OUT"], "another file for the masks"),
        ([*CUT, "-o", "."], ". is a folder"),
        (["prune", "M", "--sparsity", "9", "-o", "OUT"], "sparsity"),
        (["prune", "M", "-o", "OUT"], "how much to keep is missing"),
        ([*CUT, "--density", "0.1", "-o", "OUT"], "density"),
        ([*CUT, "--score", "snipp", "-o", "OUT"], "Did you mean 'snip'"),
        (["prune", "absent", "--sparsity", "0.9", "-o", "OUT"], "absent cannot be read: No such"),
        (["inspect", "absent"], "absent cannot be read: No such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_errors_are_one_clean_message_exit_2_and_write_nothing(
    run, weights, tmp_path, arguments, message, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    before = weights.read_bytes()
    names = {"M": weights.name, "OUT": "out.safetensors"}
    code, out, err = run(*[names.get(argument, argument) for argument in arguments])
    assert code == 2 and out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert message in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == [weights] and weights.read_bytes() == before


def test_an_input_reached_by_another_path_is_not_overwritten(run, weights, tmp_path):
    link = tmp_path / "link.safetensors"
    link.symlink_to(weights)
    code, _, err = run("prune", weights, "--sparsity", 0.5, "-o", link)
    assert code == 2 and "is an input" in err


def test_a_folder_that_cannot_be_written_is_one_message(run, weights, tmp_path):
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "out"
    code, _, err = run("prune", weights, "--sparsity", 0.5, "-o", out)
    assert code == 2 and err.startswith("error: ") and "file" in err


@pytest.mark.parametrize(
    "words, found", [("secateurs pru", "prune"), ("secateurs prune --spars", "--sparsity")]
)
def test_a_shell_can_complete_commands_and_options(words, found, monkeypatch, capsys):
    for name, value in (
        ("_SECATEURS_COMPLETE", "complete_bash"),
        ("COMP_WORDS", words),
        ("COMP_CWORD", str(words.count(" "))),
    ):
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main([])
    assert found in capsys.readouterr().out.split()


def test_scores_are_listed_with_whole_sentences(capsys):
    with pytest.raises(SystemExit):
        main(["scores"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(SCORES.names()) and all(line.endswith(".") for line in lines)
