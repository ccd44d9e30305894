"""Killing a study at random moments, again and again, and looking at what is left.

`python tests/lab/study/chaos.py 200` kills 200 times and prints what was found;
`python tests/lab/study/chaos.py 200 FOLDER 30` leaves off killing after 30 minutes.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCE = os.pathsep.join((str(ROOT / "src"), str(ROOT / "lab" / "src")))
DRIVER = """
import sys
from secateurs_lab.study import *

def study():
    return Study(
        model="lenet-300-100", data=Data(name="digits", train=512, test=100),
        methods=[Prune(), Prune(score="random", after="init"), Gradual(), Dwf(strength=[1e-3,
        1e-2]), Imp(per_round=0.5)], compressions=[4, 8], seeds=SEEDS,
        train=Training(length="EPOCHSep", batch=32),
    )

if __name__ == "__main__":
    run(study(), sys.argv[1], how=How(engine="local", workers=2, save_every=0.3,
    deaths=10**6)).close()
"""


class Chaos:
    """A study that is killed and started again until it is done; then looked at; then begun
    anew.
    """

    def __init__(self, folder, *, seeds, epochs, rng):
        self.folder, self.rng = Path(folder), rng
        self.script = self.folder / "driver.py"
        text = DRIVER.replace("SEEDS", str(list(range(seeds)))).replace("EPOCHS", str(epochs))
        self.script.write_text(text)
        self.env = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
        self.kills = {"driver": 0, "worker": 0, "both": 0}
        self.lost = self.starts = self.rounds = 0
        self.pace = 1.0
        self.until = float("inf")

    def start(self, store):
        self.starts += 1
        command = [sys.executable, str(self.script), str(store)]
        return subprocess.Popen(
            command,
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def undisturbed(self):
        store = self.folder / "undisturbed.study"
        process = self.start(store)
        _, errors = process.communicate()
        assert process.returncode == 0, errors
        return results(store)

    def torment(self, kills):
        """Kill so many times, through as many studies as it takes; returns their tables.

        The last study is left in peace after the last kill, so that its table is compared, too.
        """
        tables, store, done_before = [], self.store, finished(self.store)
        while True:
            code, errors = self.until_it_ends(self.start(store), kills)
            assert code in (0, -signal.SIGKILL), errors
            now = finished(store)
            self.lost += len(done_before - now)
            done_before = now
            if code == 0:
                tables.append(results(store))
                self.rounds += 1
                if self.over(kills):
                    return tables
                store, done_before = self.store, set()

    def over(self, kills):
        """Whether it has been killed often or long enough."""
        return sum(self.kills.values()) >= kills or time.monotonic() > self.until

    def until_it_ends(self, process, kills):
        """Kill workers and the driver until the driver is gone; its exit code and what it said."""
        while process.poll() is None:
            if self.over(kills):
                process.wait()
                break
            try:
                process.wait(self.moment(process))
            except subprocess.TimeoutExpired:
                self.kill(process)
        return process.returncode, process.stderr.read()

    @property
    def store(self):
        """The study of this round."""
        return self.folder / f"round {self.rounds}.study"

    def moment(self, process):
        """Mostly when workers are there: first wait until they are.

        The pause goes with the pace of this machine: on a slow one no run would ever end.
        """
        if self.rng.random() < 0.95:
            wait_for(
                lambda: children(process.pid) or process.poll() is not None,
                seconds=600,
            )
        return self.rng.uniform(0.0, 4 * self.pace)

    def kill(self, process):
        what = self.rng.choices(["driver", "worker", "both"], [2, 30, 1])[0]
        workers = children(process.pid)
        if what == "worker" and not workers:
            what = "driver"
        self.kills[what] += 1
        print(sum(self.kills.values()), what, file=sys.stderr, flush=True)
        if what in ("worker", "both") and workers:
            end(self.rng.choice(workers))
        if what in ("driver", "both"):
            end(process.pid)
            process.wait()


def end(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def children(pid):
    """Worker processes of a driver: those of loky, but not its tracker of resources."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"LokyProcess" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except (OSError, ValueError):
            continue
    return found


def opened(store):
    from secateurs_lab.study import Store

    return Store.open(store)


def finished(store):
    try:
        with opened(store) as held:
            return {row.key for row in held.rows(details=False, hidden=True) if row.ended}
    except Exception:
        return set()


def results(store):
    """The table, without times; every row is read whole and its weights are checked against their
    hash.
    """
    with opened(store) as held:
        rows = held.rows(hidden=True)
        assert len({row.key for row in rows}) == len(rows)
        assert all(row.weights is None or held.artefacts.fits(row.weights) for row in rows)
        return sorted(row.result() for row in rows)


def wait_for(condition, *, seconds):
    end_at = time.monotonic() + seconds
    while not condition() and time.monotonic() < end_at:
        time.sleep(0.05)


def main(kills, *, seeds=5, epochs=3, seed=0, folder=None, minutes=float("inf")):
    """Kill so many times; returns what was found. In a folder that is kept, the counts add up."""
    with tempfile.TemporaryDirectory() as own:
        place = Path(folder or own)
        place.mkdir(parents=True, exist_ok=True)
        chaos = Chaos(place, seeds=seeds, epochs=epochs, rng=random.Random(seed))
        before = (
            json.loads((place / "found.json").read_text())
            if (place / "found.json").exists()
            else {}
        )
        chaos.rounds = before.get("studies", 0)
        begun = time.monotonic()
        if not (place / "undisturbed.json").exists():
            (place / "undisturbed.json").write_text(json.dumps(chaos.undisturbed()))
            (place / "seconds.json").write_text(json.dumps(time.monotonic() - begun))
        expected = json.loads((place / "undisturbed.json").read_text())
        seconds = json.loads((place / "seconds.json").read_text())
        chaos.pace = max(0.4, seconds / len(expected))
        chaos.until = time.monotonic() + 60 * minutes
        tables = chaos.torment(kills)
        found = {
            "runs": len(expected),
            "done": sum('"state":"done"' in row for row in expected),
            "kills of the driver": chaos.kills["driver"],
            "kills of a worker": chaos.kills["worker"],
            "kills of both": chaos.kills["both"],
            "starts": chaos.starts,
            "studies": len(tables),
            "equal tables": sum(table == expected for table in tables),
            "finished runs lost": chaos.lost,
            "seconds": round(time.monotonic() - begun),
        }
        added = {name: value + before.get(name, 0) for name, value in found.items()}
        found = {**added, "runs": found["runs"], "done": found["done"]}
        (place / "found.json").write_text(json.dumps(found))
        return found


if __name__ == "__main__":
    sys.path[:0] = SOURCE.split(os.pathsep)
    place = sys.argv[2] if len(sys.argv) > 2 else None
    minutes = float(sys.argv[3]) if len(sys.argv) > 3 else float("inf")
    told = main(int(sys.argv[1]), seed=time.time_ns(), folder=place, minutes=minutes)
    print(json.dumps(told, indent=1))
