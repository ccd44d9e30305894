"""The card of a folder for a hub: tags and a table in README.md, with the user's own text left as
it is."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from secateurs.base.hashing import CERTIFICATE_FORMAT
from secateurs.base.safefile import replacing
from secateurs.errors import SparseFileError
from secateurs.masks import sparsity_report
from secateurs.version import __version__

CARD, CERTIFICATE = "README.md", "certificate.json"
TAGS = ("sparse", "pruned", "secateurs")
_BEGIN, _END = "<!-- secateurs: begin -->", "<!-- secateurs: end -->"


def write_card(
    model: nn.Module,
    folder: Path,
    *,
    how: str = "",
    certificate: Mapping[str, Any] | None = None,
    bytes_written: int,
) -> None:
    """Write the table into README.md, in place of the one that an earlier call wrote there, and the
    certificate beside it; one of an earlier call goes.
    """
    held = folder / CERTIFICATE
    if certificate is None:
        if _is_ours(held):
            held.unlink()
    else:
        with replacing(held, error=SparseFileError) as part:
            part.write_text(json.dumps(certificate, indent=1) + "\n", encoding="utf-8")
    path = folder / CARD
    # As bytes, since reading as text would change its line ends; what is no UTF-8 comes back as it
    # was.
    kept = path.read_bytes() if path.is_file() else f"# {folder.resolve().name}\n".encode()
    text = kept.decode(errors="surrogateescape")
    table = _table(model, how, certificate, bytes_written)
    with replacing(path, error=SparseFileError) as part:
        part.write_bytes(_with_table(with_tags(text, TAGS), table).encode(errors="surrogateescape"))


def refuse_foreign_certificate(folder: Path) -> None:
    """A file of that name which is not ours is neither replaced nor taken away."""
    held = folder / CERTIFICATE
    if (held.exists() or held.is_symlink()) and not _is_ours(held):
        raise SparseFileError(
            f"{held} is there and no certificate of this library: move it, or save into another"
            " folder."
        )


def _is_ours(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        return False
    return isinstance(content, dict) and content.get("format") == CERTIFICATE_FORMAT


def _table(model: nn.Module, how: str, certificate: Mapping[str, Any] | None, size: int) -> str:
    total = sparsity_report(model).total
    rows = [
        ("sparsity", f"{total.sparsity:.2%} ({total.kept:,} of {total.total:,} weights are kept)"),
        ("made by", how),
        ("certificate", "" if certificate is None else _claim(certificate)),
        ("weights", f"{size:,} bytes in sparse files"),
        ("read by", f"`secateurs.llm.from_pretrained(folder)`, secateurs {__version__}"),
    ]
    cells = [f"| {name} | {_cell(text)} |" for name, text in rows if text]
    return "\n".join(["| | |", "| --- | --- |", *cells])


def _claim(certificate: Mapping[str, Any]) -> str:
    bound = certificate.get("bound")
    where = f"[{CERTIFICATE}]({CERTIFICATE})"
    if not isinstance(bound, int | float) or not math.isfinite(bound):
        return where
    domain = certificate.get("domain")
    inputs = f" on {domain}" if isinstance(domain, str) else ""
    return f"the outputs differ from the dense model's by at most {bound:.3g}{inputs}: {where}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _with_table(text: str, table: str) -> str:
    block = f"{_BEGIN}\n{table}\n{_END}"
    begin = text.find(_BEGIN)
    end = text.find(_END, begin)
    if begin >= 0 and end >= 0:
        return text[:begin] + block + text[end + len(_END) :]
    return text.rstrip("\n") + f"\n\n{block}\n"


_FRONT = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_LIST = re.compile(r"^tags:[ \t]*\r?\n((?:[ \t]*-[ \t].*(?:\r?\n|\Z))*)", re.MULTILINE)
_INLINE = re.compile(r"^tags:[ \t]*\[(.*)\][ \t]*$", re.MULTILINE)


def with_tags(text: str, tags: Sequence[str]) -> str:
    """The text with these tags in the lines between `---` at its top, where a hub reads them.

    A list of tags gets those it lacks; where tags are written in a way of their own, they stay.
    """
    front = _FRONT.match(text)
    if front is None:
        return "---\ntags:\n" + "".join(f"- {tag}\n" for tag in tags) + "---\n\n" + text
    lines = front[1]
    if found := _LIST.search(lines):
        lacking = _lacking(tags, (line.strip().removeprefix("-") for line in found[1].splitlines()))
        indent = re.match(r"[ \t]*", found[1])
        pad = indent[0] if indent else ""
        lines = (
            lines[: found.end()] + "".join(f"{pad}- {t}\n" for t in lacking) + lines[found.end() :]
        )
    elif found := _INLINE.search(lines):
        lacking = _lacking(tags, found[1].split(","))
        items = ", ".join([*([found[1].strip()] if found[1].strip() else []), *lacking])
        lines = lines[: found.start()] + f"tags: [{items}]" + lines[found.end() :]
    elif not re.search(r"^tags:", lines, re.MULTILINE):
        lines += "tags:\n" + "".join(f"- {tag}\n" for tag in tags)
    return text[: front.start(1)] + lines + text[front.end(1) :]


def _lacking(tags: Sequence[str], held: Any) -> list[str]:
    known = {tag.strip().strip("'\"") for tag in held}
    return [tag for tag in tags if tag not in known]
