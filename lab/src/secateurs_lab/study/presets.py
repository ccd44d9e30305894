"""The papers' comparisons as studies: values to read, to change with `replace`, and to run.

The papers' special rules (for counting, for choosing an epoch, for drawing from signed scores) are
in `experiments`; a study is the same comparison in this library's own pipeline.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from secateurs_lab.study.config import Study
from secateurs_lab.study.methods import (
    L1,
    ACDCMethod,
    Choice,
    Dense,
    Dwf,
    Gradual,
    HAMMethod,
    Imp,
    Method,
    PowerPropagationMethod,
    Prune,
    RigLMethod,
    SETMethod,
)
from secateurs_lab.study.settings import Data, Net, Training, Tuning

SEEDS = (0, 1, 2)

WEIGHT_FACTORIZATION = Study(
    name="weight-factorization",
    model="lenet-300-100",
    data="fashion-mnist",
    methods=(
        # The rate of table 4 of Kolb et al. 2025, not this library's default.
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
    # Cut without further training: the figure shows what the penalty alone has left.
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
        # 20.56 % per round gives 10×, 20× and 50× at rounds 10, 13 and 17.
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

# One table of sparse training: equal steps, and eight tuning runs for every method.

NINETY_UP = (10.0, 20.0, 50.0, 100.0, 200.0)
"""90, 95, 98, 99 and 99.5 % of zeros."""


def sparse_training(
    name: str,
    *,
    epochs: tuple[int, int],
    tuning: Tuning | None = None,
    chosen: Mapping[str, int] | None = None,
    **study: Any,
) -> Study:
    """A study of sparse training in which every method has equal steps and eight tuning runs.

    Args:
        name: The name of the study.
        epochs: The epochs before the cut, and after it. Methods without a cut in the middle train
            for the sum.
        tuning: How the candidates are compared; by default at 98 %, on the last 6,000 training
            images, seed 1000.
        chosen: The indices of the candidates that another study's tuning chose, instead of a tuning
            of its own.
        study: Other fields: model, data, seeds, compressions, batch sizes in `train`.

    The candidates are four rates, each twice the one before, with two values each of the setting
    that the method's own paper tunes. Factorized networks get four times the rates of the others: a
    step moves a product of small factors by less than it would move the weight. Every training from
    the start warms up for an epoch, so that no method is judged by first steps that were too long.
    """
    before, after = ({"length": f"{count}ep"} for count in epochs)
    after["warmup"] = "0it"
    rates = (0.05, 0.1, 0.2, 0.4)

    def cut(made: Callable[[float, float], Method], own: tuple[float, ...]) -> list[Method]:
        """Train, cut by magnitude, and continue training, both at the same rate."""
        return [
            Prune(after=made(lr, value), train={**after, "lr": lr}) for lr in rates for value in own
        ]

    def both(name: str, lr: float) -> dict[str, Any]:
        return {"label": f"{name}, before the cut", "train": {**before, "lr": lr}}

    candidates: dict[str, list[Method]] = {
        "RigL": [RigLMethod(fraction=f, train={"lr": r}) for r in rates for f in (0.3, 0.5)],
        "SET": [SETMethod(fraction=f, train={"lr": r}) for r in rates for f in (0.1, 0.3)],
        "AC/DC": [ACDCMethod(scope=s, train={"lr": r}) for r in rates for s in ("global", "erk")],
        "HAM, cut": cut(lambda lr, beta: HAMMethod(beta=beta, **both("HAM", lr)), (1e-3, 1e-2)),
        "PowerPropagation, cut": cut(
            lambda lr, alpha: PowerPropagationMethod(alpha=alpha, **both("PowerPropagation", lr)),
            (2.0, 3.0),
        ),
        "gradual magnitude": [
            Gradual(scope=s, train={"lr": r}) for r in rates for s in ("global", "erk")
        ],
        "magnitude, one shot": [
            Prune(after=Dense(**both("dense", r)), scope=s, train={**after, "lr": r})
            for r in rates
            for s in ("global", "erk")
        ],
        "SNIP at the start": [
            Prune(score="snip", after="init", examples=count, train={"lr": r})
            for r in rates
            for count in (256, 2560)
        ],
        "SynFlow at the start": [
            Prune(score="synflow", rounds=count, after="init", train={"lr": r})
            for r in rates
            for count in (10, 100)
        ],
        "plain L1, cut": cut(
            lambda lr, value: L1(strength=value, **both("plain L1", lr)), (3e-5, 1e-4)
        ),
        **{
            f"dwf D={depth}, steered": [
                Dwf(depth=depth, target=True, strength=s, train={"lr": 4 * r})
                for r in rates
                for s in (1e-4, 5e-4)
            ]
            for depth in (2, 3)
        },
    }
    methods: list[Method] = [
        Choice(label=label, candidates=tuple(found))
        if chosen is None
        else replace(found[chosen[label]], label=label)
        for label, found in candidates.items()
    ]
    if chosen is None:
        tuning = tuning or Tuning(compression=50, held_out=6000)
    shared: dict[str, Any] = {"data": "fashion-mnist", "compressions": NINETY_UP, "seeds": SEEDS}
    return Study(
        name=name,
        methods=tuple(methods),
        train=Training(length=f"{sum(epochs)}ep", batch=128, warmup="1ep", evaluate_every=0),
        tuning=tuning,
        # Of a thousand runs only the figures are used, not the masks.
        save=False,
        **(shared | study),
    )


NARROW = Net(name="resnet-20", options={"width": 8})

SPARSE_TRAINING = sparse_training(
    "sparse-training", model=("lenet-300-100", "lenet-5", NARROW), epochs=(18, 12)
)
"""The whole plan, for a cluster: three networks, five sparsities, three seeds, 30 epochs."""

SPARSE_LENET_300_100 = sparse_training("sparse-lenet-300-100", model="lenet-300-100", epochs=(6, 3))
"""What two shared cores do of it in an hour: LeNet-300-100 whole, with short trainings."""

CHOSEN = MappingProxyType(
    {
        "RigL": 3,
        "SET": 7,
        "AC/DC": 0,
        "HAM, cut": 3,
        "PowerPropagation, cut": 3,
        "gradual magnitude": 5,
        "magnitude, one shot": 2,
        "SNIP at the start": 5,
        "SynFlow at the start": 3,
        "plain L1, cut": 3,
        "dwf D=2, steered": 5,
        "dwf D=3, steered": 4,
    }
)
"""What `SPARSE_LENET_300_100` chose, by the places of its candidates."""

_lenet_5 = partial(
    sparse_training,
    model="lenet-5",
    data=Data(name="fashion-mnist", train=10_000),
    compressions=(10.0, 50.0, 100.0),
    seeds=(0,),
    epochs=(4, 2),
)
SPARSE_LENET_5 = _lenet_5("sparse-lenet-5", chosen=CHOSEN)
"""LeNet-5 on 10,000 images, three sparsities, one seed, with the settings of LeNet-300-100."""

SPARSE_LENET_5_TUNED = _lenet_5(
    "sparse-lenet-5-tuned", tuning=Tuning(compression=50, held_out=2000)
)
"""The same with settings of its own: eight tuning runs for each method."""

SPARSE_RESNET = sparse_training(
    "sparse-resnet",
    model=Net(name="resnet-20", options={"width": 4}),
    data=Data(name="fashion-mnist", train=10_000, test=2_000),
    compressions=(10.0, 20.0),
    seeds=SEEDS,
    epochs=(4, 2),
    tuning=Tuning(compression=20, held_out=2000),
)
"""A ResNet-20 of width 4 on 10,000 images, two sparsities, three seeds, settings of its own."""

ZOO = Study(
    name="zoo",
    model="lenet-300-100",
    data="fashion-mnist",
    methods=(
        Prune(
            # Ends at some 300×: what is asked for is cut from there.
            after=Dwf(
                depth=3,
                strength=7e-4,
                strength_schedule="ramp-hold-relax",
                train={"lr": 0.5},
            ),
            label="dwf D=3, cut",
        ),
    ),
    compressions=(320.0, 500.0, 750.0),
    seeds=SEEDS,
    train=Training(length="75ep", batch=256, evaluate_every=0),
    tune=Training(length="25ep", batch=256, lr=2e-3, optimizer="adam", evaluate_every=0),
)
"""The sparsest networks of the zoo: λ rises and falls, and what was cut is trained on."""

PRESETS: Mapping[str, Study] = MappingProxyType(
    {
        study.name: study
        for study in (
            WEIGHT_FACTORIZATION,
            PLAIN_L1,
            SKETCHING,
            PATHS,
            SPARSE_TRAINING,
            SPARSE_LENET_300_100,
            SPARSE_LENET_5,
            SPARSE_LENET_5_TUNED,
            SPARSE_RESNET,
            ZOO,
        )
    }
)
"""By name."""
