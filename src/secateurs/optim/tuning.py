"""Pruning after training and gentle fine-tuning, as one call (appendix F.5 of the paper on deep
weight factorization).
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from secateurs.base.parametrized import acting_weights
from secateurs.base.prunable import Where, prunable
from secateurs.masks import SparsityReport, apply_, select, sparsity_report
from secateurs.optim.holding import hold

_log = logging.getLogger("secateurs.optim")

GENTLE = 2e-3
"""Learning rate of Adam that is safe for nets with a few hundred weights.

Survivors of extreme pruning are large and few, so the curvature is large: SGD at 0.05 took a
LeNet-300-100 of 341 weights from 83.7 to 79.3 %, and 0.1 destroys it. Adam moves no weight by more
than the rate in a step, whatever the curvature: 83.7 became 84.1 % at rates from 1e-3 to 5e-3.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """Masks (True = kept) and the report after pruning; the model holds the fine-tuned weights."""

    masks: dict[str, Tensor]
    report: SparsityReport


def prune_and_tune_(
    model: nn.Module,
    train: Callable[[Optimizer], None],
    *,
    to_sparsity: float | None = None,
    compression: float | None = None,
    masks: Mapping[str, Tensor] | None = None,
    where: Where = "*",
    lr: float = GENTLE,
    optimizer: Callable[[list[nn.Parameter]], Optimizer] | None = None,
) -> Tuned:
    """Prune by global magnitude, then train the survivors with the zeros held.

    Args:
        train: your loop; it gets the optimizer to step and trains as long as you like (25 epochs
            are plenty).
        to_sparsity, compression: how much to prune; the zeros of a collapsed net count as pruned
            already and stay. A net that is sparser than that is only tuned, and a log line says so.
        masks: prune to these instead; with none of the three, the zeros at hand are held.
        where: what competes; by default every parameter, biases too, as in the paper.
        lr: rate of the Adam that is made when no optimizer is given.
        optimizer: makes another optimizer of the parameters.
    """
    chosen = prunable(model, where)
    if masks is None:
        masks = _masks(chosen, acting_weights(model, chosen), to_sparsity, compression)
    apply_(model, masks)
    made = (
        torch.optim.Adam(chosen.values(), lr=lr)
        if optimizer is None
        else optimizer(list(chosen.values()))
    )
    with hold(model, masks, made):
        train(made)
    return Tuned(masks=dict(masks), report=sparsity_report(model, where=where))


def _masks(
    chosen: Mapping[str, nn.Parameter],
    weights: Mapping[str, Tensor],
    to_sparsity: float | None,
    compression: float | None,
) -> dict[str, Tensor]:
    if to_sparsity is None and compression is None:
        return {name: parameter.detach() != 0 for name, parameter in chosen.items()}
    sizes = {name: weight.abs() for name, weight in weights.items()}
    # floor=0: layers may vanish here, as in the paper's global magnitude pruning.
    masks = select(sizes, sparsity=to_sparsity, compression=compression, floor=0)
    asked, alive = (
        sum(int(mask.sum()) for mask in masks.values()),
        sum(int((p != 0).sum()) for p in chosen.values()),
    )
    if alive < asked:
        _log.info(
            "nothing to prune: %d weights were to be kept, %d are not zero; all of them are kept",
            asked,
            alive,
        )
    # Among ties at 0 the selection may keep zeros: training would revive them.
    return {name: mask & (chosen[name].detach() != 0) for name, mask in masks.items()}
