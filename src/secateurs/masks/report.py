"""How sparse a model is, counted: its weights or its masks, per parameter and in total."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor, nn

from secateurs.masks.apply import check
from secateurs.masks.pieces import pieces
from secateurs.masks.sparsity_report import SparsityReport
from secateurs.masks.tensor_sparsity import TensorSparsity
from secateurs.masks.verdicts import Judge, verdicts_of
from secateurs.parameters import Where, aliases, check_model, masks_in, prunable

if TYPE_CHECKING:
    from secateurs.graph import Example


def sparsity(
    model: nn.Module | Mapping[str, Tensor],
    *,
    where: Where = None,
    masks: Mapping[str, Tensor] | None = None,
    example: "Example | None" = None,
    judge: Judge | None = None,
) -> SparsityReport:
    """Count what is kept: the non-zero entries of the prunable parameters, or the True entries of
    masks.

    Args:
        model: a model, or a mapping of tensors or masks (what is not zero counts as kept).
        where: which parameters of a model; the default rule is that of `prunable`.
        masks: count these instead of the values; only parameters with a mask are listed.
        example: one input of the model; says of every collapsed parameter whether that matters,
            that is whether the output still depends on the input (`secateurs.liveness`), or why it
            cannot be told.
        judge: says it instead, in your own words.

    Tied parameters are counted once. density = kept / total, sparsity = 1 − density, compression =
    total / kept.

    >>> import torch
    >>> report = sparsity({"a": torch.tensor([1.0, 0.0]), "b": torch.zeros(2)})
    >>> report.density, report.collapsed
    (0.25, ('b',))
    """
    if isinstance(model, Mapping):
        return SparsityReport(tensors=_rows(model, {}, {}), source="tensors")
    check_model(model)
    if masks is not None:
        masks = masks_in(masks)
        check(model, masks)
    counted: Mapping[str, Tensor] = prunable(model, where) if masks is None else masks
    collapsed = [
        name
        for name, tensor in counted.items()
        if tensor.numel() and not _kept(tensor)
    ]
    # Whether a lost layer matters needs a pass through the graph, so it is asked for
    # lost layers only.
    verdicts = verdicts_of(
        model, collapsed, example=example, masks=masks, judge=judge
    )
    tensors = _rows(counted, aliases(model), verdicts)
    return SparsityReport(
        tensors=tensors, source="weights" if masks is None else "masks"
    )


def _rows(
    tensors: Mapping[str, Tensor],
    tied: Mapping[str, str],
    verdicts: Mapping[str, str],
) -> tuple[TensorSparsity, ...]:
    others: dict[str, list[str]] = {}
    for alias, first in tied.items():
        others.setdefault(first, []).append(alias)
    return tuple(
        TensorSparsity(
            name=name,
            shape=tuple(tensor.shape),
            total=tensor.numel(),
            kept=_kept(tensor),
            aliases=tuple(others.get(name, ())),
            verdict=verdicts.get(name, ""),
        )
        for name, tensor in tensors.items()
    )


def _kept(tensor: Tensor) -> int:
    # count_nonzero also counts NaN, which is no zero, and takes −0 for one.
    return sum(int(piece.count_nonzero()) for piece in pieces(tensor))
