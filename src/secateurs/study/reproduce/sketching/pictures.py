"""The pictures of the sketching paper as tables: which weights do SynFlow and IMP keep, and with
which scores?

Reference: Bar & Giryes 2023, figures 1a, 1b and 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from secateurs import data
from secateurs.masks import select
from secateurs.parameters import Params, prunable
from secateurs.random import generator, uniform
from secateurs.scores import score
from secateurs.study.reproduce.sketching.bins import Bin, flat, histogram, some_of
from secateurs.study.reproduce.sketching.masks import pruned_
from secateurs.study.reproduce.sketching.settings import SMALL, SketchingSettings
from secateurs.study.reproduce.sketching.tickets import tickets
from secateurs.study.reproduce.sketching.training import initialised, loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """‖mask ⊙ w‖₂ of the initial weights: the mask of IMP, and uniformly random masks of the
    same density.
    """

    sparsity: float
    imp: float
    random: float
    random_std: float
    whole: float


def magnitudes(
    settings: SketchingSettings = SMALL,
    *,
    density: float = 0.1,
    bins: int = 20,
    seed: int = 0,
    found: Sequence[Params] = (),
) -> list[Bin]:
    """Figure 1a: the magnitudes at initialisation of the weights kept by SynFlow, by IMP and by a
    uniform choice. `found` are masks of IMP from before, the nearest of which is taken.
    """
    dataset = loaded(settings)
    found = found or _imp_masks(settings, dataset, 1 - density, seed)
    # Nearest in proportion, because each round keeps the same share of the one before.
    ticket = min(
        found, key=lambda masks: abs(float(flat(masks).double().mean()) / density - 1)
    )
    start = flat(prunable(initialised(settings, dataset, seed))).abs()
    kept = {
        "all": torch.ones_like(start, dtype=torch.bool),
        "synflow": flat(
            pruned_(
                initialised(settings, dataset, seed),
                settings,
                dataset,
                "synflow",
                density,
                seed,
            )
        ),
        "imp": flat(ticket),
        "uniform": flat(
            pruned_(
                initialised(settings, dataset, seed),
                settings,
                dataset,
                "random",
                density,
                seed,
            )
        ),
    }
    return histogram({name: start[mask] for name, mask in kept.items()}, bins)


def norms(
    settings: SketchingSettings = SMALL,
    *,
    sparsity: float = 0.98,
    per_round: float = 0.2,
    draws: int = 10,
    seed: int = 0,
    found: Sequence[Params] = (),
) -> list[Norm]:
    """Figure 2: ‖mask ⊙ w‖ of IMP against random masks, at the sparsity of each of its rounds."""
    dataset = loaded(settings)
    weights = prunable(initialised(settings, dataset, seed))
    source = generator(seed, "random masks")
    rows = []
    for masks in found or _imp_masks(settings, dataset, sparsity, seed, per_round):
        density = float(flat(masks).double().mean())
        random = torch.tensor(
            [_norm(weights, _uniform(weights, density, source)) for _ in range(draws)]
        )
        rows.append(
            Norm(
                sparsity=1 - density,
                imp=_norm(weights, masks),
                random=float(random.mean()),
                random_std=float(random.std()),
                whole=float(flat(weights).norm()),
            )
        )
    return rows


def kept_scores(
    settings: SketchingSettings = SMALL,
    *,
    density: float = 0.1,
    bins: int = 20,
    sample: int = 1000,
    seed: int = 0,
) -> list[Bin]:
    """Figure 1b: log₁₀ of the SynFlow scores of all weights, of those kept by the threshold and by
    a random mask.

    Scores are those of the dense network, cut in one round; `sample` weights of each group are
    drawn, as published.
    """
    dataset = loaded(settings)
    scores = score(
        initialised(settings, dataset, seed), "synflow", example=dataset.train_x[:1]
    )
    source = generator(seed, "masks")
    # A dead weight scores 0, whose logarithm no histogram can show.
    logs = flat(scores).clamp_min(torch.finfo(torch.float32).tiny).log10()
    kept = {
        "all": torch.ones_like(logs, dtype=torch.bool),
        "threshold": flat(select(scores, density=density)),
        "random mask": flat(
            select(scores, density=density, how="sample", generator=source)
        ),
    }
    return histogram(
        {name: some_of(logs[mask], sample, source) for name, mask in kept.items()},
        bins,
    )


def _imp_masks(
    settings: SketchingSettings,
    dataset: data.Dataset,
    sparsity: float,
    seed: int,
    per_round: float = 0.2,
) -> list[Params]:
    """The masks of each round of IMP that rewinds as the settings say."""
    found = tickets(
        settings, dataset, sparsity=sparsity, seed=seed, per_round=per_round
    )
    return [ticket.masks for ticket in found]


def _norm(weights: Params, masks: Params) -> float:
    return float(
        flat(
            {name: weights[name].detach() * mask for name, mask in masks.items()}
        ).norm()
    )


def _uniform(weights: Params, density: float, source: torch.Generator) -> Params:
    """A uniformly random mask over all weights together."""
    scores = {
        name: uniform(weight, generator=source) for name, weight in weights.items()
    }
    return select(scores, density=density, floor=0)
