"""The simplest engine: the runs of a study in this process, one after the other."""

from typing import Any

from secateurs.study.driver import Sweep
from secateurs.study.keeping.leases import Lease
from secateurs.study.runs import Run


def drive(sweep: Sweep) -> None:
    """Run the study in this process, one run after the other."""
    # Imported when a study runs: the command line reads rows without it.
    import torch

    from secateurs.study.pipeline.bench import Bench
    from secateurs.study.pipeline.desk import Interrupted
    from secateurs.study.pipeline.perform import perform

    how, threads = sweep.how, torch.get_num_threads()
    bench = Bench(
        device=how.device, save_every=how.save_every, metrics=sweep.study.metrics
    )
    torch.set_num_threads(how.threads)
    try:
        while (given := sweep.next("this process")) is not None:
            held, run = given
            # A run seeds torch's own generator: the caller's numbers go on as if
            # nothing had been.
            with torch.random.fork_rng():
                try:
                    sweep.finish(
                        held, perform(run, bench, HereDesk(sweep, held, run))
                    )
                except Interrupted:
                    sweep.give_back(held.key)
    finally:
        torch.set_num_threads(threads)


class HereDesk:
    """A desk in the driver's own process."""

    def __init__(self, sweep: Sweep, held: Lease, run: Run) -> None:
        self.sweep, self.held, self.names = sweep, held, sweep.blobs(run)

    def get(self, purpose: str) -> bytes | None:
        """The bytes under this purpose, checked by their hash."""
        name = self.names.get(purpose)
        return None if name is None else self.sweep.store.artefacts.get(name)

    def put(self, purpose: str, blob: bytes) -> str:
        """Write the file and remember its name."""
        name = self.names[purpose] = self.sweep.store.artefacts.put(blob)
        # The row names the final weights: both enter the store in one transaction.
        if purpose != "weights":
            self.sweep.hold(self.held, purpose, name)
        return name

    def tell(self, **news: Any) -> None:
        """Pass news on."""
        self.sweep.tell(self.held.key, **news)

    def stopping(self) -> bool:
        """Whether a signal came."""
        return bool(self.sweep.stop)
