"""Tables 1 to 4 of the sketching paper as an experiment: every method, density and seed, with IMP
on data and noise.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from secateurs.study.reproduce.experiment import (
    EXPERIMENTS,
    Experiment,
    Job,
    Scale,
)
from secateurs.study.reproduce.sketching.compared import beside
from secateurs.study.reproduce.sketching.settings import (
    PAPER,
    SMALL,
    SketchingSettings,
)
from secateurs.study.reproduce.sketching.tickets import (
    nearest,
    noise,
    tickets,
    trained,
)
from secateurs.study.reproduce.sketching.training import loaded, run

FASHION = replace(
    SMALL,
    data="fashion-mnist",
    model="lenet-5",
    seeds=(0, 1, 2),
    examples=8192,
    length="8ep",
    drops=("4ep", "6ep"),
    rewind_to="10it",
)
"""LeNet-5 on 8,192 images: 512 steps with the proportions of the paper (drops at 1/2 and 3/4,
rewinding at 1.6 %).
"""

SMOKE = replace(
    SMALL,
    seeds=(0,),
    densities=(0.1, 0.05),
    methods=(
        "random",
        "snip-supervised",
        "grasp-supervised+random-mask",
        "synflow",
        "synflow+random-mask",
    ),
    length="4ep",
    drops=("2ep", "3ep"),
    rewind_to="4it",
)

FULL: tuple[SketchingSettings, ...] = (
    PAPER,
    replace(PAPER, data="cifar-100"),
    replace(PAPER, model="resnet-20", options={}, rewind_to="2000it"),
    replace(
        PAPER, data="cifar-100", model="resnet-20", options={}, rewind_to="6000it"
    ),
    replace(PAPER, data="tiny-imagenet", model="resnet-18", options={}),
    replace(PAPER, data="tiny-imagenet", model="wrn-20-32", options={}),
)
"""What was printed: tables 1, 2 and 4 on the first four, table 3 on the last two."""


def jobs(scale: Scale) -> list[Job]:
    """Densities from the sparsest method comparison on; IMP, the longest, at the end."""
    settings = {"smoke": (SMOKE,), "cpu": (FASHION,), "full": FULL}[scale]
    return [job for each in settings for job in (*_pruned(each), *_imp(each))]


def _pruned(settings: SketchingSettings) -> Iterator[Job]:
    for seed in settings.seeds:
        for density in settings.densities:
            for method in settings.methods:
                name = f"{_place(settings)} {method} {density:g} seed {seed} {settings.length}"
                yield Job(
                    name=name, work=partial(_one, settings, method, density, seed)
                )


def _imp(settings: SketchingSettings) -> Iterator[Job]:
    for seed in settings.seeds:
        for method in ("imp", "imp-noise"):
            name = f"{_place(settings)} {method} seed {seed} {settings.length}"
            yield Job(
                name=name,
                work=partial(_tickets, settings, method == "imp-noise", seed),
            )


def _place(settings: SketchingSettings) -> str:
    return f"{settings.data} {settings.model}"


def _one(
    settings: SketchingSettings, method: str, density: float, seed: int
) -> list[dict[str, object]]:
    accuracy = run(settings, loaded(settings), method, density, seed)
    return [_row(settings, method, density, seed, accuracy)]


def _tickets(
    settings: SketchingSettings, on_noise: bool, seed: int
) -> list[dict[str, object]]:
    """One row per density, all from the rounds of one search."""
    dataset = loaded(settings)
    # Only the search sees noise; what it finds is judged on the data.
    source = noise(dataset, seed) if on_noise else dataset
    # One search to the sparsest density: the others are rounds on its way.
    found = tickets(settings, source, sparsity=1 - min(settings.densities), seed=seed)
    rows = []
    for density in settings.densities:
        ticket = nearest(found, density)
        accuracy = (
            # A mask found on noise is judged by a training on the data.
            trained(settings, dataset, ticket.masks, seed)
            if on_noise
            else ticket.accuracy
        )
        rows.append(
            _row(
                settings, "imp-noise" if on_noise else "imp", density, seed, accuracy
            )
        )
    return rows


def _row(
    settings: SketchingSettings,
    method: str,
    density: float,
    seed: int,
    accuracy: float,
) -> dict[str, object]:
    found = {
        "data": settings.data,
        "model": settings.model,
        "density": density,
        "method": method,
        "seed": seed,
    }
    return {**found, "length": settings.length, "accuracy": 100 * accuracy}


EXPERIMENTS.register("sketching-tables")(
    Experiment(
        name="sketching-tables",
        paper="Bar & Giryes 2023",
        what="tables 1-4: drawn masks against top-k at initialisation; IMP on data and on noise",
        jobs=jobs,
        beside=beside,
        settings={
            "smoke": "LeNet-300-100 on digits, 5 methods, one seed, 4 epochs",
            "cpu": "LeNet-5, 8,192 images of Fashion-MNIST, 8 epochs, three seeds",
            "full": "as in print: four networks, CIFAR and Tiny ImageNet, 160 epochs, three seeds",
        },
    )
)
