"""One network on several processes: under `torchrun` each run is trained by all ranks together.

Rank 0 drives and writes; the others wait to be told a run, do it as well, and forget it.
"""

from typing import Any

import torch
import torch.distributed as dist

from secateurs.study.config import How, Run
from secateurs.study.driver import Sweep
from secateurs.study.engines.local import HereDesk
from secateurs.study.leases import Lease
from secateurs.study.measure import Bench
from secateurs.study.stages import perform
from secateurs.study.work import Interrupted, Memory
from secateurs.train import Ranks


def drive(sweep: Sweep) -> None:
    """On rank 0: lease each run, tell it to the others, train it with them."""
    bench = joined(sweep.how, sweep.study.metrics)
    try:
        while (given := sweep.next("all ranks")) is not None:
            _told([(given[1], _bytes(sweep, given[1]))])
            _perform(sweep, bench, *given)
            if sweep.stop:
                return
        _told([None])
    finally:
        dist.destroy_process_group()


def follow(how: How, metrics: Any) -> None:
    """On the other ranks: train what rank 0 tells, until it tells nothing more."""
    bench = joined(how, metrics)
    try:
        while (given := _told([None])) is not None:
            perform(given[0], bench, Memory(blobs=given[1]))
    finally:
        dist.destroy_process_group()


def joined(how: How, metrics: Any) -> Bench:
    """Meet the other ranks; the bench that knows our place among them."""
    ranks = Ranks.here()
    on_gpu = how.device.startswith("cuda") or (not how.device and torch.cuda.is_available())
    dist.init_process_group("nccl" if on_gpu else "gloo")
    torch.set_num_threads(how.threads)
    device = f"cuda:{ranks.rank % torch.cuda.device_count()}" if on_gpu else how.device
    return Bench(device=device, save_every=how.save_every, metrics=metrics, ranks=ranks)


def _perform(sweep: Sweep, bench: Bench, held: Lease, run: Run) -> None:
    try:
        row = perform(run, bench, HereDesk(sweep, held, run))
    except Interrupted:
        sweep.give_back(held.key)
        return
    if sweep.stop and row.state == "failed":  # the others have left already
        sweep.give_back(held.key)
    else:
        sweep.finish(held, row)


# Damaged artefacts are left out, as if they had
# never been made: the stage does them again.
def _bytes(sweep: Sweep, run: Run) -> dict[str, bytes]:
    """What the run needs, for ranks that do not see the store."""
    names, artefacts = sweep.blobs(run), sweep.store.artefacts
    return {purpose: artefacts.get(name) for purpose, name in names.items() if artefacts.fits(name)}


def _told(what: list[Any]) -> Any:
    """What rank 0 says to all."""
    dist.broadcast_object_list(what, src=0)
    return what[0]
