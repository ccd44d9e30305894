"""The demo itself: one dense network, then every method at every sparsity."""

from pathlib import Path
from time import perf_counter

from rich.console import Console
from torch.optim import SGD

from secateurs.data import Dataset, load
from secateurs.demo.bench import Bench, Candidate, Method, Outcome, Row, Settings, train
from secateurs.demo.methods import METHODS, SECTIONS
from secateurs.demo.results import table, write
from secateurs.errors import DataError
from secateurs.models import build
from secateurs.optim import hold
from secateurs.random import generator
from secateurs.train import evaluate


def run(
    out: Path,
    *,
    data: Dataset | None = None,
    settings: Settings | None = None,
    console: Console | None = None,
) -> Outcome:
    """Run the demo and write checkpoints, masks and results into the folder `out`."""
    settings, console = settings or Settings(), console or Console()
    bench = _bench(data or _data(console), settings, console)
    results = []
    for name, method in METHODS.items():
        for share in settings.sparsities:
            results.append(_row(bench, name, method, share))
            console.print(
                f"[dim]{name} at {share:.1%}: {results[-1][0].accuracy:.1%}[/]",
                highlight=False,
            )
    outcome = _outcome(bench, results)
    console.print(table(outcome), *(section(outcome) for section in SECTIONS), sep="\n")
    written = write(outcome, out)
    console.print(
        f"[dim]written to {out}/: {', '.join(path.name for path in written)}[/]",
        highlight=False,
    )
    return outcome


def _data(console: Console) -> Dataset:
    try:
        return load("fashion-mnist")
    except DataError:
        console.print(
            "[dim]Fashion-MNIST is not on this machine; the digits of scikit-learn do.[/]"
        )
        return load("digits")


def _bench(data: Dataset, settings: Settings, console: Console) -> Bench:
    console.print(f"[dim]training a dense LeNet-300-100 on {data.name} ...[/]")
    shape = {
        "in_channels": data.in_channels,
        "classes": data.classes,
        "size": data.size,
    }
    dense = build("lenet-300-100", **shape, generator=generator(settings.seed, "dense"))  # type: ignore[arg-type]
    optimizer = SGD(dense.parameters(), lr=settings.rate, momentum=0.9)
    train(dense, data, optimizer, length=settings.dense, settings=settings)
    return Bench(
        data=data,
        dense=dense,
        dense_accuracy=evaluate(dense, data).accuracy,
        settings=settings,
    )


def _row(
    bench: Bench, name: str, method: Method, share: float
) -> tuple[Row, Candidate]:
    start, settings = perf_counter(), bench.settings
    candidate = method(bench, share)
    optimizer = SGD(candidate.model.parameters(), lr=settings.tuning_rate, momentum=0.9)
    # From here on what is cut stays exactly zero.
    with hold(candidate.model, candidate.masks, optimizer):
        before = evaluate(candidate.model, bench.data).accuracy
        if candidate.tune:
            train(
                candidate.model,
                bench.data,
                optimizer,
                length=settings.tuning,
                settings=settings,
            )
    accuracy = evaluate(candidate.model, bench.data).accuracy
    total = sum(mask.numel() for mask in candidate.masks.values())
    kept = sum(int(mask.sum()) for mask in candidate.masks.values())
    row = Row(
        method=name,
        asked_sparsity=share,
        sparsity=1 - kept / total,
        compression=total / max(1, kept),
        before=before,
        accuracy=accuracy,
        seconds=perf_counter() - start,
    )
    return row, candidate


def _outcome(bench: Bench, results: list[tuple[Row, Candidate]]) -> Outcome:
    close = [
        pair for pair in results if pair[0].accuracy >= bench.dense_accuracy - 0.01
    ]
    if close:
        best, candidate = max(
            close, key=lambda pair: (pair[0].asked_sparsity, pair[0].accuracy)
        )
    else:
        best, candidate = max(results, key=lambda pair: pair[0].accuracy)
    return Outcome(
        bench=bench,
        rows=tuple(row for row, _ in results),
        best=best,
        candidate=candidate,
    )
