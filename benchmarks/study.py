"""What a study costs beside the training it does.

* harness: wall time of the runs of a LeNet study, less the time within the training loop, over the
  latter (≤ 3 %). A small study comes first: what Python imports once is not a cost of a run.
* loop: LeNet-300-100 as a whole run of a study, against a hand-written PyTorch loop (≤ 1.1).
* workers: two processes of one thread against one (≥ 1.8 times as fast).
* store: 10,000 runs listed (< 2 s) and reported (< 20 s); `secateurs study status`, process start
  included (< 0.5 s).

`python benchmarks/study.py [harness] [loop] [workers] [store]`: all by default. OMP_NUM_THREADS=1.
"""

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import torch
import torch.nn.functional as F

from secateurs.base.random import generator
from secateurs.errors import SecateursError
from secateurs_lab.data import Dataset, from_tensors, load
from secateurs_lab.models import build
from secateurs_lab.report import write_page
from secateurs_lab.study import (
    Data,
    Dwf,
    How,
    LayerKept,
    Point,
    Prune,
    Row,
    Store,
    Study,
    Training,
    run,
)
from secateurs_lab.study.config import waiting_row
from secateurs_lab.study.jobs import MemoryContext
from secateurs_lab.study.measure import Bench
from secateurs_lab.study.stages import perform


def images(examples: int = 20_000) -> Dataset:
    """Fashion-MNIST where it is, noise of its size elsewhere: the time is the same."""
    try:
        return load("fashion-mnist").first(examples, 2000)
    except SecateursError:
        g = torch.Generator().manual_seed(0)
        x = torch.rand(examples + 2000, 1, 28, 28, generator=g)
        y = torch.randint(0, 10, (examples + 2000,), generator=g)
        parts = {
            "train_x": x[:-2000],
            "train_y": y[:-2000],
            "test_x": x[-2000:],
            "test_y": y[-2000:],
        }
        return from_tensors("noise", **parts, classes=10)


def harness() -> None:
    """The runs of a study in a store, against the time their training loops took."""
    data = images()
    compared("lenet-300-100", data.first(500, 100))
    for model in ("lenet-300-100", "lenet-5"):
        whole, rows = compared(model, data)
        inside = sum(row.timings["train"] for row in rows)
        stages = {
            name: round(sum(row.timings[name] for row in rows), 2) for name in rows[0].timings
        }
        print(
            f"harness, {model}: {whole:.2f} s, of them {inside:.2f} s training: "
            f"{100 * (whole / inside - 1):.1f} % above; stages {stages}"
        )


def compared(model: str, data: Dataset) -> tuple[float, list[Row]]:
    """Three methods on one network: the seconds of the whole study, and its rows."""
    study = Study(
        model=model,
        data=Data(name="images", make=data),
        methods=[Prune(), Dwf()],
        compressions=[10],
        train=Training(length="3ep", batch=128),
    )
    study.runs()
    with tempfile.TemporaryDirectory() as folder:
        start = perf_counter()
        with run(study, folder) as store:
            return perf_counter() - start, store.rows()


