"""A pruned model made to answer as the dense one did, without labels: layer by layer, from inputs
alone.

Reconstruction within blocks asks a layer to answer what the pruned layers before it give as it did
when it was whole. Over a whole network errors then add up, since nobody sees what has already gone
wrong. Here each layer is asked for what it answered in the dense network: with Z what the dense
network gives it, X what the pruned one does, V minimises ‖XVᵀ − ZWᵀ‖² + δ‖V − W‖² on the mask, so
that it makes up for the layers before it as well. Row r has the solution

    V[S] = (H[S, S] + δI)⁻¹ (C[S] w + δ w[S]),    H = XᵀX, C = XᵀZ.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
from rich.console import Group
from torch import Tensor, nn

from secateurs.base.convolved import CONVOLUTIONS, convolves_plainly
from secateurs.base.copies import evaluating
from secateurs.base.parameters import aliases, refuse_wrapped
from secateurs.base.printing import Printed
from secateurs.base.progress import Progress, show_progress
from secateurs.errors import ArgumentError, ParameterError
from secateurs.llm.reconstruct import (
    DAMPING,
    Reconstruction,
    Stage,
    inputs_of,
    inputs_together,
    layers_of,
    rows_given,
    solve_,
    stages_of,
)
from secateurs.llm.restoring import restoring
from secateurs.masks.apply import check, fit_masks
from secateurs.scores.task import batches, call, with_decoder_inputs

Pair = tuple[Callable[[], object], Callable[[], object]]
"""What runs the pruned and the dense model on one batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconstructedModel(Printed):
    """What solving for the kept weights of a model did.

    Attributes:
        layers: The error of each layer's outputs, as a share of those of the dense network, with
            the dense weights on the mask and after solving, by the weight's name.
        notes: What was left as it was, and why.
    """

    layers: Mapping[str, Reconstruction]
    notes: tuple[str, ...] = field(default=())

    def __rich__(self) -> Group:
        before, after = (
            median(getattr(done, name) for done in self.layers.values()) if self.layers else 0.0
            for name in ("masked", "error")
        )
        return Group(
            f"{len(self.layers)} layers reconstructed: their outputs are off by {after:.1%} of the"
            f" dense network's in the median, where they were off by {before:.1%}",
            *(f"[yellow]note:[/] {note}" for note in self.notes),
        )


@torch.no_grad()
def reconstruct_(
    model: nn.Module,
    dense: nn.Module,
    *,
    batch: Any,
    masks: Mapping[str, Tensor] | None = None,
    progress: Progress | None = None,
) -> ReconstructedModel:
    """Change the weights that a pruned model has kept so that its layers answer as those of the
    dense model do; no labels, no training.

    Linear layers and convolutions are solved for, in the order in which they run, each on what the
    layers before it give by then. Zeros stay zero; everything else (biases, norms, embeddings)
    stays as it is. Beside both models, memory holds three matrices of inputs × inputs of one layer,
    and some of what the dense model gives to its layers (up to 256 MB).

    Args:
        model: the pruned model; its kept weights change in place, and after an error they are as
            they were.
        dense: the same model as it was before.
        batch: inputs, as for `score`: a tensor, a dict, or a list or loader of these. Some hundred
            images or sentences are usual, and more help where few weights a row are left.
        masks: which entries are solved for, True = kept; what `prune_` returned is taken as well.
            By default those that are not zero, of every weight that has zeros.
        progress: called with the name of each weight.

    References: least squares on a mask is the reconstruction of Frantar & Alistarh 2022, "Optimal
    Brain Compression"; that errors of earlier layers are made up for is ours.

    >>> import copy
    >>> import secateurs as sc
    >>> _ = torch.manual_seed(0)
    >>> dense, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(64, 8)
    >>> model = copy.deepcopy(dense)
    >>> _ = sc.prune_(model, "magnitude", sparsity=0.5)
    >>> before = (model(x) - dense(x)).norm()
    >>> done = sc.reconstruct_(model, dense, batch=x)
    >>> bool((model(x) - dense(x)).norm() < 0.8 * before), list(done.layers)
    (True, ['0.weight', '2.weight'])
    """
    for each in (model, dense):
        refuse_wrapped(each)
    weights, whole = dict(model.named_parameters()), dict(dense.named_parameters())
    _refuse_strangers(weights, whole)
    tied = set(aliases(model).values())
    wanted, notes = _masks(model, weights, masks), list[str]()
    layers, missed = layers_of(model, wanted, convolutions=True)
    others, _ = layers_of(dense, layers, convolutions=True)
    notes += [f"{name} was left as it was: {why}" for name, why in missed.items()]
    for name in [name for name in layers if name in tied or name not in others]:
        del layers[name]
        notes.append(f"{name} was left as it was: it is the weight of several layers")
    done: dict[str, Reconstruction] = {}
    with (
        restoring() as keep,  # the outermost: also where the end of the others is interrupted
        evaluating(model),
        evaluating(dense),
        show_progress(progress, "reconstruct_") as say,
    ):
        pairs = _pairs(model, dense, batch)
        keep(weights[name] for name in layers)
        for stage, asked in _with_asked(stages_of(layers, pairs[0][0]), others, pairs):
            first = stage.names[0]
            moments = _moments(layers[first], others[first], pairs, stage, asked)
            for name in stage.names:
                say(name)
                if isinstance(moments, str):
                    notes.append(f"{name} was left as it was: {moments}")
                    continue
                # Solving starts from the dense weights, of which the mask leaves its part.
                earlier = weights[name].clone()
                weights[name].copy_(whole[name])
                found = solve_(
                    name,
                    layers[name],
                    wanted[name],
                    moments.gram,
                    moments.samples,
                    dense=(moments.cross, moments.dense),
                )
                if isinstance(found, str):
                    weights[name].copy_(earlier)
                    few = f"it met {moments.samples} inputs, too few"
                    notes.append(f"{name} was left as it was: {few}")
                    continue
                done[name] = found
                if found.damping > DAMPING:
                    notes.append(
                        f"{name}: the damping was raised from {DAMPING:g} to"
                        f" {found.damping:g} of the mean of the diagonal"
                    )
            # Freed before those of the next stage are made.
            del moments
    return ReconstructedModel(layers=done, notes=tuple(notes))


