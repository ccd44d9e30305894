"""The documentation: every public name is on it, every block of code runs, every command exists."""

import ast
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys

import pytest
import torch

import secateurs
import secateurs_lab
from old_torch import OLD
from pages import DOCS, ROOT, blocks, pages, run_page

sys.path.append(str(DOCS))
from api_lists import listed
from docstrings import translated

# Packages a page needs beside the development ones.
NEEDS = {
    "howto/without_labels.md": ["sklearn"],
    "howto/gguf.md": ["transformers"],
    "howto/hls4ml.md": ["hls4ml"],
    "howto/lora.md": ["transformers", "peft"],
    "howto/openvino.md": ["openvino", "nncf"],
    "howto/onnx.md": ["onnx", "onnxscript", "onnxruntime"],
}
# Pages that another test runs, because it looks at what they leave.
ELSEWHERE = {
    "accelerate.md": "docs/test_accelerate.py",
    "certificates.md": "docs/test_paths.py",
    "format.md": "docs/test_format.py",
    "huggingface.md": "docs/test_huggingface.py",
    "lightning.md": "docs/test_lightning.py",
    "masks.md": "docs/test_masks.py",
    "paths.md": "docs/test_paths.py",
    "pruning.md": "docs/test_pruning.py",
    "scores.md": "docs/test_scores.py",
    "shipping.md": "docs/test_shipping.py",
    "studies.md": "docs/test_studies.py",
}
UNWRAPPED: set[str] = set()  # pages still in long lines
ROOMS = [
    "secateurs",
    *(f"secateurs.{n}" for n in secateurs.__all__ if inspect.ismodule(getattr(secateurs, n))),
    # The demo is a command, not functions to call.
    *(f"secateurs_lab.{name}" for name in secateurs_lab.__all__ if name != "demo"),
]
PAGES = {path.relative_to(DOCS).as_posix(): path for path in pages()}
MEASURED = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
RUN = [name for name, path in PAGES.items() if blocks(path) and name not in ELSEWHERE]


def public():
    """(module, name, value) for everything the rooms offer, but their modules."""
    for module in ROOMS:
        found = importlib.import_module(module)
        names = getattr(found, "__all__", [n for n in vars(found) if n[0] != "_"])
        for name in names:
            value = getattr(found, name)
            if not inspect.ismodule(value):
                yield module, name, value


def documented():
    """The values that the pages of docs/api list."""
    for name, path in PAGES.items():
        if name.startswith("api/"):
            for module, entry in listed(path.read_text(encoding="utf-8")):
                yield getattr(importlib.import_module(module), entry)


def test_every_public_name_is_on_the_site():
    shown = {id(value) for value in documented()}
    missing = [f"{m}.{n}" for m, n, value in public() if id(value) not in shown]
    assert not missing, f"add to a list of a page in docs/api/: {', '.join(sorted(missing))}"


def test_every_public_name_has_a_docstring():
    bare = []
    for module, name, value in public():
        if inspect.isclass(value) or inspect.isroutine(value):
            text = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
            generated = (text or "").startswith(f"{value.__name__}(")  # a dataclass's own
            if not (text or "").strip() or generated:
                bare.append(f"{module}.{name}")
    assert not bare


def test_no_name_is_listed_twice():
    names = [
        entry
        for name, path in PAGES.items()
        if name.startswith("api/")
        for entry in listed(path.read_text(encoding="utf-8"))
    ]
    assert len(names) == len(set(names)) and len(names) > 200


@pytest.mark.parametrize("name", RUN)
def test_the_code_of_a_page_runs(name, tmp_path, monkeypatch):
    needed = NEEDS.get(name, [])
    if OLD and "onnx" in needed:
        pytest.skip("torch.onnx of this torch is too old")
    for package in needed:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    run_page(PAGES[name])


def test_the_pages_run_elsewhere_are_run_there():
    for page, test in ELSEWHERE.items():
        if (DOCS / page).exists():
            assert page in (ROOT / "tests" / test).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [n for n, path in PAGES.items() if blocks(path, "toml")])
def test_the_files_of_studies_are_valid(name):
    from secateurs_lab.study.file import parse

    for block in blocks(PAGES[name], "toml"):
        assert parse(block).runs()


@pytest.mark.parametrize("name", [n for n, path in PAGES.items() if blocks(path, "sh")])
def test_the_commands_exist_with_their_options(name):
    import typer

    from secateurs.cli import _app_of

    root = typer.main.get_command(_app_of(None))
    for block in blocks(PAGES[name], "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["secateurs"]:
                check_command(root, words[1:])
            if words[:1] == ["make"]:
                assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.M)


