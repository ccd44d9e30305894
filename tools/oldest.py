"""The lower bounds of pyproject.toml as exact versions, one a line, for `pip install`.

`python tools/oldest.py dev hf` prints the core dependencies and those extras;
`python tools/oldest.py --bounds` the core dependencies with their bounds, as they are.
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def pins(extras: list[str]) -> list[str]:
    """`name>=bound` becomes `name==bound`; whoever appears twice counts once."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"]]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    found = [re.fullmatch(r"([\w-]+)>=([\d.]+)", entry) for entry in wanted]
    wrong = [entry for entry, match in zip(wanted, found, strict=True) if not match]
    if wrong:
        raise SystemExit(f"no lower bound of the form name>=1.2: {wrong}")
    return sorted({f"{match[1]}=={match[2]}" for match in found if match})


if __name__ == "__main__":
    if sys.argv[1:] == ["--bounds"]:
        project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
        print("\n".join(project["dependencies"]))
    else:
        print("\n".join(pins(sys.argv[1:])))
