"""Every script of examples/ runs, short, and keeps what its first line promises; as a notebook it
says the same.
"""

import ast
import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def run(name, folder, monkeypatch, **settings):
    """Load a script as a module and call its `main` where it may write."""
    pytest.importorskip("sklearn")
    monkeypatch.chdir(folder)
    script = load(EXAMPLES / f"{name}.py")
    torch.manual_seed(0)
    return script.main(**settings)


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    script = importlib.util.module_from_spec(spec)
    # Dataclasses of a script look for their module.
    sys.modules[path.stem] = script
    spec.loader.exec_module(script)
    return script


def test_sparse_from_scratch(tmp_path, monkeypatch, capsys):
    result = run("sparse_from_scratch", tmp_path, monkeypatch, epochs=12, sparsity=0.8)
    assert result.compression == pytest.approx(5, rel=0.05)
    assert "5 times fewer weights" in capsys.readouterr().out


def test_sparse_from_trained(tmp_path, monkeypatch, capsys):
    pruned = run("sparse_from_trained", tmp_path, monkeypatch, epochs=4)
    assert pruned.report.total.sparsity == pytest.approx(0.9, abs=1e-4)
    assert "90.0% zeros" in capsys.readouterr().out
    dense_bytes = 4 * sum(mask.numel() for mask in pruned.masks.values())
    assert (tmp_path / "pruned.safetensors").stat().st_size < dense_bytes / 5


def test_certify_change(tmp_path, monkeypatch, capsys):
    proof = run("certify_change", tmp_path, monkeypatch, epochs=3, images=2)
    assert 0 < proof.lower_bound <= proof.bound
    assert "predictions changed" in capsys.readouterr().out


def test_stop_at_certificate(tmp_path, monkeypatch, capsys):
    """Training between the cuts takes the same certificate further."""
    trained = run("stop_at_certificate", tmp_path, monkeypatch, epochs=4, images=8)
    told = capsys.readouterr().out.splitlines()
    stops = [line for line in told if "the proof says stop at" in line]
    alone = int(stops[0].split("stop at ")[1].split("%")[0])
    assert len(stops) == 2 and round(100 * trained) > alone > 0


def test_how_much(tmp_path, monkeypatch, capsys):
    best = run("how_much", tmp_path, monkeypatch, epochs=4)
    told = capsys.readouterr().out
    assert 0 <= best < 1 and "magnitude pruning of 1 inner layer(s)" in told
    assert "≤ 0." in told  # the certified bound, asked to stay below 1


def test_compare_methods(tmp_path, monkeypatch, capsys):
    rows = run("compare_methods", tmp_path, monkeypatch, length="1ep", compressions=(5,))
    labels = {row.label for row in rows}
    assert {"dense", "random"} <= labels and len(labels) == 5
    assert all(row.state == "done" for row in rows)
    assert "the whole comparison" in capsys.readouterr().out
    assert "<html" in (tmp_path / "digits.html").read_text()


