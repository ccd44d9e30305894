"""The rows of the demo's table, and what is shown below it. One line each; append your own."""

from copy import deepcopy

import torch.nn.functional as F

from secateurs.demo.bench import Bench, Candidate, Method, Section
from secateurs.prune import Recipe, cut
from secateurs.random import generator


def by_recipe(score: str, *, iterative: bool = False, how: str = "topk") -> Method:
    """The method that prunes a copy of the dense network by a score."""

    def pruned(bench: Bench, sparsity: float) -> Candidate:
        rounds = bench.settings.rounds if iterative else 1
        recipe = Recipe(score=score, sparsity=sparsity, rounds=rounds, how=how)
        model, (x, y) = deepcopy(bench.dense), bench.batch
        draw = generator(bench.settings.seed, f"{score} {how}")
        result = cut(model, recipe, batch=(x, y), loss=F.cross_entropy, example=x[:1], generator=draw)
        return Candidate(model=model, masks=dict(result.masks))

    return pruned


METHODS: dict[str, Method] = {
    "magnitude": by_recipe("magnitude"),
    "magnitude, drawn": by_recipe("magnitude", how="sample"),
    "snip": by_recipe("snip"),
    "synflow": by_recipe("synflow", iterative=True),
    "random": by_recipe("random"),
}

SECTIONS: list[Section] = []
