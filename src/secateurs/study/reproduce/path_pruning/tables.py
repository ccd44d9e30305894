"""Tables 1 and 2 and figures 2 and 3 of the paths paper as an experiment."""

from collections.abc import Sequence
from functools import partial

from secateurs.study.reproduce.experiment import (
    EXPERIMENTS,
    Beside,
    Experiment,
    Job,
    Row,
    Scale,
)
from secateurs.study.reproduce.path_pruning.lines import (
    dense,
    lines_of,
    name_of,
    overlaps,
    pruned,
)
from secateurs.study.reproduce.path_pruning.settings import (
    METHODS,
    RESNET_18,
    PathSettings,
)
from secateurs.study.reproduce.printed import printed_rows

SMOKE = PathSettings(
    data="digits",
    examples=None,
    stages=((4, 1), (8, 1)),
    epochs=3,
    drops=(2,),
    percents=(60,),
    batch=64,
)
FASHION = PathSettings()
LARGE = PathSettings(
    stages=RESNET_18, examples=2048, tested=1000, epochs=2, drops=(1,), batch=64
)
"""The paper's network on what an hour carries: two epochs of 2,048 images, for table 1 and figure 3
only.
"""
WHOLE = PathSettings(
    stages=RESNET_18, examples=None, tested=None, epochs=15, drops=(5, 10, 13)
)
"""The paper's network on all of Fashion-MNIST: an hour of a GPU."""
FULL = PathSettings(
    data="tiny-imagenet",
    stages=RESNET_18,
    examples=None,
    tested=None,
    validation=0.01,
    epochs=90,
    drops=(30, 60, 80),
    rewind=5,
    batch=1024,
    augment=True,
)
"""The published recipe on the largest images among our data sets (print: ImageNet at 224×224)."""


def jobs(scale: Scale) -> list[Job]:
    """Every protocol of the scale; at "cpu" the masks of a ResNet-18 too."""
    chosen = {"smoke": (SMOKE,), "cpu": (FASHION,), "full": (WHOLE, FULL)}[scale]
    found = [job for settings in chosen for job in _protocol(settings)]
    return found + ([_masks(LARGE)] if scale == "cpu" else [])


def _protocol(chosen: PathSettings) -> list[Job]:
    """The masks first, then every retraining."""
    found = [_masks(chosen)]
    found += [
        Job(name=name_of(chosen, "dense"), work=partial(lines_of, chosen, dense))
    ]
    # The most pruned networks first: if time runs out, they have told the most.
    for percent in sorted(chosen.percents, reverse=True):
        for method in METHODS:
            work = partial(lines_of, chosen, pruned, method=method, percent=percent)
            found.append(Job(name=name_of(chosen, f"{method} {percent}"), work=work))
    return found


def _masks(chosen: PathSettings) -> Job:
    return Job(
        name=name_of(chosen, "masks"), work=partial(lines_of, chosen, overlaps)
    )


def beside(rows: Sequence[Row]) -> list[Beside]:
    """Overlaps and accuracies; print's are of ResNet-18 on ImageNet."""
    found = []
    for row in rows:
        if row["kind"] in ("overlap", "accuracy", "rank correlation", "same mask"):
            how = ", rescaled" if row["rescaled"] == "True" else ""
            place = (
                f"{row['method']} {row['percent']} %"
                if row["method"]
                else "magnitude against cost"
            )
            what = f"{row['network']}: {row['kind']}, {place}{how}"
            found.append(
                Beside(what=what, ours=(float(row["y"]),), printed=_printed(row))
            )
    return found


def _printed(row: Row) -> float | None:
    if row["kind"] == "overlap" and row["rescaled"] == "False":
        pair = f"magnitude-vs-{row['method']}"
        table, key, value = 1, ("pair", pair), "mask_overlap_percent"
    elif row["kind"] == "accuracy":
        name = "dense" if row["method"] == "none" else row["method"]
        table, key, value = 2, ("method", name), "imagenet_top1_percent"
    else:
        return None
    # Print gives some figures once for both cases.
    answers = ("yes", "either") if row["rescaled"] == "True" else ("no", "either")
    for line in printed_rows(f"path_pruning_table{table}.csv"):
        here = line[key[0]] == key[1] and line["pruning_percent"] == row["percent"]
        if here and line.get("random_rescale", "either") in answers:
            return float(line[value])
    return None


EXPERIMENTS.register("path-pruning")(
    Experiment(
        name="path-pruning",
        paper="Gonon et al. 2024",
        what="tables 1, 2, figures 2, 3: magnitude against path costs, with random rescaling",
        jobs=jobs,
        beside=beside,
        settings={
            "smoke": "a residual network of two blocks on digits, 3 epochs, 60 %",
            "cpu": "ResNet-8 (width 8), 4,096 images of Fashion-MNIST, 12 epochs; ResNet-18: masks",
            "full": "ResNet-18 on all of Fashion-MNIST, 15 epochs; then on Tiny ImageNet, 90"
            " epochs, batch 1024 (print: ImageNet)",
        },
    )
)
