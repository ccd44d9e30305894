"""The rows of the demo's table, and what is shown below it. One line each; append your own."""

from copy import deepcopy

import torch.nn.functional as F

from secateurs.demo.bench import Bench, Candidate, Method, Outcome, Section, train
from secateurs.demo.shipping import shipped
from secateurs.optim import FactorizedSGD
from secateurs.paths import certify
from secateurs.prune import Recipe, Step, cut
from secateurs.random import generator


def by_recipe(score: str, *, iterative: bool = False, how: str = "topk") -> Method:
    """The method that prunes a copy of the dense network by a score."""

    def pruned(bench: Bench, sparsity: float) -> Candidate:
        rounds = bench.settings.rounds if iterative else 1
        recipe = Recipe(score=score, sparsity=sparsity, rounds=rounds, how=how)
        model, (x, y) = deepcopy(bench.dense), bench.batch
        draw = generator(bench.settings.seed, f"{score} {how}")
        result = cut(
            model,
            recipe,
            batch=(x, y),
            loss=F.cross_entropy,
            example=x[:1],
            generator=draw,
        )
        return Candidate(model=model, masks=dict(result.masks))

    return pruned


def factorized(bench: Bench, sparsity: float) -> Candidate:
    """Deep weight factorization: trained sparse from the start, as long as the dense network,
    steered to the target.
    """
    settings = bench.settings
    model = deepcopy(bench.dense)  # for its shape: the factors are drawn anew
    total = Step.parse(settings.dense).iterations(
        -(-len(bench.data.train_y) // settings.batch)
    )
    optimizer = FactorizedSGD(
        model.named_parameters(),
        lr=settings.factor_rate,
        depth=3,
        strength=settings.strength,
        steps=total,
        target_sparsity=sparsity,
        generator=generator(settings.seed, "factors"),
    )
    train(model, bench.data, optimizer, length=settings.dense, settings=settings)
    return Candidate(
        model=model, masks=dict(optimizer.collapse_(model).masks), tune=False
    )


METHODS: dict[str, Method] = {
    "magnitude": by_recipe("magnitude"),
    "magnitude, drawn": by_recipe("magnitude", how="sample"),
    "snip": by_recipe("snip"),
    "synflow": by_recipe("synflow", iterative=True),
    "path": by_recipe("path", iterative=True),
    "random": by_recipe("random"),
    "factorized": factorized,
}


def certificate(outcome: Outcome) -> str:
    """What pruning may change: on inputs like the test set, and for certain within small balls
    around a few of them.
    """
    data, settings = outcome.bench.data, outcome.bench.settings
    dense, sparse = outcome.bench.dense.eval(), outcome.candidate.model.eval()
    seen = certify(dense, sparse, data=data.test_x[:2000])
    some = data.test_x[: settings.balls]
    proven = certify(
        dense, sparse, around=some, radius=1 / 255, methods="linear", restarts=1
    )
    share = proven.certified_share(some)
    return (
        f"{outcome.best.method} at {outcome.best.sparsity:.1%}, against the dense"
        f" network:\n{seen.statistical}\n{proven}; of {len(some)} test images {share:.0%} provably"
        " keep their class."
    )


SECTIONS: list[Section] = [shipped, certificate]