def check_command(command, words):
    """Follow the words through commands; every option must be known."""
    while words and words[0][0] != "-" and hasattr(command, "get_command"):
        context = command.make_context("secateurs", [], resilient_parsing=True)
        command = command.get_command(context, words[0])
        assert command is not None, words
        words = words[1:]
    known = {flag for option in command.params for flag in option.opts}
    used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert used <= known | {"--help"}, used - known


def test_links_between_pages_lead_somewhere():
    broken = []
    for path in (*PAGES.values(), *MEASURED):
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", text):
            if not (path.parent / target).exists():
                broken.append((path.name, target))
    assert not broken


def test_a_page_of_results_has_one_shape():
    """What was lost comes first, the command last, and both fit on a screen and a half."""
    odd = []
    for path in MEASURED:
        lines = path.read_text(encoding="utf-8").splitlines()
        heads = [line for line in lines if line.startswith("## ")]
        lost_first = lines[0].startswith("# ") and lines[2].startswith("**")
        asked = any(line.startswith("Asked: ") for line in lines)
        if not (lost_first and asked and heads[-1] == "## Again" and len(lines) <= 80):
            odd.append(path.name)
    assert not odd


def test_every_figure_of_the_results_is_on_a_page():
    texts = [path.read_text(encoding="utf-8") for path in (*PAGES.values(), *MEASURED)]
    shown = set(re.findall(r"figures/([\w.-]+\.svg)", "".join(texts)))
    folder = ROOT / "benchmarks" / "results" / "figures"
    assert {path.name for path in folder.glob("*.svg")} <= shown


def test_the_files_that_pages_name_exist():
    gone = []
    top = "src|lab|tests|docs|examples|experiments|benchmarks|tools"
    for path in (*PAGES.values(), ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(rf"`((?:{top})/[\w./-]+)`", text):
            if "/A/" not in name and not (ROOT / name).exists():  # A: any folder
                gone.append((path.name, name))
    assert not gone


def test_no_line_is_too_long():
    long = []
    for name, path in PAGES.items():
        if name in UNWRAPPED:
            continue
        fenced = False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            fenced = fenced != line.startswith("```")
            table = line.startswith("|")
            if len(line) > 100 and not fenced and not table and "](" not in line:
                long.append(f"{name}:{number}")
    assert not long


def test_docstrings_become_restructured_text():
    lines = ["The |w| of `Net`s, a*b.", "", ">>> 2 * 3", "6"]
    assert translated(lines) == [
        r"The \|w\| of ``Net``\ s, a\*b.",
        "",
        ">>> 2 * 3",
        "6",
    ]


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path):
    pytest.importorskip("furo")
    pytest.importorskip("myst_parser")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
    ]
    done = subprocess.run(
        [*command, str(DOCS), str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'lab' / 'src'}"},
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "api" / "paths.html").read_text(encoding="utf-8")
    assert 'id="secateurs.path_metric"' in page


def told_calls():
    """Calls of the package that stand within a sentence: nothing runs them."""
    for name, path in PAGES.items():
        prose = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.S)
        for text in re.findall(r"`((?:sc|secateurs)\.[^`]*\([^`]*\))`", prose):
            yield pytest.param(" ".join(text.split()), id=f"{name}: {text}")


@pytest.mark.parametrize("text", list(told_calls()))
def test_a_call_in_a_sentence_is_one_that_can_be_made(text):
    # `f(model, ...)` leaves the rest to the reader.
    whole = re.sub(r"(, |\()(\.\.\.|…)\)", r"\1)", text)
    call = ast.parse(whole.replace("…", "..."), mode="eval").body
    while isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
        call = call.func.value  # `sc.hold(...).release()`: the first call
    path = ast.unparse(call.func).split(".")[1:]
    function = secateurs
    for at, part in enumerate(path):
        if inspect.ismodule(function) and not hasattr(function, part):
            importlib.import_module(".".join(["secateurs", *path[: at + 1]]))
        function = getattr(function, part)
    given = {keyword.arg: None for keyword in call.keywords}
    signature = inspect.signature(function)
    bind = signature.bind if whole == text else signature.bind_partial
    bound = bind(*call.args, **given)
    # By its place an argument may have landed in a parameter of another meaning.
    for name, value in bound.arguments.items():
        if isinstance(value, ast.Name) and value.id in signature.parameters:
            assert value.id == name, f"{value.id} is given as {name}"
