"""Masks by the methods of the published accuracy tables: hard, drawn, with data and without."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from secateurs import data
from secateurs.masks import apply_, select
from secateurs.prune import Recipe, prune_
from secateurs.random import generator
from secateurs.scores import probe, score
from secateurs.study.reproduce.sketching.settings import METHODS, SketchingSettings


def pruned_(
    model: nn.Module,
    settings: SketchingSettings,
    dataset: data.Dataset,
    name: str,
    density: float,
    seed: int,
) -> Mapping[str, Tensor]:
    """Prune in place by a method of the table; returns the masks."""
    method = METHODS[name]
    source = generator(seed, "masks")
    batch = scoring_batch(settings, dataset, method.probe, source)
    # A draw needs probabilities, which signed scores are not.
    if method.signed and method.how == "sample":
        scores = score(
            model,
            method.score,
            batch=batch,
            loss=cross_entropy,
            convention=method.convention,
        )
        masks = drawn_by_magnitude(scores, density, source)
        apply_(model, masks)
        return masks
    recipe = Recipe(
        score=method.score,
        density=density,
        rounds=method.rounds,
        how=method.how,
        convention=method.convention,
    )
    return prune_(
        model,
        recipe,
        example=dataset.train_x[:1],
        batch=batch,
        loss=cross_entropy,
        generator=source,
    ).masks


def drawn_by_magnitude(
    scores: Mapping[str, Tensor], density: float, source: torch.Generator
) -> dict[str, Tensor]:
    """Random masks from signed scores: each layer keeps as many as under top-k, drawn in proportion
    to |score|.

    GraSP's score is w_i (Hg)_i, and what pruning is to preserve is their sum gᵀHw: a product Xᵀw
    with the one-column matrix X = Hg. The probabilities that sketch it with the least variance are
    |X_i||w_i| over their sum (eq. 2), and that is |w_i (Hg)_i|. How many each layer keeps follows
    from the signed scores, by the paper's threshold. Top-k never keeps a large negative score, a
    draw does: it preserves the sum, top-k raises it.

    >>> scores = {"w": torch.tensor([5.0, -4.0, 0.0, 0.0])}
    >>> drawn_by_magnitude(scores, 0.5, torch.Generator())["w"].tolist()
    [True, True, False, False]
    """
    kept = {
        name: mask.double().mean()
        for name, mask in select(scores, density=density).items()
    }
    magnitudes = {name: value.abs() for name, value in scores.items()}
    shares = {name: float(share) for name, share in kept.items()}
    return select(magnitudes, scope=shares, how="sample", generator=source)


def scoring_batch(
    settings: SketchingSettings,
    dataset: data.Dataset,
    kind: str | None,
    source: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """What data-dependent scores see: labelled training images, or a probe with the data's mean
    and deviation.
    """
    if kind is None:
        chosen = torch.randperm(len(dataset.train_y), generator=source)[
            : settings.score_examples
        ]
        return dataset.train_x[chosen], dataset.train_y[chosen]
    return probe(
        kind,
        dataset.train_x[:1],
        examples=settings.score_examples,
        mean=dataset.mean,
        std=dataset.std,
        classes=dataset.classes,
        generator=source,
    )
