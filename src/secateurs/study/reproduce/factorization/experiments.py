"""The weight-factorization paper as experiments: tables 1 and 2 beside print, ablations as rows."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from secateurs.study.reproduce.experiment import (
    EXPERIMENTS,
    Experiment,
    Job,
    Scale,
)
from secateurs.study.reproduce.factorization import plans
from secateurs.study.reproduce.factorization.experiment import run
from secateurs.study.reproduce.factorization.frontier import (
    frontier_beside,
    runs_beside,
    runs_table,
)
from secateurs.study.reproduce.factorization.settings import (
    FactorizationSettings,
    name_of,
)

Plan = Callable[[Scale], Sequence[FactorizationSettings]]


def jobs_of(plan: Plan) -> Callable[[Scale], list[Job]]:
    """One job for each training."""

    def jobs(scale: Scale) -> list[Job]:
        # Parts of a plan overlap, and equal settings are one job.
        unique = {name_of(settings): settings for settings in plan(scale)}
        return [
            Job(name=name, work=partial(_work, each)) for name, each in unique.items()
        ]

    return jobs


def _work(settings: FactorizationSettings) -> list[Mapping[str, object]]:
    return [run(settings).flat()]


def _register(
    name: str,
    what: str,
    plan: Plan,
    settings: Mapping[Scale, str],
    *,
    tables: bool = False,
) -> None:
    EXPERIMENTS.register(name)(
        Experiment(
            name=name,
            paper="Kolb et al. 2025",
            what=what,
            jobs=jobs_of(plan),
            beside=frontier_beside if tables else runs_beside,
            more=runs_table if tables else lambda rows: "",
            settings={
                "smoke": "LeNet-300-100, 2,000 images of Fashion-MNIST, 8 epochs",
                **settings,
            },
        )
    )


CPU = "LeNet-300-100 on Fashion-MNIST, 75 epochs"
_register(
    "weight-factorization",
    "tables 1, 2, figures 8, 9: accuracy against compression",
    plans.frontier,
    {
        "cpu": f"{CPU}: depths 2 to 4, 14 to 16 strengths, three seeds; the others (hours: --part)",
        "full": "all networks of table 4 at their recipes, 15 strengths, three seeds",
    },
    tables=True,
)
_register(
    "weight-factorization-depth",
    "figure 14: depths to 8",
    plans.depths,
    {"short": f"{plans.DIGITS}, two λ", "cpu": CPU, "full": CPU},
)
_register(
    "weight-factorization-start",
    "figures 4, 12b, 23: initialisations and their scale",
    plans.starts,
    {"cpu": f"{CPU}, and LeNet-5", "full": f"{CPU}, and LeNet-5"},
)
_register(
    "weight-factorization-rate",
    "figures 11, 12a: rates",
    plans.rates,
    {"short": f"{plans.DIGITS} (and others), depth 3", "cpu": CPU, "full": CPU},
)
