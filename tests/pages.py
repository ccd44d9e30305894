"""The pages of the documentation as programs: their code blocks, found and run in order."""

import doctest
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GATHERED = DOCS / "gathered"  # copies that a build leaves; not pages of their own


def pages():
    """Every page of the site that is written by hand."""
    return sorted(path for path in DOCS.rglob("*.md") if not path.is_relative_to(GATHERED))


def blocks(path, language="python"):
    """The code blocks of a page in one language, as they stand."""
    text = path.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


def run_page(path, names=None):
    """Run the Python of a page, one block after another; return the names it leaves.

    A block that begins with `>>>` is an example with its output, which is compared.
    """
    names = {"__name__": "page"} if names is None else names
    for number, block in enumerate(blocks(path), start=1):
        where = f"{path.name}, block {number}"
        if block.startswith(">>>"):
            compare(block, names, where)
        else:
            exec(compile(block, where, "exec"), names)
    return names


def compare(block, names, where):
    """Run a block of `>>>` lines and fail where it prints something else."""
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    test = doctest.DocTestParser().get_doctest(block, names, where, where, 0)
    runner = doctest.DocTestRunner(optionflags=flags, verbose=False)
    told = []
    result = runner.run(test, clear_globs=False, out=told.append)
    names.update(test.globs)
    assert result.failed == 0, "".join(told)
