"""A run on a node of a cluster: done in a thread, whose checkpoints and row travel as they come."""

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

from secateurs.study.runs import Run


def perform_there(
    run: Run, blobs: dict[str, bytes], metrics: Any, options: dict[str, Any]
) -> Iterator[Any]:
    """On a node: do the run in a thread, and yield what it leaves as it comes."""
    import torch

    from secateurs.study.pipeline.bench import Bench
    from secateurs.study.pipeline.perform import perform

    torch.set_num_threads(options["threads"])
    out: SimpleQueue[tuple[str, Any]] = SimpleQueue()
    desk = _Desk(blobs, out)
    bench = Bench(
        device=options["device"], save_every=options["save_every"], metrics=metrics
    )

    def work() -> None:
        try:
            out.put(("row", perform(run, bench, desk)))
        except BaseException as error:  # to be raised where Ray sees it
            out.put(("error", error))

    # In a thread of its own, so that this generator can
    # yield checkpoints while the run goes on.
    threading.Thread(target=work, daemon=True).start()
    while True:
        what, value = out.get()
        if what == "error":
            raise value
        if what == "row":
            yield "row", (value, desk.blobs.get("weights") if value.weights else None)
            return
        yield what, value


class _Desk:
    """A desk whose checkpoints travel."""

    def __init__(
        self, blobs: dict[str, bytes], out: "SimpleQueue[tuple[str, Any]]"
    ) -> None:
        self.blobs, self.out = blobs, out

    def get(self, purpose: str) -> bytes | None:
        """The bytes that came with the task, or were made here."""
        return self.blobs.get(purpose)

    def put(self, purpose: str, blob: bytes) -> str:
        """Send the bytes on; final weights travel with the row."""
        self.blobs[purpose] = blob
        if purpose != "weights":
            self.out.put(("held", (purpose, blob)))
        return purpose

    def tell(self, **news: Any) -> None:
        """Pass news on."""
        self.out.put(("news", news))

    def stopping(self) -> bool:
        """A cluster's tasks are cancelled, not asked."""
        return False
