"""Budgets in work instead of entries: the share of the multiplications or of the time that masks
leave."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from secateurs.channels.macs import macs
from secateurs.errors import ArgumentError
from secateurs.graph import Example, capture
from secateurs.masks.budget import Amount
from secateurs.parameters import Params
from secateurs.ship import LatencyTable, latency_table


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLeft:
    """A budget of work: the share of the work that masks leave, and a note on how it was
    estimated."""

    budget: float
    share: Callable[[Params], float]
    notes: Callable[[Params], Sequence[str]] = lambda masks: ()


def work_left(
    amount: Amount, model: nn.Module, example: Example | None, table: LatencyTable | None
) -> WorkLeft:
    """How the multiplications, or the times of the layers, of a model are counted.

    The times are those of the table given, or measured now.
    """
    if amount.macs is not None:
        if example is None:
            raise ArgumentError("macs= counts multiplications: give an example= of the input.")
        # One capture serves all tries: masks change weights, never the graph.
        graph = capture(model, example, opaque=True)

        def multiplications(masks: Params) -> float:
            work = macs(model, graph, masks=masks)
            return work.nonzero / work.dense

        return WorkLeft(budget=amount.macs, share=multiplications)
    if table is None:
        if example is None:
            raise ArgumentError(
                "latency= is estimated from times of the layers: give an example= of the input, "
                "or a latencies= table measured before."
            )
        table = latency_table(model, example)
    times = table

    def seconds(masks: Params) -> float:
        return times.seconds({name: float(m.double().mean()) for name, m in masks.items()})

    def notes(masks: Params) -> Sequence[str]:
        took = seconds(masks)
        return [
            f"estimated {1e3 * took:.3g} of {1e3 * times.dense:.3g} ms ({took / times.dense:.0%})"
            f" from times of single layers ({times.kind}, {times.threads} thread(s));"
            " secateurs.measure tells what the finished network takes"
        ]

    budget = 1.0 if amount.latency is None else amount.latency
    return WorkLeft(budget=budget, share=lambda masks: seconds(masks) / times.dense, notes=notes)
