"""The end of the demo: the network made smaller and faster, and what that is worth here."""

from pathlib import Path

from rich.console import Group, RenderableType

from secateurs.demo.outcome import Outcome
from secateurs.errors import SecateursError
from secateurs.paths import Certificate, certify
from secateurs.ship import FileSizes, accelerate, compact, measure, save_sparse

FILE = "shipped.safetensors"


def shipped(outcome: Outcome) -> RenderableType:
    """The pruned network compacted and on the fast path, measured beside the dense one."""
    dense, sparse = outcome.dense, outcome.sparse
    example = outcome.data.test_x[:1]
    # The order is that of a user: first what is dead goes, then what is left is made fast.
    small = compact(sparse, example)
    forms = {"dense": dense, "pruned": sparse, "compact": small}
    forms["fast"] = accelerate(small, example)
    before, after = (
        sum(p.numel() for p in model.parameters()) for model in (sparse, small)
    )
    said = f"Compacted exactly: {before:,} parameters became {after:,}."
    return Group(said, measure(forms, example, batch_sizes=(1, 64), seconds=1.0))


def ship(outcome: Outcome, out: Path, notes: dict[str, str]) -> FileSizes:
    """Write the pruned network without its zeros, with its certificate inside."""
    test = outcome.data.test_x[:2000]
    try:
        held: Certificate | None = certify(outcome.dense, outcome.sparse, data=test)
    except SecateursError:  # a network without a certificate is shipped all the same
        held = None
    return save_sparse(outcome.sparse, out / FILE, notes=notes, certificate=held)
