"""Does the suite notice? One operator of `src` is exchanged, the tests that call it run.

`python tools/mutants.py --map FILE --count 50` draws operators at random. For each, the tests
that call its function run first (the map says which, see traced.py), then those that call its
module. A mutant is red when a test fails or time runs out, green when nothing notices. Green
ones are to be judged by a reader: equivalent, or a test is missing.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from mutation_sites import Site, draw, sites

ROOT = Path(__file__).resolve().parents[1]
FIRST_SECONDS, REST_SECONDS = 20.0, 150.0  # of tests, as the map timed them


@dataclass(frozen=True, kw_only=True)
class Test:
    name: str
    seconds: float
    functions: frozenset[str]


def read_map(path: Path) -> list[Test]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    # A file that was moved since would end pytest before the first test.
    rows = [row for row in rows if (ROOT / row["test"].split("::")[0]).exists()]
    return [
        Test(
            name=row["test"],
            seconds=row["seconds"],
            functions=frozenset(row["functions"]),
        )
        for row in rows
    ]


class Selection:
    """Which tests call a function, which call its module; the most particular ones first."""

    def __init__(self, tests: list[Test]) -> None:
        self.by_function: dict[str, list[Test]] = defaultdict(list)
        self.by_module: dict[str, list[Test]] = defaultdict(list)
        # A test that calls few functions is about them; one that calls hundreds passes by.
        for test in sorted(tests, key=lambda t: len(t.functions) + 20 * t.seconds):
            for function in test.functions:
                self.by_function[function].append(test)
            for module in {f.rsplit(":", 1)[0] for f in test.functions}:
                self.by_module[module].append(test)

    def rounds(self, site: Site) -> list[list[str]]:
        """The tests to run, in rounds: few that are near, then the others."""
        near = self.by_function[f"{site.path}:{site.function}"]
        known = {test.name for test in near}
        far = [t for t in self.by_module[site.path] if t.name not in known]
        first, rest = _within([*near, *far], FIRST_SECONDS, 60)
        second, _ = _within(rest, REST_SECONDS, 600)
        return [[t.name for t in part] for part in (first, second) if part]


def _within(tests: list[Test], seconds: float, count: int) -> tuple[list[Test], list[Test]]:
    """As many as fit into the time (one at least), and the others."""
    taken, left, total = [], [], 0.0
    for test in tests:
        if len(taken) < count and (not taken or total + test.seconds <= seconds):
            taken.append(test)
            total += test.seconds
        else:
            left.append(test)
    return taken, left


def copy_of_the_checkout(folder: Path) -> None:
    """What git tracks; bytecode is checked by the hash of its source, never by its time."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, names.decode().split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, target)
    compileall = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash"]
    subprocess.run([sys.executable, *compileall, "src"], cwd=folder, check=True)


def run_tests(folder: Path, tests: list[str], seconds: float) -> str:
    """`green`, or `red` with the test that noticed; in a fork that has torch imported."""
    log = folder / "mutant.log"
    child = os.fork()
    if child == 0:
        _child(log, tests)
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return "green" if code == 0 else _who(log, code)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "red: it does not end"


def _child(log: Path, tests: list[str]) -> None:
    """Runs pytest and leaves; nothing after it."""
    code = 99
    try:
        os.setsid()
        with open(log, "w", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        import pytest

        flags = ["-x", "--doctest-modules", "--tb=line", "-W", "ignore"]
        code = int(pytest.main([*flags, *tests]))
    finally:
        os._exit(code)


def _who(log: Path, code: int) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    failed = [x for x in text.splitlines() if x.startswith(("FAILED", "ERROR"))]
    # 4 and 5: pytest found nothing to run, which says nothing of the mutant.
    if code in (4, 5) and "ERROR collecting" not in text:
        return f"unknown: pytest ends with {code}"
    return f"red: {failed[0] if failed else f'exit {code}'}"


def judge(folder: Path, selection: Selection, site: Site, new: str) -> dict[str, object]:
    path = folder / "src" / site.path
    source = path.read_bytes()
    rounds = selection.rounds(site)
    verdict, began = (
        "green" if rounds else "green: no test calls it",
        time.monotonic(),
    )
    for number, tests in enumerate(rounds):
        limit = 10 * (FIRST_SECONDS, REST_SECONDS)[number]
        verdict = _with_mutant(folder, path, site.mutated(source, new), tests, limit)
        # A test that fails without the mutant, too, has noticed nothing.
        noticed = verdict.partition("FAILED ")[2].split(" - ")[0]
        if noticed and run_tests(folder, [noticed], limit) != "green":
            verdict = f"unknown: {noticed} fails without the mutant"
        if verdict != "green":
            break
    return {
        "place": f"{site.path}:{site.line}",
        "change": f"{site.old} → {new}",
        "text": source.splitlines()[site.line - 1].decode().strip(),
        "verdict": verdict,
        "tests": sum(map(len, rounds)),
        "seconds": round(time.monotonic() - began, 1),
    }


def _with_mutant(folder: Path, path: Path, mutant: bytes, tests: list[str], limit: float) -> str:
    """The verdict of the tests on the changed file, which is put back whatever happens."""
    source = path.read_bytes()
    path.write_bytes(mutant)
    try:
        return run_tests(folder, tests, limit)
    finally:
        path.write_bytes(source)


def warm_up() -> None:
    """What every mutant's tests import, imported once: all but the package itself."""
    import hypothesis  # noqa: F401
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import safetensors.torch  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch.export
    import typer  # noqa: F401

    torch.set_num_threads(1)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--map", type=Path, required=True)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a part of the paths to draw from")
    parser.add_argument("--out", type=Path, help="JSON lines; goes on where it stopped")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    places = [s for s in sites(ROOT / "src") if options.only in s.path]
    mutants = draw(places, options.count, random.Random(options.seed))
    selection = Selection(read_map(options.map))
    done = len(options.out.read_text(encoding="utf-8").splitlines()) if _exists(options.out) else 0
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    red = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_of_the_checkout(folder)
        os.chdir(folder)
        warm_up()
        for site, new in mutants[done:]:
            row = judge(folder, selection, site, new)
            red += str(row["verdict"]).startswith("red")
            print(*(row[k] for k in ("place", "change", "verdict", "seconds")), sep="  ")
            sys.stdout.flush()
            if options.out:
                with open(options.out, "a", encoding="utf-8") as file:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f"{red} of {len(mutants) - done} red ({len(places)} places to draw from)")


def _exists(path: Path | None) -> bool:
    return path is not None and path.exists()


if __name__ == "__main__":
    main()
