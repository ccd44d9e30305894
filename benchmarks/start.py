"""How long does `import secateurs` take, and `secateurs --help`?

    PYTHONPATH=src python benchmarks/start.py [repeats]

Each is a fresh process. Printed is the processor time of the fastest and of the median one, beside
a bare interpreter; on a quiet machine wall time is the same.
"""

import os
import statistics
import subprocess
import sys

WAYS = {
    "python -c pass": ["-c", "pass"],
    "import secateurs": ["-c", "import secateurs"],
    "secateurs --help": ["-m", "secateurs", "--help"],
}


def processor(arguments: list[str]) -> float:
    """Seconds of processor time of one process, its children with it."""
    before = os.times()
    command = [sys.executable, *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    spent = after.children_user + after.children_system
    return spent - before.children_user - before.children_system


def main(repeats: int = 15) -> None:
    # Round by round, so that every way meets the same moments of the machine.
    rounds = [{name: processor(way) for name, way in WAYS.items()} for _ in range(repeats)]
    print("| | fastest s | median s |\n| --- | --- | --- |")
    for name in WAYS:
        times = [found[name] for found in rounds]
        print(f"| `{name}` | {min(times):.2f} | {statistics.median(times):.2f} |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
