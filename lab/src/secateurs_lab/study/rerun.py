"""Does a finished run again, from the weights it started with, to see whether the result is the
same.
"""

from dataclasses import dataclass

from secateurs.errors import StoreError
from secateurs_lab.study.config import Study, needs_of
from secateurs_lab.study.database import Row
from secateurs_lab.study.jobs import MemoryContext
from secateurs_lab.study.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """A run done twice: the stored row and the new one."""

    before: Row
    now: Row

    @property
    def same(self) -> bool:
        """Whether the final weights have the same hash."""
        return (
            self.before.weights_hash is not None
            and self.before.weights_hash == self.now.weights_hash
        )

    @property
    def differences(self) -> list[str]:
        """The differences in weights, figures, versions, threads and data."""
        pairs = {name: (getattr(self.before, name), getattr(self.now, name)) for name in _COMPARED}
        # Possible reasons for a difference: each of these may change the order of sums.
        compared = ("versions", "threads", "machine", "device", "data_hash")
        pairs |= {
            name: (self.before.provenance.get(name), self.now.provenance.get(name))
            for name in compared
        }
        return [
            f"{name}: {then!r}, now {now!r}" for name, (then, now) in pairs.items() if then != now
        ]


_COMPARED = ("state", "weights_hash", "accuracy", "kept")


def rerun(study: Study, store: Store, key: str, *, device: str = "") -> Rerun:
    """Do the run with this key (or prefix of a key) again, with the same number of threads; the
    store stays as it is.
    """
    import torch

    from secateurs_lab.study.measure import Bench
    from secateurs_lab.study.stages import perform

    before = store.row(key)
    if not before.ended:
        raise StoreError(f"{before.key} has not ended yet ({before.state}).")
    chosen = study.choose(store.rows(details=False, hidden=True))
    run = {each.key: each for each in study.runs(chosen)}.get(before.key)
    if run is None:
        raise StoreError(
            f"{before.key} is no longer a run of this study: its settings were changed."
        )
    threads = torch.get_num_threads()
    # A different number of threads adds in another order, which changes last digits of every
    # weight.
    torch.set_num_threads(int(before.provenance.get("threads", threads)))
    try:
        now = perform(
            run,
            Bench(device=device, metrics=study.metrics),
            MemoryContext(
                blobs={
                    purpose: _kept(store.row(needed), store)
                    for purpose, needed in needs_of(run).items()
                }
            ),
        )
    finally:
        torch.set_num_threads(threads)
    return Rerun(before=before, now=now)


def _kept(row: Row, store: Store) -> bytes:
    if row.weights is None:
        raise StoreError(
            f"the weights of {row.key}, from which the run started, are not in the store: the "
            "study has save = false."
        )
    return store.artefacts.get(row.weights)