def by_hand(data: Dataset, epochs: int, batch: int) -> float:
    """A plain loop as anybody would write it."""
    torch.set_flush_denormal(True)
    model = build("lenet-300-100", generator=generator(0, "init"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps = epochs * -(-len(data.train_y) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    start = perf_counter()
    for _ in range(epochs):
        order = torch.randperm(len(data.train_y))
        for chosen in order.split(batch):
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(data.train_x[chosen]), data.train_y[chosen])
            loss.backward()
            loss.item()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            correct = sum(
                int((model(x).argmax(1) == y).sum())
                for x, y in data.batches(1000, shuffle=False, split="test")
            )
    return perf_counter() - start + 0 * correct


def through_a_study(data: Dataset, epochs: int, batch: int) -> float:
    """The same training as a run of a study, whole: network, training, measurement, row."""
    source = Data(name="images", make=data)
    study = Study(data=source, train=Training(length=f"{epochs}ep", batch=batch))
    bench, dense = Bench(), study.runs()[0]
    bench.data(source)
    start = perf_counter()
    row = perform(dense, bench, MemoryContext())
    if row.state != "done":
        raise RuntimeError(row.reason)
    return perf_counter() - start


def loop() -> None:
    """The best of three, in turns."""
    data = images()
    for once in (by_hand, through_a_study):  # imports and first calls
        once(data.first(500, 100), 1, 128)
    for batch in (128, 256):
        pairs = [(by_hand(data, 6, batch), through_a_study(data, 6, batch)) for _ in range(3)]
        plain, ours = (min(times) for times in zip(*pairs, strict=True))
        print(
            f"loop, batch {batch}: by hand {plain:.2f} s, a study's run {ours:.2f} s: "
            f"{ours / plain:.3f} times"
        )


def workers() -> None:
    """Four equal runs; the time from the first run that begins to the last that ends."""
    study = Study(
        model="lenet-300-100",
        data=Data(name="digits"),
        methods=[Prune(after="init", score="random")],
        compressions=[4],
        seeds=[0, 1],
        train=Training(length="300ep", evaluate_every=0),
    )
    took = {}
    for count in (1, 2):
        watch = Watch()
        with tempfile.TemporaryDirectory() as folder:
            run(
                study,
                folder,
                how=How(engine="local", workers=count),
                watchers=(watch,),
            ).close()
        took[count] = min(took.get(count, 1e9), watch.last - watch.first)
    print(
        f"workers: one {took[1]:.1f} s, two {took[2]:.1f} s: {took[1] / took[2]:.2f} times as fast"
    )


class Watch:
    """When the first run began (the workers are up then) and the last one ended."""

    first = last = 0.0

    def begin(self, rows: object) -> None:
        """Nothing yet."""

    def news(self, key: str, news: dict[str, object]) -> None:
        """The first sign of a training under way."""
        if not self.first and news["event"] == "progress":
            self.first = perf_counter()

    def ended(self, row: object) -> None:
        """Perhaps the last."""
        self.last = perf_counter()


def store() -> None:
    """Ten thousand rows: made in one transaction each hundred, then listed."""
    study = Study(methods=[Prune()], compressions=[10], seeds=list(range(5000)))
    with tempfile.TemporaryDirectory() as folder, Store.create(folder) as held:
        rows = [waiting_row(each) for each in study.runs()]
        held.add(finished(row, number) for number, row in enumerate(rows))
        start = perf_counter()
        listed = held.rows(details=False)
        brief = perf_counter() - start
        start = perf_counter()
        held.rows()
        print(
            f"store: {len(listed)} runs listed in {brief:.2f} s, with all details "
            f"{perf_counter() - start:.2f} s"
        )
        start = perf_counter()
        page = write_page(folder, Path(folder) / "report.html")
        print(
            f"store: reported in {perf_counter() - start:.1f} s, {page.stat().st_size / 1e6:.1f} MB"
        )
        for _ in range(2):
            took = status(Path(folder))
        print(f"store: `secateurs study status` on them {took:.2f} s")
        small = Path(folder) / "small"
        with Store.create(small) as few:
            few.add(rows[:60])
        print(f"store: `secateurs study status` on 60 runs {status(small):.2f} s")


def finished(row: Row, number: int) -> Row:
    """A run as it ends: twenty epochs and three layers, weights not kept."""
    epochs = tuple(
        Point(epoch=n, iteration=100 * n, loss=1 / n, test_accuracy=1 - 1 / (n + 1))
        for n in range(1, 21)
    )
    layers = tuple(
        LayerKept(name=name, shape=(10, 10), total=100, kept=10, norm=1.0)
        for name in ("fc1.weight", "fc2.weight", "fc3.weight")
    )
    accuracy = 0.9 + number % 97 / 1000
    return replace(
        row, state="done", accuracy=accuracy, compression=10.0, kept=30, total=300,
        seconds=12.5, progress=1.0, history=epochs, layers=layers,
    )  # fmt: skip


def status(folder: Path) -> float:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "secateurs", "study", "status", str(folder)]
    start = perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - start


if __name__ == "__main__":
    torch.set_num_threads(1)
    named = {"harness": harness, "loop": loop, "workers": workers, "store": store}
    for name in sys.argv[1:] or named:
        named[name]()