def _refuse_strangers(weights: Mapping[str, Tensor], whole: Mapping[str, Tensor]) -> None:
    """The dense model has the same parameters, and does not share them."""
    for name, weight in weights.items():
        other = whole.get(name)
        if other is None or other.shape != weight.shape:
            has = "none" if other is None else f"one of shape {tuple(other.shape)}"
            raise ParameterError(
                f"the pruned model has a parameter {name!r} of shape {tuple(weight.shape)}, the"
                f" dense one {has}: give the model as it was before it was pruned."
            )
        if other is weight:
            raise ParameterError(
                f"the pruned and the dense model share {name!r}: keep a copy.deepcopy(model) before"
                " pruning."
            )


def _masks(
    model: nn.Module, weights: Mapping[str, Tensor], masks: Mapping[str, Tensor] | None
) -> dict[str, Tensor]:
    if masks is not None:
        fitting = fit_masks(masks, dict(model.named_parameters(remove_duplicate=False)))
        check(model, fitting)
        return {name: mask.to(weights[name].device) for name, mask in fitting.items()}
    found = {name: weight != 0 for name, weight in weights.items() if weight.ndim > 1}
    found = {name: mask for name, mask in found.items() if not mask.all()}
    if not found:
        raise ArgumentError(
            "no weight of the model has a zero, so nothing was pruned: give the pruned model first"
            " and the dense one second, or masks=."
        )
    return found


def _pairs(model: nn.Module, dense: nn.Module, batch: Any) -> list[Pair]:
    device = next(model.parameters()).device
    pairs: list[Pair] = []
    for item in batches(batch, device=device):
        inputs = with_decoder_inputs(model, item).inputs
        pairs.append((partial(call, model, inputs), partial(call, dense, inputs)))
    if not pairs:
        raise ArgumentError("batch is empty: give inputs of the model.")
    return pairs


HELD = 1 << 26
"""Numbers that the dense model gives to its layers and that are held at a time."""


def _with_asked(
    stages: list[Stage], others: Mapping[str, nn.Module], pairs: list[Pair]
) -> Iterator[tuple[Stage, list[list[Tensor]] | None]]:
    """Each stage with what the dense model gives its layers in each batch. No solving changes that,
    so that one run serves as many stages as can be held; None where it is one.
    """
    waiting = stages[::-1]
    while waiting:
        window = [waiting.pop()]
        room = HELD // len(pairs) - window[0].entries
        while waiting and window[0].once and waiting[-1].once and waiting[-1].entries <= room:
            window.append(waiting.pop())
            room -= window[-1].entries
        if len(window) == 1:
            yield window[0], None
            continue
        firsts = {stage.names[0]: others[stage.names[0]] for stage in window}
        held = [inputs_together(firsts, run_dense) for _, run_dense in pairs]
        for stage in window:
            yield stage, [given.pop(stage.names[0]) for given in held]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moments:
    """Sums over all that a layer is given: XᵀX, ZᵀX and ZᵀZ."""

    gram: Tensor
    cross: Tensor
    dense: Tensor
    samples: int


def _moments(
    layer: nn.Module,
    other: nn.Module,
    pairs: list[Pair],
    stage: Stage,
    held: list[list[Tensor]] | None,
) -> _Moments | str:
    """The sums over all batches, or why there are none."""
    sums: list[Tensor] = []
    samples = 0
    for number, (run, run_dense) in enumerate(pairs):
        given = inputs_of(layer, run, once=stage.once)
        asked = inputs_of(other, run_dense, once=stage.once) if held is None else held[number]
        if [x.shape for x in given] != [z.shape for z in asked]:
            return "the dense network gives it other inputs (as experts get other tokens)"
        for x, z in zip(given, asked, strict=True):
            for ours, theirs in zip(rows_given(layer, x), rows_given(other, z), strict=True):
                samples += ours.shape[1]
                products = ((ours, ours), (theirs, ours), (theirs, theirs))
                if not sums:
                    sums = [a.mT @ b for a, b in products]
                else:
                    for total, (a, b) in zip(sums, products, strict=True):
                        total.baddbmm_(a.mT, b)
    if not sums and isinstance(layer, CONVOLUTIONS) and not convolves_plainly(layer):
        return "its own forward changes the weight, the stride or the padding"
    if not sums:
        return "it met no inputs"
    return _Moments(gram=sums[0], cross=sums[1], dense=sums[2], samples=samples)