def test_llama_two_four(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers")
    found = run("llama_two_four", tmp_path, monkeypatch, steps=60)
    assert found["dense"] < 40 and "50% of the weights" in capsys.readouterr().out
    assert found["dense"] < found["Wanda, reconstructed"] < found["magnitude"]
    assert (tmp_path / "llama.safetensors").exists()


def test_bert_in_the_trainer(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    callback = run("bert_in_the_trainer", tmp_path, monkeypatch, steps=20)
    kept = sum(int(mask.sum()) for mask in callback.masks.values())
    total = sum(mask.numel() for mask in callback.masks.values())
    assert kept / total == pytest.approx(0.2, abs=1e-3)
    assert "80.0% zeros in the encoder" in capsys.readouterr().out


def test_cut_resnet(tmp_path, monkeypatch, capsys):
    again = run("cut_resnet", tmp_path, monkeypatch, epochs=1)
    told = capsys.readouterr().out
    assert "38,250 parameters became 9,786" in told and "cut and tuned" in told
    assert again[3].conv1.weight.shape == (8, 8, 3, 3)


def test_cut_detector(tmp_path, monkeypatch, capsys):
    small = run("cut_detector", tmp_path, monkeypatch, epochs=1)
    assert small.compaction.kept == () and small.compaction.rounding < 1e-4
    fine, coarse = small(torch.zeros(2, 1, 8, 8))
    assert fine.shape == (2, 10, 8, 8) and coarse.shape == (2, 10, 4, 4)
    assert "65,028 parameters became" in capsys.readouterr().out


def test_cut_vit(tmp_path, monkeypatch, capsys):
    small = run("cut_vit", tmp_path, monkeypatch, epochs=1)
    told = capsys.readouterr().out
    assert "26,538 parameters became 7,130" in told and "outputs" in told
    assert small.encoder.layers[0].self_attn.num_heads == 2
    assert (tmp_path / "vit.pt2").exists()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_examples_are_short_and_tested(path):
    code = [line for line in path.read_text().splitlines() if line.strip()]
    assert 20 <= len(code) <= 60
    assert f"def test_{path.stem}(" in Path(__file__).read_text()


# The notebooks, which tools/notebooks.py makes of the scripts.

FORM = '''"""Add.

More about it.
"""

import math

import os


def plus(a, b):
    """A sum."""
    return a + b


def main(first: int = 1, second: str = "it's") -> int:
    """Add, twice."""
    # A first sum,
    # explained.
    total = plus(first, 2)  # of three

    for _ in range(2):
        total += 1

        total += 1
    return plus(total, len(second))


if __name__ == "__main__":
    main()
'''


@pytest.fixture
def notebooks(monkeypatch):
    monkeypatch.setitem(sys.modules, "notebooks", None)  # taken away afterwards
    return load(ROOT / "tools" / "notebooks.py")


def test_a_script_as_cells(notebooks):
    found = [(cell.kind, cell.source) for cell in notebooks.cells_of(FORM)]
    assert found == [
        ("markdown", "# Add\n\nMore about it."),
        ("code", "import math\n\nimport os"),
        ("code", 'def plus(a, b):\n    """A sum."""\n    return a + b'),
        ("code", 'first = 1\nsecond = "it\'s"'),
        ("markdown", "A first sum, explained."),
        ("code", "total = plus(first, 2)  # of three"),
        (
            "code",
            "for _ in range(2):\n    total += 1\n\n    total += 1\nplus(total, len(second))",
        ),
    ]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.stem)
def test_a_notebook_does_what_its_script_does(path, notebooks):
    cells = [*notebooks.cells_of(path.read_text())]
    *above, main, _ = ast.parse(path.read_text()).body
    wanted = above[1:]
    for argument, value in zip(main.args.args, main.args.defaults, strict=True):
        wanted.append(ast.parse(f"{argument.arg} = {ast.unparse(value)}").body[0])
    wanted += main.body[1:-1]
    last = main.body[-1]
    if not isinstance(last, ast.Return):
        wanted.append(last)
    elif not isinstance(last.value, ast.Name):
        wanted.append(ast.Expr(last.value))
    found = ast.parse("\n".join(cell.source for cell in cells if cell.kind == "code")).body
    assert [*map(ast.dump, found)] == [*map(ast.dump, wanted)]
    told = " ".join(cell.source for cell in cells if cell.kind == "markdown")
    assert ast.get_docstring(ast.parse(path.read_text())).partition("\n")[0].rstrip(".") in told


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("def main(first: int = 1, ", "def main(first, ", "give it defaults"),
        ("def main(", "def other(", "ends with `main`"),
        ('"""Add, twice."""', "pass", "has a docstring"),
        ("    for _ in", "    if total:\n        return 3\n    for _ in", "returns once"),
    ],
)
def test_a_script_of_another_form_is_refused(notebooks, before, after, message):
    with pytest.raises(SystemExit, match=message):
        list(notebooks.cells_of(FORM.replace(before, after)))


def test_a_notebook_without_its_packages_says_what_to_install(notebooks, monkeypatch):
    monkeypatch.setitem(sys.modules, "nbclient", None)
    with pytest.raises(SystemExit, match=r"pip install -e '\.\[docs\]'"):
        notebooks.executed([])


def test_a_notebook_is_executed_where_it_may_write(notebooks, tmp_path, monkeypatch):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    script, target = tmp_path / "sum.py", tmp_path / "made" / "sum.ipynb"
    writes = "    open('left.txt', 'w').close()\n    print('printed')\n    for _ in"
    script.write_text(FORM.replace("    for _ in", writes))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["notebooks", str(script), str(target)])
    notebooks.main()
    *_, last = json.loads(target.read_text())["cells"]
    assert [output["output_type"] for output in last["outputs"]] == ["stream", "execute_result"]
    assert last["outputs"][1]["data"]["text/plain"] == ["11"]
    assert not (tmp_path / "left.txt").exists()

    script.write_text(script.read_text().replace("total += 1", "total /= 0"))
    with pytest.raises(Exception, match="ZeroDivisionError"):
        notebooks.main()
