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
from secateurs.cli import COMMANDS, _app_of, _outline
from secateurs.data import DATA
from secateurs.models import MODELS, build
from secateurs.scores import SCORES
from secateurs.train import read_checkpoint, save_model

SOURCE = Path(secateurs.__file__).parents[1]


@pytest.fixture
def lenet(tmp_path):
    """A checkpoint as any other tool would write it: no notes."""
    model = build("lenet-5", generator=torch.Generator().manual_seed(0))
    return save_model(model, tmp_path / "lenet.safetensors")


def zeros(path) -> float:
    weights = [t for t in load_file(path).values() if t.ndim >= 2]
    return sum(int((t == 0).sum()) for t in weights) / sum(t.numel() for t in weights)


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)],
    ids=str,
)
def test_help_does_not_import_torch(arguments):
    code = (
        f"import sys\nfrom secateurs.cli import main\ntry:\n    main({arguments!r})\nexcept"
        " SystemExit as stop:\n    code = stop.code\nheavy = {'torch', 'numpy', 'scipy',"
        " 'sklearn'} & set(sys.modules)\nsys.exit(str(heavy) if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=SOURCE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


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


def test_prune_writes_a_plain_checkpoint_masks_and_a_report(run, lenet, tmp_path):
    out, masks = tmp_path / "out.safetensors", tmp_path / "masks.safetensors"
    before = lenet.read_bytes()
    code, text, err = run(
        "prune",
        lenet,
        "--arch",
        "lenet-5",
        "--score",
        "magnitude",
        "--sparsity",
        0.9,
        "-o",
        out,
        "--masks-out",
        masks,
    )
    assert (code, err) == (0, "") and "conv1.weight" in text and "90.00%" in text
    assert lenet.read_bytes() == before and zeros(out) == pytest.approx(0.9, abs=1e-4)
    assert load_file(out).keys() == load_file(lenet).keys()
    dense, sparse, kept = (
        load_file(lenet),
        load_file(out),
        secateurs.load_masks(masks),
    )
    assert all(torch.equal(sparse[name], dense[name] * mask) for name, mask in kept.items())
    assert all(torch.equal(sparse[name], dense[name]) for name in dense.keys() - kept.keys())
    code, text, _ = run("inspect", masks)
    assert code == 0 and "90.00%" in text


def test_prune_reads_the_network_from_the_notes_of_train(run, tmp_path):
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    code, text, err = run(*TRAIN, "--length", "2ep", "--seed", 3, "-o", first)
    assert code == 0 and "after 24 steps, test accuracy" in text and err.count("epoch") == 2
    assert read_checkpoint(first).notes == {
        "arch": "lenet-300-100",
        "classes": "10",
        "in_channels": "1",
        "size": "8",
        "format": "pt",
    }
    code, _, _ = run(
        "prune",
        first,
        "--score",
        "snip",
        "--data",
        "digits",
        "--density",
        0.2,
        "-o",
        second,
    )
    assert code == 0 and zeros(second) == pytest.approx(0.8, abs=1e-3)
    assert read_checkpoint(second).notes == read_checkpoint(first).notes


def test_training_on_keeps_the_zeros_of_a_pruned_checkpoint(run, tmp_path):
    paths = [tmp_path / f"{name}.safetensors" for name in "abc"]
    common = (*TRAIN, "--length", "1ep", "-q")
    assert run(*common, "-o", paths[0])[0] == 0
    assert run("prune", paths[0], "--compression", 10, "-o", paths[1])[0] == 0
    code, _, err = run(
        *common,
        "--start",
        paths[1],
        "--schedule",
        "constant",
        "--lr",
        0.01,
        "-o",
        paths[2],
    )
    assert (code, err) == (0, "") and zeros(paths[2]) == zeros(paths[1])
    assert not torch.equal(load_file(paths[1])["fc1.weight"], load_file(paths[2])["fc1.weight"])


def test_the_seed_decides_the_training(run, tmp_path):
    paths = [tmp_path / f"{name}.safetensors" for name in "abc"]
    for path, seed, method in zip(paths, (0, 0, 1), ("adam",) * 3, strict=True):
        options = (
            "--length",
            "3it",
            "--seed",
            seed,
            "--method",
            method,
            "--lr",
            1e-3,
            "--augment",
            "-q",
            "-o",
            path,
        )
        assert run(*TRAIN, *options)[0] == 0
    assert paths[0].read_bytes() == paths[1].read_bytes() != paths[2].read_bytes()


def test_synflow_needs_no_data_and_rounds_and_globs_are_passed_on(run, lenet, tmp_path):
    out = tmp_path / "o"
    options = (
        "--score",
        "synflow",
        "--rounds",
        5,
        "--sparsity",
        0.5,
        "--where",
        "fc*.weight",
        "--where",
        "!fc3.*",
    )
    code, text, _ = run("prune", lenet, "--arch", "lenet-5", *options, "-o", out, "--json")
    report = json.loads(text)
    assert (
        code == 0
        and list(report["report"]["tensors"]) == ["fc1.weight", "fc2.weight"]
        and len(report["rounds"]) == 5
    )


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


LENET5 = ("prune", "M", "--arch", "lenet-5")
TRAIN5 = ("train", "--arch", "lenet-5", "--data", "digits")
TRAIN = ("train", "--arch", "lenet-300-100", "--data", "digits")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["prune", "M", "--sparsity", "0.9", "-o", "OUT", "--data", "digits"],
            "does not say which network it is: add --arch NAME",
        ),
        (
            ["prune", "M", "--arch", "lenet5", "--sparsity", "0.9", "-o", "OUT"],
            "Did you mean 'lenet-5'",
        ),
        (
            [
                "prune",
                "M",
                "--arch",
                "lenet-300-100",
                "--sparsity",
                "0.9",
                "-o",
                "OUT",
            ],
            "does not fit LeNet300100",
        ),
        (
            [*LENET5, "--sparsity", "0.9", "-o", "M"],
            "is an input and would be overwritten",
        ),
        (
            [*LENET5, "--sparsity", "0.9", "-o", "OUT", "--masks-out", "OUT"],
            "two outputs",
        ),
        ([*LENET5, "--sparsity", "0.9", "-o", "."], ". is a folder"),
        ([*LENET5, "--sparsity", "9", "-o", "OUT"], "sparsity"),
        ([*LENET5, "-o", "OUT"], "how much to keep is missing"),
        ([*LENET5, "--sparsity", "0.9", "--density", "0.1", "-o", "OUT"], "density"),
        (
            [*LENET5, "--score", "snipp", "--sparsity", "0.9", "-o", "OUT"],
            "Did you mean 'snip'",
        ),
        (
            [*LENET5, "--score", "snip", "--sparsity", "0.9", "-o", "OUT"],
            "add --data NAME",
        ),
        (
            ["prune", "absent", "--sparsity", "0.9", "-o", "OUT"],
            "absent cannot be read: No such file",
        ),
        (["inspect", "absent"], "absent cannot be read: No such file"),
        (
            ["train", "--arch", "lenet-5", "--data", "mnits", "-o", "OUT"],
            "no data set 'mnits'. Did you mean 'mnist'",
        ),
        ([*TRAIN5, "-o", "OUT"], "lenet-5 cannot read 8×8 images"),
        ([*TRAIN5, "--method", "sdg", "-o", "OUT"], "Did you mean 'sgd'"),
        ([*TRAIN, "--schedule", "cos", "-o", "OUT"], "no schedule 'cos'"),
        ([*TRAIN, "--length", "x", "-o", "OUT"], "'x' is not a step"),
        ([*TRAIN, "--device", "gpu", "-o", "OUT"], "no device 'gpu'"),
        (
            ["reproduce", "probabilistic-moments", "--device", "gpu"],
            "no device 'gpu'",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_errors_are_one_clean_message_exit_2_and_write_nothing(
    run, lenet, tmp_path, arguments, message, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    before = lenet.read_bytes()
    names = {"M": lenet.name, "OUT": "out.safetensors"}
    code, out, err = run(*[names.get(argument, argument) for argument in arguments])
    assert code == 2 and out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert message in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == [lenet] and lenet.read_bytes() == before


def test_an_input_reached_by_another_path_is_not_overwritten(run, lenet, tmp_path):
    link = tmp_path / "link.safetensors"
    link.symlink_to(lenet)
    code, _, err = run("prune", lenet, "--arch", "lenet-5", "--sparsity", 0.5, "-o", link)
    assert code == 2 and "is an input" in err


def test_notes_of_a_file_are_not_trusted(run, tmp_path):
    path = tmp_path / "m.safetensors"
    model = build("lenet-300-100", size=8)
    for size in ("9999", "99999999999", "-1", "eight"):
        save_model(
            model,
            path,
            notes={"arch": "lenet-300-100", "size": size, "classes": "9999"},
        )
        code, _, err = run("prune", path, "--sparsity", 0.5, "-o", tmp_path / "o")
        assert code == 2 and "does not fit LeNet300100" in err
    save_model(model, path, notes={"arch": "os.system"})
    assert "no model 'os.system'" in run("prune", path, "--sparsity", 0.5, "-o", tmp_path / "o")[2]


def test_a_folder_that_cannot_be_written_is_one_message(run, lenet, tmp_path):
    (tmp_path / "file").touch()
    code, _, err = run(
        "prune",
        lenet,
        "--arch",
        "lenet-5",
        "--sparsity",
        0.5,
        "-o",
        tmp_path / "file" / "out",
    )
    assert code == 2 and err.startswith("error: ") and "file" in err
