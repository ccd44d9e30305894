"""How Sphinx builds the site: `make docs` writes build/docs/index.html, and a warning is an error."""

import re
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = ROOT / "benchmarks" / "results"
sys.path[:0] = [str(HERE), str(ROOT / "src"), str(ROOT / "lab" / "src")]

import secateurs  # noqa: E402
from api_lists import expanded  # noqa: E402
from docstrings import as_rst  # noqa: E402

project = "secateurs"
author = "The secateurs contributors"
release = version = secateurs.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["README.md"]  # the map of this folder, for readers of the repository

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
myst_links_external_new_tab = True

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # attributes as a list, not as entries of their own
toc_object_entries = False
highlight_language = "text"  # of blocks that name none
suppress_warnings = [
    "misc.highlighting_failure",  # a fence may name any language
    "ref.python",  # an attribute called `sparsity` is not a link to every other one
]

html_theme = "furo"
html_title = f"secateurs {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
templates_path: list[str] = []

# Files of the repository that are pages of the site too. They are copied at every build, and git
# ignores the copies.
GATHERED = {
    "CONTRIBUTING.md": "gathered/contributing.md",
    "CHANGELOG.md": "gathered/changelog.md",
    "SECURITY.md": "gathered/security.md",
    **{
        f"benchmarks/results/{path.name}": f"gathered/results/{path.name}"
        for path in sorted(RESULTS.glob("*.md"))
    },
}


def gather() -> None:
    """Copy the pages that live elsewhere in the repository."""
    for source, copy in GATHERED.items():
        target = HERE / copy
        target.parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / source).read_text(encoding="utf-8")
        target.write_text(with_links(text, Path(source).parent), encoding="utf-8")
    # The pages of results show their figures from a folder beside them.
    figures = HERE / "gathered" / "results" / "figures"
    shutil.copytree(RESULTS / "figures", figures, dirs_exist_ok=True)


def with_links(text: str, folder: Path) -> str:
    """The text of a file of `folder`, its links written as the site wants them.

    A link to a page of the site starts at the root of docs/. A link to any other file of the
    repository keeps its words alone, since the site does not carry that file.
    """

    def moved(link: re.Match[str]) -> str:
        words, target, mark = link["words"], link["target"], link["mark"] or ""
        place = (ROOT / folder / target).resolve()
        if not place.is_relative_to(ROOT):
            return link[0]
        name = place.relative_to(ROOT).as_posix()
        if name in GATHERED:
            return f"[{words}](/{GATHERED[name]}{mark})"
        if place == RESULTS:
            return f"[{words}](/measured.md)"
        if place.is_relative_to(HERE):
            return f"[{words}](/{place.relative_to(HERE).as_posix()}{mark})"
        return words

    link = r"(?<!!)\[(?P<words>[^\]]*)\]\((?!https?:|#|/)(?P<target>[^)#\s]+)(?P<mark>#[^)]*)?\)"
    return re.sub(link, moved, text)


def with_notebooks(text: str) -> str:
    """Under each script of examples/, a link to its notebook: `make docs` executes them first."""

    def linked(block: re.Match[str]) -> str:
        notebook = f"gathered/notebooks/{block['name']}.ipynb"
        if not (HERE / notebook).exists():
            return block[0]
        return f"{block[0]}\n{{download}}`As a notebook, with what it prints </{notebook}>`\n"

    script = r"^```\{literalinclude\} \S*/examples/(?P<name>\w+)\.py\n.*?^```\n"
    return re.sub(script, linked, text, flags=re.M | re.S)


def read(app, docname: str, source: list[str]) -> None:
    """Names become entries, scripts get notebooks, links out of docs/ become links of the site."""
    source[0] = with_notebooks(expanded(source[0]))
    if not docname.startswith("gathered/"):
        source[0] = with_links(source[0], Path("docs") / Path(docname).parent)


def setup(app) -> None:
    gather()
    app.connect("source-read", read)
    app.connect("autodoc-process-docstring", as_rst, priority=100)  # before napoleon
