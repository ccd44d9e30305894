"""The papers' comparisons as studies: values to look at, to change with `replace`, and to run.

What a paper does besides (its own way to count, to choose an epoch, to draw from signed scores) is
in `secateurs.papers`; a study is the same comparison by this library's one pipeline.
"""

from collections.abc import Mapping
from types import MappingProxyType

from secateurs.study.config import Study
from secateurs.study.methods import L1, Dwf, Gradual, Imp, Prune
from secateurs.study.settings import Training

SEEDS = (0, 1, 2)

WEIGHT_FACTORIZATION = Study(
    name="weight-factorization",
    model="lenet-300-100",
    data="fashion-mnist",
    methods=(
        # The rate of table 4 of Kolb et al. 2025, not this library's usual one.
        *(
            Dwf(depth=depth, strength=(2e-4, 6e-4, 1e-3, 2e-3), train={"lr": 0.15})
            for depth in (2, 3, 4)
        ),
        Prune(),
        Prune(score="synflow", rounds=100, after="init"),
        Prune(score="snip", after="init"),
        Prune(score="random", after="init"),
    ),
    compressions=(10.0, 19.3, 37.3, 72.0, 138.9, 268.3, 517.9, 1000.0),
    seeds=SEEDS,
    train=Training(length="75ep", batch=256, lr=0.15),
)
"""Kolb et al. 2025, tables 1 and 2: factorized at three depths, and what it is compared with."""

PLAIN_L1 = Study(
    name="plain-l1",
    model="lenet-300-100",
    data="fashion-mnist",
    methods=(
        *(
            Prune(after=L1(strength=strength), label=f"plain L1 {strength:g}, cut")
            for strength in (3e-5, 1e-4, 3e-4)
        ),
        *(
            Prune(after=Dwf(depth=depth, strength=1e-3), label=f"dwf D={depth}, cut")
            for depth in (2, 3)
        ),
    ),
    compressions=(10.0, 50.0, 200.0, 800.0),
    train=Training(length="75ep", batch=256, lr=0.15),
    # Cut and not trained on: the figure shows what the penalty alone has left.
    tune=Training(length="0it"),
)
"""Kolb et al. 2025, figure 1: what plain L1 and factorization leave, cut without training on."""

SKETCHING = Study(
    name="sketching",
    model="lenet-5",
    data="fashion-mnist",
    methods=(
        *(
            Prune(score=score, how=how, rounds=rounds, after="init")
            for score, rounds in (("snip", 1), ("synflow", 100))
            for how in ("topk", "sample")
        ),
        Prune(score="random", after="init"),
        # 20.56 % a round meets 10×, 20× and 50× at rounds 10, 13 and 17.
        Imp(per_round=0.2056, rewind="1ep"),
    ),
    compressions=(10.0, 20.0, 50.0),
    seeds=SEEDS,
    train=Training(length="8ep", schedule="step", decay_at=("4ep", "6ep"), weight_decay=1e-4),
)
"""Bar & Giryes 2023, tables 3 and 4 in small: the largest scores, or drawn by them."""

PATHS = Study(
    name="paths",
    model="resnet-20",
    data="fashion-mnist",
    methods=(
        Prune(score="magnitude", scope="uniform", rewind="1ep", label="magnitude"),
        Prune(score="path", scope="uniform", rewind="1ep", label="path, layerwise"),
        Prune(score="path", rewind="1ep", label="path, global"),
        Gradual(),
    ),
    compressions=(1.25, 1.67, 2.5, 5.0),
    seeds=SEEDS,
    train=Training(length="12ep", schedule="step", decay_at=("4ep", "8ep"), weight_decay=1e-4),
)
"""Gonon et al. 2024, table 1 in small: magnitudes against path costs, rewound to epoch 1."""

PRESETS: Mapping[str, Study] = MappingProxyType(
    {study.name: study for study in (WEIGHT_FACTORIZATION, PLAIN_L1, SKETCHING, PATHS)}
)
"""By name."""
